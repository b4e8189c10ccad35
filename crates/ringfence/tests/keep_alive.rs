use std::time::{Duration, Instant};

use ringfence::{Claim, Durability, KeepAlive, KeepAliveOptions, LostReason};
use ringfence_env::fault::{Call, Effect, When};

use crate::support::{Bed, FakeClock, group, ttl};

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_kept_lease_outlives_its_ttl_many_times_and_is_handed_back() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1, 2]), &Claim::by("a").unwrap().ttl(ttl(0.6))).unwrap();
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let other = bed.other().targets().claim(&group(&[2]), &Claim::by("b").unwrap());
        assert!(other.is_err(), "taken from a live holder");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = keep.status();
    assert!(status.renewals >= 5 && status.lost.is_none(), "{status:?}");
    assert!(status.longest_gap < Duration::from_millis(600), "{status:?}");
    keep.stop().release().unwrap();
}

/// B20: one transient error is no surrender; a lasting one is, once, before expiry.
#[test]
fn b20_errors_for_a_while_are_survived_and_lasting_ones_lose_the_lease_before_it_expires() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(1.2))).unwrap();
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    bed.fs.arm(When::FromOf(Call::SyncFile, 1), Effect::Errno(5));
    until("a failed renewal", || keep.status().failures >= 1);
    bed.fs.disarm();
    let renewals = keep.status().renewals;
    until("a renewal after the errors", || keep.status().renewals > renewals);
    assert_eq!(keep.status().lost, None);

    bed.fs.arm(When::FromOf(Call::SyncFile, 1), Effect::Errno(5));
    let expires = keep.expires_boottime();
    assert!(keep.wait_lost(Duration::from_secs(20)));
    let now = ringfence_env::Clock::boottime(&ringfence_env::SystemClock);
    assert!(now < keep.expires_boottime().max(expires), "told before it expired");
    assert_eq!(keep.status().lost, Some(LostReason::RanOut));
    bed.fs.disarm();
    let renewals = keep.status().renewals;
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(keep.status().renewals, renewals, "K2: never renewed again");
    drop(keep.stop());
}

/// B22: no gap between stored heartbeats comes near the ttl while every sync takes 200 ms.
#[test]
fn b22_slow_syncs_do_not_stretch_the_gap_between_heartbeats() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(1.5))).unwrap();
    bed.fs.on_call(|call, _| {
        if call == Call::SyncFile {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    let began = Instant::now();
    let mut last = None;
    let mut longest: f64 = 0.0;
    while began.elapsed() < Duration::from_secs(8) {
        let listing = bed.other().targets().list(None).unwrap();
        let updated = listing.leases[0].state.record().unwrap().holder.updated.seconds();
        longest = longest.max(updated - last.unwrap_or(updated));
        last = Some(updated);
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = keep.status();
    assert!(status.lost.is_none() && status.renewals >= 8, "{status:?}");
    assert!(longest < 1.5 * 0.6, "{longest} s between stored heartbeats; {status:?}");
    keep.stop().release().unwrap();
}

#[test]
fn a_lease_that_was_taken_away_is_lost_at_the_next_renewal() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(1.0))).unwrap();
    let token = lease.token().clone();
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    table.force_release(&group(&[1]), &token, "operator").unwrap();
    assert!(keep.wait_lost(Duration::from_secs(10)));
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
            let _ = hang.lock().unwrap().recv_timeout(Duration::from_secs(20));
        }
    });
    let keep = KeepAlive::start(lease, KeepAliveOptions::default()).unwrap();
    let began = Instant::now();
    assert!(keep.wait_lost(Duration::from_secs(10)));
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    drop(release);
    drop(keep.stop());
}
