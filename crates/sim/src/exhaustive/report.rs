//! How far to go, and what came of it.

use std::collections::BTreeMap;

use crate::case::Act;
use crate::setup::Kept;

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// States per crash point.
    pub cap: usize,
    /// Recovered states in whose recovery the power is cut again, per case.
    pub depth2: usize,
    /// States per crash point of a recovery.
    pub cap2: usize,
    /// Which calls fail, each by itself; they are cut short too.
    pub failures: Failures,
    /// Stop a case at this many violations.
    pub enough: usize,
}

/// Which calls into the file system fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// None.
    None,
    /// Syncs of files, finally: what they should have covered may never become durable. And writes
    /// into files: nearly all of it is there, and writing the rest fails.
    Disk,
    /// Each of them, before and after its effect; and from each on all of them.
    All,
}

impl Limits {
    /// Small enough for `cargo test`.
    pub fn quick() -> Self {
        Self { cap: 96, depth2: 8, cap2: 12, failures: Failures::None, enough: 3 }
    }

    /// Small enough for `cargo test`, on some way to keep a table. Of the journal every verb is one
    /// frame, so the disk fails only for some.
    pub fn quick_of(kept: Kept, act: Act) -> Self {
        let resizes = matches!(act, Act::Grow | Act::Shrink);
        let fails =
            resizes || matches!(act, Act::Claim | Act::HeartbeatEach | Act::Rotate | Act::MakeRoom);
        let failures = if fails { Failures::Disk } else { Failures::None };
        match kept {
            Kept::Journal => Self { cap: 24, cap2: 2, depth2: 3, failures, ..Self::quick() },
            Kept::Record | Kept::Group => Self::quick(),
        }
    }

    /// Everything.
    pub fn full() -> Self {
        Self { cap: 2048, depth2: 200, cap2: 32, failures: Failures::All, enough: 3 }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash points.
    pub points: usize,
    /// Disks looked at after one cut.
    pub states: usize,
    /// Disks looked at after a second cut.
    pub second: usize,
    /// Distinct ones among both.
    pub distinct: usize,
    /// Points at which not every reachable disk was looked at.
    pub sampled: usize,
    /// Kill points from which somebody went on.
    pub kills: usize,
    /// Calls made again after a kill that were acknowledged, and then cut.
    pub retries: usize,
    /// Intents that were met after a stranger had changed a member, and disks on which something
    /// durable was damaged.
    pub meddled: usize,
    /// What was wrong, as far as it was counted.
    pub violations: Vec<String>,
    /// How often each known defect was met.
    pub known: BTreeMap<&'static str, usize>,
}

impl Report {
    /// Adds another report to this one.
    pub fn add(&mut self, other: Self) {
        self.points += other.points;
        self.states += other.states;
        self.second += other.second;
        self.distinct += other.distinct;
        self.sampled += other.sampled;
        self.kills += other.kills;
        self.retries += other.retries;
        self.meddled += other.meddled;
        self.violations.extend(other.violations);
        for (name, count) in other.known {
            *self.known.entry(name).or_default() += count;
        }
    }
}
