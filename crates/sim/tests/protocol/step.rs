//! One step of a coordinator: from the locks to the answer, or back.

use crate::state::{Intent, Op, Pc, Promise, RESTORED, SHARD, State, Val, sync_shard};
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
                if self.variant == Variant::FoundSynced {
                    (0..2).for_each(|shard| sync_shard(s, &me.group, shard));
                }
                let free = (0..2)
                    .find(|&slot| s.slot_locks[slot].is_none() && s.slots[slot].now().is_none())?;
                let members = me.group.iter().zip(me.seen.iter().zip(&me.wrote));
                let members = members.map(|(at, (old, new))| (*at, *old, *new)).collect();
                s.slot_locks[free] = Some(c);
                s.slots[free].put(Some(Intent { members, abort: false }));
                s.procs[c].slot = Some(free);
                if self.variant == Variant::IntentNotSynced {
                    Pc::Rename(0)
                } else {
                    Pc::SyncIntent
                }
            }
            Pc::SyncIntent => {
                s.slots[me.slot?].sync();
                Pc::Rename(0)
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
                s.slots[me.slot?].put(None);
                if self.variant == Variant::RetirementNotSynced { Pc::Ack } else { Pc::SyncRetire }
            }
            Pc::SyncRetire => {
                s.slots[me.slot?].sync();
                if self.variant == Variant::RetiredEarly { Pc::SyncShard(0) } else { Pc::Ack }
            }
            Pc::Ack => {
                Self::acknowledge(s, c);
                return Some(());
            }
            Pc::Abort => {
                let mut intent = s.slots[me.slot?].now().clone()?;
                intent.abort = true;
                s.slots[me.slot?].put(Some(intent));
                if self.variant == Variant::AbortNotSynced { Pc::Undo(0) } else { Pc::SyncAbort }
            }
            Pc::SyncAbort => {
                s.slots[me.slot?].sync();
                Pc::Undo(0)
            }
            Pc::Undo(i) => match me.group.get(i) {
                None => Pc::SyncUndo,
                Some(&at) => {
                    if *s.records[at].now() != me.seen[i] {
                        let decided = me.slot.and_then(|slot| s.slots[slot].durable.as_ref());
                        if decided.is_some_and(|intent| !intent.abort) {
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
                s.slots[me.slot?].put(None);
                Pc::SyncRetireUndo
            }
            Pc::SyncRetireUndo => {
                s.slots[me.slot?].sync();
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
}
