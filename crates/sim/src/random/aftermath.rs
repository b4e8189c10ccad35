//! After everybody has stopped.

use ringfence_engine::Engine;
use ringfence_model::{Key, WorkStatus};

use super::{ITEMS, Plan};
use crate::check::Findings;
use crate::history::{Caller, Fate, History, State};
use crate::machine::Machine;
use crate::setup::{LONG, read_all};
use crate::subject::{Oddity, Table};
use crate::verbs::{Verbs, request, work};

/// After everybody has stopped: the table opens, what has run out can be claimed, nothing is left.
pub(super) fn aftermath(
    plan: &Plan,
    machine: &Machine,
    struck: bool,
    findings: &mut Findings,
) -> Option<Vec<(Key, State)>> {
    let held = machine.held_locks();
    if held > 0 {
        findings.wrong(format!("{held} kernel locks are held by nobody"));
    }
    let engine = match plan.setup.open(&machine.world(0)) {
        Ok(engine) => engine,
        Err(error) => {
            findings.wrong(format!("at last, the table does not open: {error}"));
            return None;
        }
    };
    let last = match read_all(&*engine) {
        Ok(last) => last,
        Err(error) => {
            findings.wrong(format!("at last, the table does not read: {error}"));
            return None;
        }
    };
    for (key, state) in &last {
        if let Some(damage) = &state.damage {
            findings.wrong(format!("at last, the record {key:?} is torn: {damage}"));
        }
    }
    // On a copy, so that what is found here is not part of the history.
    let later = machine.later(machine.disk(), false);
    later.advance(LONG * 24 * 365);
    later.set_skew(0);
    match plan.setup.open(&later.world(0)) {
        Ok(engine) => claim_all(plan, &later, &*engine, &last, findings),
        Err(error) => findings.wrong(format!("much later, the table does not open: {error}")),
    }
    if let Err(error) = tidy(&*engine, struck || !machine.cuts().is_empty() || plan.chaos.kills()) {
        findings.wrong(error);
    }
    Some(last)
}

fn claim_all(
    plan: &Plan,
    machine: &Machine,
    engine: &dyn Engine,
    last: &[(Key, State)],
    findings: &mut Findings,
) {
    let history = History::default();
    let caller = Caller { machine, proc: 0, history: &history, engine, patience: LONG };
    let verbs = Verbs { caller, name: "finder", wrong: None };
    for number in 1..=plan.targets {
        let answer = verbs.claim(&request("finder", &[number], 5.0));
        if answer.token.is_none() {
            let fate = answer.fate;
            findings.wrong(format!("target {number} has run out and is not to be had: {fate:?}"));
        }
    }
    for item in 0..ITEMS {
        let asked = work("finder", item, 5.0);
        let key = Key::work(asked.id());
        let found = last.iter().find(|(at, _)| *at == key).map(|(_, state)| state.clone());
        let fate = match found.and_then(|state| Some((state.status?, state.token?))) {
            Some((WorkStatus::Done, _)) => Fate::Done,
            Some((WorkStatus::Committing, token)) => verbs.complete(key, &token).fate,
            _ => verbs.claim_work(&asked).fate,
        };
        if fate != Fate::Done {
            findings.wrong(format!("item {item} cannot go on: {fate:?}"));
        }
    }
}

/// Only lock files stay behind, and what killed writers left, which repair removes.
fn tidy(engine: &dyn Table, excused: bool) -> Result<(), String> {
    for oddity in engine.oddities()? {
        match oddity {
            Oddity::Temporary(_) if excused => {}
            other => return Err(format!("at last, check finds {other:?}")),
        }
    }
    engine.tidy()?;
    let odd = engine.oddities()?.into_iter().find(|oddity| !oddity.may_stay());
    odd.map_or(Ok(()), |oddity| Err(format!("repair leaves {oddity:?}")))
}
