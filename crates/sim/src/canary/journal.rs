//! Bugs planted in the engine `journal`.

use super::Hunt::{Calm, Crash, Disk, Storm};
use super::{Canary, above, below};
use crate::case::Act;
use crate::sabotage::Sabotage as S;
use crate::setup::Kept::Journal;
use crate::verbs::WrongRule;

/// Those of the engine `journal`.
pub(super) const CANARIES: &[Canary] = &[
    below("no data sync of a frame", Journal, S::DataSync, Crash(Act::Claim, 2, 1)),
    below(
        "the sync begins before the frame is whole",
        Journal,
        S::SyncBeforeFrame,
        Crash(Act::Claim, 2, 1),
    ),
    below(
        "what is appended is told to be durable",
        Journal,
        S::AppendedIsDurable,
        Crash(Act::Claim, 2, 1),
    ),
    below(
        "a hint is believed without its checksum",
        Journal,
        S::HintUnchecked,
        Crash(Act::MakeRoom, 2, 1),
    ),
    below("no sync of a checkpoint", Journal, S::CheckpointSync, Crash(Act::MakeRoom, 2, 1)),
    below(
        "no directory sync after a checkpoint's rename",
        Journal,
        S::CheckpointDirSync,
        Crash(Act::MakeRoom, 2, 1),
    ),
    below(
        "a segment is erased before a checkpoint replaces it",
        Journal,
        S::ErasedTooEarly,
        Crash(Act::MakeRoom, 2, 1),
    ),
    below(
        "a segment is cut off before a checkpoint replaces it",
        Journal,
        S::CutTooEarly,
        Crash(Act::Shrink, 2, 1),
    ),
    below(
        "frames of a segment's earlier use are believed",
        Journal,
        S::RecycledBelieved,
        Crash(Act::NoRoom, 2, 1),
    ),
    below("the chain is not checked", Journal, S::ChainUnchecked, Storm),
    below(
        "a failed sync is tried again and believed",
        Journal,
        S::SyncRetried,
        Disk(Act::Claim, 2, 1),
    ),
    below("a failed sync is forgotten", Journal, S::MarkForgotten, Disk(Act::Claim, 2, 1)),
    below("a torn tail is refused", Journal, S::TornTailRefused, Crash(Act::Claim, 2, 1)),
    below("damage is cut off as a torn tail", Journal, S::DamageCut, Crash(Act::Claim, 2, 1)),
    below(
        "what a dead process appended is believed",
        Journal,
        S::DeadWriterBelieved,
        Disk(Act::Claim, 2, 1),
    ),
    below(
        "a segment is left before it is durable",
        Journal,
        S::BorderSync,
        Crash(Act::Rotate, 2, 1),
    ),
    below("the end is not taken back", Journal, S::EndKept, Storm),
    below("the lock of those who append excludes nobody", Journal, S::AppendLock, Calm),
    above("what was decided is stored whatever has changed", Journal, WrongRule::DecidesOnce, Calm),
    above("a completed job keeps its group", Journal, WrongRule::HalfAJob, Storm),
];
