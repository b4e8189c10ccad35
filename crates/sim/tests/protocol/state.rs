//! What there is: records and slots on a disk, locks, two coordinators, and what was promised.

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
    /// The sync of what was written last has failed, which is told once: it is seen, and a power cut
    /// may lose it, whatever is synced from now on.
    pub(crate) stuck: bool,
}

impl<T: Clone + PartialEq> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { durable: value, pending: Vec::new(), stuck: false }
    }

    pub(crate) fn now(&self) -> &T {
        self.pending.last().unwrap_or(&self.durable)
    }

    pub(crate) fn put(&mut self, value: T) {
        self.stuck = false;
        if *self.now() != value {
            self.pending.push(value);
        }
    }

    pub(crate) fn sync(&mut self) {
        if !self.stuck {
            self.durable = self.now().clone();
            self.pending.clear();
        }
    }

    pub(crate) fn fail_to_sync(&mut self) {
        self.stuck = !self.pending.is_empty();
    }
}

/// What an intent decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    Forward,
    Back,
    /// Nothing any more; but that may not be durable.
    Retired,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Intent {
    pub(crate) members: Vec<(usize, Val, Val)>,
    pub(crate) standing: Standing,
    /// Every lease that was there before it is of a token up to this one.
    pub(crate) issued: u8,
}

impl Intent {
    pub(crate) fn stands(&self) -> bool {
        self.standing != Standing::Retired
    }

    /// Which of a member's two images is not the decided one, and which is.
    pub(crate) fn images(&self, before: Val, after: Val) -> (Val, Val) {
        if self.standing == Standing::Back { (after, before) } else { (before, after) }
    }

    /// As a recoverer writes it anew: one that turned back is going forward to the old state.
    pub(crate) fn again(&self) -> Self {
        let turned = |&(at, before, after): &(usize, Val, Val)| match self.standing {
            Standing::Back => (at, after, before),
            _ => (at, before, after),
        };
        let members = self.members.iter().map(turned).collect();
        Self { members, standing: Standing::Forward, issued: self.issued }
    }

    /// Whether a record that is not in the decided state may be brought into it: it is the other image,
    /// or what a power cut brought back from before both.
    pub(crate) fn gives_way(&self, now: Val, before: Val, after: Val) -> bool {
        let (other, _) = self.images(before, after);
        let earlier = token(before).max(token(after)).max(Some(self.issued));
        now == other
            || (now == Val::Vacant && before != Val::Vacant)
            || (token(now).is_some() && token(now) <= earlier)
    }
}

pub(crate) type Slot = Cell<Option<Intent>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Claim(usize),
    /// A claim whose last record cannot be written down.
    Overlong(usize),
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
    /// The sync of the intent failed: it is taken back.
    Unintend,
    SyncUnintend,
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
    Copy,
    SyncCopy,
    /// The sync of the copy failed: it is taken back.
    Uncopy,
    SyncUncopy,
    RetireFound,
    SyncRetireFound,
    RecoverApply(usize),
    RecoverSync,
    RecoverRetire,
    RecoverSyncRetire,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proc {
    pub(crate) pc: Pc,
    pub(crate) op: Op,
    pub(crate) group: Vec<usize>,
    pub(crate) seen: Vec<Val>,
    pub(crate) wrote: Vec<Val>,
    /// Where its own intent is, or the one that is being recovered.
    pub(crate) slot: Option<usize>,
    /// The intent that is being recovered.
    pub(crate) found: Option<Intent>,
    /// Where that was written anew.
    pub(crate) copy: Option<usize>,
    /// The token it was told, and of which group.
    pub(crate) held: Option<(u8, usize)>,
    pub(crate) left: u8,
    /// How often it synced each shard before it answered.
    pub(crate) syncs: [u8; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) records: [Cell<Val>; 3],
    pub(crate) slots: [Slot; SLOTS],
    pub(crate) locks: [Option<usize>; 3],
    pub(crate) slot_locks: [Option<usize>; SLOTS],
    pub(crate) procs: [Proc; 2],
    pub(crate) next: u8,
    pub(crate) expired: u16,
    /// Acknowledged leases that have not run out: token and targets.
    pub(crate) live: Vec<(u8, Vec<usize>)>,
    /// What the records may be, by the calls that were acknowledged and those that are unknown.
    pub(crate) allowed: Vec<[Val; 3]>,
    pub(crate) crashes: u8,
    pub(crate) failures: u8,
    /// The first promise that was broken.
    pub(crate) broken: Option<Promise>,
    /// What happened at least once, for the properties that something must.
    pub(crate) happened: u8,
}

/// What a step can break at once, without waiting for what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Promise {
    M2,
    M3,
    M5,
    M6,
    M7,
    M8,
    M9,
    DecidedFirst,
    FencesRise,
    Finished,
    Explained,
}

/// One for each coordinator, and for what two of them left that died one after the other.
pub(crate) const SLOTS: usize = 4;

pub(crate) const TOOK_OVER: u8 = 1;
pub(crate) const REDONE: u8 = 2;
pub(crate) const UNDONE: u8 = 4;
pub(crate) const RESTORED: u8 = 8;
pub(crate) const RELEASED: u8 = 16;
pub(crate) const COPIED: u8 = 32;
pub(crate) const COPIED_LOST: u8 = 64;
pub(crate) const COPIED_COPY: u8 = 128;

pub(crate) const GROUPS: [&[usize]; 3] = [&[0, 1], &[1, 2], &[1]];
pub(crate) const SHARD: [usize; 3] = [0, 0, 1];

pub(crate) fn token(val: Val) -> Option<u8> {
    match val {
        Val::Held { token, .. } => Some(token),
        _ => None,
    }
}

impl State {
    pub(crate) fn say(&mut self, broken: Promise) {
        self.broken.get_or_insert(broken);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.procs.iter().all(|proc| proc.pc == Pc::Idle)
    }

    /// The true state: what the records show, and what standing intents decided about them.
    pub(crate) fn effective(&self) -> [Val; 3] {
        let mut view = [0, 1, 2].map(|at| *self.records[at].now());
        let standing = self.slots.iter().filter_map(|slot| slot.now().as_ref());
        for intent in standing.filter(|intent| intent.stands()) {
            for &(at, before, after) in &intent.members {
                if intent.gives_way(view[at], before, after) {
                    view[at] = intent.images(before, after).1;
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

    pub(crate) fn unlock(&mut self, proc: usize) {
        for lock in self.locks.iter_mut().chain(&mut self.slot_locks) {
            if *lock == Some(proc) {
                *lock = None;
            }
        }
    }

    pub(crate) fn rest(&mut self, proc: usize) {
        self.unlock(proc);
        let me = &mut self.procs[proc];
        me.pc = Pc::Idle;
        me.slot = None;
        me.found = None;
        me.copy = None;
        me.seen.clear();
        me.wrote.clear();
        me.group.clear();
        me.syncs = [0; 2];
        me.op = Op::Release;
    }

    /// A call whose end nobody heard of: it may have happened.
    pub(crate) fn doubt(&mut self, proc: usize) {
        let me = self.procs[proc].clone();
        let acting = me.pc > Pc::WriteIntent && me.pc < Pc::RecoverTake(0);
        // Once it is durable that it turned back, nothing may turn it again.
        let stands = |slot: usize| {
            self.slots[slot].durable.as_ref().is_some_and(|it| it.standing == Standing::Forward)
        };
        let turned = me.pc >= Pc::Undo(0) && me.slot.is_some_and(|slot| !stands(slot));
        if !acting || me.wrote.is_empty() || turned {
            return;
        }
        for state in self.allowed.clone() {
            self.allow(&me, state);
        }
    }

    pub(crate) fn allow(&mut self, me: &Proc, mut state: [Val; 3]) {
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

impl State {
    /// Writes that the intent in a slot decides nothing any more.
    pub(crate) fn retire(&mut self, slot: usize) {
        if let Some(intent) = self.slots[slot].now().clone() {
            self.slots[slot].put(Some(Intent { standing: Standing::Retired, ..intent }));
        }
    }

    /// Syncs a slot. One whose retirement is durable is free.
    pub(crate) fn sync_slot(&mut self, slot: usize) {
        self.slots[slot].sync();
        self.free_if_retired(slot);
    }

    pub(crate) fn free_if_retired(&mut self, slot: usize) {
        let cell = &mut self.slots[slot];
        if cell.pending.is_empty() && cell.durable.as_ref().is_some_and(|it| !it.stands()) {
            cell.durable = None;
        }
    }

    /// The sync of a shard fails: what it should have covered is lost to every later one.
    pub(crate) fn fail_shard(&mut self, members: &[usize], shard: usize) {
        if members.iter().any(|at| SHARD[*at] == shard) {
            let cells = self.records.iter_mut().zip(SHARD).filter(|(_, of)| *of == shard);
            cells.for_each(|(cell, _)| cell.fail_to_sync());
        }
    }
}

pub(crate) fn sync_shard(s: &mut State, members: &[usize], shard: usize) {
    // One directory sync makes every name in it durable.
    if members.iter().any(|at| SHARD[*at] == shard) {
        (0..3).filter(|at| SHARD[*at] == shard).for_each(|at| s.records[at].sync());
    }
}
