use std::time::{Duration, Instant};

use ringfence::{Claim, Durability, KeepAlive, KeepAliveOptions, LostReason};
use ringfence_env::Clock as _;
use ringfence_env::fault::{Call, Effect, When};

use crate::support::{Bed, FakeClock, group, ttl};

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_mins(1), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_kept_lease_outlives_its_ttl_many_times_and_is_handed_back() {
    // In memory, where a sync takes no time.
    let bed = Bed::small();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1, 2]), &Claim::by("a").unwrap().ttl(ttl(3.0))).unwrap();
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(7) || keep.status().renewals < 5 {
        assert_eq!(keep.status().lost, None);
        let other = bed.other().targets().claim(&group(&[2]), &Claim::by("b").unwrap());
        assert!(other.is_err(), "taken from a live holder");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = keep.status();
    assert!(status.renewals >= 5 && status.lost.is_none(), "{status:?}");
    assert!(status.longest_gap < Duration::from_secs(3), "{status:?}");
    keep.stop().release().unwrap();
}

/// B20: one transient error is no surrender; a lasting one is, once, before expiry.
#[test]
fn b20_errors_for_a_while_are_survived_and_lasting_ones_lose_the_lease_before_it_expires() {
    let clock = FakeClock::new();
    let bed = Bed::with_clock(&clock);
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(60.0))).unwrap();
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    let ttl = Duration::from_mins(1);
    bed.fs.arm(When::FromOf(Call::SyncFile, 1), Effect::Errno(5));
    clock.pass(ttl / 3);
    until("a failed renewal", || keep.status().failures >= 1);
    bed.fs.disarm();
    let renewals = keep.status().renewals;
    clock.pass(ttl / 12);
    until("a renewal after the errors", || keep.status().renewals > renewals);
    assert_eq!(keep.status().lost, None);

    bed.fs.arm(When::FromOf(Call::SyncFile, 1), Effect::Errno(5));
    let (failures, expires) = (keep.status().failures, keep.expires_boottime());
    clock.pass(ttl / 3);
    until("another failed renewal", || keep.status().failures > failures);
    while !keep.is_lost() {
        clock.pass(ttl / 120);
    }
    assert!(clock.boottime() < expires, "told before it expired");
    assert!(clock.boottime() + ttl / 2 > expires, "no surrender while there is time");
    assert_eq!(keep.status().lost, Some(LostReason::RanOut));
    bed.fs.disarm();
    let renewals = keep.status().renewals;
    clock.pass(ttl);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(keep.status().renewals, renewals, "K2: never renewed again");
    drop(keep.stop());
}

/// B22: no gap between stored heartbeats comes near the ttl while every sync takes a good part of it.
#[test]
fn b22_slow_syncs_do_not_stretch_the_gap_between_heartbeats() {
    let bed = Bed::small();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(4.5))).unwrap();
    bed.fs.on_call(|call, _| {
        if call == Call::SyncFile {
            std::thread::sleep(Duration::from_millis(600));
        }
    });
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    let began = Instant::now();
    let mut last = None;
    let mut longest: f64 = 0.0;
    // What a machine does to this thread it does to the other.
    let (mut looked, mut stall) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < Duration::from_secs(8) || keep.status().renewals < 4 {
        stall = stall.max(looked.elapsed());
        looked = Instant::now();
        assert_eq!(keep.status().lost, None);
        let listing = bed.other().targets().list(None).unwrap();
        let updated = listing.leases[0].state.record().unwrap().holder.updated.seconds();
        longest = longest.max(updated - last.unwrap_or(updated));
        last = Some(updated);
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = keep.status();
    let most = 4.5 * 0.6 + stall.as_secs_f64();
    assert!(longest < most, "{longest} s between stored heartbeats, of {most} s; {status:?}");
    keep.stop().release().unwrap();
}

#[test]
fn a_lease_that_was_taken_away_is_lost_at_the_next_renewal() {
    let bed = Bed::small();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(5.0))).unwrap();
    let token = lease.token().clone();
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    table.force_release(&group(&[1]), &token, "operator").unwrap();
    assert!(keep.wait_lost(Duration::from_mins(1)));
    assert!(matches!(keep.status().lost, Some(LostReason::Gone(_))), "{:?}", keep.status());
    assert!(keep.stop().release().is_err());
}

/// B35: the monotonic clock stands still while the machine sleeps; the lease does not.
#[test]
fn b35_after_a_suspend_past_expiry_the_lease_is_lost_before_any_further_renewal() {
    for durability in [Durability::Group, Durability::Record] {
        let clock = FakeClock::new();
        let bed = Bed::of(durability, &clock);
        let table = bed.store.targets();
        let claim = Claim::by("a").unwrap().ttl(ttl(60.0));
        let lease = table.claim(&group(&[1, 2]), &claim).unwrap();
        let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
        clock.pass(Duration::from_secs(1));
        assert!(!keep.is_lost(), "{durability:?}");
        let writes = bed.fs.count(Call::Rename);
        clock.suspend(Duration::from_secs(600));
        assert!(keep.is_lost(), "{durability:?}: at once, by whoever asks: K4");
        assert_eq!(keep.status().lost, Some(LostReason::RanOut));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(bed.fs.count(Call::Rename), writes, "no renewal after it ran out");
        drop(keep.stop());
    }
}

/// K4: the truth is told even while a renewal hangs.
#[test]
fn a_renewal_that_does_not_return_does_not_hide_the_loss() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(0.6))).unwrap();
    let (release, hang) = std::sync::mpsc::channel::<()>();
    let hang = std::sync::Mutex::new(hang);
    bed.fs.on_call(move |call, _| {
        if call == Call::SyncFile {
            let _ = hang.lock().unwrap().recv_timeout(Duration::from_mins(10));
        }
    });
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    assert!(keep.wait_lost(Duration::from_mins(1)), "told before the renewal returns");
    drop(release);
    drop(keep.stop());
}
