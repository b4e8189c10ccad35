//! The protocol as it is, and with one part of it missing.

use crate::state::{Proc, SHARD};

/// The protocol as it is, or with one part of it missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Sound,
    NoIntent,
    IntentNotSynced,
    NoFileSync,
    NoDirSync,
    OneShardOnly,
    RetirementNotSynced,
    NoAbortMark,
    AbortNotSynced,
    LocksReversed,
    ReleaseUnvalidated,
    RecoveryNotSynced,
    MeetNotChecked,
    UndoNotSynced,
    UndoInexact,
    SerialiseLate,
    SyncPerRecord,
    StagedElsewhere,
    AcknowledgedEarly,
    FencesReused,
    ExpiredEarly,
    RetiredEarly,
    SlotUnlocked,
    RecordsUnlocked,
    /// Makes what it found durable before it acts on it: the records before an intent about them, the
    /// intent before it is finished.
    FoundSynced,
}

#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) variant: Variant,
    pub(crate) calls: u8,
    pub(crate) crashes: u8,
    pub(crate) failures: u8,
}

impl Protocol {
    pub(crate) fn needs_intent(&self, me: &Proc) -> bool {
        me.group.len() > 1 && self.variant != Variant::NoIntent
    }

    pub(crate) fn order(&self, proc: usize, members: &[usize]) -> Vec<usize> {
        let mut order = members.to_vec();
        if self.variant == Variant::LocksReversed && proc == 1 {
            order.reverse();
        }
        order
    }

    /// The directory that the temporary of a record is written in.
    pub(crate) fn staged_in(&self, at: usize) -> usize {
        if self.variant == Variant::StagedElsewhere { 0 } else { SHARD[at] }
    }
}
