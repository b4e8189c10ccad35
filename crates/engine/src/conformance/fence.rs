//! E5. Fences rise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ringfence_model::rules;
use ringfence_model::{Fence, FencingToken, Key, Space};

use super::Testbed;
use super::kit::*;
use crate::outcome::Failure;
use crate::traits::Request;

/// Asserts that each grant's fence is above the last.
#[derive(Default)]
struct Rising(Option<Fence>);

impl Rising {
    fn next(&mut self, token: FencingToken) {
        assert!(Some(token.fence()) > self.0, "{token} after {:?}", self.0);
        self.0 = Some(token.fence());
    }
}

pub(super) fn fences_rise_over_release_and_take_over<T: Testbed>(bed: &T) {
    let (engine, mut rising) = (bed.engine(), Rising::default());
    let mut now = 0.0;
    for round in 0..10 {
        let request = ask("a", [1, 2]);
        let token = claim(&engine, &request, at(now)).unwrap();
        rising.next(token);
        if round % 2 == 0 {
            release(&engine, &request.group, token, at(now)).unwrap();
        }
        now += 60.0;
    }
}

pub(super) fn fences_rise_over_both_tables<T: Testbed>(bed: &T) {
    let (engine, mut rising) = (bed.engine(), Rising::default());
    for number in 1..=5 {
        rising.next(claim(&engine, &ask("a", [number]), at(0.0)).unwrap());
        rising.next(claim_work(&engine, &ask_work("a", number), at(0.0)).unwrap());
    }
}

pub(super) fn fences_rise_over_handles_in_turn<T: Testbed>(bed: &T) {
    let (handles, mut rising) = ([bed.engine(), bed.engine(), bed.engine()], Rising::default());
    for number in 1..=5 {
        for (handle, offset) in handles.iter().zip([0, 100, 200]) {
            rising.next(claim(handle, &ask("a", [number + offset]), at(0.0)).unwrap());
        }
    }
}

pub(super) fn fences_rise_over_reopening<T: Testbed>(bed: &T) {
    let mut rising = Rising::default();
    for round in 0..6 {
        let engine = bed.reopen();
        for _ in 0..=round {
            let request = ask("a", [1]);
            let token = claim(&engine, &request, at(0.0)).unwrap();
            rising.next(token);
            // The counter may not live in the records: none is left.
            release(&engine, &request.group, token, at(0.0)).unwrap();
        }
    }
}

pub(super) fn fences_rise_in_real_time_over_threads<T: Testbed>(bed: &T) {
    let ticks = AtomicU64::new(0);
    let tick = || ticks.fetch_add(1, Ordering::SeqCst);
    let grants = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread: u64| {
                let engine = bed.engine();
                scope.spawn(move || {
                    let one = |round| {
                        let request = ask("a", [1000 * (thread + 1) + round]);
                        let began = tick();
                        let fence = claim(&engine, &request, at(0.0)).unwrap().fence();
                        (fence, began, tick())
                    };
                    (0..12).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for (fence, began, _) in &grants {
        for (earlier, _, ended) in &grants {
            assert!(ended > began || earlier < fence, "{earlier} was granted before {fence} began");
        }
    }
    let mut fences: Vec<_> = grants.iter().map(|(fence, ..)| *fence).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 48, "no fence is given twice");
}

pub(super) fn a_fence_is_above_every_fence_in_the_view<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let high = FencingToken::new(Fence(5_000_000_000_000), 1);
    put(&engine, &[foreign(2, &high.to_string(), at(0.0).unwrap())]);
    let mut rising = Rising(Some(high.fence()));
    let long_after = 1_000_000.0;
    let request = ask("a", [1, 2, 3]);
    let token = claim(&engine, &request, at(long_after)).unwrap();
    rising.next(token);
    release(&engine, &request.group, token, at(long_after)).unwrap();
    rising.next(claim(&bed.engine(), &ask("a", [7]), at(long_after)).unwrap());
    rising.next(claim(&bed.reopen(), &ask("a", [8]), at(long_after)).unwrap());
}

pub(super) fn a_fence_that_cannot_rise_is_a_failure_that_harms_nobody_else<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let last = FencingToken::new(Fence(u64::MAX), 1);
    put(&engine, &[foreign(2, &last.to_string(), at(0.0).unwrap())]);
    let request = ask("a", [1, 2, 3]);
    let before = records(&engine, Space::Targets);
    let keys = keys(&request.group);
    let ask_for_it = Request { keys: &keys, now: at(1_000_000.0), patience: PATIENCE };
    let answer = engine.decide(&ask_for_it, |view| rules::claim(view, &request));
    let failure = answer.expect_err("there is no fence above the last");
    assert!(failure.restored(), "{failure}");
    assert!(!matches!(failure, Failure::Busy { .. }), "{failure}");
    assert_eq!(records(&engine, Space::Targets), before);
    claim(&bed.engine(), &ask("b", [1, 3]), at(1_000_000.0)).expect("others go on");
    assert!(target_record(&engine, 1).holder.token.fence() < Some(Fence(u64::MAX)));
}

pub(super) fn two_tokens_share_no_random_part<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let random = |number| {
        let token = claim(&engine, &ask("a", [number]), at(0.0)).unwrap().to_string();
        token.split_once('-').unwrap().1.to_owned()
    };
    let (one, two) = (random(1), random(2));
    assert_ne!(one, two);
    let shown = bed.engine().view(&[Key::target(target(1))], None).unwrap();
    assert!(shown.highest_fence() > Fence(0));
}
