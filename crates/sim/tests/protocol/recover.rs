//! Finishing what a dead coordinator left.

use crate::state::{Pc, REDONE, State, UNDONE, sync_shard};
use crate::variant::{Protocol, Variant};

impl Protocol {
    /// One step of whoever met an intent that stands.
    pub(crate) fn recover(&self, s: &mut State, c: usize) -> Option<()> {
        let me = s.procs[c].clone();
        let next = match me.pc {
            Pc::RecoverTake(slot) => match (s.slot_locks[slot], s.slots[slot].now().clone()) {
                // Its writer, or another recoverer, is at work: start over.
                (Some(_), Some(_)) if self.variant != Variant::SlotUnlocked => Pc::Lock(0),
                (_, None) => Pc::Lock(0),
                (_, Some(intent)) => {
                    if self.variant != Variant::SlotUnlocked {
                        s.slot_locks[slot] = Some(c);
                    }
                    if self.variant == Variant::FoundSynced {
                        s.slots[slot].sync();
                    }
                    s.procs[c].slot = Some(slot);
                    s.procs[c].found = Some(intent);
                    Pc::RecoverLock(0)
                }
            },
            Pc::RecoverLock(i) => match me.found.as_ref()?.members.get(i) {
                None => Pc::RecoverApply(0),
                Some(_) if self.variant == Variant::RecordsUnlocked => Pc::RecoverLock(i + 1),
                Some((at, ..)) if s.locks[*at].is_none() => {
                    s.locks[*at] = Some(c);
                    Pc::RecoverLock(i + 1)
                }
                Some(_) => return None,
            },
            Pc::RecoverApply(i) => match me.found.as_ref()?.members.get(i) {
                None => Pc::RecoverSync,
                Some(&(at, before, after)) => {
                    let abort = me.found.as_ref()?.abort;
                    let (other, decided) = if abort { (after, before) } else { (before, after) };
                    let now = *s.records[at].now();
                    if now == other {
                        s.happened |= if abort { UNDONE } else { REDONE };
                        s.records[at].put(decided);
                    }
                    Pc::RecoverApply(i + 1)
                }
            },
            Pc::RecoverSync => {
                if self.variant != Variant::RecoveryNotSynced {
                    let members: Vec<usize> =
                        me.found.as_ref()?.members.iter().map(|(at, ..)| *at).collect();
                    (0..2).for_each(|shard| sync_shard(s, &members, shard));
                }
                Pc::RecoverRetire
            }
            Pc::RecoverRetire => {
                s.slots[me.slot?].put(None);
                Pc::RecoverSyncRetire
            }
            Pc::RecoverSyncRetire => {
                s.slots[me.slot?].sync();
                s.unlock(c);
                s.procs[c].slot = None;
                s.procs[c].found = None;
                Pc::Lock(0)
            }
            _ => return None,
        };
        s.procs[c].pc = next;
        Some(())
    }

    /// A standing intent over one of these records. Whoever holds their locks knows that its writer
    /// is gone.
    pub(crate) fn standing(&self, s: &State, group: &[usize]) -> Option<usize> {
        if self.variant == Variant::MeetNotChecked {
            return None;
        }
        (0..2).find(|&slot| match s.slots[slot].now() {
            Some(intent) => intent.members.iter().any(|(at, ..)| group.contains(at)),
            None => false,
        })
    }
}
