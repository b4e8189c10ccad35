//! Check only looks; repair clears away what nobody uses, and only under the gate.

use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence_env::fault::Call;
use ringfence_env::{Clock as _, FileLock, LockError, LockMode, RealFs, SystemClock, World};
use ringfence_files::{FilesEngine, Finding};

use crate::child::Other;
use crate::table::{
    PATIENCE, SERIAL, Table, Verbs as _, assert_no_lock_is_held, record_path, temps,
};

fn take(path: &std::path::Path, mode: LockMode) -> Result<FileLock, LockError> {
    let deadline = SystemClock.deadline(Duration::ZERO);
    FileLock::acquire(&RealFs, &SystemClock, path, mode, Some(0o600), deadline)
}

#[test]
fn a_check_counts_and_changes_nothing() {
    let table = Table::new(8);
    let token = table.engine.grab("a", &[1, 2, 3], None).unwrap().unwrap();
    table.engine.free(&[1, 2, 3], token).unwrap().unwrap();
    table.engine.grab("a", &[4], None).unwrap().unwrap();
    let before = table.snapshot();
    let writes = [Call::OpenWrite, Call::Unlink, Call::Rename, Call::Mkdir, Call::OpenLock];
    let counts = writes.map(|call| table.fs.count(call));
    let report = table.engine.check().unwrap();
    assert_eq!((report.records, report.lock_files, report.idle_lock_files), (1, 4, 3));
    assert!(report.findings.is_empty() && report.removed.is_empty(), "{report:?}");
    assert_eq!(table.snapshot(), before);
    assert_eq!(writes.map(|call| table.fs.count(call)), counts);
}

#[test]
fn repair_removes_idle_locks_and_stale_temporaries_and_nothing_else() {
    let table = Table::new(8);
    let token = table.engine.grab("a", &[1, 2, 3, 4], None).unwrap().unwrap();
    table.engine.free(&[1, 2, 3], token).unwrap().unwrap();
    fs::write(table.record(5), b"damaged").unwrap();
    let stale = table.record(1).with_extension("json.1-2-3.tmp");
    fs::write(&stale, b"half").unwrap();
    // Another program holds the lock of 2 at this moment.
    let held = take(&table.lock(2), LockMode::Exclusive).unwrap();
    fs::write(table.lock(5), b"").unwrap();
    let report = table.engine.repair().unwrap();
    assert!(report.removed.contains(&stale));
    assert!(temps(table.root()).is_empty());
    for (target, stays) in [(1, false), (2, true), (3, false), (4, true), (5, true)] {
        assert_eq!(table.lock(target).exists(), stays, "target {target}");
    }
    assert_eq!(fs::read(table.record(5)).unwrap(), b"damaged");
    assert!(report.findings.iter().any(|f| matches!(f, Finding::Damaged { .. })));
    assert_eq!((report.records, report.lock_files, report.idle_lock_files), (1, 3, 1));
    drop(held);
    table.engine.free(&[4], token).unwrap().unwrap();
    table.engine.grab("b", &[1, 2, 3, 4], None).unwrap().unwrap();
}

#[test]
fn repair_waits_for_operations_and_operations_wait_for_repair() {
    let table = Table::new(8);
    let mut other = Other::start("hold", table.root());
    assert_eq!(other.says(), "holding");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let repair = scope.spawn(|| {
            let report = table.engine.repair();
            done.store(true, Ordering::SeqCst);
            report
        });
        std::thread::sleep(Duration::from_millis(150));
        assert!(!done.load(Ordering::SeqCst), "repair ran beside an operation");
        other.signal("KILL");
        repair.join().unwrap().unwrap();
    });
    let gate = take(&table.root().join("gate.lock"), LockMode::Exclusive).unwrap();
    let patience = Duration::from_millis(100);
    let started = Instant::now();
    let failure = table.engine.ask(&crate::table::ask("a", &[1]), None, patience).unwrap_err();
    assert!(matches!(failure, ringfence_engine::Failure::Busy { .. }), "{failure:?}");
    assert!(started.elapsed() >= patience);
    drop(gate);
    table.engine.grab("a", &[1], None).unwrap().unwrap();
}

#[test]
fn claims_and_repairs_at_once_never_let_two_holders_in() {
    let table = Table::new(8);
    let (inside, worst, grants) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for owner in ["a", "b", "c"] {
            let (inside, worst, grants, stop) = (&inside, &worst, &grants, &stop);
            let root = table.root();
            scope.spawn(move || {
                let engine = FilesEngine::open(&World::system(), root, SERIAL).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let Ok(token) = engine.grab(owner, &[7, 8], None).unwrap() else { continue };
                    worst.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    grants.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    engine.free(&[7, 8], token).unwrap().unwrap();
                    // The gate is not fair: somebody who never lets go of it keeps repair out.
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let mut removed = 0;
        let began = Instant::now();
        let enough = |removed| {
            let granted = grants.load(Ordering::SeqCst);
            began.elapsed() > Duration::from_secs(2) && removed > 20 && granted > 100
        };
        while !enough(removed) && began.elapsed() < PATIENCE {
            removed += table.engine.repair().unwrap().removed.len();
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::SeqCst);
        assert!(enough(removed), "{removed} lock files removed, {grants:?} grants");
    });
    assert_eq!(worst.load(Ordering::SeqCst), 1, "two holders at once");
}

#[test]
fn a_waiter_on_a_lock_file_that_repair_removed_and_a_newcomer_do_not_both_hold_it() {
    let table = Table::new(8);
    let lock = table.lock(7);
    for _ in 0..100 {
        drop(take(&lock, LockMode::Exclusive).unwrap());
        let holder = take(&lock, LockMode::Exclusive).unwrap();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                barrier.wait();
                let deadline = SystemClock.deadline(PATIENCE);
                FileLock::acquire(
                    &RealFs,
                    &SystemClock,
                    &lock,
                    LockMode::Exclusive,
                    Some(0o600),
                    deadline,
                )
                .unwrap()
            });
            barrier.wait();
            std::thread::sleep(Duration::from_micros(200));
            // As repair does: unlink while held, then let go.
            fs::remove_file(&lock).unwrap();
            drop(holder);
            let held = waiter.join().unwrap();
            assert!(matches!(take(&lock, LockMode::Exclusive), Err(LockError::Busy { .. })));
            drop(held);
        });
    }
}

#[test]
fn misplaced_records_lock_names_that_are_no_files_and_a_broken_counter_are_findings() {
    let table = Table::new(8);
    table.engine.grab("a", &[7], None).unwrap().unwrap();
    let elsewhere = (0..8)
        .map(|shard| table.root().join(format!("{shard:03}")))
        .find(|dir| *dir != table.record(7).parent().unwrap())
        .unwrap();
    let misplaced = elsewhere.join(table.record(7).file_name().unwrap());
    fs::copy(table.record(7), &misplaced).unwrap();
    let odd = table.lock(8);
    fs::create_dir(&odd).unwrap();
    fs::write(table.root().join("fence"), b"\0\0").unwrap();
    for report in [table.engine.check().unwrap(), table.engine.repair().unwrap()] {
        assert!(report.findings.contains(&Finding::Misplaced(misplaced.clone())), "{report:?}");
        assert!(report.findings.contains(&Finding::Stray(odd.clone())), "{report:?}");
        assert!(report.findings.iter().any(|f| matches!(f, Finding::FenceCounter(_))));
        assert_eq!(report.records, 1);
    }
    table.engine.grab("b", &[8], None).unwrap_err();
    table.engine.grab("b", &[9], None).unwrap_err();
    assert_no_lock_is_held(table.root());
    assert!(record_path(table.root(), table.engine.meta().shards, 7).exists());
}
