//! Making a store: which engine, and what is in the way.

use std::path::{Path, PathBuf};

use ringfence::{Claim, Durability, FilesOptions, InitError, InitOptions, JournalOptions, Store};

use crate::support::group;

fn names(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        // Hints hold what counts for a boot.
        if path.is_dir() {
            found.extend(names(&path));
        } else if entry.file_name() != "hints" {
            found.push((path.clone(), std::fs::read(path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_store_is_a_journal_unless_files_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Store::init(dir.path().join("one"), &InitOptions::default()).unwrap();
    assert_eq!((journal.info().name, journal.durability()), ("journal", Durability::Group));
    assert!(journal.journal().is_some());
    let files = FilesOptions { durability: Durability::Record, ..FilesOptions::default() };
    let files = Store::init(dir.path().join("two"), &files.into()).unwrap();
    assert_eq!((files.info().name, files.durability()), ("files", Durability::Record));
    assert_eq!(
        names(dir.path()).iter().filter(|(path, _)| path.ends_with("table.json")).count(),
        2
    );
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2, "the probe of a journal's place leaves nothing");
}

#[test]
fn a_store_of_the_other_engine_is_refused_and_left_as_it_was() {
    let files = InitOptions::from(FilesOptions::default());
    let journal = InitOptions::from(JournalOptions::default());
    for (made, asked) in [(files, journal), (journal, files)] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let table = Store::init(&root, &made).unwrap().targets();
        let lease = table.claim(&group(&[1, 2]), &Claim::by("me").unwrap()).unwrap();
        let before = names(&root);
        match Store::init(&root, &asked) {
            Err(InitError::OtherEngine { wanted, found, .. }) => {
                assert_eq!((wanted, &*found), (asked.engine(), made.engine()));
            }
            other => panic!("{other:?}"),
        }
        assert!(names(&root) == before, "{made:?}: something was touched");
        assert_eq!(Store::init(&root, &made).unwrap().info().table, table.info().table);
        lease.release().unwrap();
    }
}

#[test]
fn makers_of_one_store_at_the_same_moment_get_one_store() {
    for exists in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        if exists {
            std::fs::create_dir(&root).unwrap();
        }
        let mut tables: Vec<String> = std::thread::scope(|scope| {
            let make = || Store::init(&root, &InitOptions::default()).unwrap().info().table;
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        tables.dedup();
        assert_eq!(tables.len(), 1, "{tables:?}");
    }
}

/// A maker that died in the middle of its probe is in nobody's way.
#[test]
fn what_a_probe_left_behind_does_not_keep_a_table_from_being_made() {
    let dir = tempfile::tempdir().unwrap();
    for (name, options) in
        [("one", InitOptions::default()), ("two", InitOptions::from(FilesOptions::default()))]
    {
        let root = dir.path().join(name);
        let place = root.join(".probe-1-2-ab.tmp");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("lock"), "").unwrap();
        let store = Store::init(&root, &options).unwrap();
        assert!(place.exists(), "whoever tries the place may be alive");
        let removed = store.repair().unwrap().removed;
        assert!(removed.contains(&place) && !place.exists(), "{removed:?}");
    }
}
