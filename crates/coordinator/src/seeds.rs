//! Where seeds come from, and in which order they are traced.
//!
//! A seed is copied under its digest before anything refers to it: the fuzzer rewrites its queue files
//! when it trims them. Whoever reads a copy compares the digest, so a torn one is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ringfence_env::{FileKind, World};

use crate::digest::Digest;
use crate::error::Error;
use crate::files;
use crate::layout::PEER;

/// A queue file this young may still be being written.
const SETTLE_S: f64 = 0.3;

/// How promising a seed is: smaller is traced sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// It was given.
    Given,
    /// A solver made it.
    Solved,
    /// The fuzzer says that it shows a new edge.
    NewEdge,
    /// The fuzzer kept it for another reason.
    Kept,
}

/// Seeds that wait to be traced.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    waiting: BTreeSet<(Promise, u64, Digest)>,
    known: BTreeSet<Digest>,
    read: BTreeSet<PathBuf>,
    failures: BTreeMap<Digest, u32>,
}

impl Intake {
    /// Takes in a seed that lies among the objects.
    pub(crate) fn add(&mut self, digest: Digest, bytes: u64, promise: Promise) {
        if self.known.insert(digest) {
            self.waiting.insert((promise, bytes, digest));
        }
    }

    /// Reads what is new in a directory of seeds.
    pub(crate) fn read_dir(
        &mut self,
        world: &World,
        dir: &Path,
        objects: &Path,
        queue: bool,
    ) -> Result<(), Error> {
        let listed = match world.fs.list(dir) {
            Ok(listed) => listed,
            // The fuzzer makes its queue some time after it was started.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("list", dir, error)),
        };
        let now = world.clock.wall().as_secs_f64();
        for entry in listed {
            let path = dir.join(&entry.name);
            let name = entry.name.to_string_lossy();
            let wanted = entry.kind == FileKind::File && (!queue || name.starts_with("id:"));
            if !wanted || self.read.contains(&path) {
                continue;
            }
            // What came from us is known by its digest already; the rest is not read in vain.
            if queue && name.contains(&format!("sync:{PEER}")) {
                self.read.insert(path);
                continue;
            }
            if queue && world.fs.stat(&path).is_ok_and(|stat| now - stat.modified < SETTLE_S) {
                continue;
            }
            let Some(bytes) = files::read(world, &path)? else { continue };
            self.read.insert(path);
            if bytes.is_empty() {
                continue;
            }
            let digest = files::keep(world, objects, &bytes)?;
            let promise = match queue {
                false => Promise::Given,
                true if name.ends_with("+cov") => Promise::NewEdge,
                true => Promise::Kept,
            };
            self.add(digest, bytes.len() as u64, promise);
        }
        Ok(())
    }

    /// The most promising seed that waits and is not in `busy`.
    pub(crate) fn next(&self, busy: &BTreeSet<Digest>) -> Option<Digest> {
        self.waiting.iter().map(|(.., digest)| *digest).find(|digest| !busy.contains(digest))
    }

    /// The seed is traced, here or elsewhere.
    pub(crate) fn done(&mut self, seed: Digest) {
        self.known.insert(seed);
        self.waiting.retain(|(.., digest)| *digest != seed);
    }

    /// Tracing it failed; returns how often by now.
    pub(crate) fn failed(&mut self, seed: Digest) -> u32 {
        let count = self.failures.entry(seed).or_default();
        *count += 1;
        *count
    }
}
