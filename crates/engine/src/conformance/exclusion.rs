//! E1. Exclusion, over threads with handles of their own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ringfence_model::{Key, Space, Transition};

use super::Testbed;
use super::kit::*;
use crate::outcome::{Failure, Outcome};
use crate::traits::Request;

pub(super) fn one_of_two_overlapping_claims_is_granted<T: Testbed>(bed: &T) {
    let requests = [ask("a", 1..=32), ask("b", 17..=48)];
    for round in 0..8 {
        let start = Barrier::new(2);
        let answers = thread::scope(|scope| {
            let threads = requests.each_ref().map(|request| {
                let (engine, start) = (bed.engine(), &start);
                scope.spawn(move || {
                    start.wait();
                    claim(&engine, request, at(0.0))
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let [one, two] = &answers;
        assert!(one.is_ok() != two.is_ok(), "round {round}: exactly one is granted");
        let engine = bed.engine();
        let (winner, token) = answers
            .iter()
            .zip(&requests)
            .find_map(|(answer, request)| answer.as_ref().ok().map(|token| (request, *token)))
            .unwrap();
        let stored: Vec<Key> = records(&engine, Space::Targets).into_keys().collect();
        assert_eq!(stored, keys(&winner.group), "round {round}: the winner's records only");
        release(&engine, &winner.group, token, at(0.0)).unwrap();
    }
}

pub(super) fn leases_on_overlapping_groups_never_overlap<T: Testbed>(bed: &T) {
    const GROUPS: [&[u64]; 4] = [&[1, 2, 3], &[3, 4], &[4, 1], &[2, 4, 1, 3]];
    let holders = [const { AtomicU64::new(0) }; 5];
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for (me, numbers) in (1..).zip(GROUPS) {
            let (engine, holders, granted) = (bed.engine(), &holders, &granted);
            scope.spawn(move || {
                let hand_over = |from: u64, to: u64| {
                    for &number in numbers {
                        let holder = &holders[usize::try_from(number).unwrap()];
                        let was = holder.swap(to, Ordering::SeqCst);
                        assert_eq!(was, from, "target {number} is leased to two at once");
                    }
                };
                let request = ask("a", numbers.iter().copied());
                for _ in 0..25 {
                    let Ok(token) = claim(&engine, &request, at(0.0)) else { continue };
                    hand_over(0, me);
                    granted.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    heartbeat(&engine, &request.group, token, at(1.0)).unwrap();
                    hand_over(me, 0);
                    release(&engine, &request.group, token, at(2.0)).unwrap();
                }
            });
        }
    });
    assert!(granted.into_inner() > 0, "somebody gets on");
    assert_eq!(everything(&bed.engine()).len(), 0);
}

pub(super) fn no_increment_is_lost<T: Testbed>(bed: &T) {
    const GROUPS: [&[u64]; 4] = [&[1, 2], &[2, 3], &[3, 1], &[1, 2, 3]];
    const ROUNDS: u64 = 15;
    thread::scope(|scope| {
        for numbers in GROUPS {
            let engine = bed.engine();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let outcome = add_one(&engine, numbers, PATIENCE).unwrap();
                    assert!(matches!(outcome, Outcome::Done(_)));
                }
            });
        }
    });
    assert_eq!(counts(&bed.engine(), 1..=3), [3 * ROUNDS; 3]);
}

pub(super) fn decide_never_sees_half_a_transition<T: Testbed>(bed: &T) {
    let numbers: Vec<u64> = (1..=8).collect();
    let mut seen = Vec::new();
    let times = while_incrementing(bed, &numbers, |engine| {
        let keys = keys_of(1..=8);
        // As long as it takes for both to have done something.
        while seen.len() < 30 || seen.last() < Some(&15) {
            // An optimistic engine may ask with a view that it then throws away: the last counts.
            let mut last = Vec::new();
            let looked = decide(engine, &keys, at(0.0), |view| {
                last = view.entries.iter().map(|(_, entry)| count(entry)).collect();
                Ok::<_, ()>(Transition::edits(Vec::new()))
            });
            looked.unwrap();
            assert!(last.iter().all(|count| *count == last[0]), "half a transition: {last:?}");
            assert!(seen.last() <= Some(&last[0]), "the table runs backwards");
            seen.push(last[0]);
        }
    });
    assert_eq!(counts(&bed.engine(), 1..=8), [times + 1; 8]);
}

pub(super) fn patience_is_kept_and_not_outlived<T: Testbed>(bed: &T) {
    for patience in [Duration::ZERO, Duration::from_millis(400)] {
        let stopped = Stopped::incrementing(bed, &[1, 2]);
        let engine = bed.engine();
        let before = counts(&engine, [2, 3]);
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let _ = tell.send(add_one(&engine, &[2, 3], patience));
        });
        // A pessimistic engine waits and gives up; an optimistic one is through at once.
        let early = told.recv_timeout(patience / 2);
        let impatient = matches!(early, Ok(Err(Failure::Busy { .. }))) && !patience.is_zero();
        assert!(!impatient, "busy long before the patience is over: {early:?}");
        // Long before what it waits for goes on by itself, and long after any patience.
        let answer = early.or_else(|_| told.recv_timeout(Duration::from_secs(10)));
        let answer = answer.expect("an answer soon after the patience is over");
        if let Err(Failure::Busy { waited, .. }) = &answer {
            assert!(early_enough(*waited, patience), "gave up after {waited:?} of {patience:?}");
            assert_eq!(counts(&bed.engine(), [2, 3]), before, "busy wrote something");
        }
        let ended = [answer, stopped.finish()];
        let done = ended.iter().filter(|end| matches!(end, Ok(Outcome::Done(_)))).count();
        let busy = ended.iter().filter(|end| matches!(end, Err(Failure::Busy { .. }))).count();
        assert_eq!(done + busy, 2, "{ended:?}");
        let after = counts(&bed.engine(), [2]);
        assert_eq!(after[0] - before[0], u64::try_from(done).unwrap(), "{ended:?}");
    }
}

/// Whether it waited as long as it was asked to, but for the roundness of clocks.
fn early_enough(waited: Duration, patience: Duration) -> bool {
    waited + Duration::from_millis(20) >= patience
}

pub(super) fn patience_is_for_all_keys_together<T: Testbed>(bed: &T) {
    // One key after the other is given up after more than half of the patience: an engine that is
    // patient with one key at a time waits for the last of them, one that is patient with all is over
    // it before the second is given up.
    let patience = Duration::from_secs(2);
    let in_order: Vec<u64> = group(1..=5).targets().map(ringfence_model::Target::get).collect();
    let stopped = in_order.iter().map(|number| Stopped::incrementing(bed, &[*number]));
    let stopped: Vec<Stopped> = stopped.collect();
    let engine = bed.engine();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let _ = tell.send(add_one(&engine, &[1, 2, 3, 4, 5], patience));
    });
    let mut answer = None;
    for key in stopped {
        answer = answer.or_else(|| told.recv_timeout(Duration::from_millis(1500)).ok());
        let _ = key.finish();
    }
    let answer = answer.expect("an answer when the patience for all keys is over");
    assert!(matches!(answer, Ok(Outcome::Done(_)) | Err(Failure::Busy { .. })), "{answer:?}");
}

pub(super) fn no_patience_is_enough_when_nobody_is_in_the_way<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    for _ in 0..5 {
        let outcome = add_one(&engine, &[1, 2], Duration::ZERO).unwrap();
        assert!(matches!(outcome, Outcome::Done(_)));
    }
    let keys = keys_of([1, 2]);
    let request = Request { keys: &keys, now: at(0.0), patience: Duration::ZERO };
    assert_eq!(engine.transact(&request, &mut |_| None).unwrap(), Outcome::Refused);
}
