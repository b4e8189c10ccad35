//! Two coordinators, three targets in two shards, expiry, take-over, one failure, up to three crashes.
//!
//! A sync that fails is told once: what it should have covered is seen, and lost to every later sync. An
//! intent in a slot is whole or not there; a retirement takes two writes and is in sight until it is durable.
//!
//! A step is one call that others or a power cut can tell from the next: taking a lock, writing into
//! a slot, syncing it, one rename, one directory sync. What is abstracted: a record's bytes (a value
//! under a token), the staging of temporaries (M3 and M4 hold if a value is durable before its
//! rename; [`Variant::NoFileSync`] shows what happens if not), and the fence counter.

use stateright::{Model, Property};

use crate::properties;
use crate::state::{Cell, GROUPS, Op, Pc, Proc, SLOTS, State, Val, token};
use crate::variant::{Protocol, Variant};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Start(usize, Op),
    Step(usize),
    Fail(usize),
    Expire(u8),
    Kill(usize),
    /// The choice of what survives, as digits of a number.
    Cut(u16),
}

impl Protocol {
    /// Everything falls back to what is durable, plus any part of the rest.
    fn cut(&self, s: &mut State, mut choice: u16) -> Option<()> {
        (0..2).for_each(|c| s.doubt(c));
        for at in 0..3 {
            let cell = &mut s.records[at];
            let ways = cell.pending.len() + 1;
            let pick = usize::from(choice) % ways;
            choice /= u16::try_from(ways).ok()?;
            if pick > 0 {
                cell.durable = cell.pending[pick - 1];
                if self.variant == Variant::NoFileSync {
                    cell.durable = Val::Torn;
                }
            }
            cell.pending.clear();
            cell.stuck = false;
        }
        for slot in 0..SLOTS {
            let cell = &mut s.slots[slot];
            let ways = cell.pending.len() + 1;
            let pick = usize::from(choice) % ways;
            choice /= u16::try_from(ways).ok()?;
            if pick > 0 {
                cell.durable = cell.pending[pick - 1].clone();
            }
            cell.pending.clear();
            cell.stuck = false;
            // All that is seen now is durable.
            s.free_if_retired(slot);
        }
        (0..2).for_each(|c| s.rest(c));
        // A number beyond the last choice is none.
        (choice == 0).then_some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let proc = Proc {
            pc: Pc::Idle,
            op: Op::Release,
            group: Vec::new(),
            seen: Vec::new(),
            wrote: Vec::new(),
            slot: None,
            found: None,
            copy: None,
            held: None,
            left: self.calls[0],
            syncs: [0; 2],
        };
        vec![State {
            records: [0; 3].map(|_| Cell::new(Val::Vacant)),
            slots: [0; SLOTS].map(|_| Cell::new(None)),
            locks: [None; 3],
            slot_locks: [None; SLOTS],
            procs: [proc.clone(), Proc { left: self.calls[1], ..proc }],
            next: 1,
            expired: 0,
            live: Vec::new(),
            allowed: vec![[Val::Vacant; 3]],
            crashes: self.crashes,
            failures: self.failures,
            broken: None,
            happened: 0,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.broken.is_some() {
            return;
        }
        for c in 0..2 {
            let me = &s.procs[c];
            if me.pc != Pc::Idle {
                actions.push(Action::Step(c));
                if Self::may_fail(me.pc) && s.failures > 0 {
                    actions.push(Action::Fail(c));
                }
                if s.crashes > 0 {
                    actions.push(Action::Kill(c));
                }
            } else if me.left > 0 {
                match me.held {
                    Some(_) => {
                        actions.push(Action::Start(c, Op::Heartbeat));
                        actions.push(Action::Start(c, Op::Release));
                    }
                    None if c == 0 => actions.push(Action::Start(c, Op::Claim(0))),
                    None => {
                        actions.push(Action::Start(c, Op::Overlong(0)));
                        actions.push(Action::Start(c, Op::Claim(1)));
                        actions.push(Action::Start(c, Op::Claim(2)));
                    }
                }
            }
        }
        for held in s.records.iter().filter_map(|cell| token(*cell.now())) {
            let expire = Action::Expire(held);
            if self.expiry && s.expired >> held & 1 == 0 && !actions.contains(&expire) {
                actions.push(expire);
            }
        }
        if s.crashes > 0 {
            let ways = s.records.iter().map(|cell| cell.pending.len() + 1);
            let slots = s.slots.iter().map(|cell| cell.pending.len() + 1);
            let ways = ways.chain(slots).product::<usize>();
            actions
                .extend((0..ways).filter_map(|choice| Some(Action::Cut(choice.try_into().ok()?))));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Start(c, op) => {
                let me = &mut s.procs[c];
                me.left -= 1;
                me.op = op;
                let group = match op {
                    Op::Claim(group) | Op::Overlong(group) => group,
                    _ => me.held?.1,
                };
                me.group = GROUPS[group].to_vec();
                me.pc = Pc::Lock(0);
                if let (Op::Release, Some((token, _))) = (op, me.held) {
                    // Whoever gives a lease up no longer counts on it, however the call ends.
                    s.live.retain(|(live, _)| *live != token);
                }
            }
            Action::Step(c) => self.step(&mut s, c)?,
            Action::Fail(c) => {
                s.failures -= 1;
                self.fail(&mut s, c)?;
            }
            Action::Expire(token) => {
                s.expired |= 1 << token;
                s.live.retain(|(live, _)| *live != token);
            }
            Action::Kill(c) => {
                s.crashes -= 1;
                s.doubt(c);
                s.rest(c);
            }
            Action::Cut(choice) => {
                s.crashes -= 1;
                self.cut(&mut s, choice)?;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
