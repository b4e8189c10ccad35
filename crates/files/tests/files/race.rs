//! Two or more who want the same thing, stopped at the worst moment.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use ringfence_env::World;
use ringfence_env::fault::{Call, FaultFs};
use ringfence_files::FilesEngine;
use ringfence_model::rules;

use crate::child::Other;
use crate::table::{SERIAL, Table, Verbs as _, ask};

/// B6: the value compared is the one that was read under the lock.
#[test]
fn a_verdict_rests_on_what_was_read_under_the_lock_however_long_the_claimer_stops_before_it() {
    // Claimer A stops at its lock call for the record; meanwhile B takes the expired group over.
    let table = Table::new(8);
    let fast = FilesEngine::open(&World::system(), table.root(), SERIAL).unwrap();
    let lock = table.lock(7);
    for round in 0..300u32 {
        let now = 1000.0 + f64::from(round) * 1000.0;
        let old = fast.grab("old", &[7], Some(now)).unwrap().unwrap();
        let (reached, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let armed = Arc::new(AtomicBool::new(true));
        let at = if round % 2 == 0 { Call::OpenLock } else { Call::TryLock };
        table.fs.on_call({
            let (reached, go, lock) = (Arc::clone(&reached), Arc::clone(&go), lock.clone());
            move |call, path| {
                if call == at && path == lock && armed.swap(false, Ordering::SeqCst) {
                    reached.wait();
                    go.wait();
                }
            }
        });
        let (slow, won) = std::thread::scope(|scope| {
            let slow = scope.spawn(|| table.engine.grab("slow", &[7], Some(now + 100.0)));
            reached.wait();
            let won = fast.grab("fast", &[7], Some(now + 100.0));
            go.wait();
            (slow.join().unwrap().unwrap(), won.unwrap())
        });
        let won = won.unwrap();
        assert!(slow.is_err(), "two tokens for one term: {won} and {slow:?}");
        assert!(won.fence() > old.fence());
        assert_eq!(table.read(7).holder.token, won.into());
    }
}

/// B6: never two tokens for one term.
#[test]
fn two_claimers_of_one_expired_group_never_both_get_it() {
    let table = Table::new(8);
    let other = FilesEngine::open(&World::system(), table.root(), SERIAL).unwrap();
    let barrier = Barrier::new(2);
    let rounds = 3000u32;
    let run = |engine: &FilesEngine, owner: &str| {
        let mut tokens = Vec::new();
        for round in 1..=rounds {
            barrier.wait();
            if let Ok(token) = engine.grab(owner, &[7, 8], Some(f64::from(round) * 100.0)).unwrap()
            {
                tokens.push((round, token));
            }
        }
        tokens
    };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| run(&table.engine, "one"));
        let two = scope.spawn(|| run(&other, "two"));
        (one.join().unwrap(), two.join().unwrap())
    });
    assert_eq!(one.len() + two.len(), rounds as usize, "exactly one token for each term");
    let mut all = [one, two].concat();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
}

/// B13: contenders that all saw the lease expire.
#[test]
fn sixteen_claimers_of_one_expired_group_get_exactly_one_token_above_the_old_one() {
    let table = Table::new(8);
    for round in 0..20u32 {
        let now = 1000.0 + f64::from(round) * 1000.0;
        let old = table.engine.grab("old", &[1, 2, 3], Some(now)).unwrap().unwrap();
        let barrier = Barrier::new(16);
        let granted: Vec<_> = std::thread::scope(|scope| {
            let claim = |number: usize| {
                let (table, barrier) = (&table, &barrier);
                move || {
                    // Each stops between its verdict and its first write.
                    let fs = FaultFs::new(Arc::new(ringfence_env::RealFs));
                    let world = World::system().with_fs(Arc::new(fs.clone()));
                    let engine = FilesEngine::open(&world, table.root(), SERIAL).unwrap();
                    fs.on_call(move |call, _| {
                        if call == Call::OpenWrite {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                    });
                    barrier.wait();
                    engine.grab(&format!("w{number}"), &[1, 2, 3], Some(now + 60.0)).unwrap()
                }
            };
            let all: Vec<_> = (0..16).map(|number| scope.spawn(claim(number))).collect();
            all.into_iter().map(|claim| claim.join().unwrap()).collect()
        });
        let tokens: Vec<_> = granted.into_iter().flatten().collect();
        assert_eq!(tokens.len(), 1, "round {round}");
        assert!(tokens[0].fence() > old.fence());
    }
}

#[test]
fn eight_processes_that_want_one_group_get_exactly_one_token() {
    let table = Table::new(8);
    let mut others: Vec<Other> =
        (0..8).map(|n| Other::start(&format!("claim p{n}"), table.root())).collect();
    for other in &mut others {
        other.tell("5,6,7,8");
    }
    let said: Vec<String> = others.iter_mut().map(Other::says).collect();
    assert_eq!(said.iter().filter(|line| *line == "refused").count(), 7, "{said:?}");
}

#[test]
fn tokens_of_many_threads_and_tables_opened_apart_are_all_different_and_rise_per_thread() {
    let table = Table::new(8);
    let all: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let run = |number: u64| {
            let root = table.root();
            move || {
                let engine = FilesEngine::open(&World::system(), root, SERIAL).unwrap();
                let mut fences = Vec::new();
                for _ in 0..150 {
                    let token = engine.grab("x", &[100 + number], None).unwrap().unwrap();
                    engine.free(&[100 + number], token).unwrap().unwrap();
                    fences.push(token.fence().0);
                }
                fences
            }
        };
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(run(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|fences| fences.is_sorted_by(|a, b| a < b)));
    let distinct: BTreeSet<u64> = all.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), 8 * 150, "a fence was handed out twice");
}

/// B26: a paused holder speaks after the take-over.
#[test]
fn a_late_holder_is_refused_and_the_new_holders_bytes_stay() {
    let table = Table::new(8);
    let late = table.engine.grab("a", &[1, 2], Some(1000.0)).unwrap().unwrap();
    let new = table.engine.grab("a", &[1, 2], Some(1060.0)).unwrap().unwrap();
    assert!(new > late);
    let before = table.snapshot();
    for _ in 0..3 {
        table.engine.beat(&[1, 2], late, Some(1061.0)).unwrap().unwrap_err();
        table.engine.free(&[1, 2], late).unwrap().unwrap_err();
    }
    assert_eq!(table.snapshot(), before);
    let same = rules::ClaimRequest { worker: 1, ..ask("a", &[1, 2]) };
    table.engine.ask(&same, Some(1062.0), Duration::ZERO).unwrap().unwrap_err();
}
