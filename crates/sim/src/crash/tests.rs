//! What a power cut may leave, case by case.

use super::part::SECTOR;
use super::*;
use crate::disk::DataChange;

fn write(disk: &mut Disk, path: &str, text: &str) -> Ino {
    let ino = disk.create(Path::new(path), 0o600, 0.0).unwrap();
    disk.change(ino, DataChange::Write { at: 0, bytes: text.as_bytes().into() }, 0.0);
    ino
}

fn contents(disk: &Disk, model: &CrashModel, path: &str) -> Vec<Option<Vec<u8>>> {
    let states = disk.crash_states(model, &mut Rng::new(1));
    assert!(states.exhaustive);
    let mut found: Vec<_> = states.disks.iter().map(|disk| disk.file(Path::new(path))).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn an_unsynced_file_may_be_missing_empty_cut_zeroed_or_whole() {
    let mut disk = Disk::default();
    write(&mut disk, "/a", "abcd");
    let all = contents(&disk, &CrashModel::default(), "/a");
    let expected: [Option<&[u8]>; 5] =
        [None, Some(b""), Some(b"\0\0\0\0"), Some(b"ab"), Some(b"abcd")];
    assert_eq!(all, expected.map(|bytes| bytes.map(<[u8]>::to_vec)));
}

#[test]
fn a_synced_file_under_an_unsynced_name_is_whole_or_missing() {
    let mut disk = Disk::default();
    let ino = write(&mut disk, "/a.tmp", "new");
    disk.sync(ino, true);
    disk.rename(Path::new("/a.tmp"), Path::new("/a")).unwrap();
    assert_eq!(contents(&disk, &CrashModel::default(), "/a"), [None, Some(b"new".to_vec())]);
    disk.sync(ROOT, true);
    assert_eq!(contents(&disk, &CrashModel::default(), "/a"), [Some(b"new".to_vec())]);
}

#[test]
fn a_replacement_whose_bytes_were_not_synced_may_be_zeros_under_the_durable_name() {
    let mut disk = Disk::default();
    let old = write(&mut disk, "/a", "old!");
    disk.sync(old, true);
    disk.sync(ROOT, true);
    write(&mut disk, "/t.tmp", "new!");
    disk.rename(Path::new("/t.tmp"), Path::new("/a")).unwrap();
    disk.sync(ROOT, true);
    let all = contents(&disk, &CrashModel::default(), "/a");
    assert!(all.contains(&Some(vec![0; 4])) && all.contains(&Some(Vec::new())), "{all:?}");
    assert!(!all.contains(&Some(b"old!".to_vec())), "the name is durable");
}

#[test]
fn names_survive_in_any_subset_or_as_a_prefix() {
    let mut disk = Disk::default();
    for name in ["/a", "/b", "/c"] {
        disk.create(Path::new(name), 0o600, 0.0).unwrap();
    }
    let count = |order| {
        let model = CrashModel { order, ..CrashModel::default() };
        disk.crash_states(&model, &mut Rng::new(1)).disks.len()
    };
    assert_eq!((count(Order::Any), count(Order::Prefix)), (8, 4));
}

#[test]
fn a_directory_that_was_not_made_durable_takes_what_was_synced_in_it_with_it() {
    let mut disk = Disk::default();
    let dir = disk.mkdir(Path::new("/d"), 0o700, 0.0).unwrap();
    let ino = write(&mut disk, "/d/a", "x");
    disk.sync(ino, true);
    disk.sync(dir, true);
    assert_eq!(contents(&disk, &CrashModel::default(), "/d/a"), [None, Some(b"x".to_vec())]);
}

#[test]
fn what_a_failed_sync_covered_may_be_lost_though_a_later_sync_succeeded() {
    let mut disk = Disk::default();
    let ino = write(&mut disk, "/a", "x");
    disk.sync(ROOT, true);
    disk.sync(ino, false);
    disk.sync(ino, true);
    assert!(contents(&disk, &CrashModel::default(), "/a").contains(&Some(Vec::new())));
}

#[test]
fn beyond_the_cap_the_ends_are_visited_and_the_answer_says_so() {
    let mut disk = Disk::default();
    for number in 0..40 {
        write(&mut disk, &format!("/f{number}"), "abcd");
    }
    let model = CrashModel { cap: 200, ..CrashModel::default() };
    let states = disk.crash_states(&model, &mut Rng::new(1));
    assert!(!states.exhaustive && states.space > 1 << 40, "{}", states.space);
    assert!(states.disks.len() > 100 && states.disks.len() <= 200);
    let sizes: BTreeSet<usize> = states.disks.iter().map(|disk| disk.tree().len()).collect();
    assert!(sizes.contains(&0) && sizes.contains(&40), "{sizes:?}");
    let mut rng = Rng::new(3);
    let one = disk.crash(&mut rng).digest();
    assert_ne!(one, disk.crash(&mut rng).digest());
}

/// A file of three sectors that is durable, and a write over all of them that is not.
fn overwritten() -> (Disk, Ino) {
    let mut disk = Disk::default();
    let ino = disk.create(Path::new("/a"), 0o600, 0.0).unwrap();
    disk.change(ino, DataChange::Write { at: 0, bytes: vec![b'o'; 3 * SECTOR].into() }, 0.0);
    disk.sync(ino, true);
    disk.sync(ROOT, true);
    disk.change(ino, DataChange::Write { at: 0, bytes: vec![b'n'; 3 * SECTOR].into() }, 0.0);
    (disk, ino)
}

#[test]
fn each_sector_of_an_overwrite_is_old_or_new() {
    let (mut disk, ino) = overwritten();
    let sectors = |bytes: &[u8]| -> String {
        let whole = |sector: &[u8]| sector.iter().all(|byte| *byte == sector[0]);
        let letter = |sector: &[u8]| if whole(sector) { char::from(sector[0]) } else { '?' };
        bytes.chunks(SECTOR).map(letter).collect()
    };
    let all = contents(&disk, &CrashModel::default(), "/a");
    let found: BTreeSet<String> = all.iter().flatten().map(|bytes| sectors(bytes)).collect();
    for expected in ["ooo", "noo", "ono", "oon", "nno", "non", "onn", "nnn"] {
        assert!(found.contains(expected), "{expected}: {found:?}");
    }
    // A data sync makes the whole of it durable, and later writes are at risk by themselves.
    disk.sync(ino, true);
    disk.change(ino, DataChange::Write { at: SECTOR, bytes: vec![b'x'; SECTOR].into() }, 0.0);
    let all = contents(&disk, &CrashModel::default(), "/a");
    let found: BTreeSet<String> = all.iter().flatten().map(|bytes| sectors(bytes)).collect();
    assert_eq!(found, ["n\0n", "n?n", "nnn", "nxn"].map(String::from).into());
}

#[test]
fn a_preallocated_file_keeps_its_length_while_frames_in_it_are_lost() {
    let mut disk = Disk::default();
    let ino = disk.create(Path::new("/a"), 0o600, 0.0).unwrap();
    disk.change(ino, DataChange::SetLen(4 * SECTOR), 0.0);
    disk.sync(ino, true);
    disk.sync(ROOT, true);
    for (sector, text) in [(0, "first"), (1, "second")] {
        let bytes = text.as_bytes().into();
        disk.change(ino, DataChange::Write { at: sector * SECTOR, bytes }, 0.0);
    }
    let all = contents(&disk, &CrashModel::default(), "/a");
    assert!(all.iter().flatten().all(|bytes| bytes.len() == 4 * SECTOR));
    let has = |bytes: &Vec<u8>, at: usize, text: &str| bytes[at..].starts_with(text.as_bytes());
    // The second may survive without the first.
    let odd = |bytes: &&Vec<u8>| has(bytes, SECTOR, "second") && !has(bytes, 0, "first");
    assert!(all.iter().flatten().any(|bytes| odd(&bytes)));
}

#[test]
fn a_spoilt_sector_takes_what_stood_in_it_with_it_only_if_that_is_asked_for() {
    let mut disk = Disk::default();
    let ino = write(&mut disk, "/a", "durable ");
    disk.sync(ino, true);
    disk.sync(ROOT, true);
    disk.change(ino, DataChange::Write { at: 8, bytes: b"at risk".as_slice().into() }, 0.0);
    let lost = |model: &CrashModel| {
        let all = contents(&disk, model, "/a");
        all.iter().flatten().any(|bytes| !bytes.starts_with(b"durable "))
    };
    assert!(!lost(&CrashModel::default()));
    assert!(lost(&CrashModel { spoilt_sectors: true, ..CrashModel::default() }));
}

#[test]
fn a_long_write_loses_its_beginning_its_end_or_any_one_sector_within_bounds() {
    let bytes = vec![1; 2048 * SECTOR].into();
    let parts = part::of(&DataChange::Write { at: 100, bytes }, false);
    assert!(parts.len() < 300, "{}", parts.len());
    for needed in [Part::Only(0, 1), Part::Only(2048, 2049), Part::Only(1, 2049)] {
        assert!(parts.contains(&needed), "{needed:?}");
    }
    for part in parts {
        let mut to = vec![0; 2049 * SECTOR];
        part.apply(&DataChange::Write { at: 100, bytes: vec![1; 2048 * SECTOR].into() }, &mut to);
        assert_eq!((to.len(), to[99], *to.last().unwrap()), (2049 * SECTOR, 0, 0), "{part:?}");
    }
}

#[test]
fn temporaries_and_lock_files_are_left_all_or_none_where_nobody_asks_for_more() {
    let mut disk = Disk::default();
    for name in ["/a.tmp", "/b.lock", "/c.tmp", "/d"] {
        disk.create(Path::new(name), 0o600, 0.0).unwrap();
    }
    disk.unlink(Path::new("/c.tmp")).unwrap();
    let count = |vary_temporaries| {
        let model = CrashModel { vary_temporaries, ..CrashModel::default() };
        disk.crash_states(&model, &mut Rng::new(1)).disks.len()
    };
    assert_eq!((count(false), count(true)), (4, 16));
}

#[test]
fn a_file_that_memory_was_mapped_to_holds_what_it_held_or_the_memory_or_anything() {
    let mut disk = Disk::default();
    let ino = disk.create(Path::new("/hints"), 0o600, 0.0).unwrap();
    disk.change(ino, DataChange::Write { at: 0, bytes: [7; 8].into() }, 0.0);
    let mut disk = disk.settled();
    disk.map(ino, 1).unwrap();
    let before = disk.digest();
    *disk.word(ino, 0).unwrap() = 1;
    assert_ne!(disk.digest(), before, "who dies here leaves other memory");
    let left = |memory| {
        let after = disk.barest().with_memory_of(&disk, memory, &mut Rng::new(5));
        assert!(!after.has_memory(), "the power is gone");
        after.file(Path::new("/hints")).unwrap()
    };
    assert_eq!(left(Memory::Forgotten), [7; 8]);
    assert_eq!(left(Memory::Written), 1_u64.to_le_bytes());
    assert!(left(Memory::Noise) != [7; 8] && left(Memory::Noise) != 1_u64.to_le_bytes());
}

#[test]
fn the_barest_disk_has_what_was_synced_and_no_more_and_risk_tells_the_two_apart() {
    let mut disk = Disk::default();
    let ino = write(&mut disk, "/a", "old");
    let disk_of = |disk: &Disk| disk.barest().file(Path::new("/a"));
    assert_eq!(disk_of(&disk), None);
    disk.sync(ROOT, true);
    disk.sync(ino, true);
    let durable = disk.risk();
    disk.change(ino, DataChange::Write { at: 0, bytes: (*b"new").into() }, 0.0);
    let pending = disk.risk();
    let mut failed = disk.clone();
    failed.sync(ino, false);
    assert_eq!(disk.digest(), failed.digest(), "nobody sees a difference");
    assert_eq!(BTreeSet::from([durable, pending, failed.risk()]).len(), 3);
    assert_eq!(disk_of(&failed), Some(b"old".to_vec()));
    disk.sync(ino, true);
    assert_eq!(disk_of(&disk), Some(b"new".to_vec()));
}
