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
    /// Recovery acts on the intent that it found.
    NotCopied,
    /// It syncs the one that it found, and takes that for the copy.
    FoundSynced,
    /// It changes records before its copy is durable.
    CopyNotSynced,
    /// It retires the one that it found before its copy is durable.
    FoundRetiredFirst,
    /// It writes one that turned back anew as one that goes forward.
    CopyNotTurned,
    /// It retires its copy and leaves the one that it found.
    FoundLeft,
    /// It leaves as they are the records that look as decided.
    DecidedBelieved,
    /// It leaves alone what is neither image, also what a power cut brought back.
    OlderLeftAlone,
    /// An intent does not say which tokens were issued before it.
    IssuedUntold,
    /// A retirement that is seen is taken for durable.
    RetirementBelieved,
}

#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) variant: Variant,
    /// How many calls each of the two makes.
    pub(crate) calls: [u8; 2],
    pub(crate) crashes: u8,
    pub(crate) failures: u8,
    /// Whether leases run out.
    pub(crate) expiry: bool,
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
