//! Traces and results as files that coordinators share.
//!
//! Every record is one file that appears complete under the digest of what it tells of (a seed's
//! trace) or of itself (a result), and never changes. So reading is listing, nobody updates anything
//! in place, and a record that is written twice is the same record.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ringfence_env::World;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::Error;
use crate::files;
use crate::job::Kind;
use crate::worker::Outcome;

/// What the replay of one seed showed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TraceRecord {
    pub(crate) seed: Digest,
    /// Every direction the seed took.
    pub(crate) taken: Vec<u64>,
    /// Every direction a solver could turn to.
    pub(crate) opposites: Vec<u64>,
    /// Why there is no trace: the engine cannot follow this seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl TraceRecord {
    /// Where the trace of `seed` is.
    pub(crate) fn path(dir: &Path, seed: Digest) -> PathBuf {
        dir.join(format!("{seed}.json"))
    }

    pub(crate) fn write(&self, world: &World, dir: &Path) -> Result<(), Error> {
        let path = Self::path(dir, self.seed);
        let text = serde_json::to_string(self).map_err(|error| Error::damaged(&path, error))?;
        files::replace(world, &path, text.as_bytes())
    }
}

/// What one finished job came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResultRecord {
    pub(crate) work: String,
    /// The coordinator.
    pub(crate) by: String,
    pub(crate) seed: Digest,
    pub(crate) results: Vec<ActionResult>,
    /// Targets that the published outputs were seen to take.
    pub(crate) reached: Vec<u64>,
    /// The published outputs.
    pub(crate) outputs: Vec<Digest>,
    /// Edges of the fuzzer's program that no earlier input showed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) edges: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActionResult {
    pub(crate) target: u64,
    pub(crate) action: Kind,
    pub(crate) outcome: Outcome,
}

impl ResultRecord {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Plain data: numbers and texts always have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A directory of records, read as it grows.
#[derive(Debug)]
pub(crate) struct Growing {
    dir: PathBuf,
    seen: BTreeSet<String>,
}

impl Growing {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, seen: BTreeSet::new() }
    }

    /// The records that were not there at the last call. A damaged one is left out.
    pub(crate) fn read<T: for<'de> Deserialize<'de>>(
        &mut self,
        world: &World,
    ) -> Result<Vec<T>, Error> {
        let mut new = Vec::new();
        for name in files::names(world, &self.dir)? {
            if name.strip_suffix(".json").is_none() || self.seen.contains(&name) {
                continue;
            }
            let bytes = files::read(world, &self.dir.join(&name))?;
            self.seen.insert(name);
            new.extend(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()));
        }
        Ok(new)
    }
}
