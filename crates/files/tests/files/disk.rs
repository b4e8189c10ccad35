//! A disk that is really full: a small file system of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use ringfence_env::World;
use ringfence_files::FilesEngine;

use crate::table::{
    SERIAL, Verbs as _, assert_no_lock_is_held, options, scratch, snapshot, targets_over, temps,
};

/// A mounted file system; unmounted when dropped, also by a panic.
pub(crate) struct Mount<'p>(pub(crate) &'p Path);

impl<'p> Mount<'p> {
    pub(crate) fn new(args: &[&str], at: &'p Path) -> Self {
        let mounted = Command::new("mount").args(args).arg(at).status().unwrap();
        assert!(mounted.success(), "mount {args:?}");
        Self(at)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(self.0).status();
        if !std::thread::panicking() {
            assert!(done.unwrap().success());
        }
    }
}

/// Mounting needs root; a developer's own machine may not give it.
pub(crate) fn may_mount() -> bool {
    let may = World::system().host.uid == 0;
    if !may {
        eprintln!("not tried: mounting needs root");
    }
    may
}

#[test]
fn a_full_disk_fails_the_claim_leaves_the_bytes_and_the_table_works_again_once_there_is_room() {
    if !may_mount() {
        return;
    }
    let dir = scratch();
    let point = dir.path().join("small");
    fs::create_dir(&point).unwrap();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=1m,mode=700", "none"], &point);
    let root = point.join("table");
    let world = World::system();
    let engine = FilesEngine::init(&world, &root, &options(8)).unwrap();
    let engine = FilesEngine::open(&world, engine.root(), SERIAL).unwrap();
    let targets = targets_over(3, 8);
    let held = engine.grab("a", &targets[..4], Some(1000.0)).unwrap().unwrap();
    let filler = point.join("filler");
    let mut failures = 0;
    // Room for none, one, two .. pages: the disk fills up at another step each time.
    for pages in 0..12 {
        let mut bytes = vec![b'x'; 1024 * 1024];
        while fs::write(&filler, &bytes).is_err() {
            bytes.truncate(bytes.len() - 4096);
        }
        let room = bytes.len().saturating_sub(pages * 4096);
        fs::OpenOptions::new().write(true).open(&filler).unwrap().set_len(room as u64).unwrap();
        let before = snapshot(&root);
        let ended = engine.grab("b", &targets, Some(2000.0));
        assert_no_lock_is_held(&root);
        match ended {
            Ok(token) => {
                engine.free(&targets, token.unwrap()).unwrap().unwrap();
                fs::remove_file(&filler).unwrap();
                engine.grab("a", &targets[..4], Some(1000.0)).unwrap().unwrap();
            }
            Err(failure) => {
                failures += 1;
                assert!(failure.restored(), "{pages}: {failure:?}");
                let source = &failure.storage().unwrap().source;
                assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{failure:?}");
                assert_eq!(snapshot(&root), before, "{pages} pages");
                assert!(temps(&root).is_empty());
                // Readers and releases need no room.
                engine.check().unwrap();
            }
        }
        let _ = fs::remove_file(&filler);
    }
    assert!(failures >= 5, "{failures}");
    engine.grab("c", &targets, Some(9000.0)).unwrap().unwrap();
    engine.free(&targets[..4], held).unwrap().unwrap_err();
    drop(mount);
}
