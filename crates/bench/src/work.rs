//! What the processes of a block do.

use serde::{Deserialize, Serialize};

/// One kind of work.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// One process, groups of 64
    Solo64,
    /// One process, groups of 8
    Solo8,
    /// One process, single targets
    Solo1,
    /// Eight processes, each a group of 8 of its own
    Eight8,
    /// Eight processes, each a group of 64 of its own
    Eight64,
    /// Eight processes, groups of 8 that overlap; exclusion is checked in shared memory
    Overlap8,
    /// One process, a heartbeat of 1,000 leases in one call
    Heartbeat,
    /// From the end of a release to the end of the claim of another process that waited for it
    WakeUp,
    /// `ringfence claim` from its start to its exit, on a table of 100,000 leases
    OneShot,
}

/// Targets that overlapping groups are drawn from, and the grid that they begin on.
pub(crate) const OVERLAP_TARGETS: u64 = 128;
/// See [`OVERLAP_TARGETS`].
pub(crate) const OVERLAP_GRID: u64 = 4;

/// Leases of the table that the command claims on.
pub(crate) const ONE_SHOT_LEASES: u64 = 100_000;

/// Leases of one heartbeat, and the first of their targets, which no other work uses.
pub(crate) const HEARTBEAT_LEASES: u64 = 1000;
/// See [`HEARTBEAT_LEASES`].
pub(crate) const HEARTBEAT_FIRST: u64 = 1_000_001;

impl Work {
    /// Everything, in the order of the report.
    pub(crate) const ALL: [Self; 9] = [
        Self::Solo64,
        Self::Solo8,
        Self::Solo1,
        Self::Eight8,
        Self::Eight64,
        Self::Overlap8,
        Self::Heartbeat,
        Self::WakeUp,
        Self::OneShot,
    ];

    /// Processes at once.
    pub(crate) fn processes(self) -> usize {
        match self {
            Self::Solo64 | Self::Solo8 | Self::Solo1 | Self::Heartbeat | Self::OneShot => 1,
            Self::WakeUp => 2,
            Self::Eight8 | Self::Eight64 | Self::Overlap8 => 8,
        }
    }

    /// Targets of one group.
    pub(crate) fn group(self) -> u64 {
        match self {
            Self::Solo64 | Self::Eight64 => 64,
            Self::Solo8 | Self::Eight8 | Self::Overlap8 | Self::WakeUp => 8,
            Self::Solo1 | Self::Heartbeat | Self::OneShot => 1,
        }
    }

    /// Its title in the report.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Solo64 => "1 process, groups of 64",
            Self::Solo8 => "1 process, groups of 8",
            Self::Solo1 => "1 process, single targets",
            Self::Eight8 => "8 processes, disjoint groups of 8",
            Self::Eight64 => "8 processes, disjoint groups of 64",
            Self::Overlap8 => "8 processes, overlapping groups of 8 of 128 targets",
            Self::Heartbeat => "1 process, heartbeat of 1,000 leases in one call",
            Self::WakeUp => "2 processes, from a release to the waiting claim, groups of 8",
            Self::OneShot => "the command, one claim on a table of 100,000 leases",
        }
    }
}
