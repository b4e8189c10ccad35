//! A second process asks for the lock, whatever the first one does with its children.

use std::process::Command;
use std::time::{Duration, Instant};

use ringfence_env::process::{ChildLock, lock_in_child};
use ringfence_env::{Fs as _, LockMode, RealFs};

#[test]
fn a_program_that_ignores_its_children_still_gets_the_answer() {
    if std::env::var_os("RINGFENCE_TEST_IGNORE").is_none() {
        // Ignoring is inherited through exec; the shell sets it.
        let name = "process::a_program_that_ignores_its_children_still_gets_the_answer";
        let script = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                      os.execv(sys.argv[1], sys.argv[1:])";
        let done = Command::new("python3")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("RINGFENCE_TEST_IGNORE", "1")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        assert!(String::from_utf8_lossy(&done.stdout).contains("1 passed"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = RealFs.open_lock(&path, true, 0o600).unwrap();
    let patience = Duration::from_mins(5);
    assert_eq!(lock_in_child(&path, patience).unwrap(), ChildLock::Admitted);
    assert!(held.try_lock(LockMode::Exclusive).unwrap());
    let started = Instant::now();
    assert_eq!(lock_in_child(&path, patience).unwrap(), ChildLock::Excluded);
    assert!(started.elapsed() < Duration::from_mins(1), "it was waited for to the end");
}

#[test]
fn a_shared_lock_of_ours_excludes_the_child_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = RealFs.open_lock(&path, true, 0o600).unwrap();
    assert!(held.try_lock(LockMode::Shared).unwrap());
    assert_eq!(lock_in_child(&path, Duration::from_secs(5)).unwrap(), ChildLock::Excluded);
    held.unlock().unwrap();
}
