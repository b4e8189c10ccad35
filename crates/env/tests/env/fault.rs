//! The wrapper that breaks a disk on purpose has to break exactly what it was told to.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{Fs as _, LockMode, OpenWrite, RealFs};

fn fails(result: io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn faults_hit_the_calls_they_name_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let fs = FaultFs::new(Arc::new(RealFs));
    let stat = || fails(fs.stat(dir.path()));
    let sync = || fails(fs.sync_dir(dir.path()));
    assert_eq!((stat(), sync()), (None, None));

    fs.arm(When::Nth(2), Effect::Errno(5));
    assert_eq!((stat(), sync(), stat(), fs.fired()), (None, Some(5), None, 1));
    fs.disarm();
    fs.arm(When::NthOf(Call::SyncDir, 2), Effect::Errno(28));
    assert_eq!((stat(), sync(), stat(), sync(), sync()), (None, None, None, Some(28), None));
    fs.disarm();
    fs.arm(When::From(2), Effect::Errno(5));
    assert_eq!((stat(), sync(), stat(), fs.fired()), (None, Some(5), Some(5), 2));
    fs.disarm();
    fs.arm(When::FromOf(Call::Stat, 2), Effect::Errno(5));
    assert_eq!((stat(), sync(), stat(), sync(), stat()), (None, None, Some(5), None, Some(5)));
    fs.disarm();
    assert_eq!((stat(), fs.fired()), (None, 0));

    // Two at once, each counted from the same moment.
    fs.arm(When::Nth(1), Effect::Errno(5));
    fs.arm(When::Nth(3), Effect::Errno(28));
    assert_eq!((stat(), stat(), stat(), stat()), (Some(5), None, Some(28), None));
}

#[test]
fn a_failed_call_does_nothing_and_a_short_write_writes_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let fs = FaultFs::new(Arc::new(RealFs));
    fs.arm(When::Nth(1), Effect::Errno(28));
    assert_eq!(fails(fs.open_write(&path, OpenWrite::CreateNew, 0o600)), Some(28));
    assert!(!path.exists());
    fs.disarm();
    let mut file = fs.open_write(&path, OpenWrite::CreateNew, 0o600).unwrap();
    fs.arm(When::NthOf(Call::Write, 1), Effect::Errno(5));
    fs.arm(When::NthOf(Call::Write, 2), Effect::ShortWrite(3));
    assert_eq!(fails(file.write(b"lost")), Some(5));
    assert_eq!(file.write(b"abcdef").unwrap(), 3);
    assert_eq!(file.write_at(b"XY", 1).unwrap(), 2);
    assert_eq!(std::fs::read(&path).unwrap(), b"aXY");
    fs.disarm();
    fs.arm(When::From(1), Effect::Errno(5));
    assert_eq!(fails(fs.rename(&path, &dir.path().join("x"))), Some(5));
    assert_eq!(fails(fs.unlink(&path)), Some(5));
    assert_eq!((fails(file.sync()), fails(file.sync_data())), (Some(5), Some(5)));
    assert_eq!((fails(file.set_len(0)), fails(file.stat())), (Some(5), Some(5)));
    assert_eq!(fails(fs.read(&path, 10)), Some(5));
    assert_eq!(fails(fs.list(dir.path())), Some(5));
    assert_eq!(fails(fs.mkdir(&dir.path().join("d"), 0o700)), Some(5));
    assert_eq!(fails(fs.rmdir(dir.path())), Some(5));
    assert_eq!(fails(fs.open_lock(&path, true, 0o600)), Some(5));
    assert_eq!(fails(fs.lock_in_child(&path, Duration::ZERO)), Some(5));
    assert_eq!(std::fs::read(&path).unwrap(), b"aXY");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_call_is_counted_under_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let fs = FaultFs::new(Arc::new(RealFs));
    let lock = fs.open_lock(&path, true, 0o600).unwrap();
    assert!(lock.try_lock(LockMode::Exclusive).unwrap());
    assert!(!lock.is_unlinked().unwrap());
    lock.unlock().unwrap();
    fs.lock_in_child(&path, Duration::from_secs(5)).unwrap();
    let counted: Vec<_> = fs.counts().into_iter().collect();
    let expected = [
        (Call::Stat, 1),
        (Call::OpenLock, 1),
        (Call::TryLock, 1),
        (Call::Unlock, 1),
        (Call::LockInChild, 1),
    ];
    assert_eq!(counted, expected);
    assert_eq!(fs.total(), 5);
    fs.arm(When::From(1), Effect::Errno(37));
    assert_eq!(fails(lock.try_lock(LockMode::Shared)), Some(37));
    assert_eq!(fails(lock.unlock()), Some(37));
}
