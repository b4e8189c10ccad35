//! What holds of one record per file only: damage of one record, lock files, the store's clock.

use std::time::{Duration, Instant};

use ringfence::model::rules::WorkClaimRefused;
use ringfence::{
    Claim, ClaimError, HeartbeatError, LeaseState, ReleaseError, Store, WorkClaimError,
};

use crate::support::{Bed, group, ttl};
use crate::work::claim;

#[test]
fn a_damaged_record_is_listed_held_and_cleared_only_by_its_own_digest() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("one").unwrap()).unwrap();
    let listing = table.list(None).unwrap();
    let record =
        walk(&bed.path).into_iter().find(|p| p.ends_with(format!("{}.json", listing.leases[0].id)));
    std::fs::write(record.unwrap(), [0; 100]).unwrap();
    let refused = table.claim(&group(&[1, 2]), &Claim::by("two").unwrap()).unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
    assert!(table.heartbeat(&group(&[1]), lease.token(), None).is_err());
    let _other = table.claim(&group(&[2]), &Claim::by("two").unwrap()).unwrap();
    let listing = table.list(None).unwrap();
    let damage = listing.leases.iter().find_map(|listed| match &listed.state {
        LeaseState::Corrupt(damage) => Some(damage.clone()),
        _ => None,
    });
    let digest = damage.unwrap().digest;
    assert!(table.force_release(&group(&[1]), lease.token(), "x").is_err(), "not by its old token");
    table.force_release(&group(&[1]), &digest, "zeroed by a power cut").unwrap();
    let _mine = table.claim(&group(&[1]), &Claim::by("two").unwrap()).unwrap();
}

#[test]
fn b38_a_record_of_another_host_is_judged_by_the_stores_clock_too() {
    let bed = Bed::new();
    let mut world = ringfence::World::system();
    let elsewhere = ringfence_env::HostIdentity {
        name: "elsewhere".into(),
        boot: Some("its boot".into()),
        ..(*world.host).clone()
    };
    world.host = std::sync::Arc::new(elsewhere);
    let theirs = Store::open_in(&world, &bed.path).unwrap().targets();
    let _held = theirs.claim(&group(&[1]), &Claim::by("a").unwrap().ttl(ttl(600.0))).unwrap();

    /// Wall half an hour ahead of the disk's own.
    #[derive(Debug)]
    struct Ahead;
    impl ringfence_env::Clock for Ahead {
        fn wall(&self) -> Duration {
            ringfence_env::SystemClock.wall() + Duration::from_secs(1800)
        }
        fn boottime(&self) -> Duration {
            ringfence_env::SystemClock.boottime()
        }
        fn monotonic(&self) -> Duration {
            ringfence_env::SystemClock.monotonic()
        }
        fn sleep(&self, duration: Duration) {
            ringfence_env::SystemClock.sleep(duration);
        }
    }
    let fast = ringfence::World::system().with_clock(std::sync::Arc::new(Ahead));
    let ours = Store::open_in(&fast, &bed.path).unwrap().targets();
    let refused = ours.claim(&group(&[1]), &Claim::by("b").unwrap());
    assert!(matches!(refused, Err(ClaimError::Refused(_))), "{refused:?}");
    let names: Vec<_> = std::fs::read_dir(&bed.path)
        .unwrap()
        .flat_map(|entry| std::fs::read_dir(entry.unwrap().path()).into_iter().flatten())
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.strip_suffix(".tmp").is_some())
        .collect();
    assert_eq!(names, [""; 0], "asking the store's clock leaves nothing");
}

/// B47: what is left behind grows with targets ever touched, can be cleared, and fences go on.
#[test]
fn b47_after_many_distinct_targets_repair_brings_the_store_back_to_its_size() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let claim = Claim::by("a").unwrap();
    let first = table.claim(&group(&[1]), &claim).unwrap();
    let (fence, start) = (first.fence(), bed.other().check().unwrap());
    for number in 2..=400 {
        table.claim(&group(&[number]), &claim).unwrap().release().unwrap();
    }
    let grown = bed.other().check().unwrap();
    assert_eq!((grown.lock_files, grown.idle_lock_files), (400, 399));
    let repaired = bed.other().repair().unwrap();
    assert_eq!(repaired.removed.len(), 399);
    assert_eq!((repaired.records, repaired.lock_files), (start.records, start.lock_files));
    let again = bed.other().targets().claim(&group(&[2]), &claim).unwrap();
    assert!(again.fence().0 >= fence.0 + 400, "{} after {fence}", again.fence());
    first.release().unwrap();
}

/// B52: identity by inode and time stamp; here only the token in the content counts.
#[test]
fn b52_a_record_replaced_under_the_same_inode_size_and_time_is_another_lease() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1]), &Claim::by("one").unwrap()).unwrap();
    let id = table.list(None).unwrap().leases[0].id;
    let path = walk(&bed.path).into_iter().find(|p| p.ends_with(format!("{id}.json"))).unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let other: String = lease.token().as_str().chars().rev().collect();
    let forged = text.replace(lease.token().as_str(), &other);
    assert_eq!(forged.len(), text.len());
    std::fs::write(&path, forged).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let beat = table.heartbeat(lease.group(), lease.token(), None);
    assert!(matches!(beat, Err(HeartbeatError::Lost(_))), "{beat:?}");
    let released = table.release(lease.group(), lease.token(), None);
    assert!(matches!(released, Err(ReleaseError::Lost(_))), "{released:?}");
}

#[test]
fn damage_that_comes_up_during_a_wait_ends_it() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let _lease = table.claim(&group(&[1]), &Claim::by("a").unwrap()).unwrap();
    let id = table.list(None).unwrap().leases[0].id;
    let shard = id.shard(ringfence::ShardCount::new(8).unwrap());
    let path = bed.path.join(format!("{shard}/{id}.json"));
    let waiter = std::thread::spawn({
        let table = bed.other().targets();
        move || {
            let claim = Claim::by("b").unwrap().wait(Duration::from_mins(2));
            table.claim(&group(&[1]), &claim)
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    std::fs::write(path, "").unwrap();
    let got = waiter.join().unwrap();
    assert!(matches!(got, Err(ClaimError::Refused(ref r)) if r.damaged.len() == 1), "{got:?}");
    assert!(began.elapsed() < Duration::from_mins(1));
}

#[test]
fn waiting_for_a_damaged_record_is_refused_at_once() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let _lease = table.claim(&group(&[1]), &Claim::by("a").unwrap()).unwrap();
    let id = table.list(None).unwrap().leases[0].id;
    let path =
        bed.path.join(format!("{}/{id}.json", id.shard(ringfence::ShardCount::new(8).unwrap())));
    std::fs::write(path, "").unwrap();
    let began = Instant::now();
    let got = table.claim(&group(&[1]), &Claim::by("b").unwrap().wait(Duration::from_mins(2)));
    assert!(matches!(got, Err(ClaimError::Refused(ref r)) if r.damaged.len() == 1), "{got:?}");
    assert!(began.elapsed() < Duration::from_mins(1));
}

/// B44: only an audited force-release clears a damaged record, and only by its digest.
#[test]
fn b44_a_damaged_work_record_is_held_until_it_is_forced_by_its_digest() {
    let bed = Bed::new();
    let work = bed.store.work();
    let lease = claim(&work, 1000.0).unwrap();
    let shard = lease.id.shard(ringfence::ShardCount::new(256).unwrap());
    std::fs::write(bed.path.join(format!("work/{shard}/{}.json", lease.id)), "{").unwrap();
    let again = claim(&work, 9000.0);
    assert!(matches!(again, Err(WorkClaimError::Refused(WorkClaimRefused::Damaged(_)))));
    let digest = work.list(None).unwrap()[0].record.as_ref().unwrap_err().digest.clone();
    assert!(work.force_release(lease.id, &lease.token, "x").is_err(), "not by its old token");
    assert!(work.force_release(lease.id, &digest, " ").is_err(), "not without a reason");
    work.force_release(lease.id, &digest, "cut by a full disk").unwrap();
    let gone = work.force_release(lease.id, &digest, "again").unwrap_err();
    assert_eq!(gone.to_string(), "not held: there is nothing to release");
    let audit = std::fs::read_to_string(bed.path.join("audit.log")).unwrap();
    assert_eq!(audit.lines().count(), 1, "{audit}");
    let _mine = claim(&work, 9000.0).unwrap();
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}
