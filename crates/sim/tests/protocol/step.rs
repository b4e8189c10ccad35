//! One step of a coordinator: from the locks to the answer, or back.

use crate::state::{Intent, Op, Pc, Promise, RESTORED, SHARD, Standing, State, Val, sync_shard};
use crate::variant::{Protocol, Variant};

impl Protocol {
    pub(crate) fn step(&self, s: &mut State, c: usize) -> Option<()> {
        let me = s.procs[c].clone();
        let next = match me.pc {
            Pc::Idle => return None,
            Pc::Lock(i) => match self.order(c, &me.group).get(i) {
                None => Pc::Meet,
                Some(&at) if s.locks[at].is_none() => {
                    s.locks[at] = Some(c);
                    Pc::Lock(i + 1)
                }
                Some(_) => return None,
            },
            Pc::Meet => match self.standing(s, &me.group) {
                Some(slot) => {
                    s.unlock(c);
                    Pc::RecoverTake(slot)
                }
                None => Pc::Decide,
            },
            Pc::Decide => {
                self.decide(s, c);
                return Some(());
            }
            Pc::WriteIntent => {
                let free = Self::free_slot(s)?;
                let members = me.group.iter().zip(me.seen.iter().zip(&me.wrote));
                let members = members.map(|(at, (old, new))| (*at, *old, *new)).collect();
                s.slot_locks[free] = Some(c);
                let issued = if self.variant == Variant::IssuedUntold { 0 } else { s.next - 1 };
                let intent = Intent { members, standing: Standing::Forward, issued };
                s.slots[free].put(Some(intent));
                s.procs[c].slot = Some(free);
                if self.variant == Variant::IntentNotSynced {
                    Pc::Rename(0)
                } else {
                    Pc::SyncIntent
                }
            }
            Pc::SyncIntent => {
                s.sync_slot(me.slot?);
                Pc::Rename(0)
            }
            Pc::Unintend => {
                s.retire(me.slot?);
                Pc::SyncUnintend
            }
            Pc::SyncUnintend => {
                s.sync_slot(me.slot?);
                // Nothing was changed.
                s.rest(c);
                return Some(());
            }
            Pc::Rename(i) => match me.group.get(i) {
                None => Pc::SyncShard(0),
                Some(&at) => {
                    if self.staged_in(at) != SHARD[at] {
                        s.say(Promise::M9);
                    }
                    if matches!(me.op, Op::Overlong(_)) {
                        // Only now does it turn out that the last record cannot be written down.
                        s.say(Promise::M3);
                        s.rest(c);
                        return Some(());
                    }
                    s.records[at].put(me.wrote[i]);
                    if self.variant == Variant::SyncPerRecord {
                        s.procs[c].syncs[SHARD[at]] += 1;
                        s.records[at].sync();
                    }
                    match i + 1 == me.group.len() {
                        // An answer before the barrier.
                        true if self.variant == Variant::AcknowledgedEarly => Pc::Ack,
                        true if self.variant == Variant::RetiredEarly && me.slot.is_some() => {
                            Pc::Retire
                        }
                        _ => Pc::Rename(i + 1),
                    }
                }
            },
            Pc::SyncShard(shard) if shard < 2 => {
                let skip = self.variant == Variant::NoDirSync
                    || (self.variant == Variant::OneShardOnly && shard == 1);
                if !skip && me.group.iter().any(|at| SHARD[*at] == shard) {
                    sync_shard(s, &me.group, shard);
                    s.procs[c].syncs[shard] += 1;
                }
                Pc::SyncShard(shard + 1)
            }
            Pc::SyncShard(_) => {
                if me.slot.is_some() && self.variant != Variant::RetiredEarly {
                    Pc::Retire
                } else {
                    Pc::Ack
                }
            }
            Pc::Retire => {
                if self.variant == Variant::RetirementNotSynced {
                    // Free at once.
                    s.slots[me.slot?].put(None);
                    Pc::Ack
                } else {
                    s.retire(me.slot?);
                    Pc::SyncRetire
                }
            }
            Pc::SyncRetire => {
                s.sync_slot(me.slot?);
                if self.variant == Variant::RetiredEarly { Pc::SyncShard(0) } else { Pc::Ack }
            }
            Pc::Ack => {
                Self::acknowledge(s, c);
                return Some(());
            }
            Pc::Abort => {
                let intent = s.slots[me.slot?].now().clone()?;
                s.slots[me.slot?].put(Some(Intent { standing: Standing::Back, ..intent }));
                if self.variant == Variant::AbortNotSynced { Pc::Undo(0) } else { Pc::SyncAbort }
            }
            Pc::SyncAbort => {
                s.sync_slot(me.slot?);
                Pc::Undo(0)
            }
            Pc::Undo(i) => match me.group.get(i) {
                None => Pc::SyncUndo,
                Some(&at) => {
                    if *s.records[at].now() != me.seen[i] {
                        let decided = me.slot.and_then(|slot| s.slots[slot].durable.as_ref());
                        if decided.is_some_and(|intent| intent.standing == Standing::Forward) {
                            s.say(Promise::DecidedFirst);
                        }
                        let inexact = self.variant == Variant::UndoInexact;
                        s.records[at].put(if inexact { Val::Vacant } else { me.seen[i] });
                    }
                    Pc::Undo(i + 1)
                }
            },
            Pc::SyncUndo => {
                if self.variant != Variant::UndoNotSynced {
                    (0..2).for_each(|shard| sync_shard(s, &me.group, shard));
                }
                if me.slot.is_some() { Pc::RetireUndo } else { Pc::Failed }
            }
            Pc::RetireUndo => {
                s.retire(me.slot?);
                Pc::SyncRetireUndo
            }
            Pc::SyncRetireUndo => {
                s.sync_slot(me.slot?);
                Pc::Failed
            }
            Pc::Failed => {
                let mut back = me.group.iter().zip(&me.seen);
                if !back.all(|(at, seen)| s.records[*at].now() == seen) {
                    s.say(Promise::M7);
                }
                if !me.group.iter().all(|at| s.records[*at].pending.is_empty()) {
                    s.say(Promise::M8);
                }
                s.happened |= RESTORED;
                s.rest(c);
                return Some(());
            }
            _ => return self.recover(s, c),
        };
        s.procs[c].pc = next;
        Some(())
    }

    /// The step that a coordinator is at fails. A sync that fails is told once and is final.
    pub(crate) fn fail(&self, s: &mut State, c: usize) -> Option<()> {
        let me = s.procs[c].clone();
        let back = match me.slot {
            Some(_) if self.variant != Variant::NoAbortMark => Pc::Abort,
            _ => Pc::Undo(0),
        };
        let next = match me.pc {
            Pc::Rename(_) => back,
            Pc::SyncShard(shard) => {
                s.fail_shard(&me.group, shard);
                back
            }
            Pc::SyncIntent => {
                s.slots[me.slot?].fail_to_sync();
                Pc::Unintend
            }
            Pc::SyncAbort => {
                s.slots[me.slot?].fail_to_sync();
                Self::give_up(s, c);
                return Some(());
            }
            Pc::SyncUndo => {
                (0..2).for_each(|shard| s.fail_shard(&me.group, shard));
                Self::give_up(s, c);
                return Some(());
            }
            Pc::SyncRetire => {
                Self::stand_again(s, me.slot?, Standing::Forward);
                Self::give_up(s, c);
                return Some(());
            }
            Pc::SyncRetireUndo => {
                Self::stand_again(s, me.slot?, Standing::Back);
                Self::give_up(s, c);
                return Some(());
            }
            _ => return Self::fail_to_recover(s, c),
        };
        s.procs[c].pc = next;
        Some(())
    }

    /// Whether a coordinator is at a step that may fail.
    pub(crate) fn may_fail(pc: Pc) -> bool {
        use Pc::{
            RecoverSync, RecoverSyncRetire, Rename, SyncAbort, SyncCopy, SyncIntent, SyncRetire,
            SyncRetireFound, SyncRetireUndo, SyncShard, SyncUndo,
        };
        matches!(
            pc,
            Rename(_)
                | SyncShard(_)
                | SyncIntent
                | SyncAbort
                | SyncUndo
                | SyncRetire
                | SyncRetireUndo
                | SyncCopy
                | SyncRetireFound
                | RecoverSync
                | RecoverSyncRetire
        )
    }

    /// The caller is told that the outcome is unknown.
    fn give_up(s: &mut State, c: usize) {
        s.doubt(c);
        s.rest(c);
    }

    /// What could not be retired is made to stand again, for everybody who looks.
    pub(crate) fn stand_again(s: &mut State, slot: usize, standing: Standing) {
        s.slots[slot].fail_to_sync();
        if let Some(intent) = s.slots[slot].now().clone() {
            s.slots[slot].put(Some(Intent { standing, ..intent }));
        }
    }

    /// A slot that nobody uses; a retirement in it is made durable first.
    pub(crate) fn free_slot(s: &mut State) -> Option<usize> {
        let is_free = |slot: &usize| {
            let stands = s.slots[*slot].now().as_ref().is_some_and(Intent::stands);
            s.slot_locks[*slot].is_none() && !stands
        };
        let free = (0..s.slots.len()).find(is_free)?;
        if s.slots[free].now().is_some() {
            s.slots[free].stuck = false;
            s.sync_slot(free);
        }
        Some(free)
    }
}
