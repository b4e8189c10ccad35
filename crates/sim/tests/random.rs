//! Random runs with fixed seeds; fresh ones are made by `ringfence-sim --random`.

use ringfence_sim::coverage::{Coverage, EVENTS, Event};
use ringfence_sim::known;
use ringfence_sim::random::{Plan, run};
use ringfence_sim::sabotage::Sabotage;
use ringfence_sim::setup::{Kept, Mode, Setup};

fn fixed(mode: Mode) {
    let (mut cuts, mut open, mut done, mut strikes) = (0, 0, 0, 0);
    let mut coverage = Coverage::default();
    for seed in 501..=750 {
        let outcome = run(&Plan::of(seed, Setup::honest(mode)));
        let new = outcome
            .violations
            .iter()
            .find(|wrong| known::name(wrong, Setup::honest(mode).subject).is_none());
        assert_eq!(new, None, "ringfence-sim --seed {seed} --mode {mode:?} --log");
        assert_eq!(outcome.undecided, 0, "seed {seed}");
        cuts += outcome.cuts;
        open += outcome.open;
        done += outcome.done;
        strikes += outcome.strikes;
        coverage.add(&outcome.coverage);
    }
    // A storm that strikes nobody shows nothing.
    assert!(cuts > 100 && open > 500 && done > 4000 && strikes > 500);
    println!("{mode:?}\n{coverage}");
    let events = EVENTS.into_iter().filter(|event| !event.is_of_journals());
    for event in events.filter(|event| mode == Mode::Group || !event.is_of_intents()) {
        assert!(coverage.count(event) > 0, "no run came to {event:?}\n{coverage}");
    }
}

#[test]
fn fixed_seeds_break_no_record() {
    fixed(Mode::Record);
}

#[test]
fn fixed_seeds_break_no_group() {
    fixed(Mode::Group);
}

/// The first seeds of those that `docs/track-record.md` has no open row about.
#[test]
fn fixed_seeds_break_no_journal() {
    let (mut cuts, mut done, mut strikes) = (0, 0, 0);
    let mut coverage = Coverage::default();
    for seed in 1..=120 {
        let outcome = run(&Plan::of(seed, Kept::Journal.setup()));
        assert_eq!(outcome.violations, Vec::<String>::new(), "--seed {seed} --mode journal --log");
        cuts += outcome.cuts;
        done += outcome.done;
        strikes += outcome.strikes;
        coverage.add(&outcome.coverage);
    }
    for event in [Event::RenewedAtAGlance, Event::ReleasedAtAGlance] {
        assert!(coverage.count(event) >= 200, "{event:?} {} times", coverage.count(event));
    }
    assert!(cuts > 50 && done > 2000 && strikes > 100, "{cuts} {done} {strikes}");
}

/// Two leases are more than a segment: the next one is larger, and small again once they are gone.
#[test]
fn fixed_seeds_break_no_journal_whose_segments_grow_and_shrink() {
    let mut coverage = Coverage::default();
    for seed in 3001..=3120 {
        let plan = Plan { large: true, ..Plan::of(seed, Kept::Journal.setup()) };
        let outcome = run(&plan);
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed} with large leases");
        coverage.add(&outcome.coverage);
    }
    println!("{coverage}");
    for event in [Event::SegmentGrown, Event::SegmentCut] {
        assert!(coverage.runs(event) >= 20, "{event:?} in {} runs", coverage.runs(event));
    }
}

/// Groups and work items that are taken, completed and given up as one, beside everything else.
#[test]
fn fixed_seeds_break_no_job() {
    for kept in Kept::ALL {
        let mut coverage = Coverage::default();
        for seed in 2001..=2080 {
            let plan = Plan { jobs: true, ..Plan::of(seed, kept.setup()) };
            let outcome = run(&plan);
            let subject = kept.setup().subject;
            let new = outcome.violations.iter().find(|wrong| known::name(wrong, subject).is_none());
            assert_eq!(new, None, "seed {seed} with jobs, {kept:?}");
            assert_eq!(outcome.undecided, 0, "seed {seed}");
            coverage.add(&outcome.coverage);
        }
        println!("{kept:?}\n{coverage}");
        for event in [
            Event::JobClaimed,
            Event::JobCompleted,
            Event::JobFinishedByAnother,
            Event::JobAbandoned,
        ] {
            assert!(coverage.count(event) >= 4, "{event:?} {} times", coverage.count(event));
        }
    }
}

/// A table that a planted bug has broken for good is opened in vain, life after life; that took one
/// run of these 10 million calls and 19,000 power cuts.
#[test]
fn a_table_that_is_broken_for_good_does_not_keep_a_run_from_its_end() {
    let setup = Setup { sabotage: Some(Sabotage::DataSync), ..Kept::Journal.setup() };
    let mut wrong = 0;
    for seed in 1..=40 {
        let outcome = run(&Plan::of(seed, setup));
        wrong += usize::from(!outcome.violations.is_empty());
        assert!(outcome.steps < 300_000, "seed {seed}: {} calls", outcome.steps);
    }
    assert!(wrong > 5, "{wrong} runs of 40 show that nothing is synced");
}

#[test]
fn the_same_seed_replays_exactly() {
    for seed in [3, 11, 17] {
        let plan = Plan::of(seed, Setup::honest(Mode::Group));
        let (one, two) = (run(&plan), run(&plan));
        assert_eq!((one.steps, one.trace), (two.steps, two.trace), "seed {seed}");
        let other = run(&Plan::of(seed + 1, Setup::honest(Mode::Group)));
        assert_ne!(one.trace, other.trace);
    }
}
