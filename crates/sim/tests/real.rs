//! Real processes that are killed at random: an order of their calls explains it all, and a wrong answer
//! among them does not pass.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test that fails by panicking")]

use std::path::{Path, PathBuf};

use ringfence_sim::real::judge::{Judge, Round, judge};
use ringfence_sim::real::log::End;
use ringfence_sim::real::worker::Lie;
use ringfence_sim::real::{Outcome, Plan, run};
use ringfence_sim::setup::Kept;

fn plan(dir: &Path, kept: Kept, rounds: u64) -> Plan {
    Plan {
        program: PathBuf::from(env!("CARGO_BIN_EXE_ringfence-sim")),
        dir: dir.to_owned(),
        kept,
        seed: 17,
        rounds,
        calls: 7,
        lie: None,
    }
}

fn fine(kept: Kept, rounds: u64) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let outcome = run(&plan(dir.path(), kept, rounds)).unwrap();
    assert_eq!(outcome.judged.violations, [""; 0]);
    assert_eq!(outcome.judged.undecided, 0);
    let (calls, granted) = outcome.counts();
    println!(
        "{kept:?}: {calls} calls, {granted} grants, {} kills, {} in a call",
        outcome.kills, outcome.in_a_call
    );
    assert!(calls > 20 * outcome.rounds.len() && granted > outcome.rounds.len());
    assert!(outcome.in_a_call > 0, "{} kills, none in a call", outcome.kills);
    outcome
}

#[test]
fn an_order_explains_what_killed_processes_saw_of_a_journal_and_no_order_a_wrong_answer() {
    let outcome = fine(Kept::Journal, 150);
    let (mut swapped, mut repeated) = (0, 0);
    for (at, round) in outcome.rounds.iter().enumerate() {
        if let Some(wrong) = swapped_answers(round) {
            swapped += 1;
            let found = judge(&[wrong]);
            assert_eq!(found.violations.len(), 1, "round {at}, two answers swapped");
        }
        if let Some(wrong) = lost_release(round) {
            repeated += 1;
            assert!(!judge(&[wrong]).violations.is_empty(), "round {at}, what was freed is held");
        }
    }
    assert!(swapped > 10 && repeated > 10, "{swapped} {repeated}");
    let mut rounds = outcome.rounds;
    let granted = rounds.iter_mut().flat_map(|round| &mut round.calls);
    let mut granted: Vec<_> = granted.filter(|call| call.is_granted()).collect();
    let first = granted[0].fences.clone();
    granted[1].fences = first;
    let Judge { violations, .. } = judge(&rounds);
    assert!(violations.iter().any(|text| text.contains("is there twice")), "{violations:?}");
}

/// A claim that was granted and one that was refused for it get each other's answers.
fn swapped_answers(round: &Round) -> Option<Round> {
    let mut wrong = round.clone();
    let granted = |of: usize| wrong.calls[of].is_granted();
    let stored = |of: usize| wrong.calls[of].writes.clone();
    let seen = |of: usize, value: (usize, u64)| {
        let reads = wrong.calls[of].reads.as_ref();
        let refused = wrong.calls[of].ended.is_some_and(|(_, end)| end == End::Refused);
        refused && reads.is_some_and(|reads| reads.contains(&value))
    };
    let all = 0..round.calls.len();
    let (one, other) = all.clone().filter(|of| granted(*of)).find_map(|of| {
        let saw = |other: &usize| stored(of).iter().any(|value| seen(*other, *value));
        all.clone().find(saw).map(|other| (of, other))
    })?;
    let (first, second) = (wrong.calls[one].ended?, wrong.calls[other].ended?);
    wrong.calls[one].ended = Some((first.0, second.1));
    wrong.calls[other].ended = Some((second.0, first.1));
    Some(wrong)
}

/// What was freed last, and found free, is found held.
fn lost_release(round: &Round) -> Option<Round> {
    let mut wrong = round.clone();
    let freed = round.calls.iter().find_map(|call| {
        let (key, _) =
            call.writes.iter().find(|(key, value)| *value == 0 && round.after[key] == 0)?;
        let before = call.reads.as_ref()?.iter().find(|(read, _)| read == key)?;
        call.ended.filter(|(_, end)| *end == End::Done).map(|_| *before)
    })?;
    wrong.after.insert(freed.0, freed.1);
    Some(wrong)
}

#[test]
fn an_order_explains_what_killed_processes_saw_of_a_table_of_files() {
    fine(Kept::Group, 60);
}

#[test]
fn processes_that_take_for_done_what_was_never_made_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { lie: Some(Lie::Acknowledges), ..plan(dir.path(), Kept::Journal, 20) };
    let outcome = run(&plan).unwrap();
    let (wrong, rounds) = (outcome.judged.violations.len(), outcome.rounds.len());
    assert!(wrong > 2, "{wrong} of {rounds} rounds");
}
