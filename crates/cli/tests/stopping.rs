//! Stopping a process, but not in the middle of a step that others have to wait for.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A process that is always inside of one could not be tested like this.
const PATIENCE: Duration = Duration::from_mins(1);

/// Stops a process while it has no kernel lock on a file below `dir`, but for those that say that it
/// lives.
///
/// One that is stopped inside of a step holds others up until it goes on, which they are told as `busy`:
/// a matter of other tests.
pub(crate) fn stop_between_steps(pid: u32, dir: &Path) {
    let began = Instant::now();
    loop {
        send(pid, "STOP");
        until_stopped(pid);
        let held = locks_of(pid, dir);
        if held.is_empty() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "always inside of a step: {held:?}");
        send(pid, "CONT");
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn send(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success(), "kill -{name} {pid}");
}

fn until_stopped(pid: u32) {
    let began = Instant::now();
    let stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(stopped) {
        assert!(began.elapsed() < PATIENCE, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The files below `dir` that a process has locked, as the kernel lists them.
fn locks_of(pid: u32, dir: &Path) -> Vec<PathBuf> {
    let mut files = BTreeMap::new();
    add(dir, &mut files);
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let mut held = Vec::new();
    for line in locks.lines() {
        // NUMBER: KIND ADVISORY MODE PID MAJOR:MINOR:INODE START END; `->` marks one that waits.
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(1) == Some(&"->") || words.get(4) != Some(&&*pid.to_string()) {
            continue;
        }
        let inode = words.get(5).and_then(|file| file.rsplit(':').next()?.parse::<u64>().ok());
        held.extend(inode.and_then(|inode| files.get(&inode)).cloned());
    }
    held
}

fn add(dir: &Path, files: &mut BTreeMap<u64, PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        // What is removed meanwhile is locked by nobody any more.
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() && entry.file_name() != "lives" {
            add(&path, files);
        } else if meta.is_file() {
            files.insert(meta.ino(), path);
        }
    }
}
