//! What must be true of a history.
//!
//! 1. *Terms.* A claim takes only what is vacant or has really run out; everything else needs every
//!    record under exactly the caller's token.
//! 2. *Groups.* An acknowledged call changed all of its records, to one token and one moment.
//! 3. *Fences* rise strictly: above those that were seen, and above all that were granted before the
//!    call began, over every kill and power cut.
//! 4. *Refused* changed nothing.
//! 5. *Order.* Between two power cuts some order of the calls explains all that was seen, and what
//!    the cut left ([`crate::linear`]).

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::{Key, Space, Timestamp, Ttl, WorkStatus};

use crate::history::{Fate, Op, Stamp, State, Verb};
use crate::linear::{self, Ending, Unit, Verdict};
use crate::machine::Machine;
use crate::setup::{Mode, Setup, TTL_SECONDS, read_all};

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was wrong.
    pub violations: Vec<String>,
    /// Histories that were too hard to decide.
    pub undecided: usize,
}

impl Findings {
    /// Says in what is wrong with the order of calls that something else was seen too.
    pub fn mark(&mut self, with: &str) {
        for text in self.violations.iter_mut().filter(|text| text.starts_with(NO_ORDER)) {
            text.push_str(with);
        }
    }

    /// Something is wrong.
    pub fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }
}

const NO_ORDER: &str = "no order explains it";

/// Checks all of it. `last` is what was read after everybody had stopped.
pub fn everything(
    setup: Setup,
    machine: &Machine,
    calls: &[Op],
    last: &[(Key, State)],
    findings: &mut Findings,
) {
    let mut written: BTreeMap<u64, Stamp> = BTreeMap::new();
    for op in calls {
        for (_, state) in &op.wrote {
            written.entry(state.digest).or_insert(op.began);
        }
    }
    for op in calls {
        one_call(setup, op, &written, findings);
    }
    fences(calls, findings);
    order(setup, machine, calls, last, findings);
}

fn name(op: &Op) -> String {
    format!("{:?} of p{} at {} ({:?})", op.verb, op.proc, op.began.step, op.fate)
}

fn one_call(setup: Setup, op: &Op, written: &BTreeMap<u64, Stamp>, findings: &mut Findings) {
    let Some((decided, seen)) = &op.decided else { return };
    for (key, state) in op.keys.iter().zip(seen) {
        if let Some(damage) = &state.damage {
            findings.wrong(format!("{} saw a torn record {key:?}: {damage}", name(op)));
        }
    }
    if op.fate == Fate::Refused {
        // In a table with intents whoever meets one finishes it, and then is refused.
        if setup.mode() == Mode::Record && op.record_changes > 0 {
            let count = op.record_changes;
            findings.wrong(format!("{} was refused and changed {count} names", name(op)));
        }
        return;
    }
    match op.verb {
        // A claim that was cut short after it had been refused took nothing.
        Verb::Claim | Verb::ClaimWork | Verb::ClaimJob if op.wrote.is_empty() => {}
        Verb::Claim | Verb::ClaimWork | Verb::ClaimJob => {
            for state in seen.iter().filter(|state| state.token.is_some()) {
                vacated(op, decided, state, written, findings);
            }
        }
        _ => {
            let stranger = seen.iter().find(|state| state.token != op.token);
            if let Some(state) = stranger
                && (!op.wrote.is_empty() || op.fate == Fate::Done)
            {
                let (mine, its) = (&op.token, &state.token);
                findings.wrong(format!("{} went on under {mine:?} over {its:?}", name(op)));
            }
        }
    }
    if let Some((_, token)) = &op.granted {
        let above = seen.iter().filter_map(|state| state.token.as_ref()?.fence()).max();
        if above >= Some(token.fence()) {
            findings.wrong(format!("{} was granted {} over {above:?}", name(op), token.fence()));
        }
    }
    whole(op, findings);
}

/// The record had run out, by the time that really passed.
fn vacated(
    op: &Op,
    decided: &Stamp,
    state: &State,
    written: &BTreeMap<u64, Stamp>,
    findings: &mut Findings,
) {
    if matches!(state.status, Some(WorkStatus::Committing | WorkStatus::Done)) {
        if op.granted.is_some() {
            findings.wrong(format!("{} took an item that is {:?}", name(op), state.status));
        }
        return;
    }
    let ttl = state.ttl.map_or(TTL_SECONDS, Ttl::seconds);
    // Only within one boot does the host know how much time really passed.
    if let Some(then) = written.get(&state.digest)
        && then.boot == decided.boot
    {
        let passed = decided.truth.saturating_sub(then.truth).as_secs_f64();
        if passed + 0.001 < ttl {
            findings.wrong(format!("{} took over after {passed:.3} s of {ttl} s", name(op)));
        }
    }
}

/// All of its records, one token, one moment.
fn whole(op: &Op, findings: &mut Findings) {
    if op.fate != Fate::Done {
        return;
    }
    if op.verb == Verb::CompleteJob {
        return job_completed(op, findings);
    }
    let repeats = op.verb == Verb::BeginCommit && op.wrote.is_empty();
    let all: BTreeSet<usize> = op.wrote.iter().map(|(index, _)| *index).collect();
    if all.len() != op.keys.len() && !repeats {
        let (of, changed) = (op.keys.len(), all.len());
        findings.wrong(format!("{} changed {changed} of {of} records", name(op)));
    }
    let mut tokens = op.wrote.iter().map(|(_, state)| &state.token);
    let mut moments = op.wrote.iter().map(|(_, state)| state.updated.map(Timestamp::seconds));
    let first = (tokens.next(), moments.next());
    if tokens.any(|token| Some(token) != first.0) || moments.any(|at| Some(at) != first.1) {
        findings.wrong(format!("{} left its group with several tokens or moments", name(op)));
    }
    let removes =
        matches!(op.verb, Verb::Release | Verb::ForceRelease | Verb::Abandon | Verb::AbandonJob);
    if removes != op.wrote.iter().all(|(_, state)| state.digest == 0) && !repeats {
        findings.wrong(format!("{} stored what it should remove, or removed", name(op)));
    }
}

/// The item is done under the token, and every target of the group is free. Who finds the item done by
/// somebody else frees the group alone.
fn job_completed(op: &Op, findings: &mut Findings) {
    for (index, key) in op.keys.iter().enumerate() {
        let wrote = op.wrote.iter().find(|(at, _)| *at == index).map(|(_, state)| state);
        let right = match (key.space, wrote) {
            (Space::Targets, Some(state)) => state.digest == 0,
            (Space::Work, Some(state)) => {
                state.status == Some(WorkStatus::Done) && state.token == op.token
            }
            (Space::Targets, None) => false,
            (Space::Work, None) => op.was_done(),
        };
        if !right {
            findings.wrong(format!("{} left {key:?} as {wrote:?}", name(op)));
        }
    }
}

fn fences(calls: &[Op], findings: &mut Findings) {
    let grants: Vec<_> = calls.iter().filter_map(|op| Some((op, op.granted.as_ref()?))).collect();
    for (later, (_, token)) in &grants {
        for (earlier, (at, before)) in &grants {
            let same = std::ptr::eq(*earlier, *later);
            let repeated = !same && token.fence() == before.fence();
            // Its call began after the other number was handed out.
            if repeated || (at.step < later.began.step && before.fence() >= token.fence()) {
                let (new, old) = (token.fence(), before.fence());
                findings.wrong(format!("{} got fence {new} after {old}", name(later)));
                return;
            }
        }
    }
}

fn order(
    setup: Setup,
    machine: &Machine,
    calls: &[Op],
    last: &[(Key, State)],
    findings: &mut Findings,
) {
    let keys: BTreeSet<Key> = calls
        .iter()
        .flat_map(|op| op.keys.iter().copied())
        .chain(last.iter().map(|(key, _)| *key))
        .collect();
    let index: BTreeMap<Key, usize> = keys.iter().enumerate().map(|(at, key)| (*key, at)).collect();
    let states = |found: &[(Key, State)]| -> BTreeMap<usize, u64> {
        let mut all: BTreeMap<usize, u64> = index.values().map(|at| (*at, 0)).collect();
        for (key, state) in found {
            if let Some(at) = index.get(key) {
                all.insert(*at, state.digest);
            }
        }
        all
    };
    let mut start = states(&[]);
    let mut boot = 1;
    for cut in machine.cuts() {
        // Read by a host of its own, whose recovery is none of this history.
        let other = Machine::solo(cut.step, cut.disk.clone(), cut.boot + 1);
        let found = match setup.open(&other.world(0)).and_then(|engine| read_all(&*engine)) {
            Ok(found) => found,
            Err(error) => {
                findings.wrong(format!("after the power cut at {}: {error}", cut.step));
                return;
            }
        };
        for (key, state) in &found {
            if let Some(damage) = &state.damage {
                let step = cut.step;
                findings.wrong(format!("the power cut at {step} tore {key:?}: {damage}"));
            }
        }
        let found = states(&found);
        let units = units(setup, calls, boot, &index);
        let verdict = linear::explain(&start, &units, &Ending::Cut(found.clone()));
        judge(verdict, &format!("until the power cut at {}", cut.step), findings);
        start = found;
        boot = cut.boot;
    }
    let units = units(setup, calls, boot, &index);
    let verdict = linear::explain(&start, &units, &Ending::Read(states(last)));
    judge(verdict, "until the end", findings);
}

fn judge(verdict: Verdict, when: &str, findings: &mut Findings) {
    match verdict {
        Verdict::Explained => {}
        Verdict::Undecided => findings.undecided += 1,
        Verdict::Impossible(why) => findings.wrong(format!("{NO_ORDER} {when}: {why}")),
    }
}

/// The calls of one boot as units.
fn units(setup: Setup, calls: &[Op], boot: u64, index: &BTreeMap<Key, usize>) -> Vec<Unit> {
    let mut units = Vec::new();
    for op in calls.iter().filter(|op| op.began.boot == boot) {
        let Some((_, seen)) = &op.decided else { continue };
        let at = |of: usize| index[&op.keys[of]];
        let reads: Vec<(usize, u64)> =
            seen.iter().enumerate().map(|(of, state)| (at(of), state.digest)).collect();
        let writes: Vec<(usize, u64)> =
            op.wrote.iter().map(|(of, state)| (at(*of), state.digest)).collect();
        let began = op.began.step;
        let ended = op.ended.map(|at| at.step);
        let unit = Unit { name: name(op), began, ended, reads, writes, promised: false };
        match &op.fate {
            Fate::Done => units.push(Unit { promised: true, ..unit }),
            Fate::Restored(_) | Fate::Busy if !setup.subject.reads_under_lock() => {}
            Fate::Refused | Fate::Restored(_) | Fate::Busy => {
                units.push(Unit { writes: Vec::new(), ..unit });
            }
            Fate::Never | Fate::Unknown(_) if setup.mode() == Mode::Group => {
                units.push(Unit { ended: None, ..unit });
            }
            // Without intents each record of a call that was cut short is old or new by itself.
            Fate::Never | Fate::Unknown(_) => {
                for write in &unit.writes {
                    let reads = unit.reads.iter().filter(|read| read.0 == write.0).copied();
                    units.push(Unit {
                        ended: None,
                        reads: reads.collect(),
                        writes: vec![*write],
                        ..unit.clone()
                    });
                }
            }
        }
    }
    units
}
