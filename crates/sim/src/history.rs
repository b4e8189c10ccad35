//! Calls on the engine, written down: what each saw, what it decided, how it ended.
//!
//! Each call is noted before it begins and completed as it goes, so that of a process that was
//! killed the history still tells what it had decided.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_engine::{Engine, Failure, Request, UnitOutcome};
use ringfence_model::{
    Alike, Edit, Entry, FencingToken, Glance, Grant, Key, Record, Timestamp, Token, Transition,
    Ttl, View, WorkStatus,
};

use crate::machine::Machine;
use crate::remembered::Remembered;

/// What a call was meant to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the verb of the same name")]
pub enum Verb {
    Claim,
    Heartbeat,
    Release,
    ForceRelease,
    ClaimWork,
    HeartbeatWork,
    BeginCommit,
    Complete,
    Abandon,
    ClaimJob,
    CompleteJob,
    AbandonJob,
}

/// When something happened: by the count of calls, in truth, and in which boot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamp {
    /// Calls into the world before it.
    pub step: u64,
    /// The time that really passed.
    pub truth: Duration,
    /// The boot.
    pub boot: u64,
    /// The wall clock, in seconds.
    pub wall: f64,
}

impl Stamp {
    /// Now.
    pub fn now(machine: &Machine) -> Self {
        Self {
            step: machine.steps(),
            truth: machine.truth(),
            boot: machine.boot(),
            wall: machine.wall().as_secs_f64(),
        }
    }
}

/// One record's state, as far as the checks need it.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Names its exact bytes; zero for absence.
    pub digest: u64,
    /// The token, unless absent or damaged.
    pub token: Option<Token>,
    /// The last grant or heartbeat.
    pub updated: Option<Timestamp>,
    /// Its ttl.
    pub ttl: Option<Ttl>,
    /// The status of a work item.
    pub status: Option<WorkStatus>,
    /// What is wrong with it.
    pub damage: Option<String>,
}

impl State {
    /// Nothing is stored.
    pub fn vacant() -> Self {
        Self { digest: 0, token: None, updated: None, ttl: None, status: None, damage: None }
    }

    /// A record.
    pub fn of(record: &Record) -> Self {
        let holder = record.holder();
        Self {
            digest: digest(record.to_line().as_bytes()),
            token: Some(holder.token.clone()),
            updated: Some(holder.updated),
            ttl: holder.ttl,
            status: match record {
                Record::Target(_) => None,
                Record::Work(work) => Some(work.status),
            },
            damage: None,
        }
    }

    /// What names these bytes in [`State::digest`].
    pub fn digest_of(bytes: &[u8]) -> u64 {
        digest(bytes)
    }

    /// What a rule saw.
    pub fn seen(entry: &Entry) -> Self {
        match entry {
            Entry::Vacant => Self::vacant(),
            Entry::Present(record) => Self::of(record),
            Entry::Damaged(damage) => Self {
                digest: digest(damage.digest.as_str().as_bytes()),
                damage: Some(damage.reason.clone()),
                ..Self::vacant()
            },
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish().max(1)
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It did not: its process was killed, or the power went.
    Never,
    /// Acknowledged.
    Done,
    /// Refused by its rule.
    Refused,
    /// Failed; the old state was put back, or never left.
    Restored(String),
    /// Failed; it may have happened.
    Unknown(String),
    /// The exclusion was not to be had.
    Busy,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Op {
    /// Whose.
    pub proc: usize,
    /// What.
    pub verb: Verb,
    /// On what.
    pub keys: Vec<Key>,
    /// Under which token.
    pub token: Option<Token>,
    /// When it was called.
    pub began: Stamp,
    /// When its rule was asked last, and what it saw then.
    pub decided: Option<(Stamp, Vec<State>)>,
    /// Whether it saw the holders alone, the last time.
    pub at_a_glance: bool,
    /// What it was to store, by the index of the key.
    pub wrote: Vec<(usize, State)>,
    /// The token that it was granted.
    pub granted: Option<(Stamp, FencingToken)>,
    /// When it returned.
    pub ended: Option<Stamp>,
    /// How.
    pub fate: Fate,
    /// How many names of records its process changed during it.
    pub record_changes: u64,
}

impl Op {
    /// Whether its rule saw a work item that was done already.
    pub fn was_done(&self) -> bool {
        let seen = self.decided.iter().flat_map(|(_, seen)| seen);
        seen.into_iter().any(|state| state.status == Some(WorkStatus::Done))
    }
}

/// Every call of a simulation. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct History {
    ops: Arc<Mutex<Vec<Op>>>,
    remembered: Arc<Remembered>,
}

impl History {
    fn ops(&self) -> MutexGuard<'_, Vec<Op>> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All calls so far, in the order in which they began.
    pub fn calls(&self) -> Vec<Op> {
        self.ops().clone()
    }

    fn begin(&self, caller: &Caller<'_>, verb: Verb, keys: &[Key], token: Option<&Token>) -> usize {
        let mut ops = self.ops();
        ops.push(Op {
            proc: caller.proc,
            verb,
            keys: keys.to_vec(),
            token: token.cloned(),
            began: Stamp::now(caller.machine),
            decided: None,
            at_a_glance: false,
            wrote: Vec::new(),
            granted: None,
            ended: None,
            fate: Fate::Never,
            record_changes: 0,
        });
        ops.len() - 1
    }

    fn end(&self, caller: &Caller<'_>, op: usize, fate: Fate, changes: u64) -> Fate {
        let mut ops = self.ops();
        ops[op].ended = Some(Stamp::now(caller.machine));
        ops[op].fate = fate.clone();
        ops[op].record_changes = changes;
        fate
    }

    /// Notes what a rule saw and answered, and passes its answer on.
    fn note<R>(
        &self,
        machine: &Machine,
        op: usize,
        view: &View,
        answer: Result<Transition, R>,
    ) -> Result<Transition, R> {
        let seen: Vec<State> = view.entries.iter().map(|(_, entry)| State::seen(entry)).collect();
        {
            let mut ops = self.ops();
            ops[op].decided = Some((Stamp::now(machine), seen));
            ops[op].at_a_glance = false;
            ops[op].wrote.clear();
            ops[op].granted = None;
        }
        match answer {
            Err(refused) => Err(refused),
            Ok(Transition::Edits { edits, audit }) => {
                self.wrote(op, &edits);
                Ok(Transition::Edits { edits, audit })
            }
            Ok(Transition::Alike(alike)) => {
                self.wrote(op, &view.after(&alike));
                Ok(Transition::Alike(alike))
            }
            Ok(Transition::Grant(grant)) => {
                let (history, machine) = (self.clone(), machine.clone());
                Ok(Transition::Grant(Grant::new(grant.above, move |token| {
                    let edits = grant.under(token);
                    history.wrote(op, &edits);
                    history.ops()[op].granted = Some((Stamp::now(&machine), token));
                    edits
                })))
            }
        }
    }

    /// The same of a rule that was asked at a glance; nothing if it answered nothing, or if the records are
    /// not known.
    fn note_at_a_glance(
        &self,
        machine: &Machine,
        op: usize,
        glance: &Glance,
        rule: impl FnOnce(&Glance) -> Option<Alike>,
    ) -> Option<Alike> {
        let view = self.remembered.view(glance)?;
        let alike = rule(glance)?;
        let noted = self.note(machine, op, &view, Ok::<_, ()>(Transition::Alike(alike.clone())));
        self.ops()[op].at_a_glance = true;
        noted.is_ok().then_some(alike)
    }

    fn wrote(&self, op: usize, edits: &[Edit]) {
        self.remembered.learn(edits);
        let mut ops = self.ops();
        let op = &mut ops[op];
        for edit in edits {
            let index = op.keys.iter().position(|key| *key == edit.key).expect("a key of the call");
            let state = edit.to.as_ref().map_or_else(State::vacant, State::of);
            op.wrote.push((index, state));
        }
    }
}

/// One process's way to call an engine.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The host.
    pub machine: &'a Machine,
    /// The process.
    pub proc: usize,
    /// Where calls are written down.
    pub history: &'a History,
    /// The engine, as that process opened it.
    pub engine: &'a dyn Engine,
    /// How long it waits for locks.
    pub patience: Duration,
}

/// How a call ended, with what its rule answered.
#[derive(Debug)]
pub struct Answer<R> {
    /// How it ended.
    pub fate: Fate,
    /// The token, if it was a grant that was acknowledged.
    pub token: Option<Token>,
    /// The refusal.
    pub refused: Option<R>,
}

fn fate_of(failure: &Failure) -> Fate {
    match failure {
        Failure::Busy { .. } => Fate::Busy,
        Failure::Untouched(error) | Failure::Restored(error) => Fate::Restored(error.to_string()),
        other => Fate::Unknown(other.to_string()),
    }
}

impl Caller<'_> {
    /// One transaction.
    pub fn call<R>(
        &self,
        verb: Verb,
        keys: &[Key],
        token: Option<&Token>,
        rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Answer<R> {
        self.call_at_a_glance(verb, keys, token, |_| None, rule)
    }

    /// One transaction with a rule that may be asked at a glance.
    pub fn call_at_a_glance<R>(
        &self,
        verb: Verb,
        keys: &[Key],
        token: Option<&Token>,
        mut glance: impl FnMut(&Glance) -> Option<Alike>,
        mut rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Answer<R> {
        let op = self.history.begin(self, verb, keys, token);
        let before = self.machine.record_changes(self.proc);
        let request = Request { keys, now: None, patience: self.patience };
        let outcome = self.engine.decide_at_a_glance(
            &request,
            &mut |shown| self.history.note_at_a_glance(self.machine, op, shown, &mut glance),
            |view| self.history.note(self.machine, op, view, rule(view)),
        );
        let changes = self.machine.record_changes(self.proc) - before;
        let (fate, token, refused) = match outcome {
            Ok(Ok(done)) => (Fate::Done, done.token.map(Token::from), None),
            Ok(Err(why)) => (Fate::Refused, None, Some(why)),
            Err(failure) => (fate_of(&failure), None, None),
        };
        Answer { fate: self.history.end(self, op, fate, changes), token, refused }
    }

    /// A batch of independent transactions, each with its token, and with rules that may be asked at a
    /// glance.
    pub fn call_each_at_a_glance<R>(
        &self,
        verb: Verb,
        units: &[(Vec<Key>, Token)],
        mut glance: impl FnMut(usize, &Glance) -> Option<Alike>,
        mut rule: impl FnMut(usize, &View) -> Result<Transition, R>,
    ) -> Vec<Fate> {
        let ops: Vec<usize> = units
            .iter()
            .map(|(keys, token)| self.history.begin(self, verb, keys, Some(token)))
            .collect();
        let requests: Vec<Request<'_>> = units
            .iter()
            .map(|(keys, _)| Request { keys, now: None, patience: self.patience })
            .collect();
        let report = self.engine.transact_each_at_a_glance(
            &requests,
            &mut |unit, shown| {
                let rule = |shown: &Glance| glance(unit, shown);
                self.history.note_at_a_glance(self.machine, ops[unit], shown, rule)
            },
            &mut |unit, view| {
                self.history.note(self.machine, ops[unit], view, rule(unit, view)).ok()
            },
        );
        let fates = report.units.iter().map(|unit| match unit {
            UnitOutcome::Done(_) => Fate::Done,
            UnitOutcome::Refused => Fate::Refused,
            UnitOutcome::Failed(failure) => fate_of(failure),
            UnitOutcome::NotBegun => Fate::Restored("not begun".into()),
        });
        let fates: Vec<Fate> = fates.collect();
        for (op, fate) in ops.iter().zip(&fates) {
            self.history.end(self, *op, fate.clone(), 0);
        }
        fates
    }
}
