//! A process that outlives this one by a moment, and removes what it held if it was killed.
//!
//! It shares the mount namespace, so it sees the mounts; devices it knows by their notes. It waits on
//! a pipe of which this process alone holds the other end. Signals that are meant to end the run
//! reach it too, and it goes on.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::mount::UnmountFlags;

use super::{Scratch, sweep};
use crate::context::Trouble;

/// The watcher; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher(Child);

impl Watcher {
    /// Starts it.
    pub(super) fn start() -> Result<Self, Trouble> {
        let watcher = Command::new(std::env::current_exe()?)
            .args(["watch", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self(watcher))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Everything is removed by now; without a word the end of the pipe means a kill.
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = std::io::Write::write_all(&mut pipe, b"done");
        }
        let _ = self.0.wait();
    }
}

/// Flags of `watch`.
#[derive(clap::Args, Debug)]
pub(crate) struct WatchArgs {
    /// The process whose end is waited for
    maker: u32,
}

/// Waits for the end of a run, and removes what is left of it.
pub(crate) fn watch(args: &WatchArgs) -> ExitCode {
    // Held to the end, so that what ends the run does not end this.
    let signals = {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
    };
    let mut word = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut word);
    if word == b"done" {
        return ExitCode::SUCCESS;
    }
    // One that was interrupted became a process that clears up by itself.
    while is_alive(args.maker) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let place = Scratch::place_of(args.maker);
    // Its children die with it, though not at once; theirs may not.
    for _ in 0..400 {
        kill_users_of(&place);
        let mut points = mounts_in(&place);
        points.reverse();
        for point in &points {
            let _ = rustix::mount::unmount(point, UnmountFlags::NOFOLLOW);
        }
        // Its files keep the place busy.
        sweep(|maker| maker == args.maker);
        if mounts_in(&place).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for point in mounts_in(&place).iter().rev() {
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    }
    let _ = std::fs::remove_dir(&place);
    drop(signals);
    ExitCode::SUCCESS
}

/// Kills what was started with a path below a place.
fn kill_users_of(place: &Path) {
    let path = format!("{}/", place.display());
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&words).contains(&path)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Every mount at a place or below it, oldest first.
pub(super) fn mounts_in(place: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(place)).collect()
}

/// Whether a process runs; one that only waits to be reaped does not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
