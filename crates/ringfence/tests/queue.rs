//! The journal's queue: who waits is woken, in order, is not starved, and leaves nothing when he dies.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence::{Claim, ClaimError, InitOptions, Store, TargetGroup, TargetTable, World};
use ringfence_env::fault::{Call, FaultFs};

const ROLE: &str = "RINGFENCE_QUEUE_ROLE";
const LONG: Duration = Duration::from_mins(5);

struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Store::init(dir.path().join("store"), &InitOptions::default()).unwrap();
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn table(&self) -> TargetTable {
        Store::open(self.path()).unwrap().targets()
    }

    /// Waits until as many wait for target 1.
    fn until_waiting(&self, count: usize) {
        let store = Store::open(self.path()).unwrap();
        while store.targets().waiting(&group(1..2)) != count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Nobody waits, and no file of anybody who did is there.
    fn has_no_leftovers(&self) {
        // The next waiter clears away what the dead left.
        self.table().claim(&group(90..91), &by("next").wait(LONG)).unwrap().release().unwrap();
        assert_eq!(self.table().waiting(&group(1..65)), 0);
        assert_eq!(std::fs::read_dir(self.path().join("lives")).unwrap().count(), 0);
    }
}

fn group(numbers: std::ops::Range<u64>) -> TargetGroup {
    TargetGroup::from_numbers(numbers).unwrap()
}

fn by(owner: &str) -> Claim {
    Claim::by(owner).unwrap()
}

#[test]
fn a_waiter_sleeps_without_looking_and_is_woken_by_the_release() {
    let bed = Bed::new();
    let held = bed.table().claim(&group(1..9), &by("holder")).unwrap();
    let fs = FaultFs::new(World::system().fs);
    let world = World::system().with_fs(Arc::new(fs.clone()));
    let table = Store::open_in(&world, &bed.path()).unwrap().targets();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| table.claim(&group(1..65), &by("waiter").wait(LONG)));
        bed.until_waiting(1);
        // It may still be at its first look.
        let looks = (0..20).map(|_| {
            let before = fs.count(Call::Read);
            std::thread::sleep(Duration::from_millis(1500));
            fs.count(Call::Read) - before
        });
        let looks: Vec<_> = looks.take_while(|looks| *looks > 0).collect();
        assert!(looks.len() < 20, "it looks though nobody has freed anything: {looks:?}");
        held.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
    bed.has_no_leftovers();
}

#[test]
fn who_came_first_is_served_first_and_a_claim_that_does_not_wait_lets_him() {
    let bed = Bed::new();
    let held = bed.table().claim(&group(1..3), &by("holder")).unwrap();
    let served = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..5_usize {
            // Each wants target 1 and others want some of the rest.
            let members = group(1..2 + u64::try_from(number).unwrap());
            let (bed, served) = (&bed, &served);
            scope.spawn(move || {
                let lease = bed.table().claim(&members, &by("waiter").wait(LONG)).unwrap();
                served.lock().unwrap().push(number);
                lease.release().unwrap();
            });
            bed.until_waiting(number + 1);
        }
        // Target 5 is free, and wanted by a waiter who cannot have it yet.
        let got = bed.table().claim(&group(5..6), &by("impatient"));
        assert!(matches!(got, Err(ClaimError::Queued { before: 1 })), "{got:?}");
        bed.table().claim(&group(7..8), &by("other")).unwrap().release().unwrap();
        held.release().unwrap();
    });
    assert_eq!(served.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    bed.has_no_leftovers();
}

#[test]
fn a_waiter_for_64_targets_is_not_starved_by_seven_processes_that_claim_single_ones() {
    let bed = Bed::new();
    let mut others: Vec<Child> = (0..7).map(|_| bed.start("single")).collect();
    let table = bed.table();
    for _ in 0..20 {
        let lease = table.claim(&group(1..65), &by("large").wait(LONG)).unwrap();
        lease.release().unwrap();
    }
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    // What they held is over with them.
    table.claim(&group(1..65), &by("last").wait(LONG)).unwrap().release().unwrap();
    bed.has_no_leftovers();
}

#[test]
fn a_waiter_that_is_killed_leaves_nothing() {
    let bed = Bed::new();
    let held = bed.table().claim(&group(1..3), &by("holder")).unwrap();
    let mut waiter = bed.start("waiter");
    bed.until_waiting(1);
    waiter.kill().unwrap();
    waiter.wait().unwrap();
    assert_eq!(bed.table().waiting(&group(1..65)), 0);
    bed.table().claim(&group(3..65), &by("other")).unwrap().release().unwrap();
    held.release().unwrap();
    bed.table().claim(&group(1..2), &by("next").wait(LONG)).unwrap().release().unwrap();
    bed.has_no_leftovers();
}

#[test]
fn a_wait_that_is_over_or_cancelled_makes_room_for_those_behind() {
    let bed = Bed::new();
    let held = bed.table().claim(&group(1..2), &by("holder")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let cancelled = by("first").wait(LONG).cancelled_by(Arc::clone(&stop));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bed.table().claim(&group(1..4), &cancelled));
        bed.until_waiting(1);
        let short = Duration::from_millis(100);
        let second = bed.table().claim(&group(2..4), &by("second").wait(short));
        assert!(matches!(second, Err(ClaimError::Queued { before: 1 })), "{second:?}");
        let third = scope.spawn(|| bed.table().claim(&group(3..4), &by("third").wait(LONG)));
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::SeqCst);
        assert!(matches!(first.join().unwrap(), Err(ClaimError::Cancelled)));
        third.join().unwrap().unwrap().release().unwrap();
    });
    held.release().unwrap();
    bed.has_no_leftovers();
}

#[test]
fn many_waiters_exclude_each_other_and_all_are_served() {
    let bed = Bed::new();
    let inside: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (bed, inside) = (&bed, &inside);
            scope.spawn(move || {
                let table = bed.table();
                for round in 0..30 {
                    let first = 1 + (thread + round) % 3;
                    let members = first..first + 2;
                    let lease = table.claim(&group(members.clone()), &by("w").wait(LONG)).unwrap();
                    for target in members.clone() {
                        let place = &inside[usize::try_from(target - 1).unwrap()];
                        assert_eq!(place.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    }
                    for target in members {
                        inside[usize::try_from(target - 1).unwrap()].fetch_sub(1, Ordering::SeqCst);
                    }
                    lease.release().unwrap();
                }
            });
        }
    });
    bed.has_no_leftovers();
}

impl Bed {
    fn start(&self, role: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, role)
            .env("RINGFENCE_QUEUE_STORE", self.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// A process of these tests; killed by them.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = std::env::var_os("RINGFENCE_QUEUE_STORE").unwrap();
    let store = Store::open(Path::new(&path)).unwrap().tied(ringfence::Children::DoNotCount);
    let table = store.unwrap().targets();
    if role == "waiter" {
        let _held = table.claim(&group(1..65), &by("waiter").wait(LONG));
        return;
    }
    for turn in 0.. {
        let target = turn % 64 + 1;
        if let Ok(lease) = table.claim(&group(target..target + 1), &by("single")) {
            let _ = lease.release();
        }
    }
}
