//! `transact_each`: independent records that share barriers.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{EachReport, Engine as _, Failure, Request, UnitOutcome};
use ringfence_env::fault::{Call, Effect, When};
use ringfence_env::{Clock as _, FileLock, LockMode, RealFs, SystemClock};
use ringfence_model::{FencingToken, Key, Token, rules};

use crate::table::{
    Table, Verbs as _, assert_no_lock_is_held, at, group, keys, targets_over, temps,
};

/// Renews every target as a unit of its own.
fn beat_each(table: &Table, held: &[(u64, FencingToken)], now: f64) -> EachReport {
    let groups: Vec<_> = held.iter().map(|(target, _)| group(&[*target])).collect();
    let keys: Vec<Vec<Key>> = groups.iter().map(keys).collect();
    let units: Vec<Request<'_>> = keys
        .iter()
        .map(|keys| Request { keys, now: Some(at(now)), patience: Duration::from_millis(30) })
        .collect();
    table.engine.transact_each(&units, &mut |index, view| {
        let token: Token = held[index].1.into();
        rules::heartbeat(view, &groups[index], &token).ok()
    })
}

fn held(table: &Table, shards: u16, count: usize) -> Vec<(u64, FencingToken)> {
    targets_over(shards, count)
        .into_iter()
        .map(|t| (t, table.engine.grab("a", &[t], Some(1000.0)).unwrap().unwrap()))
        .collect()
}

fn renewed(table: &Table, target: u64) -> bool {
    table.read(target).holder.updated.seconds() > 1000.0
}

#[test]
fn a_batch_of_heartbeats_syncs_each_touched_shard_once() {
    for shards in [1, 3, 8] {
        let table = Table::new(8);
        let held = held(&table, shards, 20);
        let before = (table.fs.count(Call::SyncDir), table.fs.count(Call::SyncFile));
        let report = beat_each(&table, &held, 1030.0);
        assert!(report.units.iter().all(|unit| matches!(unit, UnitOutcome::Done(None))));
        assert_eq!(report.barriers, u64::from(shards));
        assert_eq!(table.fs.count(Call::SyncDir) - before.0, u64::from(shards));
        assert_eq!(table.fs.count(Call::SyncFile) - before.1, 20, "each record on its own");
        assert!(held.iter().all(|(target, _)| renewed(&table, *target)));
    }
}

#[test]
fn a_lost_record_is_not_written_and_costs_no_barrier() {
    let table = Table::new(8);
    let mut held = held(&table, 3, 6);
    let stale = FencingToken::new(ringfence_model::Fence(1), 0);
    for entry in &mut held[1..] {
        entry.1 = stale;
    }
    fs::write(table.record(held[2].0), b"").unwrap();
    let before = table.snapshot();
    let report = beat_each(&table, &held, 1030.0);
    assert_eq!(report.barriers, 1);
    for (unit, (target, _)) in report.units.iter().zip(&held) {
        let path = table.record(*target);
        if *target == held[0].0 {
            assert!(matches!(unit, UnitOutcome::Done(_)));
        } else {
            assert!(matches!(unit, UnitOutcome::Refused));
            assert_eq!(table.snapshot()[&path], before[&path]);
        }
    }
}

#[test]
fn a_failed_record_still_makes_the_earlier_ones_durable_and_later_ones_are_not_begun() {
    let table = Table::new(8);
    let held = held(&table, 3, 9);
    for nth in 1..=9 {
        let before = table.snapshot();
        let syncs = table.fs.count(Call::SyncDir);
        table.fs.arm(When::NthOf(Call::SyncFile, nth), Effect::Errno(28));
        let report = beat_each(&table, &held, 1030.0);
        table.fs.disarm();
        let count = |wanted: fn(&UnitOutcome) -> bool| {
            report.units.iter().filter(|unit| wanted(unit)).count() as u64
        };
        assert_eq!(count(|unit| matches!(unit, UnitOutcome::Done(_))), nth - 1);
        assert_eq!(count(|unit| matches!(unit, UnitOutcome::Failed(f) if f.restored())), 1);
        assert_eq!(count(|unit| matches!(unit, UnitOutcome::NotBegun)), 9 - nth);
        let mut dirs = std::collections::BTreeSet::new();
        for (unit, (target, _)) in report.units.iter().zip(&held) {
            let path = table.record(*target);
            if matches!(unit, UnitOutcome::Done(_)) {
                assert!(renewed(&table, *target));
                dirs.insert(path.parent().unwrap().to_owned());
            } else {
                assert_eq!(table.snapshot()[&path], before[&path]);
            }
        }
        assert_eq!(report.barriers, dirs.len() as u64);
        assert_eq!(table.fs.count(Call::SyncDir) - syncs, dirs.len() as u64, "record {nth}");
        assert!(temps(table.root()).is_empty());
        table.reset(&before);
    }
}

#[test]
fn a_failed_barrier_acknowledges_nothing_and_the_other_directories_are_synced_all_the_same() {
    let table = Table::new(8);
    let held = held(&table, 3, 9);
    for nth in 1..=3 {
        let syncs = table.fs.count(Call::SyncDir);
        table.fs.arm(When::NthOf(Call::SyncDir, nth), Effect::Errno(5));
        let report = beat_each(&table, &held, 1030.0);
        table.fs.disarm();
        for (unit, (target, _)) in report.units.iter().zip(&held) {
            let UnitOutcome::Failed(Failure::Unknown { members, .. }) = unit else {
                panic!("{unit:?}")
            };
            assert_eq!(*members, [table.record(*target).display().to_string()]);
        }
        assert_eq!(table.fs.count(Call::SyncDir) - syncs, 3, "each was tried once");
        assert_no_lock_is_held(table.root());
    }
}

#[test]
fn a_busy_record_does_not_stop_the_others() {
    let table = Table::new(8);
    let held = held(&table, 3, 9);
    let deadline = SystemClock.deadline(Duration::ZERO);
    let path = table.lock(held[0].0);
    let other =
        FileLock::acquire(&RealFs, &SystemClock, &path, LockMode::Exclusive, Some(0o600), deadline)
            .unwrap();
    let report = beat_each(&table, &held, 1030.0);
    drop(other);
    for (unit, (target, _)) in report.units.iter().zip(&held) {
        if *target == held[0].0 {
            assert!(matches!(unit, UnitOutcome::Failed(Failure::Busy { .. })), "{unit:?}");
        } else {
            assert!(matches!(unit, UnitOutcome::Done(_)), "{unit:?}");
        }
    }
    assert_eq!(report.barriers, 3);
}

#[test]
fn units_are_handled_in_shard_and_id_order_and_reported_in_the_order_of_the_request() {
    let table = Table::new(8);
    let held = held(&table, 3, 9);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    table.fs.on_call({
        let order = Arc::clone(&order);
        move |call, path| {
            if call == Call::Rename {
                order.lock().unwrap().push(path.to_owned());
            }
        }
    });
    let report = beat_each(&table, &held, 1030.0);
    assert_eq!(report.units.len(), 9);
    let order = order.lock().unwrap();
    assert_eq!(order.len(), 9);
    assert!(order.is_sorted(), "{order:?}");
}
