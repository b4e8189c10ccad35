//! A disk that is really full: a small file system of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use ringfence_env::World;
use ringfence_files::{FilesEngine, OpenError, ProbeError};

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

/// It was refused as "cannot carry a table: use another directory", which is no remedy for a full disk.
#[test]
fn the_first_opening_since_boot_says_of_a_full_disk_that_it_is_full_and_what_to_do() {
    if !may_mount() {
        return;
    }
    let dir = scratch();
    let (point, image) = (dir.path().join("small"), dir.path().join("image"));
    fs::create_dir(&point).unwrap();
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&image).status();
    let mut kinds = vec![vec!["-t", "tmpfs", "-o", "size=4m,mode=700", "none"]];
    if made.is_ok_and(|made| made.success()) {
        kinds.push(vec!["-o", "loop", image.to_str().unwrap()]);
    } else {
        eprintln!("not tried on ext4: there is no mkfs.ext4");
    }
    for kind in kinds {
        let mount = Mount::new(&kind, &point);
        let (root, filler) = (point.join("table"), point.join("filler"));
        let world = World::system();
        let engine = FilesEngine::init(&world, &root, &options(8)).unwrap();
        engine.grab("a", &[1, 2], Some(1000.0)).unwrap().unwrap();
        // As after a restart of the host.
        fs::remove_file(root.join("probe.json")).unwrap();
        let full = fill(&filler);
        let before = snapshot(&root);
        let error = FilesEngine::open(&world, &root, SERIAL).unwrap_err();
        assert!(matches!(error, OpenError::Probe(ProbeError::Full { .. })), "{kind:?}: {error:?}");
        let text = error.to_string();
        for said in [root.to_str().unwrap(), "is full", "make room for", "try again"] {
            assert!(text.contains(said), "{text}");
        }
        assert_eq!(snapshot(&root), before, "{kind:?}: nothing is left behind");
        // What it asks for is enough.
        fs::OpenOptions::new()
            .write(true)
            .open(&filler)
            .unwrap()
            .set_len(full - 32 * 1024)
            .unwrap();
        FilesEngine::open(&world, &root, SERIAL).unwrap();
        drop(mount);
    }
}

/// Writes until nothing more fits; how much did.
fn fill(filler: &Path) -> u64 {
    use std::io::Write as _;
    let mut file = fs::File::create(filler).unwrap();
    while file.write(&[b'x'; 4096]).is_ok_and(|written| written > 0) {}
    file.metadata().unwrap().len()
}
