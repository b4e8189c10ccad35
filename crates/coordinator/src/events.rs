//! What happened, one JSON line each, so that the numbers of a killed coordinator count.
//!
//! A line is written by one call before the thing it tells of goes on. Lines are not synced: a killed
//! process loses none, a power cut may.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_env::{OpenWrite, World, WriteFile, steps};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::Error;
use crate::files::{self, FILE_MODE};
use crate::job::Kind;
use crate::worker::Outcome;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stamped {
    /// Unix seconds.
    pub(crate) at: f64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// Why a group was not dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reason {
    /// Overlaps what this coordinator itself has under way.
    Local,
    /// Seen to be held before it was claimed.
    Look,
    /// Held when it was claimed.
    Busy,
    /// A kernel lock was not to be had in time.
    Locked,
    /// A record of a member is damaged.
    Damaged,
    /// Somebody else's result had come in when the claim was granted.
    Stale,
    /// The execution is leased, committing or done.
    Work,
    /// The store failed.
    Failed,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event {
    Start {
        pid: u32,
    },
    /// A seed was traced here, or another one's trace was taken over.
    Traced {
        seed: Digest,
        ms: f64,
        cpu_s: f64,
        branches: usize,
    },
    TraceFailed {
        seed: Digest,
        why: String,
    },
    /// A job was granted: `targets` over `shards`, under way as `work`. `claim_ms` is for the group
    /// and the item as one, `work_ms` for an item without a group; the other is 0.
    Granted {
        work: String,
        targets: usize,
        shards: usize,
        look_ms: f64,
        claim_ms: f64,
        work_ms: f64,
        takeover: bool,
    },
    /// Groups that were not dispatched since the last such line.
    Refused {
        counts: BTreeMap<Reason, u64>,
    },
    Solved {
        work: String,
        seed: Digest,
        ms: f64,
        cpu_s: f64,
        results: Vec<Result>,
    },
    /// A job came to nothing before its commit.
    Dropped {
        work: String,
        why: String,
    },
    /// Everything to be published is durable; the fence has not been asked yet.
    Staged {
        work: String,
    },
    Committing {
        work: String,
    },
    Committed {
        work: String,
        outputs: usize,
        published: usize,
        ms: f64,
        recovered: bool,
    },
    /// The work fence refused this attempt.
    FenceRefused {
        work: String,
        step: String,
        why: String,
    },
    /// A group was given back, or was found lost. Where its item was completed or given up by the same
    /// call, `ms` is for both.
    Released {
        work: String,
        ms: f64,
        hold_ms: f64,
        released: bool,
    },
    Heartbeat {
        groups: usize,
        items: usize,
        ms: f64,
        lost: usize,
        failed: usize,
        syncs: u64,
    },
    Worker {
        what: String,
        detail: String,
    },
    Usage {
        own_s: f64,
        workers_s: f64,
        idle_s: f64,
    },
    Trouble {
        what: String,
    },
    Stop,
}

/// What became of one action.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Result {
    pub(crate) target: u64,
    pub(crate) action: Kind,
    pub(crate) outcome: Outcome,
    pub(crate) outputs: usize,
}

/// The log of one coordinator; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    world: World,
    file: Arc<Mutex<Box<dyn WriteFile>>>,
}

impl EventLog {
    pub(crate) fn open(world: &World, path: &Path) -> std::result::Result<Self, Error> {
        let file = world.fs.open_write(path, OpenWrite::Append, FILE_MODE);
        let file = file.map_err(|error| Error::io("open", path, error))?;
        Ok(Self { world: world.clone(), file: Arc::new(Mutex::new(file)) })
    }

    /// Appends one line. A log that cannot be written to costs numbers, not leases.
    pub(crate) fn write(&self, event: Event) {
        let at = self.world.clock.wall().as_secs_f64();
        let Ok(mut line) = serde_json::to_string(&Stamped { at, event }) else { return };
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = steps::write_all(&mut **file, line.as_bytes());
    }
}

/// Reads a log. A last line that was cut short is left out.
pub(crate) fn read(world: &World, path: &Path) -> std::result::Result<Vec<Stamped>, Error> {
    let bytes = files::read(world, path)?.unwrap_or_default();
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect())
}
