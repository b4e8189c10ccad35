//! Histories of which it is known whether they can be explained.

use super::*;

fn unit(began: u64, ended: Option<u64>, reads: &[(usize, u64)], writes: &[(usize, u64)]) -> Unit {
    let promised = ended.is_some() && !writes.is_empty();
    let (reads, writes) = (reads.to_vec(), writes.to_vec());
    Unit { name: format!("unit at {began}"), began, ended, reads, writes, promised }
}

fn found(states: &[(usize, u64)]) -> BTreeMap<usize, u64> {
    states.iter().copied().collect()
}

#[test]
fn calls_at_the_same_time_may_have_happened_in_either_order() {
    let units = [
        unit(1, Some(10), &[(0, 5)], &[(0, 6)]),
        unit(2, Some(9), &[(0, 0)], &[(0, 5)]),
        unit(3, Some(4), &[(0, 0)], &[]),
    ];
    let ending = Ending::Read(found(&[(0, 6)]));
    assert_eq!(explain(&found(&[]), &units, &ending), Verdict::Explained);
}

#[test]
fn a_call_that_saw_what_was_replaced_before_it_began_is_impossible() {
    let units = [unit(1, Some(2), &[(0, 0)], &[(0, 5)]), unit(3, Some(4), &[(0, 0)], &[(0, 7)])];
    let ending = Ending::Read(found(&[(0, 7)]));
    assert!(matches!(explain(&found(&[]), &units, &ending), Verdict::Impossible(_)));
}

#[test]
fn a_call_that_never_returned_may_have_happened_or_not() {
    let killed = unit(1, None, &[(0, 0)], &[(0, 5)]);
    for last in [0, 5] {
        let ending = Ending::Read(found(&[(0, last)]));
        assert_eq!(
            explain(&found(&[]), std::slice::from_ref(&killed), &ending),
            Verdict::Explained
        );
    }
}

#[test]
fn an_acknowledged_call_survives_a_power_cut_and_an_unacknowledged_one_may_not() {
    let acked = unit(1, Some(2), &[(0, 0)], &[(0, 5)]);
    let open = unit(3, None, &[(0, 5)], &[(0, 6)]);
    let seen = unit(4, Some(5), &[(0, 6)], &[]);
    let units = [acked, open, seen];
    for (last, ok) in [(0, false), (5, true), (6, true)] {
        let verdict = explain(&found(&[]), &units, &Ending::Cut(found(&[(0, last)])));
        assert_eq!(verdict == Verdict::Explained, ok, "{last}: {verdict:?}");
    }
}

#[test]
fn a_unit_of_several_records_survives_whole_or_not_at_all() {
    let open = unit(1, None, &[(0, 0), (1, 0)], &[(0, 5), (1, 5)]);
    for (states, ok) in [(vec![], true), (vec![(0, 5), (1, 5)], true), (vec![(0, 5)], false)] {
        let ending = Ending::Cut(found(&states));
        let verdict = explain(&found(&[]), std::slice::from_ref(&open), &ending);
        assert_eq!(verdict == Verdict::Explained, ok, "{states:?}");
    }
}

#[test]
fn what_an_acknowledged_call_built_on_is_durable() {
    let open = unit(1, None, &[(0, 0)], &[(0, 5)]);
    let again = Unit { promised: true, ..unit(2, Some(3), &[(0, 5)], &[]) };
    let verdict = explain(&found(&[]), &[open, again], &Ending::Cut(found(&[(0, 0)])));
    assert!(matches!(verdict, Verdict::Impossible(_)), "{verdict:?}");
}

/// Seeds 419 and 4107, reduced. Of three calls on records 1, 2 and 3 the first two were killed;
/// the third was acknowledged, and built on the second, which had built on the first. The search
/// took the first for lost or for the newest, as what it had stored was replaced since.
#[test]
fn what_that_was_built_on_is_durable_too_and_stays_replaced() {
    let first = unit(1, None, &[(2, 0), (3, 0)], &[(2, 5), (3, 5)]);
    let second = unit(2, None, &[(1, 0), (3, 5)], &[(1, 6), (3, 6)]);
    let third = unit(3, Some(4), &[(1, 6)], &[(1, 7)]);
    let fourth = unit(5, Some(6), &[(2, 5)], &[(2, 8)]);
    let cut = |units: &[Unit], states: &[(usize, u64)]| {
        explain(&found(&[]), units, &Ending::Cut(found(states))) == Verdict::Explained
    };
    let units = [first, second, third];
    assert!(cut(&units, &[(1, 7), (2, 5), (3, 6)]));
    assert!(!cut(&units, &[(1, 7), (3, 6)]), "the first of them is lost");
    assert!(!cut(&units, &[(1, 7), (2, 5), (3, 5)]), "what it stored came back");
    let units = [&units[..], &[fourth]].concat();
    assert!(cut(&units, &[(1, 7), (2, 8), (3, 6)]));
    assert!(!cut(&units, &[(1, 7), (2, 8), (3, 5)]), "what the first stored came back");
}

#[test]
fn what_survives_survives_with_what_it_was_built_on() {
    let first = unit(1, None, &[(0, 0), (1, 0)], &[(0, 5), (1, 5)]);
    let second = unit(2, None, &[(1, 5), (2, 0)], &[(1, 6), (2, 6)]);
    let units = [first, second];
    let cut = |states: &[(usize, u64)]| {
        explain(&found(&[]), &units, &Ending::Cut(found(states))) == Verdict::Explained
    };
    assert!(cut(&[]) && cut(&[(0, 5), (1, 5)]) && cut(&[(0, 5), (1, 6), (2, 6)]));
    assert!(!cut(&[(1, 6), (2, 6)]), "the second without the first");
}
