//! The locks of a group: order, deadlines, and holders that die, stop or fork.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence_engine::{Engine as _, Failure, Request};
use ringfence_env::{Clock as _, World};
use ringfence_files::{FilesEngine, Tuning};

use crate::child::Other;
use crate::table::{PATIENCE, Table, Verbs as _, ask, assert_no_lock_is_held, group, keys};

const ROUNDS: u64 = 2500;

/// Claims and releases [1,2,3] or [3,2,1] until it has held it often enough or time is up.
pub(crate) fn claim_and_release(world: &World, root: &Path, first: &str) {
    let engine = FilesEngine::open(world, root, Tuning::default()).unwrap();
    let targets = if first == "1" { [1, 2, 3] } else { [3, 2, 1] };
    // Those that wait for each other do so for ever.
    let end = Instant::now() + Duration::from_mins(10);
    let mut rounds = 0;
    while rounds < ROUNDS {
        assert!(Instant::now() < end, "{rounds} rounds only");
        match engine.grab(first, &targets, None).unwrap() {
            Ok(token) => {
                rounds += 1;
                engine.free(&targets, token).unwrap().unwrap();
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[test]
fn m1_overlapping_groups_named_in_opposite_orders_never_deadlock() {
    let table = Table::new(8);
    let root = table.root();
    // Two processes of two threads each: 10 000 grants.
    let mut others = [Other::start("opposite 1", root), Other::start("opposite 3", root)];
    std::thread::scope(|scope| {
        scope.spawn(|| claim_and_release(&table.world, root, "1"));
        scope.spawn(|| claim_and_release(&table.world, root, "3"));
    });
    for other in &mut others {
        assert_eq!(other.says(), "done");
    }
    assert_no_lock_is_held(root);
}

/// Stays inside a transaction on targets 1 and 2.
pub(crate) fn hold_members_until_killed(world: &World, root: &Path, ready: impl Fn()) {
    let engine = FilesEngine::open(world, root, Tuning::default()).unwrap();
    let keys = keys(&group(&[1, 2]));
    let request = Request { keys: &keys, now: None, patience: PATIENCE };
    let _ = engine.transact(&request, &mut |_| {
        ready();
        std::thread::sleep(Duration::from_mins(10));
        None
    });
}

#[test]
fn a_killed_holder_of_the_kernel_locks_is_passed_at_once_and_a_stopped_one_is_busy_at_the_deadline()
{
    let table = Table::new(8);
    let mut other = Other::start("hold", table.root());
    assert_eq!(other.says(), "holding");
    other.signal("STOP");
    let (engine, clock) = table.by_waits();
    let (patience, started) = (Duration::from_millis(200), clock.monotonic());
    let failure = engine.ask(&ask("a", &[1, 2, 3]), None, patience).unwrap_err();
    assert!(matches!(failure, Failure::Busy { .. }), "{failure:?}");
    assert_eq!(clock.monotonic(), started + patience);
    // Others are not in its way.
    table.engine.grab("a", &[3], None).unwrap().unwrap();
    other.signal("KILL");
    // It would have stood there for minutes.
    table.engine.grab("a", &[1, 2], None).unwrap().unwrap();
}

#[test]
fn one_deadline_is_for_the_whole_group_not_for_each_member() {
    let table = Table::new(8);
    let targets: Vec<u64> = (1..=64).collect();
    table.engine.grab("a", &targets, Some(1.0)).unwrap().unwrap();
    let mut other = Other::start("hold", table.root());
    assert_eq!(other.says(), "holding");
    let (engine, clock) = table.by_waits();
    let (patience, started) = (Duration::from_millis(300), clock.monotonic());
    let failure = engine.ask(&ask("b", &targets), None, patience).unwrap_err();
    assert!(matches!(failure, Failure::Busy { .. }), "{failure:?}");
    assert_eq!(clock.monotonic(), started + patience);
}

#[test]
#[expect(unsafe_code, reason = "forks a child that drops what it inherited")]
fn children_forked_while_operations_run_free_nothing_and_hold_nothing_back() {
    let table = Table::new(8);
    let (engine, clock) = table.by_waits();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let token = engine.ask(&ask("a", &[1, 2]), None, Duration::from_millis(50));
                let token = token.expect("no child holds a lock back").unwrap();
                engine.free(&[1, 2], token).unwrap().unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Each child keeps every descriptor it inherited open for a while.
        let mut children = Vec::new();
        while !worker.is_finished()
            && (children.len() < 300 || rounds.load(Ordering::Relaxed) <= 50)
        {
            // SAFETY: the child calls only `usleep` and `_exit`, which are async-signal-safe.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // SAFETY: as above.
                unsafe {
                    libc::usleep(20_000);
                    libc::_exit(0);
                }
            }
            children.push(child);
            std::thread::sleep(Duration::from_millis(3));
        }
        stop.store(true, Ordering::Relaxed);
        for child in children {
            // SAFETY: our own child.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        worker.join().unwrap();
    });
    // Nobody else wants these locks.
    assert_eq!(clock.monotonic(), Duration::ZERO, "a child held a lock back");
    assert_no_lock_is_held(table.root());
}

#[test]
#[expect(unsafe_code, reason = "forks a child that drops a held lock")]
fn a_forked_child_that_drops_a_held_lock_does_not_free_it() {
    use ringfence_env::{FileLock, LockMode, RealFs, SystemClock};
    let table = Table::new(8);
    let path = table.root().join("gate.lock");
    let take = || {
        let deadline = SystemClock.deadline(Duration::ZERO);
        FileLock::acquire(&RealFs, &SystemClock, &path, LockMode::Exclusive, Some(0o600), deadline)
    };
    let held = take().unwrap();
    // SAFETY: the child drops the lock (it frees two small buffers and closes a descriptor; no
    // other thread of this test holds the allocator across the fork) and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(held);
        // SAFETY: does not return.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert!(take().is_err(), "the child freed its parent's lock");
    drop(held);
    drop(take().unwrap());
}
