//! Linux: what is found under odd names, and what is left when a call fails half way.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use ringfence_env::{FileKind, Fs as _, OpenWrite, Read, RealFs, steps};

const HOWS: [OpenWrite; 4] =
    [OpenWrite::CreateNew, OpenWrite::CreateInPlace, OpenWrite::Append, OpenWrite::Overwrite];

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn only_regular_files_of_bounded_size_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), b"12345").unwrap();
    fs::write(at("empty"), b"").unwrap();
    symlink(at("file"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    fifo(&at("pipe"));
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let read = |name: &str, max| RealFs.read(&at(name), max).unwrap();
    assert_eq!(read("file", 5), Read::Bytes(b"12345".to_vec()));
    assert_eq!(read("file", 4), Read::TooLarge(5));
    assert_eq!(read("empty", 0), Read::Bytes(Vec::new()));
    assert_eq!(read("link", 99), Read::NotRegular(FileKind::Symlink));
    assert_eq!(read("dangling", 99), Read::NotRegular(FileKind::Symlink));
    assert_eq!(read("pipe", 99), Read::NotRegular(FileKind::Fifo));
    assert_eq!(read("socket", 99), Read::NotRegular(FileKind::Other));
    assert_eq!(read("", 99), Read::NotRegular(FileKind::Dir));
    let missing = RealFs.read(&at("none"), 99).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert_eq!(RealFs.read_head(&at("file"), 2).unwrap(), Read::Bytes(b"12".to_vec()));
    assert_eq!(RealFs.read_head(&at("file"), usize::MAX).unwrap(), Read::Bytes(b"12345".to_vec()));
    assert_eq!(RealFs.read_head(&at("pipe"), 2).unwrap(), Read::NotRegular(FileKind::Fifo));

    let mut listed: Vec<_> = RealFs
        .list(dir.path())
        .unwrap()
        .into_iter()
        .map(|name| (name.name.into_string().unwrap(), name.kind))
        .collect();
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("dangling", FileKind::Symlink),
        ("empty", FileKind::File),
        ("file", FileKind::File),
        ("link", FileKind::Symlink),
        ("pipe", FileKind::Fifo),
        ("socket", FileKind::Other),
    ];
    assert_eq!(listed, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

#[test]
fn no_call_follows_a_link_in_the_last_component() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    RealFs.list(&link).unwrap_err();
    RealFs.sync_dir(&link).unwrap_err();
    RealFs.rmdir(&link).unwrap_err();
    assert_eq!(RealFs.stat(&link).unwrap().kind, FileKind::Symlink);
    let (file, link) = (dir.path().join("file"), dir.path().join("flink"));
    fs::write(&file, b"kept").unwrap();
    symlink(&file, &link).unwrap();
    for how in HOWS {
        RealFs.open_write(&link, how, 0o600).unwrap_err();
    }
    RealFs.unlink(&link).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

#[test]
fn each_way_of_opening_for_writing_does_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let write = |how, bytes: &[u8]| {
        let mut file = RealFs.open_write(&path, how, 0o640)?;
        steps::write_all(&mut *file, bytes)
    };
    for how in HOWS {
        write(how, b"12345").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        if how != OpenWrite::Overwrite {
            fs::remove_file(&path).unwrap();
        }
    }
    for how in [OpenWrite::CreateNew, OpenWrite::CreateInPlace] {
        assert_eq!(write(how, b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
    write(OpenWrite::Append, b"6").unwrap();
    write(OpenWrite::Overwrite, b"AB").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"AB3456");
    let pipe = dir.path().join("pipe");
    fifo(&pipe);
    RealFs.open_write(&pipe, OpenWrite::Append, 0o600).unwrap_err();
    RealFs.open_write(dir.path(), OpenWrite::Overwrite, 0o600).unwrap_err();
}

#[test]
fn a_file_whose_mode_cannot_be_set_is_not_left_behind() {
    // The mask forces a change of mode, the shim refuses it.
    if let Some(dir) = std::env::var_os("RINGFENCE_TEST_DIR") {
        let path = Path::new(&dir).join("file.tmp");
        let error = steps::stage_synced(&RealFs, &path, b"x", 0o606).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        RealFs.open_lock(&path, true, 0o606).unwrap_err();
        RealFs.open_write(&path, OpenWrite::Append, 0o606).unwrap_err();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let shim = dir.path().join("shim.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shims/fchmod_fails.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&shim, &source]).status();
    assert!(built.unwrap().success());
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let name = "real::a_file_whose_mode_cannot_be_set_is_not_left_behind";
    let done = Command::new("sh")
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("RINGFENCE_TEST_DIR", &inside)
        .env("LD_PRELOAD", &shim)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert!(String::from_utf8_lossy(&done.stdout).contains("1 passed"));
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
}

#[test]
fn a_copy_has_an_identity_of_its_own_and_an_overwritten_file_shows_it() {
    // On a disk: what is in memory may not keep all of it.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name);
    let identity = |name: &str| RealFs.identity(&path(name)).unwrap().unwrap();
    steps::stage_synced(&RealFs, &path("one"), b"x", 0o600).unwrap();
    let first = identity("one");
    let copied = Command::new("cp").arg("-a").args([path("one"), path("two")]).status().unwrap();
    assert!(copied.success());
    assert_ne!(identity("two").inode, first.inode);
    fs::rename(path("one"), path("three")).unwrap();
    let moved = identity("three");
    assert_eq!((moved.device, moved.inode, moved.born), (first.device, first.inode, first.born));
    // A number that is used again belongs to a file that was born later.
    fs::remove_file(path("three")).unwrap();
    let mut again = (0..).map(|number| {
        steps::stage_synced(&RealFs, &path(&number.to_string()), b"x", 0o600).unwrap();
        identity(&number.to_string())
    });
    let again = again.by_ref().take(64).find(|other| other.inode == first.inode);
    assert!(again.is_none_or(|again| again.born > first.born), "{again:?} is {first:?}");
    // Overwritten in place with its times put back, as by `cp -a` onto it.
    let before = identity("two");
    fs::write(path("older"), b"y").unwrap();
    let touched = Command::new("touch").arg("-r").args([path("two"), path("older")]).status();
    assert!(touched.unwrap().success());
    let copied = Command::new("cp").arg("-a").args([path("older"), path("two")]).status().unwrap();
    assert!(copied.success());
    let after = identity("two");
    assert_eq!((after.inode, after.born), (before.inode, before.born));
    assert!(after.changed > before.changed);
    let file = RealFs.open_write(&path("two"), OpenWrite::Overwrite, 0o600).unwrap();
    assert_eq!(file.identity().unwrap(), Some(after), "by the open file as by its name");
}
