//! What one claim and release ask of the file system, by the seam's own counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence::World;
use ringfence_env::fault::{Call, FaultFs};
use serde::Serialize;

/// Calls of one claim and release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Directory syncs.
    pub(super) directory_syncs: u64,
    /// File syncs.
    pub(super) file_syncs: u64,
    /// Calls of every kind.
    pub(super) total: u64,
    /// By kind. A directory sync is one call here and open, fsync, close for the kernel.
    pub(super) by_kind: BTreeMap<String, u64>,
}

/// The syncs of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Syncs {
    /// Of directories.
    pub(super) directories: u64,
    /// Of files, those of an intent included.
    pub(super) files: u64,
}

/// A world that counts, and the counter.
pub(super) fn counting(world: &World) -> (World, FaultFs) {
    let counter = FaultFs::new(world.fs.clone());
    (world.with_fs(Arc::new(counter.clone())), counter)
}

impl Counts {
    /// The syncs among them.
    pub(super) fn syncs(&self) -> Syncs {
        Syncs { directories: self.directory_syncs, files: self.file_syncs }
    }

    /// What was called between two readings of a counter.
    pub(super) fn between(before: &BTreeMap<Call, u64>, after: &BTreeMap<Call, u64>) -> Self {
        let mut counts = Self::default();
        for (call, &late) in after {
            let more = late - before.get(call).copied().unwrap_or(0);
            if more == 0 {
                continue;
            }
            counts.total += more;
            counts.by_kind.insert(format!("{call:?}"), more);
            match call {
                Call::SyncDir => counts.directory_syncs = more,
                Call::SyncFile => counts.file_syncs = more,
                _ => {}
            }
        }
        counts
    }
}
