//! Bugs planted on purpose, each of which the checks must notice.
//!
//! A canary that survives is a hole in the checks, whatever else they say. One bug is missing on
//! purpose: that recovery does not lock the records. It changes nothing as long as everybody knows
//! intents (`tests/protocol/checks.rs` says why, and shows it in every order of the steps).

use std::time::Duration;

use crate::case::{Act, Case, Shape};
use crate::exhaustive::{Limits, explore};
use crate::faults::Chaos;
use crate::known;
use crate::random::{Plan, run};
use crate::sabotage::{PAIR, Sabotage};
use crate::setup::{Mode, Setup};
use crate::verbs::WrongRule;

/// A planted bug and where to look for it.
#[derive(Clone, Copy, Debug)]
pub struct Canary {
    /// What is wrong.
    pub name: &'static str,
    /// The property that it breaks.
    pub mode: Mode,
    bug: Bug,
    hunt: Hunt,
}

#[derive(Clone, Copy, Debug)]
enum Bug {
    Below(Sabotage),
    Above(WrongRule),
}

#[derive(Clone, Copy, Debug)]
enum Hunt {
    /// Every crash point of one call.
    Crash(Act, usize, u16),
    /// The same, and of the call failing at each of its own calls.
    Failure(Act, usize, u16),
    /// Random runs in which everything goes wrong.
    Storm,
    /// Random runs in which whoever is half done is killed, and the rest race to finish it.
    Finishers,
    /// Random runs in which only barriers fail.
    Barriers,
    /// Random runs in which only the order is random.
    Calm,
    /// The same with two coordinators that want the same two targets.
    Duel,
}

const fn below(name: &'static str, mode: Mode, bug: Sabotage, hunt: Hunt) -> Canary {
    Canary { name, mode, bug: Bug::Below(bug), hunt }
}

const fn above(name: &'static str, bug: WrongRule, hunt: Hunt) -> Canary {
    Canary { name, mode: Mode::Record, bug: Bug::Above(bug), hunt }
}

use Hunt::{Barriers, Calm, Crash, Duel, Failure, Finishers, Storm};
use Mode::{Group, Record};
use Sabotage as S;

/// Every planted bug.
pub const CANARIES: &[Canary] = &[
    below(
        "no file sync before a record's rename",
        Record,
        S::RecordFileSync,
        Crash(Act::Claim, 2, 1),
    ),
    below(
        "no directory sync after renames",
        Record,
        S::DirSyncAfterRename,
        Crash(Act::Heartbeat, 2, 1),
    ),
    below(
        "no directory sync after removals",
        Record,
        S::DirSyncAfterUnlink,
        Crash(Act::Release, 2, 1),
    ),
    below("only the first shard is synced", Record, S::LaterDirSyncs, Crash(Act::Claim, 2, 2)),
    below(
        "no file sync of the fence limit",
        Record,
        S::FenceFileSync,
        Crash(Act::FenceRaise, 1, 1),
    ),
    below(
        "no directory sync of the fence limit",
        Record,
        S::FenceDirSync,
        Crash(Act::FenceRaise, 1, 1),
    ),
    below(
        "no file sync of the table's description",
        Record,
        S::MetaFileSync,
        Crash(Act::Init, 1, 1),
    ),
    below("a new shard is not made durable", Record, S::MkdirSync, Crash(Act::MakeShard, 1, 1)),
    below("no sync of the audit line", Record, S::AuditSync, Crash(Act::ForceRelease, 1, 1)),
    below(
        "no directory sync of a new audit file",
        Record,
        S::AuditDirSync,
        Crash(Act::ForceRelease, 1, 1),
    ),
    below(
        "no directory sync of the table's description",
        Record,
        S::FenceDirSync,
        Crash(Act::Init, 1, 1),
    ),
    below(
        "no sync of the directory that the table is in",
        Record,
        S::ParentSync,
        Crash(Act::Init, 1, 1),
    ),
    below(
        "the barrier comes before the rename",
        Record,
        S::BarrierBeforeRename,
        Crash(Act::Claim, 1, 1),
    ),
    below("what is put back is not synced", Record, S::RestoreSync, Failure(Act::Heartbeat, 2, 1)),
    below(
        "what should be put back is not",
        Record,
        S::RestoreForgotten,
        Failure(Act::Heartbeat, 2, 1),
    ),
    below(
        "a failed sync is tried again and believed",
        Record,
        S::SyncRetried,
        Failure(Act::Claim, 1, 1),
    ),
    below("every second rename is lost", Record, S::LostRename, Crash(Act::Claim, 2, 1)),
    below("temporaries stay after a failure", Record, S::TempsForgotten, Failure(Act::Claim, 2, 1)),
    below("records are written in place", Record, S::InPlace, Crash(Act::Heartbeat, 1, 1)),
    below("locks exclude nobody", Record, S::LockExcludesNobody, Calm),
    below("the fence counter's lock excludes nobody", Record, S::FenceLockExcludesNobody, Calm),
    below("one process takes its locks in the opposite order", Record, S::LockOrder, Duel),
    below("locks are given up before the barrier", Record, S::EarlyUnlock, Barriers),
    above("the token is compared by name", WrongRule::TokenByName, Storm),
    above("a lease runs out a second early", WrongRule::ExpiryOffByOne, Calm),
    above("a release removes before it has validated", WrongRule::ReleaseBeforeValidation, Storm),
    above("a claim takes what is free of a group", WrongRule::PartialClaim, Calm),
    above("a heartbeat gives each member its own moment", WrongRule::HeartbeatPerMember, Calm),
    above("a result is committed without its fence", WrongRule::CommitWithoutFence, Storm),
    above("a release says done and removes nothing", WrongRule::SilentRelease, Calm),
    below("no sync of an intent", Group, S::IntentFileSync, Crash(Act::Claim, 2, 2)),
    below(
        "no directory sync of a new intent slot",
        Group,
        S::IntentDirSync,
        Crash(Act::HeartbeatEach, 2, 2),
    ),
    below("an intent is not retired", Group, S::RetirementForgotten, Crash(Act::StaleIntent, 2, 1)),
    below("a retirement is not synced", Group, S::RetirementSync, Crash(Act::StaleIntent, 2, 1)),
    below("recovery syncs nothing", Group, S::RecoverySync, Crash(Act::Claim, 2, 1)),
    below(
        "recovery acts on an intent that it has not synced",
        Group,
        S::FoundIntentSync,
        Crash(Act::Claim, 2, 1),
    ),
    below(
        "recovery overwrites what is neither image",
        Group,
        S::RecoversAnything,
        Crash(Act::Claim, 2, 1),
    ),
    below("two may finish one intent at once", Group, S::SlotLock, Finishers),
    below(
        "an intent is written after the first rename",
        Group,
        S::IntentAfterRename,
        Crash(Act::Claim, 2, 2),
    ),
    below(
        "an intent is retired before its records are durable",
        Group,
        S::RetiredEarly,
        Crash(Act::Claim, 2, 2),
    ),
    below(
        "a failed group is put back without an abort mark",
        Group,
        S::AbortForgotten,
        Failure(Act::Heartbeat, 2, 2),
    ),
    below(
        "an abort mark is not synced before records are put back",
        Group,
        S::AbortSync,
        Failure(Act::Heartbeat, 2, 2),
    ),
    below("a reader does not look at intents", Group, S::ReaderBlind, Crash(Act::Claim, 2, 2)),
    below(
        "a reader shows an aborted group as the new state",
        Group,
        S::ReaderIgnoresAbort,
        Failure(Act::Heartbeat, 2, 2),
    ),
];

/// Seeds that a hunt may use.
const SEEDS: u64 = 400;

impl Canary {
    fn setup(&self) -> Setup {
        let honest = Setup::honest(self.mode);
        match self.bug {
            Bug::Below(kind) => Setup { sabotage: Some(kind), ..honest },
            Bug::Above(rule) => Setup { wrong: Some(rule), ..honest },
        }
    }

    /// The part of the suite that is to notice it.
    pub fn part(&self) -> String {
        let case = |act, members, shards| Case { act, shape: Shape { members, shards } };
        match self.hunt {
            Crash(act, members, shards) => format!("crash points, {}", case(act, members, shards)),
            Failure(act, members, shards) => format!("failures, {}", case(act, members, shards)),
            Storm => "random, storm".into(),
            Finishers => "random, finishers".into(),
            Barriers => "random, barriers fail".into(),
            Calm => "random, calm".into(),
            Duel => "random, duel".into(),
        }
    }

    /// Looks for the bug; says what was seen of it, or `None` if nothing was.
    pub fn catch(&self) -> Option<String> {
        match self.hunt {
            Crash(act, members, shards) | Failure(act, members, shards) => {
                let failures = matches!(self.hunt, Failure(..));
                let limits = Limits { failures, enough: 1, ..Limits::quick() };
                let case = Case { act, shape: Shape { members, shards } };
                explore(case, self.setup(), limits).violations.into_iter().next()
            }
            _ => (1..=SEEDS).find_map(|seed| {
                // What the engine does wrong anyway shows nothing of the planted bug.
                let is_new = |text: &String| known::name(text).is_none();
                let found = run(&self.plan(seed)).violations.into_iter().find(is_new)?;
                Some(format!("seed {seed}: {found}"))
            }),
        }
    }

    fn plan(&self, seed: u64) -> Plan {
        let plan = Plan::of(seed, self.setup());
        match self.hunt {
            Calm => plan.calm(),
            Barriers => {
                Plan { chaos: Chaos::barriers(seed), patience: Duration::from_secs(2), ..plan }
            }
            Finishers => Plan {
                procs: 4,
                targets: 2,
                whole_groups: true,
                chaos: Chaos::finishers(seed),
                ..plan
            },
            Duel => {
                Plan { procs: 2, targets: PAIR.len() as u64, whole_groups: true, ..plan.calm() }
            }
            _ => plan,
        }
    }
}
