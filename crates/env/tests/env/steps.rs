//! In each step the order of calls is the content, so the order is what is tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{Fs as _, OpenWrite, RealFs, WriteFile, steps};

type Trace = Arc<Mutex<Vec<(Call, PathBuf)>>>;

fn traced() -> (FaultFs, Trace) {
    let fs = FaultFs::new(Arc::new(RealFs));
    let trace = Trace::default();
    fs.on_call({
        let trace = Arc::clone(&trace);
        move |call, path| trace.lock().unwrap().push((call, path.to_owned()))
    });
    (fs, trace)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_replacement_syncs_the_content_then_the_name_then_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (temp, path) = (dir.path().join("t.tmp"), dir.path().join("file"));
    let (fs, trace) = traced();
    steps::durable_replace(&fs, &temp, &path, b"bytes", 0o640).unwrap();
    let expected = [
        (Call::OpenWrite, temp.clone()),
        (Call::Write, temp.clone()),
        (Call::SyncFile, temp.clone()),
        (Call::Rename, path.clone()),
        (Call::SyncDir, dir.path().to_owned()),
    ];
    assert_eq!(*trace.lock().unwrap(), expected);
    assert_eq!(fs::read(&path).unwrap(), b"bytes");
    assert_eq!(RealFs.stat(&path).unwrap().mode, 0o640);
}

#[test]
fn a_replacement_that_fails_at_any_call_leaves_the_old_file_or_the_new_one_and_no_temporary() {
    for errno in [5, 28] {
        for nth in 1..=5 {
            let dir = tempfile::tempdir().unwrap();
            let (temp, path) = (dir.path().join("t.tmp"), dir.path().join("file"));
            fs::write(&path, b"old").unwrap();
            let (fs, _) = traced();
            fs.arm(When::Nth(nth), Effect::Errno(errno));
            let error = steps::durable_replace(&fs, &temp, &path, b"new", 0o600).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno));
            assert_eq!(names(dir.path()), ["file"], "call {nth}");
            let expected: &[u8] = if nth == 5 { b"new" } else { b"old" };
            assert_eq!(fs::read(&path).unwrap(), expected, "call {nth}");
            assert_eq!(fs.count(Call::SyncFile), u64::from(nth >= 3), "never synced again");
        }
    }
}

#[test]
#[should_panic(expected = "stays in its directory")]
fn a_replacement_across_directories_is_a_programmers_mistake() {
    let _ = steps::durable_replace(&RealFs, Path::new("/a/t"), Path::new("/b/f"), b"", 0o600);
}

#[test]
fn publication_makes_the_public_name_durable_before_the_staged_one_may_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, public) = (dir.path().join("stage"), dir.path().join("public"));
    let (fs, trace) = traced();
    steps::durable_mkdir(&fs, &stage, 0o700).unwrap();
    steps::durable_mkdir(&fs, &public, 0o700).unwrap();
    let (from, to) = (stage.join("h"), public.join("h"));
    steps::stage_synced(&fs, &from, b"object", 0o600).unwrap();
    trace.lock().unwrap().clear();
    steps::publish(&fs, &from, &to).unwrap();
    let expected = [(Call::Rename, to.clone()), (Call::SyncDir, public), (Call::SyncDir, stage)];
    assert_eq!(*trace.lock().unwrap(), expected);
    assert_eq!(fs::read(&to).unwrap(), b"object");
    assert!(!from.exists());
}

#[test]
fn a_directory_that_exists_is_synced_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let (fs, _) = traced();
    steps::durable_mkdir(&fs, &made, 0o700).unwrap();
    steps::durable_mkdir(&fs, &made, 0o700).unwrap();
    assert_eq!(fs.count(Call::SyncDir), 2);
    fs::write(dir.path().join("file"), b"").unwrap();
    steps::durable_unlink(&fs, &dir.path().join("file")).unwrap();
    assert_eq!(fs.count(Call::SyncDir), 3);
    steps::durable_unlink(&fs, &dir.path().join("file")).unwrap_err();
    assert_eq!(fs.count(Call::SyncDir), 3, "nothing happened, so nothing is to be synced");
}

#[test]
fn short_writes_are_continued_where_they_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let (fs, _) = traced();
    fs.arm(When::From(1), Effect::ShortWrite(1));
    let mut file = steps::stage(&fs, &path, b"one byte at a time", 0o600).unwrap();
    steps::write_all_at(&mut *file, b"ONE", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ONE byte at a time");
    assert_eq!(fs.count(Call::Write), 21);
}

#[test]
fn files_synced_together_are_each_synced_once_and_answer_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    for width in [0, 1, 2, 3, 7, 16, 100] {
        for count in [0usize, 1, 2, 7, 64] {
            let (fs, _) = traced();
            let files: Vec<Box<dyn WriteFile>> = (0..count)
                .map(|n| {
                    let path = dir.path().join(n.to_string());
                    fs.open_write(&path, OpenWrite::Overwrite, 0o600).unwrap()
                })
                .collect();
            let answers = steps::sync_together(&files, width);
            assert!(answers.iter().all(Result::is_ok));
            assert_eq!((answers.len(), fs.count(Call::SyncFile)), (count, count as u64));
        }
    }
    // Which file fails is told by its place.
    let (bad, _) = traced();
    bad.arm(When::FromOf(Call::SyncFile, 1), Effect::Errno(5));
    let open = |fs: &FaultFs, n: usize| {
        fs.open_write(&dir.path().join(n.to_string()), OpenWrite::Overwrite, 0o600).unwrap()
    };
    let (good, _) = traced();
    let files: Vec<_> = (0..9).map(|n| open(if n == 5 { &bad } else { &good }, n)).collect();
    for width in [1, 4] {
        let answers = steps::sync_together(&files, width);
        let failed: Vec<usize> =
            (0..9).filter(|&n| answers.get(n).is_some_and(Result::is_err)).collect();
        assert_eq!(failed, [5]);
    }
}
