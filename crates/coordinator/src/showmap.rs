//! The fuzzer's own view of an output: which edges of its program it shows.
//!
//! Edge ids are stable for one build of the program. They tell whether an output is new to the fuzzer;
//! they are no targets, because an edge does not name its opposite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringfence_env::World;
use rustix::process::Signal;

use crate::digest::Digest;
use crate::exec::Reexec;
use crate::files;

/// How to ask.
#[derive(Clone, Debug)]
pub(crate) struct Showmap {
    pub(crate) reexec: Reexec,
    pub(crate) program: PathBuf,
    /// A directory of the asker's own.
    pub(crate) scratch: PathBuf,
}

impl Showmap {
    /// Whether the tool is installed.
    pub(crate) fn is_available() -> bool {
        let mut command = Command::new("afl-showmap");
        command.arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok()
    }

    /// The edges of each file in `dir` whose name is a digest. Empty if the tool fails: replays by
    /// the worker then judge alone.
    pub(crate) fn edges(&self, world: &World, dir: &Path) -> BTreeMap<Digest, Vec<u32>> {
        let mut found = BTreeMap::new();
        if files::names(world, dir).unwrap_or_default().is_empty() {
            return found;
        }
        files::remove_dir(world, &self.scratch);
        let argv: Vec<String> = [
            "afl-showmap",
            "-q",
            "-m",
            "none",
            "-t",
            "1000",
            "-i",
            &dir.to_string_lossy(),
            "-o",
            &self.scratch.to_string_lossy(),
            "--",
            &self.program.to_string_lossy(),
            "@@",
        ]
        .map(str::to_owned)
        .to_vec();
        let mut command = self.reexec.guarded(&argv, Signal::KILL);
        command.env("AFL_QUIET", "1").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if command.status().is_err() {
            return found;
        }
        for name in files::names(world, &self.scratch).unwrap_or_default() {
            let Ok(digest) = name.parse() else { continue };
            let bytes = files::read(world, &self.scratch.join(&name)).ok().flatten();
            let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
            let edge = |line: &str| line.split_once(':')?.0.parse().ok();
            found.insert(digest, text.lines().filter_map(edge).collect());
        }
        files::remove_dir(world, &self.scratch);
        found
    }
}
