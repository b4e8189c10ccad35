//! Every crash point of every verb, small: the suite `sim` of `cargo xtask test` tries groups of one and
//! two members, and more disks of a journal. What it does not try is tried here.

use ringfence_sim::case::{Act, Case, Shape};
use ringfence_sim::exhaustive::{Failures, Limits, Report, explore};
use ringfence_sim::setup::{Kept, Mode, Setup};
use ringfence_sim::subject::JOURNAL;

fn all(mode: Mode) -> Report {
    let mut total = Report::default();
    for &act in Setup::honest(mode).subject.acts() {
        let shapes = if act.has_shape() { vec![(3, 2)] } else { vec![(2, 2)] };
        for (members, shards) in shapes {
            let case = Case { act, shape: Shape { members, shards } };
            let limits = Limits { cap: 48, depth2: 2, cap2: 6, ..Limits::quick() };
            let report = explore(case, Setup::honest(mode), limits);
            println!("{case}: {report:?}");
            total.add(report);
        }
    }
    assert_eq!(total.violations, [] as [String; 0]);
    total
}

#[test]
fn no_crash_point_of_any_verb_breaks_a_record() {
    let report = all(Mode::Record);
    assert!(report.distinct > 1000, "{report:?}");
}

#[test]
fn no_crash_point_of_any_verb_breaks_a_group() {
    let report = all(Mode::Group);
    assert!(report.distinct > 1000, "{report:?}");
}

#[test]
fn no_crash_point_of_any_verb_breaks_a_journal() {
    let mut total = Report::default();
    for &act in JOURNAL.acts() {
        let case = Case { act, shape: Shape { members: 2, shards: 1 } };
        let limits = Limits { cap: 6, depth2: 1, cap2: 1, ..Limits::quick_of(Kept::Journal, act) };
        let report = explore(case, Kept::Journal.setup(), limits);
        println!("{case}: {report:?}");
        total.add(report);
    }
    assert_eq!(total.violations, [] as [String; 0]);
    assert!(total.distinct > 10_000 && total.meddled > 100, "{total:?}");
}

/// Every call of a call fails by itself, and from each on all of them, and then comes the crash.
#[test]
fn no_crash_after_a_failure_breaks_anything() {
    let limits = Limits { failures: Failures::All, depth2: 1, ..Limits::quick() };
    for mode in [Mode::Record, Mode::Group] {
        let twice = |act| [(act, 1, 1), (act, 2, 2)];
        let verbs = [Act::Claim, Act::Heartbeat, Act::Release].into_iter().flat_map(twice);
        for (act, members, shards) in verbs.chain([(Act::MakeShard, 1, 1)]) {
            let case = Case { act, shape: Shape { members, shards } };
            let report = explore(case, Setup::honest(mode), limits);
            assert_eq!(report.violations, [] as [String; 0], "{mode:?} {case}");
            assert!(report.points > 20, "{mode:?} {case}: {report:?}");
        }
    }
}
