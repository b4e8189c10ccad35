//! What programs see, and what a sync makes of it.

use super::*;

fn write(at: usize, text: &str) -> DataChange {
    DataChange::Write { at, bytes: text.as_bytes().into() }
}

#[test]
fn programs_see_every_change_at_once_and_syncs_change_nothing_that_is_seen() {
    let mut disk = Disk::default();
    disk.mkdir(Path::new("/d"), 0o700, 0.0).unwrap();
    let file = disk.create(Path::new("/d/a"), 0o600, 0.0).unwrap();
    disk.change(file, write(2, "xy"), 1.0);
    assert_eq!(disk.file(Path::new("/d/a")).unwrap(), b"\0\0xy");
    disk.change(file, DataChange::SetLen(3), 1.0);
    let before = disk.digest();
    disk.sync(file, true);
    disk.sync(disk.lookup(Path::new("/d")).unwrap(), true);
    assert_eq!(disk.digest(), before);
    disk.rename(Path::new("/d/a"), Path::new("/d/b")).unwrap();
    assert!(disk.file(Path::new("/d/a")).is_none());
    assert_eq!(disk.file(Path::new("/d/b")).unwrap(), b"\0\0x");
    assert_eq!(disk.rmdir(Path::new("/d")).unwrap_err().raw_os_error(), Some(ENOTEMPTY));
    disk.unlink(Path::new("/d/b")).unwrap();
    assert!(disk.is_unlinked(file));
    disk.rmdir(Path::new("/d")).unwrap();
    assert_eq!(disk.tree().len(), 0);
}

#[test]
fn a_failed_sync_is_final_for_what_it_covered() {
    let mut disk = Disk::default();
    let file = disk.create(Path::new("/a"), 0o600, 0.0).unwrap();
    disk.change(file, write(0, "lost"), 0.0);
    disk.sync(file, false);
    disk.change(file, write(4, "kept"), 0.0);
    disk.sync(file, true);
    let Body::File(data) = &disk.inode(file).body else { panic!("a file") };
    assert_eq!(
        data.log.iter().map(|(_, fate)| *fate).collect::<Vec<_>>(),
        [Fate::Stuck, Fate::Durable]
    );
    assert_eq!((data.base.len(), data.at_risk()), (0, 1));
}

#[test]
fn a_sync_covers_what_was_written_before_it_began() {
    let mut disk = Disk::default();
    let file = disk.create(Path::new("/a"), 0o600, 0.0).unwrap();
    disk.change(file, write(0, "one"), 0.0);
    let slow = disk.mark(file);
    disk.change(file, write(3, "two"), 0.0);
    disk.sync_from(file, slow, true);
    let Body::File(data) = &disk.inode(file).body else { panic!("a file") };
    assert_eq!((data.base.as_slice(), data.at_risk()), (&b"one"[..], 1));
    // A sync that somebody else began earlier and that ends later takes nothing back.
    disk.sync(file, true);
    disk.change(file, write(6, "three"), 0.0);
    disk.sync_from(file, slow, true);
    let Body::File(data) = &disk.inode(file).body else { panic!("a file") };
    assert_eq!((data.base.as_slice(), data.at_risk()), (&b"onetwo"[..], 1));
}
