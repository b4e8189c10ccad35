//! Two coordinators, three targets in two shards, expiry, take-over, one failure, one crash.
//!
//! A step is one call that others or a power cut can tell from the next: taking a lock, writing into
//! a slot, syncing it, one rename, one directory sync. What is abstracted: a record's bytes (a value
//! under a token), the staging of temporaries (M3 and M4 hold if a value is durable before its
//! rename; [`Variant::NoFileSync`] shows what happens if not), and the fence counter.

use stateright::{Model, Property};

/// A record: absent, a lease, or bytes that are nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Val {
    Vacant,
    Held { token: u8, beat: u8 },
    Torn,
}

/// Something on a disk: what is durable, and what was written since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cell<T> {
    pub(crate) durable: T,
    pub(crate) pending: Vec<T>,
}

impl<T: Clone + PartialEq> Cell<T> {
    fn new(value: T) -> Self {
        Self { durable: value, pending: Vec::new() }
    }

    pub(crate) fn now(&self) -> &T {
        self.pending.last().unwrap_or(&self.durable)
    }

    fn put(&mut self, value: T) {
        self.pending.push(value);
    }

    fn sync(&mut self) {
        self.durable = self.now().clone();
        self.pending.clear();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Intent {
    pub(crate) members: Vec<(usize, Val, Val)>,
    pub(crate) abort: bool,
}

pub(crate) type Slot = Cell<Option<Intent>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Claim(usize),
    Heartbeat,
    Release,
}

/// Where a coordinator is. The order of the variants is the order of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Pc {
    Idle,
    Lock(usize),
    Meet,
    Decide,
    WriteIntent,
    SyncIntent,
    Rename(usize),
    SyncShard(usize),
    Retire,
    SyncRetire,
    Ack,
    Abort,
    SyncAbort,
    Undo(usize),
    SyncUndo,
    RetireUndo,
    SyncRetireUndo,
    Failed,
    RecoverTake(usize),
    RecoverLock(usize),
    RecoverApply(usize),
    RecoverSync,
    RecoverRetire,
    RecoverSyncRetire,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proc {
    pub(crate) pc: Pc,
    op: Op,
    group: Vec<usize>,
    seen: Vec<Val>,
    wrote: Vec<Val>,
    slot: Option<usize>,
    /// The intent that is being recovered.
    found: Option<Intent>,
    /// The token it was told, and of which group.
    held: Option<(u8, usize)>,
    left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) records: [Cell<Val>; 3],
    pub(crate) slots: [Slot; 2],
    locks: [Option<usize>; 3],
    slot_locks: [Option<usize>; 2],
    pub(crate) procs: [Proc; 2],
    next: u8,
    expired: u16,
    /// Acknowledged leases that have not run out: token and targets.
    live: Vec<(u8, Vec<usize>)>,
    /// What the records may be, by the calls that were acknowledged and those that are unknown.
    allowed: Vec<[Val; 3]>,
    crashes: u8,
    failures: u8,
    /// The first promise that was broken.
    pub(crate) broken: Option<&'static str>,
    /// What happened at least once, for the properties that something must.
    pub(crate) happened: u8,
}

pub(crate) const TOOK_OVER: u8 = 1;
pub(crate) const REDONE: u8 = 2;
pub(crate) const UNDONE: u8 = 4;
pub(crate) const RESTORED: u8 = 8;
pub(crate) const RELEASED: u8 = 16;

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

pub(crate) const GROUPS: [&[usize]; 3] = [&[0, 1], &[1, 2], &[1]];
const SHARD: [usize; 3] = [0, 0, 1];

fn token(val: Val) -> Option<u8> {
    match val {
        Val::Held { token, .. } => Some(token),
        _ => None,
    }
}

impl State {
    fn say(&mut self, broken: &'static str) {
        self.broken.get_or_insert(broken);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.procs.iter().all(|proc| proc.pc == Pc::Idle)
    }

    /// The true state: what the records show, and what standing intents decided about them.
    pub(crate) fn effective(&self) -> [Val; 3] {
        let mut view = [0, 1, 2].map(|at| *self.records[at].now());
        for slot in &self.slots {
            if let Some(intent) = slot.now() {
                for (at, before, after) in &intent.members {
                    let (other, decided) =
                        if intent.abort { (after, before) } else { (before, after) };
                    if view[*at] == *other {
                        view[*at] = *decided;
                    }
                }
            }
        }
        view
    }

    pub(crate) fn is_explained(&self) -> bool {
        !self.is_quiet() || self.allowed.contains(&self.effective())
    }

    pub(crate) fn has_one_holder(&self) -> bool {
        let pairs = self.live.iter().flat_map(|one| self.live.iter().map(move |two| (one, two)));
        pairs
            .filter(|(one, two)| one.0 < two.0)
            .all(|(one, two)| !one.1.iter().any(|target| two.1.contains(target)))
    }

    fn unlock(&mut self, proc: usize) {
        for lock in self.locks.iter_mut().chain(&mut self.slot_locks) {
            if *lock == Some(proc) {
                *lock = None;
            }
        }
    }

    fn rest(&mut self, proc: usize) {
        self.unlock(proc);
        let me = &mut self.procs[proc];
        me.pc = Pc::Idle;
        me.slot = None;
        me.found = None;
        me.seen.clear();
        me.wrote.clear();
        me.group.clear();
        me.op = Op::Release;
    }

    /// A call whose end nobody heard of: it may have happened.
    fn doubt(&mut self, proc: usize) {
        let me = self.procs[proc].clone();
        let acting = me.pc > Pc::WriteIntent && me.pc < Pc::RecoverTake(0);
        if !acting || me.wrote.is_empty() {
            return;
        }
        for state in self.allowed.clone() {
            self.allow(&me, state);
        }
    }

    fn allow(&mut self, me: &Proc, mut state: [Val; 3]) {
        if me.group.iter().zip(&me.seen).all(|(at, seen)| state[*at] == *seen) {
            for (at, wrote) in me.group.iter().zip(&me.wrote) {
                state[*at] = *wrote;
            }
            if !self.allowed.contains(&state) {
                self.allowed.push(state);
                self.allowed.sort_unstable();
            }
        }
    }
}

impl Protocol {
    fn needs_intent(&self, me: &Proc) -> bool {
        me.group.len() > 1 && self.variant != Variant::NoIntent
    }

    fn order(&self, proc: usize, members: &[usize]) -> Vec<usize> {
        let mut order = members.to_vec();
        if self.variant == Variant::LocksReversed && proc == 1 {
            order.reverse();
        }
        order
    }

    fn step(&self, s: &mut State, c: usize) -> Option<()> {
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
                    s.records[at].put(me.wrote[i]);
                    Pc::Rename(i + 1)
                }
            },
            Pc::SyncShard(shard) if shard < 2 => {
                let skip = self.variant == Variant::NoDirSync
                    || (self.variant == Variant::OneShardOnly && shard == 1);
                if !skip {
                    sync_shard(s, &me.group, shard);
                }
                Pc::SyncShard(shard + 1)
            }
            Pc::SyncShard(_) => {
                if me.slot.is_some() {
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
                Pc::Ack
            }
            Pc::Ack => {
                self.acknowledge(s, c);
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
                            s.say("I2: the decision is durable before anything is put back");
                        }
                        s.records[at].put(me.seen[i]);
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
                let exact = me.group.iter().zip(&me.seen).all(|(at, seen)| {
                    s.records[*at].durable == *seen && s.records[*at].pending.is_empty()
                });
                if !exact {
                    s.say("M7, M8: a failed call puts back exactly what was there, durably");
                }
                s.happened |= RESTORED;
                s.rest(c);
                return Some(());
            }
            Pc::RecoverTake(slot) => match (s.slot_locks[slot], s.slots[slot].now().clone()) {
                // Its writer, or another recoverer, is at work: start over.
                (Some(_), _) | (None, None) => Pc::Lock(0),
                (None, Some(intent)) => {
                    s.slot_locks[slot] = Some(c);
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
        };
        s.procs[c].pc = next;
        Some(())
    }

    /// A standing intent over one of these records. Whoever holds their locks knows that its writer
    /// is gone.
    fn standing(&self, s: &State, group: &[usize]) -> Option<usize> {
        if self.variant == Variant::MeetNotChecked {
            return None;
        }
        (0..2).find(|&slot| match s.slots[slot].now() {
            Some(intent) => intent.members.iter().any(|(at, ..)| group.contains(at)),
            None => false,
        })
    }

    fn decide(&self, s: &mut State, c: usize) {
        let me = s.procs[c].clone();
        let seen: Vec<Val> = me.group.iter().map(|at| *s.records[*at].now()).collect();
        let mine = |val: &Val| token(*val).is_some() && token(*val) == me.held.map(|held| held.0);
        let wrote: Option<Vec<Val>> = match me.op {
            Op::Claim(_) => {
                let free = |val: &Val| match val {
                    Val::Vacant => true,
                    Val::Held { token, .. } => s.expired >> token & 1 == 1,
                    Val::Torn => false,
                };
                let grant = Val::Held { token: s.next, beat: 0 };
                seen.iter().all(free).then(|| vec![grant; seen.len()])
            }
            Op::Heartbeat => {
                let renew = |val: &Val| match val {
                    Val::Held { token, beat } => Val::Held { token: *token, beat: beat + 1 },
                    other => *other,
                };
                seen.iter().all(mine).then(|| seen.iter().map(renew).collect())
            }
            Op::Release if self.variant == Variant::ReleaseUnvalidated => {
                // Removes what matches, and looks at the rest afterwards.
                for (at, val) in me.group.iter().zip(&seen) {
                    if mine(val) && !seen.iter().all(mine) {
                        s.records[*at].put(Val::Vacant);
                        s.say("M2: a refused release removes nothing");
                    }
                }
                seen.iter().all(mine).then(|| vec![Val::Vacant; seen.len()])
            }
            Op::Release => seen.iter().all(mine).then(|| vec![Val::Vacant; seen.len()]),
        };
        let Some(wrote) = wrote else {
            // What was seen is explained; it need not be durable yet, for nobody promised it.
            let fits =
                |state: &[Val; 3]| me.group.iter().zip(&seen).all(|(at, val)| state[*at] == *val);
            if !s.allowed.iter().any(fits) {
                s.say("what a call saw can be explained");
            }
            if !matches!(me.op, Op::Claim(_)) {
                s.procs[c].held = None;
            }
            s.rest(c);
            return;
        };
        if matches!(me.op, Op::Claim(_)) {
            if seen.iter().any(|val| token(*val) >= Some(s.next)) {
                s.say("fences rise");
            }
            s.next += 1;
        }
        if let (Op::Heartbeat, Some((token, _))) = (me.op, me.held) {
            // The moment that is written is that of the decision.
            s.expired &= !(1 << token);
        }
        s.procs[c].seen = seen;
        s.procs[c].wrote = wrote;
        let intent = self.needs_intent(&me);
        s.procs[c].pc = if intent { Pc::WriteIntent } else { Pc::Rename(0) };
    }

    fn acknowledge(&self, s: &mut State, c: usize) {
        let me = s.procs[c].clone();
        let broken = matches!(self.variant, Variant::NoDirSync | Variant::OneShardOnly);
        let synced = me.group.iter().all(|at| s.records[*at].pending.is_empty());
        if !synced && !broken {
            s.say("M6: success only after every directory was synced");
        }
        let was = std::mem::take(&mut s.allowed);
        for state in was {
            s.allow(&me, state);
        }
        if s.allowed.is_empty() {
            s.say("what a call saw can be explained");
        }
        let took = me.seen.iter().any(|val| *val != Val::Vacant);
        match (me.op, me.wrote.first().copied().and_then(token)) {
            (Op::Claim(group), Some(token)) => {
                s.happened |= if took { TOOK_OVER } else { 0 };
                if s.expired >> token & 1 == 0 {
                    s.live.push((token, me.group.clone()));
                }
                s.procs[c].held = Some((token, group));
            }
            (Op::Heartbeat, Some(token)) => {
                let known = s.live.iter().any(|(live, _)| *live == token);
                if !known && s.expired >> token & 1 == 0 {
                    s.live.push((token, me.group.clone()));
                }
            }
            _ => {
                s.happened |= RELEASED;
                let gone = me.held.map(|held| held.0);
                s.live.retain(|(token, _)| Some(*token) != gone);
                s.procs[c].held = None;
            }
        }
        s.live.sort_unstable();
        s.rest(c);
    }

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
        }
        for slot in 0..2 {
            let cell = &mut s.slots[slot];
            let ways = cell.pending.len() + 1;
            let pick = usize::from(choice) % ways;
            choice /= u16::try_from(ways).ok()?;
            if pick > 0 {
                cell.durable = cell.pending[pick - 1].clone();
            }
            cell.pending.clear();
        }
        (0..2).for_each(|c| s.rest(c));
        // A number beyond the last choice is none.
        (choice == 0).then_some(())
    }
}

fn sync_shard(s: &mut State, members: &[usize], shard: usize) {
    // One directory sync makes every name in it durable.
    if members.iter().any(|at| SHARD[*at] == shard) {
        (0..3).filter(|at| SHARD[*at] == shard).for_each(|at| s.records[at].sync());
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
            held: None,
            left: self.calls,
        };
        vec![State {
            records: [0; 3].map(|_| Cell::new(Val::Vacant)),
            slots: [0; 2].map(|_| Cell::new(None)),
            locks: [None; 3],
            slot_locks: [None; 2],
            procs: [proc.clone(), proc],
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
                let may_fail = matches!(me.pc, Pc::Rename(_) | Pc::SyncShard(_));
                if may_fail && s.failures > 0 {
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
                        actions.push(Action::Start(c, Op::Claim(1)));
                        actions.push(Action::Start(c, Op::Claim(2)));
                    }
                }
            }
        }
        for held in s.records.iter().filter_map(|cell| token(*cell.now())) {
            let expire = Action::Expire(held);
            if s.expired >> held & 1 == 0 && !actions.contains(&expire) {
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
                    Op::Claim(group) => group,
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
                let marked = s.procs[c].slot.is_some() && self.variant != Variant::NoAbortMark;
                s.procs[c].pc = if marked { Pc::Abort } else { Pc::Undo(0) };
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
        vec![
            Property::always(
                "groups are whole and what was acknowledged survives",
                |_, s: &State| s.is_explained(),
            ),
            Property::always("no record is torn (M4)", |_, s: &State| {
                s.records.iter().all(|cell| *cell.now() != Val::Torn)
            }),
            Property::always("somebody can always go on (M1)", |model: &Self, s: &State| {
                s.is_quiet()
                    || (0..2).any(|c| {
                        let mut next = s.clone();
                        s.procs[c].pc != Pc::Idle && model.step(&mut next, c).is_some()
                    })
            }),
            Property::always("a target has one holder", |_, s: &State| s.has_one_holder()),
            Property::always("no promise is broken (M2, M6, M7, M8, I2)", |_, s: &State| {
                s.broken.is_none()
            }),
            Property::sometimes("a lease is taken over", |_, s: &State| {
                s.happened & TOOK_OVER != 0
            }),
            Property::sometimes("a dead writer's group is redone", |_, s: &State| {
                s.happened & REDONE != 0
            }),
            Property::sometimes("a dead writer's group is undone", |_, s: &State| {
                s.happened & UNDONE != 0
            }),
            Property::sometimes("a failed call is put back", |_, s: &State| {
                s.happened & RESTORED != 0
            }),
            Property::sometimes("a group is released", |_, s: &State| s.happened & RELEASED != 0),
        ]
    }
}
