use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringfence::{Claim, ClaimError};
use ringfence_env::fault::{Call, Effect, When};
use ringfence_env::{Clock as _, SystemClock};

use crate::support::{Bed, FakeClock, group, ttl};

/// B5 and B10: one deadline for the whole group, and a time-out is never a grant.
#[test]
fn b5_b10_waiting_for_64_held_targets_ends_at_one_deadline_with_a_refusal() {
    for clock in [None, Some(FakeClock::new())] {
        one_deadline(clock.as_ref());
    }
}

/// By the clock of the host, or by one on which nothing but waiting takes time.
fn one_deadline(fake: Option<&FakeClock>) {
    let bed = fake.map_or_else(Bed::new, Bed::with_clock);
    let members: Vec<u64> = (1..=64).collect();
    let table = bed.store.targets();
    let _held = table.claim(&group(&members), &Claim::by("a").unwrap()).unwrap();
    let wait = Duration::from_millis(700);
    let now = || fake.map_or_else(|| SystemClock.monotonic(), FakeClock::monotonic);
    let (began, claim) = (now(), Claim::by("b").unwrap().wait(wait));
    let waiter = if fake.is_some() { bed.store.clone() } else { bed.other() };
    let got = waiter.targets().claim(&group(&members), &claim);
    let took = now().saturating_sub(began);
    assert!(matches!(got, Err(ClaimError::Refused(_))), "{got:?}");
    // Of a busy host's clock only that it was not once for each of them.
    let most = if fake.is_some() { wait + Duration::from_millis(10) } else { wait * 32 };
    assert!(took >= wait && took < most, "{took:?}");
    assert!(matches!(table.list(None).unwrap().leases.len(), 64));
}

/// B11: still waiting after two hours less a minute, through store errors, then a typed end.
#[test]
fn b11_a_wait_of_two_hours_outlives_store_errors_and_ends_at_two_hours() {
    let clock = FakeClock::new();
    let bed = Bed::with_clock(&clock);
    let table = bed.store.targets();
    let _held = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(1e6))).unwrap();
    let began = clock.monotonic();
    bed.fs.on_call({
        let (fs, clock) = (bed.fs.clone(), clock.clone());
        let minute = Arc::new(std::sync::Mutex::new(0));
        move |call, _| {
            if call == Call::Read {
                let now = clock.monotonic().as_secs() / 300;
                let mut last = minute.lock().unwrap();
                if now != *last {
                    *last = now;
                    fs.arm(When::NthOf(Call::Read, 2), Effect::Errno(5));
                }
            }
        }
    });
    let two_hours = Duration::from_secs(7200);
    let got = table.claim(&group(&[1]), &Claim::by("b").unwrap().wait(two_hours));
    let waited = clock.monotonic().saturating_sub(began);
    assert!(matches!(got, Err(ClaimError::Refused(_) | ClaimError::Failed(_))), "{got:?}");
    assert!(waited >= two_hours && waited < two_hours + Duration::from_secs(2), "{waited:?}");
    assert!(bed.fs.fired() > 10, "the store did fail on the way: {}", bed.fs.fired());
}

#[test]
fn a_waiter_gets_the_group_soon_after_it_is_released() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let held = table.claim(&group(&[1, 2]), &Claim::by("a").unwrap()).unwrap();
    let waiter = std::thread::spawn({
        let table = bed.other().targets();
        move || {
            let claim = Claim::by("b").unwrap().wait(Duration::from_mins(2));
            (table.claim(&group(&[2, 3]), &claim).unwrap(), Instant::now())
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    held.release().unwrap();
    let released = Instant::now();
    let (lease, got) = waiter.join().unwrap();
    assert!(got.saturating_duration_since(released) < Duration::from_mins(1));
    lease.release().unwrap();
}

#[test]
fn a_cancelled_wait_ends_soon_and_holds_nothing() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let _held = table.claim(&group(&[1]), &Claim::by("a").unwrap()).unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    let waiter = std::thread::spawn({
        let (table, flag) = (bed.other().targets(), flag.clone());
        move || {
            let wait = Duration::from_mins(2);
            table.claim(&group(&[1, 2]), &Claim::by("b").unwrap().wait(wait).cancelled_by(flag))
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    let cancelled = Instant::now();
    flag.store(true, Ordering::Relaxed);
    let got = waiter.join().unwrap();
    assert!(matches!(got, Err(ClaimError::Cancelled)), "{got:?}");
    assert!(cancelled.elapsed() < Duration::from_mins(1));
    assert_eq!(table.list(None).unwrap().leases.len(), 1);
}

#[test]
fn the_refusal_at_the_end_of_a_wait_names_who_is_in_the_way_then() {
    // In memory: the first one must be gone before the wait is over.
    let bed = Bed::small();
    let table = bed.store.targets();
    let first = table.claim(&group(&[1]), &Claim::by("first").unwrap()).unwrap();
    let _second = table.claim(&group(&[2]), &Claim::by("second").unwrap()).unwrap();
    let waiter = std::thread::spawn({
        let table = bed.other().targets();
        move || {
            let claim = Claim::by("me").unwrap().wait(Duration::from_secs(4));
            table.claim(&group(&[1, 2]), &claim)
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    first.release().unwrap();
    let got = waiter.join().unwrap();
    let Err(ClaimError::Refused(refused)) = got else { panic!("{got:?}") };
    let owners: Vec<_> = refused.conflicts.iter().map(|c| c.holding.owner.to_string()).collect();
    assert_eq!(owners, ["second"]);
}

/// B4: opposite orders, with waiting; both get through.
#[test]
fn b4_two_waiters_with_opposite_orders_both_make_progress() {
    let bed = Bed::new();
    let run = |owner: &'static str, members: [u64; 2]| {
        let table = bed.other().targets();
        std::thread::spawn(move || {
            let claim = Claim::by(owner).unwrap().wait(Duration::from_mins(10));
            for _ in 0..60 {
                table.claim(&group(&members), &claim).unwrap().release().unwrap();
            }
        })
    };
    let threads = [run("a", [1, 2]), run("b", [2, 1])];
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(bed.store.targets().list(None).unwrap().leases.is_empty());
}

/// B24, the part below any language binding: one thread waits, another renews, a third counts.
#[test]
fn b24_a_blocked_claim_holds_up_neither_heartbeats_nor_other_threads_of_its_process() {
    let bed = Bed::small();
    let table = bed.store.targets();
    let mut held = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(3.0))).unwrap();
    let waiter = std::thread::spawn({
        let table = table.clone();
        move || {
            let wait = Duration::from_secs(4);
            table.claim(&group(&[1, 2]), &Claim::by("b").unwrap().wait(wait)).is_err()
        }
    });
    let mut beats = 0;
    while !waiter.is_finished() {
        held.heartbeat().unwrap();
        beats += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(beats > 10, "{beats} heartbeats beside a blocked claim");
    assert!(waiter.join().unwrap(), "the holder was alive all the time");
}
