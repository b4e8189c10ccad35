//! Bugs planted in the engine `files`, and in the rules.

use super::Hunt::{Barriers, Calm, Crash, Duel, Failure, Finishers, Storm};
use super::{Canary, above, below};
use crate::case::Act;
use crate::sabotage::Sabotage as S;
use crate::setup::Kept::{Group, Record};
use crate::verbs::WrongRule;

/// Those of the engine `files`.
pub(super) const CANARIES: &[Canary] = &[
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
    above("the token is compared by name", Record, WrongRule::TokenByName, Storm),
    above("a lease runs out a second early", Record, WrongRule::ExpiryOffByOne, Calm),
    above(
        "a release removes before it has validated",
        Record,
        WrongRule::ReleaseBeforeValidation,
        Storm,
    ),
    above("a claim takes what is free of a group", Record, WrongRule::PartialClaim, Calm),
    above(
        "a heartbeat gives each member its own moment",
        Record,
        WrongRule::HeartbeatPerMember,
        Calm,
    ),
    above("a result is committed without its fence", Record, WrongRule::CommitWithoutFence, Storm),
    above("a release says done and removes nothing", Record, WrongRule::SilentRelease, Calm),
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
        "recovery believes its own sync of an intent that it found",
        Group,
        S::FoundIntentBelieved,
        Failure(Act::Claim, 2, 1),
    ),
    below(
        "recovery overwrites what is neither image",
        Group,
        S::RecoversAnything,
        Crash(Act::Claim, 2, 1),
    ),
    below("recovery does not make anew what is as decided", Group, S::SettledBelieved, Storm),
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
    above("a completed job keeps its group", Group, WrongRule::HalfAJob, Storm),
];
