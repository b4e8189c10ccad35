//! Batches: independent units that share the cost of becoming durable.

use std::cell::RefCell;
use std::time::Duration;

use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Fence, FencingToken, Key, Space, TargetGroup, Token};

use super::Testbed;
use super::kit::*;
use crate::outcome::{EachReport, Failure, UnitOutcome};
use crate::traits::Request;

/// One heartbeat for each lease, in one batch.
fn heartbeats(
    engine: &Handle,
    leases: &[(TargetGroup, FencingToken)],
    now: f64,
    patience: Duration,
) -> EachReport {
    let keys: Vec<Vec<Key>> = leases.iter().map(|(group, _)| keys(group)).collect();
    let units: Vec<_> = keys.iter().map(|keys| Request { keys, now: at(now), patience }).collect();
    engine.transact_each(&units, &mut |index, view| {
        let (group, token) = &leases[index];
        rules::heartbeat(view, group, &Token::from(*token)).ok()
    })
}

fn claimed(
    engine: &Handle,
    groups: impl IntoIterator<Item = Vec<u64>>,
) -> Vec<(TargetGroup, FencingToken)> {
    let one = |numbers| {
        let request = ask("a", numbers);
        let token = claim(engine, &request, at(0.0)).unwrap();
        (request.group, token)
    };
    groups.into_iter().map(one).collect()
}

fn is_done(outcome: &UnitOutcome) -> bool {
    matches!(outcome, UnitOutcome::Done(_))
}

fn all_done(report: &EachReport) -> bool {
    report.units.iter().all(is_done)
}

fn updated(engine: &Handle, number: u64) -> f64 {
    target_record(engine, number).holder.updated.seconds() - at(0.0).unwrap().seconds()
}

pub(super) fn every_unit_ends_by_its_own_rule<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mut leases = claimed(&engine, (1..=6).map(|number| vec![number]));
    // One is stale, one is held by nobody.
    leases[2].1 = FencingToken::new(Fence(1), 0xdead);
    leases[4].0 = group([99]);
    let report = heartbeats(&engine, &leases, 5.0, PATIENCE);
    assert!(report.barriers > 0);
    let done: Vec<bool> = report.units.iter().map(is_done).collect();
    assert_eq!(done, [true, true, false, true, false, true]);
    for (index, number) in [(2, 3), (4, 5)] {
        assert!(matches!(report.units[index], UnitOutcome::Refused), "{:?}", report.units[index]);
        assert!(updated(&engine, number).abs() < 1e-9, "a refused unit wrote");
    }
    for number in [1, 2, 4, 6] {
        assert!((updated(&engine, number) - 5.0).abs() < 1e-9, "an acknowledged unit is stored");
    }
    assert_eq!(records(&engine, Space::Targets).len(), 6);
}

pub(super) fn outcomes_stand_in_the_order_of_the_request<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let stale = FencingToken::new(Fence(1), 0xdead);
    let mut leases = claimed(&engine, (1..=12).map(|number| vec![number]));
    leases[0].1 = stale;
    for _ in 0..leases.len() {
        leases.rotate_left(1);
        let keys: Vec<Vec<Key>> = leases.iter().map(|(group, _)| keys(group)).collect();
        let unit = |keys| Request { keys, now: at(1.0), patience: PATIENCE };
        let units: Vec<_> = keys.iter().map(|keys| unit(keys)).collect();
        let report = engine.transact_each(&units, &mut |index, view| {
            assert_eq!(view.entries[0].0, keys[index][0], "the rule is asked about its own unit");
            let (group, token) = &leases[index];
            rules::heartbeat(view, group, &Token::from(*token)).ok()
        });
        let done: Vec<bool> = report.units.iter().map(is_done).collect();
        assert_eq!(done, leases.iter().map(|(_, token)| *token != stale).collect::<Vec<_>>());
    }
}

pub(super) fn units_are_handled_in_shard_and_id_order<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let shards = u32::from(engine.info().shards);
    let numbers: Vec<u64> = (1..=30).collect();
    let keys: Vec<[Key; 1]> = numbers.iter().map(|number| [Key::target(target(*number))]).collect();
    let units: Vec<_> =
        keys.iter().map(|keys| Request { keys, now: at(0.0), patience: PATIENCE }).collect();
    let mut asked = Vec::new();
    let report = engine.transact_each(&units, &mut |index, _| {
        // Asked again counts as asked last.
        asked.retain(|earlier| *earlier != index);
        asked.push(index);
        Some(store(vec![counter(numbers[index], 1)]))
    });
    assert!(all_done(&report), "{report:?}");
    let place = |index: &usize| {
        let id = keys[*index][0].id;
        let [a, b, c, d, ..] = *id.as_bytes();
        (u32::from_be_bytes([a, b, c, d]) % shards, id)
    };
    let order: Vec<_> = asked.iter().map(place).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(order.len(), units.len());
}

pub(super) fn a_unit_of_several_keys_is_whole<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let groups = [vec![1, 2, 3], vec![4, 5], (10..74).collect()];
    let mut leases = claimed(&engine, groups);
    let request = ask("b", [5]);
    let member = group([5]);
    release(&engine, &member, leases[1].1, at(1.0)).unwrap();
    claim(&engine, &request, at(1.0)).unwrap();
    let report = heartbeats(&engine, &leases, 9.0, PATIENCE);
    assert_eq!(report.units.iter().map(is_done).collect::<Vec<_>>(), [true, false, true]);
    assert!(updated(&engine, 4).abs() < 1e-9, "no member of a refused unit is written");
    leases.remove(1);
    for (group, _) in &leases {
        for target in group.targets() {
            assert!((updated(&engine, target.get()) - 9.0).abs() < 1e-9, "{target}");
        }
    }
}

pub(super) fn grants_of_a_batch_have_fences_of_their_own<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let before = claim(&engine, &ask("a", [99]), at(0.0)).unwrap().fence();
    let requests: Vec<ClaimRequest> =
        (1..=10).map(|number| ask("a", [number, number + 200])).collect();
    let keys: Vec<Vec<Key>> = requests.iter().map(|request| keys(&request.group)).collect();
    let units: Vec<_> =
        keys.iter().map(|keys| Request { keys, now: at(0.0), patience: PATIENCE }).collect();
    let report =
        engine.transact_each(&units, &mut |index, view| rules::claim(view, &requests[index]).ok());
    let mut fences = vec![before];
    for (outcome, request) in report.units.iter().zip(&requests) {
        let UnitOutcome::Done(Some(token)) = outcome else { panic!("a grant, not {outcome:?}") };
        for target in request.group.targets() {
            assert_eq!(target_record(&engine, target.get()).holder.token, (*token).into());
        }
        assert!(token.fence() > before);
        fences.push(token.fence());
    }
    let after = claim(&engine, &ask("a", [98]), at(0.0)).unwrap().fence();
    assert!(fences.iter().all(|fence| *fence < after));
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 11);
}

pub(super) fn a_batch_shares_its_barriers<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    // More than any testbed has shards, so some barrier is shared.
    let leases = claimed(&engine, (1..=80).map(|number| vec![number]));
    let single: u64 = leases
        .iter()
        .map(|(group, token)| heartbeat(&engine, group, *token, at(1.0)).unwrap().barriers)
        .sum();
    let report = heartbeats(&engine, &leases, 2.0, PATIENCE);
    assert!(all_done(&report));
    assert!(report.barriers > 0);
    assert!(report.barriers < single, "{} for the batch, {single} one by one", report.barriers);
}

pub(super) fn a_batch_that_stores_nothing_costs_nothing<T: Testbed>(bed: &T) {
    let report = bed.engine().transact_each(&[], &mut |_, _| panic!("there is no unit"));
    assert_eq!((report.units.len(), report.barriers), (0, 0));
    let stale: Vec<_> =
        (1..=5).map(|number| (group([number]), FencingToken::new(Fence(1), 2))).collect();
    claimed(&bed.engine(), (1..=3).map(|number| vec![number]));
    let report = without_a_trace(bed, |engine| heartbeats(engine, &stale, 1.0, PATIENCE));
    assert!(report.units.iter().all(|outcome| matches!(outcome, UnitOutcome::Refused)));
    assert_eq!(report.barriers, 0, "a refusal needs no barrier");
}

pub(super) fn a_busy_unit_does_not_stop_the_rest<T: Testbed>(bed: &T) {
    let numbers: Vec<u64> = (1..=6).collect();
    for busy in [1, 4] {
        let engine = bed.engine();
        let before = counts(&engine, 1..=6);
        let stopped = Stopped::incrementing(bed, &[busy]);
        let keys: Vec<[Key; 1]> =
            numbers.iter().map(|number| [Key::target(target(*number))]).collect();
        let patience = Duration::from_millis(100);
        let units: Vec<_> =
            keys.iter().map(|keys| Request { keys, now: at(0.0), patience }).collect();
        let report = engine.transact_each(&units, &mut |index, view| {
            Some(increment(view, &numbers[index..=index]))
        });
        let went_on = matches!(stopped.finish(), Ok(crate::Outcome::Done(_)));
        let after = counts(&engine, 1..=6);
        for (index, outcome) in report.units.iter().enumerate() {
            let is_busy = numbers[index] == busy;
            let added = after[index] - before[index] - u64::from(is_busy && went_on);
            match outcome {
                UnitOutcome::Done(None) => assert_eq!(added, 1),
                UnitOutcome::Failed(Failure::Busy { .. }) if is_busy => assert_eq!(added, 0),
                other => panic!("unit {index} must be done: {other:?}"),
            }
        }
    }
}

pub(super) fn after_a_failure_no_further_unit_is_begun<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    // A fence that cannot rise is a failure that any engine can be driven into.
    let last = FencingToken::new(Fence(u64::MAX), 1);
    let stuck = 5;
    put(&engine, &[foreign(stuck, &last.to_string(), at(0.0).unwrap())]);
    let requests: Vec<ClaimRequest> = (1..=12).map(|number| ask("a", [number])).collect();
    let keys: Vec<Vec<Key>> = requests.iter().map(|request| keys(&request.group)).collect();
    let now = at(1_000_000.0);
    let units: Vec<_> = keys.iter().map(|keys| Request { keys, now, patience: PATIENCE }).collect();
    let mut asked = Vec::new();
    let report = engine.transact_each(&units, &mut |index, view| {
        asked.push(index);
        rules::claim(view, &requests[index]).ok()
    });
    let at_fault = usize::try_from(stuck).unwrap() - 1;
    let mut begun = 0;
    for (index, outcome) in report.units.iter().enumerate() {
        let number = u64::try_from(index).unwrap() + 1;
        let there = records(&engine, Space::Targets).contains_key(&keys[index][0]);
        match outcome {
            UnitOutcome::Done(Some(token)) => {
                assert_eq!(target_record(&engine, number).holder.token, (*token).into());
                begun += 1;
            }
            UnitOutcome::Failed(failure) if index == at_fault => {
                assert!(failure.restored() && !matches!(failure, Failure::Busy { .. }));
                assert_eq!(target_record(&engine, number).holder.token, last.into());
                begun += 1;
            }
            UnitOutcome::NotBegun => {
                assert!(!there, "{number} was not begun and yet it is stored");
                assert!(!asked.contains(&index), "{number} was not begun and yet it was decided");
            }
            other => panic!("unit {index}: {other:?}"),
        }
    }
    assert!(matches!(report.units[at_fault], UnitOutcome::Failed(_)));
    assert!(asked.contains(&at_fault) && asked.last() == Some(&at_fault), "{asked:?}");
    assert_eq!(report.barriers > 0, begun > 1, "what was written before it became durable");
}

pub(super) fn an_acknowledged_batch_outlives_a_restart<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let leases = claimed(&engine, [vec![1, 2], vec![3], (10..30).collect()]);
    assert!(all_done(&heartbeats(&engine, &leases, 4.0, PATIENCE)));
    let before = everything(&engine);
    drop(engine);
    let engine = bed.reopen();
    assert_eq!(everything(&engine), before);
    assert!((updated(&engine, 20) - 4.0).abs() < 1e-9);
}

pub(super) fn who_is_not_renewed_at_a_glance_is_decided_by_his_records<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mut leases = claimed(&engine, [vec![1], vec![2, 3, 4], vec![5, 6], vec![7], vec![8]]);
    release(&engine, &group([6]), leases[2].1, at(1.0)).unwrap();
    leases[3].1 = FencingToken::new(Fence(1), 0xdead);
    leases.push((group([9]), leases[0].1));
    let item = ask_work("a", 1);
    claim_work(&engine, &item, at(0.0)).unwrap();
    let mut keys: Vec<Vec<Key>> = leases.iter().map(|(group, _)| keys(group)).collect();
    keys.push(vec![Key::work(item.id())]);
    let units: Vec<_> =
        keys.iter().map(|keys| Request { keys, now: at(5.0), patience: PATIENCE }).collect();
    let before = everything(&engine);
    let (glanced, decided) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let report = engine.transact_each_at_a_glance(
        &units,
        &mut |index, glance| {
            let shown: Vec<Key> = glance.entries.iter().map(|(key, _)| *key).collect();
            assert_eq!(shown, keys[index], "the rule is asked about its own unit");
            assert_eq!(glance.moment.wall, at(5.0).unwrap());
            let (group, token) = &leases[index];
            let renewal = rules::renew(glance, group, &Token::from(*token));
            glanced.borrow_mut().push((index, renewal.is_some()));
            renewal
        },
        &mut |index, view| {
            decided.borrow_mut().push(index);
            let (group, token) = leases.get(index)?;
            rules::heartbeat(view, group, &Token::from(*token)).ok()
        },
    );
    let done: Vec<bool> = report.units.iter().map(is_done).collect();
    assert_eq!(done, [true, true, false, false, true, false, false]);
    for index in [2, 3, 5, 6] {
        assert!(matches!(report.units[index], UnitOutcome::Refused), "{:?}", report.units[index]);
        assert!(decided.borrow().contains(&index), "{index} was refused at a glance");
    }
    for (index, was_renewed) in glanced.take() {
        assert_eq!(was_renewed, done[index], "a glance shows who holds what");
    }
    for number in [1, 2, 3, 4, 8] {
        assert!((updated(&engine, number) - 5.0).abs() < 1e-9, "an acknowledged unit is stored");
    }
    for number in [5, 7] {
        assert!(updated(&engine, number).abs() < 1e-9, "a refused unit wrote");
    }
    let after = everything(&engine);
    assert_eq!(after.len(), before.len());
    let work = Key::work(item.id());
    assert_eq!(after[&work], before[&work]);
}
