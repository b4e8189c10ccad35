//! What a journal asks of the simulated host: files that many write, locks, shared words.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ringfence_env::{LockMode, OpenWrite, World};

use crate::crash::CrashModel;
use crate::disk::{Disk, EIO};
use crate::faults::Chaos;
use crate::machine::{Ending, Machine};
use crate::rng::Rng;

const LOG: &str = "/log";

/// A preallocated file on a settled disk.
fn preallocated() -> Disk {
    let machine = Machine::solo(1, Disk::default(), 1);
    let world = machine.world(0);
    let file = world.fs.open_write(Path::new(LOG), OpenWrite::CreateNew, 0o600).unwrap();
    file.set_len(4096).unwrap();
    file.sync_data().unwrap();
    world.fs.sync_dir(Path::new("/")).unwrap();
    assert_eq!(machine.disk().settled().digest(), machine.disk().digest());
    machine.disk()
}

type Body = Box<dyn Fn(World, u32) + Send>;

#[test]
fn two_processes_append_under_one_lock_and_one_sync_covers_both() {
    let machine = Machine::new(3, preallocated(), 1, 2, Chaos::turns());
    let append = |byte: u8| -> Body {
        Box::new(move |world, _| {
            let file = world.fs.open_random(Path::new(LOG), true).unwrap();
            let lock = world.fs.open_lock(Path::new("/lock"), true, 0o600).unwrap();
            for _ in 0..4 {
                while !lock.try_lock(LockMode::Exclusive).unwrap() {
                    world.clock.sleep(Duration::from_millis(1));
                }
                let mut bytes = [0; 4096];
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4096);
                let end = bytes.iter().position(|byte| *byte == 0).unwrap();
                assert_eq!(file.write_at(&[byte], end as u64).unwrap(), 1);
                lock.unlock().unwrap();
            }
            file.sync_data().unwrap();
        })
    };
    let endings = machine.run(vec![append(b'a'), append(b'b')]);
    assert_eq!(endings, [Ending::Returned, Ending::Returned]);
    let states = machine.disk().crash_states(&CrashModel::default(), &mut Rng::new(1));
    for disk in &states.disks {
        let bytes = disk.file(Path::new(LOG)).unwrap();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap();
        let count = |wanted| bytes[..end].iter().map(|byte| usize::from(*byte == wanted)).sum();
        assert_eq!((count(b'a'), count(b'b'), end, bytes.len()), (4_usize, 4_usize, 8, 4096));
    }
}

#[test]
fn a_sync_under_way_does_not_cover_what_is_written_meanwhile() {
    /// 1 while the sync is under way, 2 after it.
    static SYNC: AtomicU8 = AtomicU8::new(0);
    let mut meanwhile = 0;
    for seed in 1..60 {
        let machine = Machine::new(seed, preallocated(), 1, 2, Chaos::turns());
        SYNC.store(0, Ordering::SeqCst);
        let found = Arc::new(AtomicU8::new(9));
        let note = Arc::clone(&found);
        let writer: Body = Box::new(move |world, _| {
            let file = world.fs.open_random(Path::new(LOG), true).unwrap();
            file.write_at(b"x", 0).unwrap();
            // Nobody else ran since the write.
            note.store(SYNC.load(Ordering::SeqCst), Ordering::SeqCst);
        });
        let syncer: Body = Box::new(|world, _| {
            let file = world.fs.open_random(Path::new(LOG), true).unwrap();
            file.stat().unwrap();
            SYNC.store(1, Ordering::SeqCst);
            file.sync_data().unwrap();
            SYNC.store(2, Ordering::SeqCst);
        });
        machine.run(vec![writer, syncer]);
        let states = machine.disk().crash_states(&CrashModel::default(), &mut Rng::new(1));
        let lost = states.disks.iter().any(|disk| disk.file(Path::new(LOG)).unwrap()[0] == 0);
        match found.load(Ordering::SeqCst) {
            0 => assert!(!lost, "written before: seed {seed}"),
            2 => assert!(lost, "written after: seed {seed}"),
            // It may have come between the call and its beginning.
            _ => meanwhile += usize::from(lost),
        }
    }
    assert!(meanwhile > 0);
}

#[test]
fn a_failed_sync_is_told_to_everybody_who_had_the_file_open_and_what_it_covered_may_be_lost() {
    let machine = Machine::solo(1, preallocated(), 1);
    let world = machine.world(0);
    let open = || world.fs.open_random(Path::new(LOG), true).unwrap();
    let (one, two) = (open(), open());
    one.write_at(b"doomed", 0).unwrap();
    machine.set_chaos(Chaos::fail_one(1, true, EIO));
    assert_eq!(one.sync_data().unwrap_err().raw_os_error(), Some(EIO));
    machine.set_chaos(Chaos::none());
    let later = open();
    assert_eq!(two.sync_data().unwrap_err().raw_os_error(), Some(EIO));
    // The kernel has forgotten it: whoever opens now, or asks again, hears nothing of it.
    two.sync_data().unwrap();
    later.sync_data().unwrap();
    let mut seen = [0; 6];
    later.read_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"doomed");
    let states = machine.disk().crash_states(&CrashModel::default(), &mut Rng::new(1));
    assert!(states.disks.iter().any(|disk| disk.file(Path::new(LOG)).unwrap()[0] == 0));
}

#[test]
fn a_file_opened_for_reading_takes_no_writes_and_reads_end_at_its_end() {
    let machine = Machine::solo(1, preallocated(), 1);
    let world = machine.world(0);
    let file = world.fs.open_random(Path::new(LOG), false).unwrap();
    assert!(file.write_at(b"x", 0).is_err());
    let mut bytes = [7; 100];
    assert_eq!(file.read_at(&mut bytes, 4090).unwrap(), 6);
    assert_eq!(file.read_at(&mut bytes, 5000).unwrap(), 0);
    assert_eq!(file.stat().unwrap().len, 4096);
    assert!(world.fs.open_random(Path::new("/"), false).is_err());
    let one = world.fs.identity(Path::new(LOG)).unwrap().unwrap();
    world.fs.rename(Path::new(LOG), Path::new("/other")).unwrap();
    let two = world.fs.identity(Path::new("/other")).unwrap().unwrap();
    assert_eq!(one.inode, two.inode);
}

#[test]
fn shared_words_are_seen_by_all_wake_sleepers_and_are_gone_with_the_power() {
    let machine = Machine::new(5, preallocated(), 1, 2, Chaos::turns());
    let woken = Arc::new(std::sync::Mutex::new(Duration::MAX));
    let told = Arc::clone(&woken);
    let sleeper: Body = Box::new(move |world, _| {
        let words = world.fs.map_shared(Path::new(LOG), 4).unwrap();
        let began = world.clock.monotonic();
        while words.load(1) == 0 {
            words.wait(1, 0, Duration::from_hours(1));
        }
        *told.lock().unwrap() = world.clock.monotonic().saturating_sub(began);
    });
    let waker: Body = Box::new(|world, _| {
        let words = world.fs.map_shared(Path::new(LOG), 4).unwrap();
        world.clock.sleep(Duration::from_millis(5));
        assert_eq!((words.add(1, 7), words.load(1), words.load(99)), (0, 7, 0));
        words.wake(1, 1);
    });
    assert_eq!(machine.run(vec![sleeper, waker]), [Ending::Returned, Ending::Returned]);
    let waited = *woken.lock().unwrap();
    assert!(waited < Duration::from_secs(1), "woken, not timed out: {waited:?}");
    let disk = machine.disk();
    assert!(disk.crash_states(&CrashModel::default(), &mut Rng::new(1)).disks[0].words.is_empty());
    // What the file holds after a power cut is what it held, what was in memory, or anything.
    let mut rng = Rng::new(2);
    let after: std::collections::BTreeSet<Vec<u8>> = (0..40)
        .map(|_| disk.crash(&mut rng).file(Path::new(LOG)).unwrap()[8..16].to_vec())
        .collect();
    assert!(after.contains(&vec![0; 8]) && after.contains(7_u64.to_le_bytes().as_slice()));
    assert!(after.len() > 3, "{after:?}");
}

#[test]
fn a_process_is_told_once_of_its_own_failed_sync_and_the_next_one_covers_nothing_of_it() {
    let machine = Machine::solo(1, preallocated(), 1);
    let file = machine.world(0).fs.open_random(Path::new(LOG), true).unwrap();
    file.write_at(b"lost", 0).unwrap();
    machine.set_chaos(Chaos::fail_one(1, true, EIO));
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(EIO));
    file.sync_data().unwrap();
    assert_eq!(machine.disk().barest().file(Path::new(LOG)).unwrap()[..4], [0; 4]);
}

#[test]
fn a_write_may_be_cut_short_and_its_rest_fail() {
    let machine = Machine::solo(1, preallocated(), 1);
    let file = machine.world(0).fs.open_random(Path::new(LOG), true).unwrap();
    machine.set_chaos(Chaos::fail_rest(1));
    assert_eq!(file.write_at(b"abc", 0).unwrap(), 2);
    assert_eq!(file.write_at(b"c", 2).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(machine.disk().file(Path::new(LOG)).unwrap()[..3], *b"ab\0");
}
