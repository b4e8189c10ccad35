//! The live fuzzer beside the coordinators, and what it says about our results.
//!
//! F1. It outlives the coordinators until its cursor has reached the end of our queue, within a limit:
//!     it looks for imports twice a minute, and on its way out it does not look again.
//!     Should the supervisor be unable to end it, its own clock does.
//! F2. It cannot outlive the supervisor: the kernel tells it when that ends.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use ringfence_env::{OpenWrite, World, steps};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::exec::Reexec;
use crate::files::{self, FILE_MODE};
use crate::layout::{FUZZER, PEER, RunLayout};

/// How to run headless, and to import soon: by default it looks for imports every half an hour.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("AFL_NO_UI", "1"),
    ("AFL_SKIP_CPUFREQ", "1"),
    ("AFL_NO_AFFINITY", "1"),
    ("AFL_FAST_CAL", "1"),
    ("AFL_SYNC_TIME", "1"),
    ("AFL_FINAL_SYNC", "1"),
    ("AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "1"),
];

/// Starts the fuzzer for `time`.
pub(crate) fn start(
    world: &World,
    reexec: &Reexec,
    run: &RunLayout,
    seeds: &Path,
    program: &Path,
    time: Duration,
) -> Result<Child, Error> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let argv: Vec<String> = [
        "afl-fuzz".to_owned(),
        "-M".to_owned(),
        FUZZER.to_owned(),
        "-i".to_owned(),
        text(seeds),
        "-o".to_owned(),
        text(&run.sync()),
        "-m".to_owned(),
        "none".to_owned(),
        "-V".to_owned(),
        time.as_secs().max(1).to_string(),
        "--".to_owned(),
        text(program),
        "@@".to_owned(),
    ]
    .to_vec();
    let mut command = reexec.guarded(&argv, Signal::TERM);
    command.envs(ENVIRONMENT.iter().copied()).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.spawn();
    let mut child =
        started.map_err(|source| Error::Start { program: "afl-fuzz".to_owned(), source })?;
    let log = run.fuzzer_log();
    if let Some(stdout) = child.stdout.take() {
        keep_log(world, &log, stdout);
    }
    if let Some(stderr) = child.stderr.take() {
        keep_log(world, &log, stderr);
    }
    Ok(child)
}

fn keep_log(world: &World, path: &Path, mut from: impl std::io::Read + Send + 'static) {
    let file = world.fs.open_write(path, OpenWrite::Append, FILE_MODE);
    std::thread::spawn(move || {
        let mut file = file.ok();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            // Without a log it must be read all the same, or the fuzzer blocks.
            if let (Some(file), Some(bytes)) = (&mut file, buffer.get(..count)) {
                let _ = steps::write_all(&mut **file, bytes);
            }
        }
    });
}

/// What the fuzzer made of our queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imports {
    /// Its cursor: how many files of ours it has looked at.
    pub cursor: u64,
    /// Those it kept, because they were new to it.
    pub kept: u64,
    /// Files in its own queue.
    pub queue: u64,
    /// Edges it found, by its own count.
    pub edges: u64,
    /// Executions.
    pub executions: u64,
}

/// Reads the fuzzer's own state.
pub(crate) fn imports(world: &World, run: &RunLayout) -> Imports {
    let cursor = files::read(world, &run.fuzzer().join(".synced").join(PEER)).ok().flatten();
    let cursor = cursor.and_then(|bytes| <[u8; 4]>::try_from(bytes.as_slice()).ok());
    let queue = files::names(world, &run.fuzzer_queue()).unwrap_or_default();
    let queue: Vec<&String> = queue.iter().filter(|name| name.starts_with("id:")).collect();
    let ours = format!("sync:{PEER},");
    let stats = files::read(world, &run.fuzzer().join("fuzzer_stats")).ok().flatten();
    let stats = String::from_utf8_lossy(&stats.unwrap_or_default()).into_owned();
    Imports {
        cursor: cursor.map_or(0, |bytes| u64::from(u32::from_le_bytes(bytes))),
        kept: queue.iter().filter(|name| name.contains(&ours)).count() as u64,
        queue: queue.len() as u64,
        edges: stat(&stats, "edges_found"),
        executions: stat(&stats, "execs_done"),
    }
}

fn stat(stats: &str, name: &str) -> u64 {
    let of = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().parse().ok())?
    };
    stats.lines().find_map(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_by_its_name() {
        let stats = "start_time        : 17\nedges_found       : 123\nexecs_done: 9\n";
        assert_eq!(stat(stats, "edges_found"), 123);
        assert_eq!(stat(stats, "execs_done"), 9);
        assert_eq!(stat(stats, "nothing"), 0);
    }
}
