//! Finishing what a dead coordinator left.
//!
//! ```text
//! RecoverTake -> RecoverLock* -> Copy -> SyncCopy -> RetireFound -> SyncRetireFound
//!             -> RecoverApply* -> RecoverSync -> RecoverRetire -> RecoverSyncRetire -> Lock
//! ```
//! Until the copy is durable the one that was found decides, from then on the copy does; while both stand
//! they decide the same.

use crate::state::{
    COPIED, COPIED_COPY, COPIED_LOST, Intent, Pc, Promise, REDONE, Standing, State, UNDONE, Val,
    sync_shard,
};
use crate::variant::{Protocol, Variant};

impl Protocol {
    /// One step of whoever met an intent that stands.
    pub(crate) fn recover(&self, s: &mut State, c: usize) -> Option<()> {
        let me = s.procs[c].clone();
        let locks = self.variant != Variant::SlotUnlocked;
        let next = match me.pc {
            Pc::RecoverTake(slot) => match (s.slot_locks[slot], s.slots[slot].now().clone()) {
                // Its writer, or another recoverer, is at work: start over.
                (Some(_), Some(_)) if locks => Pc::Lock(0),
                (_, None) => Pc::Lock(0),
                (_, Some(intent)) => {
                    if locks {
                        s.slot_locks[slot] = Some(c);
                    }
                    s.procs[c].slot = Some(slot);
                    if intent.stands() {
                        s.procs[c].found = Some(intent);
                        Pc::RecoverLock(0)
                    } else {
                        // Written once more: its sync may have failed for whoever retired it.
                        s.slots[slot].stuck = false;
                        Pc::RecoverSyncRetire
                    }
                }
            },
            Pc::RecoverLock(i) => match me.found.as_ref()?.members.get(i) {
                None => match self.variant {
                    Variant::NotCopied | Variant::FoundSynced => {
                        if self.variant == Variant::FoundSynced {
                            s.sync_slot(me.slot?);
                        }
                        s.procs[c].copy = me.slot;
                        Pc::RecoverApply(0)
                    }
                    Variant::FoundRetiredFirst => Pc::RetireFound,
                    _ => Pc::Copy,
                },
                Some(_) if self.variant == Variant::RecordsUnlocked => Pc::RecoverLock(i + 1),
                Some((at, ..)) if s.locks[*at].is_none() => {
                    s.locks[*at] = Some(c);
                    Pc::RecoverLock(i + 1)
                }
                Some(_) => return None,
            },
            Pc::Copy => {
                self.copy(s, c)?;
                match self.variant {
                    Variant::CopyNotSynced => Pc::RetireFound,
                    _ => Pc::SyncCopy,
                }
            }
            Pc::SyncCopy => {
                s.sync_slot(me.copy?);
                match self.variant {
                    Variant::FoundRetiredFirst | Variant::FoundLeft => Pc::RecoverApply(0),
                    _ => Pc::RetireFound,
                }
            }
            Pc::Uncopy => {
                s.retire(me.copy?);
                Pc::SyncUncopy
            }
            Pc::SyncUncopy => {
                s.sync_slot(me.copy?);
                s.rest(c);
                return Some(());
            }
            Pc::RetireFound => {
                s.retire(me.slot?);
                Pc::SyncRetireFound
            }
            Pc::SyncRetireFound => {
                s.sync_slot(me.slot?);
                match self.variant {
                    Variant::FoundRetiredFirst => Pc::Copy,
                    _ => Pc::RecoverApply(0),
                }
            }
            Pc::RecoverApply(i) => match me.found.as_ref()?.members.get(i) {
                None => Pc::RecoverSync,
                Some(&member) => {
                    self.settle(s, me.found.as_ref()?, member);
                    Pc::RecoverApply(i + 1)
                }
            },
            Pc::RecoverSync => {
                if self.variant != Variant::RecoveryNotSynced {
                    let members = members(me.found.as_ref()?);
                    (0..2).for_each(|shard| sync_shard(s, &members, shard));
                }
                Pc::RecoverRetire
            }
            Pc::RecoverRetire => {
                s.retire(me.copy?);
                Pc::RecoverSyncRetire
            }
            Pc::RecoverSyncRetire => {
                s.sync_slot(me.copy.or(me.slot)?);
                let found = &s.slots[me.slot?];
                // Where retiring it failed it stands again, and that is pending.
                if found.pending.is_empty() && me.found.is_some() && *found.now() == me.found {
                    s.say(Promise::Finished);
                }
                s.unlock(c);
                s.procs[c].slot = None;
                s.procs[c].found = None;
                s.procs[c].copy = None;
                Pc::Lock(0)
            }
            _ => return None,
        };
        s.procs[c].pc = next;
        Some(())
    }

    /// Writes the intent that was found anew, into a slot of the finder's own.
    fn copy(&self, s: &mut State, c: usize) -> Option<()> {
        let (found, slot) = (s.procs[c].found.clone()?, s.procs[c].slot?);
        let free = Self::free_slot(s)?;
        let copy = match self.variant {
            Variant::CopyNotTurned => Intent { standing: Standing::Forward, ..found },
            _ => found.again(),
        };
        let others = s.slots.iter().filter_map(|slot| slot.now().as_ref());
        if others.filter(|other| other.members == copy.members).count() > 1 {
            s.happened |= COPIED_COPY;
        }
        s.happened |= COPIED;
        s.happened |= if s.slots[slot].stuck { COPIED_LOST } else { 0 };
        s.slot_locks[free] = Some(c);
        s.slots[free].put(Some(copy));
        s.procs[c].copy = Some(free);
        Some(())
    }

    /// Brings one member into the decided state, if nobody else has changed it.
    fn settle(&self, s: &mut State, found: &Intent, (at, before, after): (usize, Val, Val)) {
        let turned = found.standing == Standing::Back && self.variant != Variant::CopyNotTurned;
        let standing = if turned { Standing::Back } else { Standing::Forward };
        let decides = Intent { standing, ..found.clone() };
        let (other, decided) = decides.images(before, after);
        let now = *s.records[at].now();
        if now == decided {
            if self.variant != Variant::DecidedBelieved {
                // Whatever made it so may be lost.
                s.records[at].put(decided);
            }
        } else if now == other
            || (self.variant != Variant::OlderLeftAlone && decides.gives_way(now, before, after))
        {
            s.happened |= if turned { UNDONE } else { REDONE };
            s.records[at].put(decided);
        }
    }

    /// A sync of recovery fails, finally.
    pub(crate) fn fail_to_recover(s: &mut State, c: usize) -> Option<()> {
        let me = s.procs[c].clone();
        match me.pc {
            Pc::SyncCopy => {
                s.slots[me.copy?].fail_to_sync();
                s.procs[c].pc = Pc::Uncopy;
                return Some(());
            }
            Pc::SyncRetireFound => {
                // The copy decides all the same.
                Self::stand_again(s, me.slot?, me.found.as_ref()?.standing);
                s.procs[c].pc = Pc::RecoverApply(0);
                return Some(());
            }
            Pc::RecoverSync => {
                let members = members(me.found.as_ref()?);
                (0..2).for_each(|shard| s.fail_shard(&members, shard));
            }
            Pc::RecoverSyncRetire => match me.copy {
                Some(copy) => Self::stand_again(s, copy, Standing::Forward),
                // It was found retired, and says so still; what it decided stands again.
                None => s.slots[me.slot?].fail_to_sync(),
            },
            _ => return None,
        }
        s.rest(c);
        Some(())
    }

    /// An intent over one of these records that decides something, or may again after a power cut.
    /// Whoever holds their locks knows that its writer is gone.
    pub(crate) fn standing(&self, s: &State, group: &[usize]) -> Option<usize> {
        if self.variant == Variant::MeetNotChecked {
            return None;
        }
        let believed = self.variant == Variant::RetirementBelieved;
        (0..s.slots.len()).find(|&slot| match s.slots[slot].now() {
            Some(intent) => {
                let counts = intent.stands() || !believed;
                counts && intent.members.iter().any(|(at, ..)| group.contains(at))
            }
            None => false,
        })
    }
}

fn members(intent: &Intent) -> Vec<usize> {
    intent.members.iter().map(|(at, ..)| *at).collect()
}
