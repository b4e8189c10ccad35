//! F325's named tests, and the lease rules as the engine stores them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_engine::Failure;
use ringfence_env::fault::{Call, Effect, When};
use ringfence_model::rules::LostMember;
use ringfence_model::{Dropped, Payload, TargetGroup, Timestamp, Ttl};

use crate::table::{
    PATIENCE, Table, Verbs as _, ask, assert_no_lock_is_held, group, targets_over, temps,
};

#[test]
fn an_unserialisable_payload_publishes_nothing() {
    let table = Table::new(8);
    let before = table.snapshot();
    let calls = table.fs.total();
    for text in ["{\"f\":NaN}", "{\"f\":-Infinity}", "\"text\"", "{\"f\":\"\\ud800\"}", "{1:2}"] {
        Payload::parse(text).unwrap_err();
    }
    assert_eq!(table.snapshot(), before);
    assert_eq!(table.fs.total(), calls, "refused before the first lock");
}

#[test]
fn claim_and_release_sync_each_shard_once() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    table.engine.grab("warm", &targets, Some(1.0)).unwrap().unwrap();
    let syncs = table.fs.count(Call::SyncDir);
    let token = table.engine.grab("a", &targets, Some(100.0)).unwrap().unwrap();
    assert_eq!(table.fs.count(Call::SyncDir) - syncs, 3);
    let done = table.engine.free(&targets, token).unwrap().unwrap();
    assert_eq!(done.barriers, 3);
    assert_eq!(table.fs.count(Call::SyncDir) - syncs, 6);
}

/// B43: a failed directory sync, in phase C.
#[test]
fn a_failed_directory_barrier_of_a_claim_rolls_the_whole_group_back() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    table.engine.grab("old", &targets[..4], Some(1000.0)).unwrap().unwrap();
    let before = table.snapshot();
    for nth in 1..=3 {
        table.fs.arm(When::NthOf(Call::SyncDir, nth), Effect::Errno(5));
        let failure = table.engine.grab("new", &targets, Some(2000.0)).unwrap_err();
        table.fs.disarm();
        assert!(matches!(failure, Failure::Restored(_)), "{failure:?}");
        assert_eq!(table.snapshot(), before);
        assert_no_lock_is_held(table.root());
    }
    table.engine.grab("new", &targets, Some(2000.0)).unwrap().unwrap();
}

#[test]
fn a_stale_last_member_means_no_mutation_at_all() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let old = table.engine.grab("old", &targets, Some(1000.0)).unwrap().unwrap();
    let last = group(&targets).targets().last().unwrap().get();
    table.engine.grab("new", &[last], Some(2000.0)).unwrap().unwrap();
    let before = table.snapshot();
    let changes = |table: &Table| {
        [Call::Unlink, Call::Rename, Call::Write, Call::SyncDir].map(|call| table.fs.count(call))
    };
    let counts = changes(&table);
    let lost = table.engine.free(&targets, old).unwrap().unwrap_err();
    assert!(matches!(&lost.members[..], [LostMember::OtherToken(c)] if c.target.get() == last));
    table.engine.beat(&targets, old, Some(2001.0)).unwrap().unwrap_err();
    assert_eq!(table.snapshot(), before);
    assert_eq!(changes(&table), counts);
}

#[test]
fn when_the_second_unlink_fails_the_first_member_is_restored() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let token = table.engine.grab("a", &targets, None).unwrap().unwrap();
    let before = table.snapshot();
    for nth in 2..=8 {
        table.fs.arm(When::NthOf(Call::Unlink, nth), Effect::Errno(5));
        let failure = table.engine.free(&targets, token).unwrap_err();
        table.fs.disarm();
        assert!(matches!(failure, Failure::Restored(_)), "{failure:?}");
        assert_eq!(table.snapshot(), before, "unlink {nth}");
    }
    table.engine.free(&targets, token).unwrap().unwrap();
    let lost = table.engine.free(&targets, token).unwrap().unwrap_err();
    assert_eq!(lost.members.len(), 8, "the third release finds nothing");
    table.engine.grab("b", &targets, None).unwrap().unwrap();
}

#[test]
fn a_failed_directory_sync_of_a_release_restores_the_whole_group() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let token = table.engine.grab("a", &targets, None).unwrap().unwrap();
    let before = table.snapshot();
    for nth in 1..=3 {
        table.fs.arm(When::NthOf(Call::SyncDir, nth), Effect::Errno(5));
        let failure = table.engine.free(&targets, token).unwrap_err();
        table.fs.disarm();
        assert!(matches!(failure, Failure::Restored(_)), "{failure:?}");
        assert_eq!(table.snapshot(), before, "barrier {nth}");
        assert_eq!(temps(table.root()), Vec::<PathBuf>::new());
    }
    table.engine.free(&targets, token).unwrap().unwrap();
}

#[test]
fn a_failed_publication_of_any_member_leaves_no_member_published() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let before = table.snapshot();
    for (call, count) in [(Call::Write, 9), (Call::SyncFile, 8), (Call::Rename, 8)] {
        for nth in 1..=count {
            table.fs.arm(When::NthOf(call, nth), Effect::Errno(28));
            let failure = table.engine.grab("a", &targets, None).unwrap_err();
            assert_eq!(table.fs.fired(), 1, "{call:?} {nth}");
            table.fs.disarm();
            assert!(failure.restored(), "{failure:?}");
            assert_eq!(table.snapshot(), before, "{call:?} {nth}");
        }
    }
}

#[test]
fn an_overlapping_claim_is_refused_whole_and_names_every_conflict() {
    let table = Table::new(8);
    table.engine.grab("a", &[7, 8], Some(1000.0)).unwrap().unwrap();
    let before = table.snapshot();
    let all: Vec<u64> = (1..=64).collect();
    let refused = table.engine.grab("b", &all, Some(1059.9)).unwrap().unwrap_err();
    let mut named: Vec<u64> = refused.conflicts.iter().map(|c| c.target.get()).collect();
    named.sort_unstable();
    assert_eq!(named, [7, 8]);
    assert!(refused.conflicts.iter().all(|c| &*c.holding.owner == "a"));
    assert_eq!(table.snapshot(), before, "refused means nothing was written");
    table.engine.grab("b", &[1, 2, 3, 4, 5, 6], Some(1059.9)).unwrap().unwrap();
}

#[test]
fn an_expired_lease_is_taken_over_with_a_higher_fence_and_its_history() {
    let table = Table::new(8);
    let first = table.engine.grab("a", &[7, 8], Some(1000.0)).unwrap().unwrap();
    table.engine.grab("b", &[8, 9], Some(1059.999)).unwrap().unwrap_err();
    let second = table.engine.grab("b", &[8, 9], Some(1060.0)).unwrap().unwrap();
    assert!(second.fence() > first.fence());
    let taken = table.read(8);
    assert_eq!((taken.history.attempts, taken.history.steals), (2, 1));
    assert_eq!(taken.history.previous_owner.as_deref(), Some("a"));
    assert_eq!((table.read(9).history.attempts, table.read(9).history.steals), (1, 0));
    let third = table.engine.grab("b", &[8, 9], Some(2000.0)).unwrap().unwrap();
    assert!(third.fence() > second.fence());
    assert_eq!((table.read(8).history.attempts, table.read(8).history.steals), (3, 1));
}

#[test]
fn a_stale_token_changes_nothing_under_any_verb() {
    let table = Table::new(8);
    let stale = table.engine.grab("a", &[7, 8], Some(1000.0)).unwrap().unwrap();
    let current = table.engine.grab("a", &[7, 8], Some(2000.0)).unwrap().unwrap();
    let before = table.snapshot();
    table.engine.beat(&[7, 8], stale, Some(2001.0)).unwrap().unwrap_err();
    table.engine.free(&[7, 8], stale).unwrap().unwrap_err();
    table.engine.force(&[7, 8], &stale.into()).unwrap().unwrap_err();
    assert_eq!(table.snapshot(), before);
    table.engine.beat(&[7, 8], current, Some(2002.0)).unwrap().unwrap();
}

#[test]
fn a_heartbeat_gives_the_group_one_moment_and_rolls_back_when_a_member_fails() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let token = table.engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    let before = table.snapshot();
    for nth in 1..=8 {
        table.fs.arm(When::NthOf(Call::Rename, nth), Effect::Errno(5));
        let failure = table.engine.beat(&targets, token, Some(1030.0)).unwrap_err();
        table.fs.disarm();
        assert!(failure.restored(), "{failure:?}");
        assert_eq!(table.snapshot(), before, "rename {nth}");
    }
    table.engine.beat(&targets, token, Some(1030.0)).unwrap().unwrap();
    for &target in &targets {
        assert_eq!(table.read(target).holder.updated.seconds().to_bits(), 1030f64.to_bits());
    }
    // Expired, but nobody took it: it may still be renewed.
    table.engine.beat(&targets, token, Some(5000.0)).unwrap().unwrap();
}

#[test]
fn the_records_own_ttl_rules_not_the_contenders() {
    let table = Table::new(8);
    table.engine.grab("long", &[7], Some(1000.0)).unwrap().unwrap();
    let short = ringfence_model::rules::ClaimRequest {
        ttl: Ttl::from_seconds(5.0).unwrap(),
        ..ask("short", &[7])
    };
    table.engine.ask(&short, Some(1010.0), PATIENCE).unwrap().unwrap_err();
    table.engine.ask(&short, Some(1060.0), PATIENCE).unwrap().unwrap();
    table.engine.grab("long", &[7], Some(1064.9)).unwrap().unwrap_err();
    table.engine.grab("long", &[7], Some(1065.0)).unwrap().unwrap();
}

#[test]
fn a_corrupt_member_holds_the_group_and_is_left_as_it_is() {
    let table = Table::new(8);
    fs::write(table.record(7), b"{\"schema\":1").unwrap();
    let before = table.snapshot();
    let refused = table.engine.grab("a", &[6, 7, 8], None).unwrap().unwrap_err();
    assert_eq!(refused.damaged[0].target.get(), 7);
    assert_eq!(table.snapshot(), before);
    table.engine.grab("a", &[6, 8], None).unwrap().unwrap();
}

#[test]
fn times_that_are_no_times_never_reach_a_table() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300] {
        Timestamp::from_seconds(bad).unwrap_err();
    }
    // In a record of another program they are damage, and damage is held.
    let table = Table::new(8);
    table.engine.grab("a", &[7], Some(1000.0)).unwrap().unwrap();
    let good = fs::read_to_string(table.record(7)).unwrap();
    for bad in ["NaN", "Infinity", "-1.0", "1e999", "\"1000\"", "true"] {
        let line = good.replacen(
            "\"updated\":1000.0,\"worker\"",
            &format!("\"updated\":{bad},\"worker\""),
            1,
        );
        assert_ne!(line, good);
        fs::write(table.record(7), &line).unwrap();
        let refused = table.engine.grab("b", &[7], Some(9000.0)).unwrap().unwrap_err();
        assert_eq!(refused.damaged.len(), 1, "{bad}: {refused}");
        assert_eq!(fs::read_to_string(table.record(7)).unwrap(), line);
    }
}

#[test]
fn a_normalised_group_is_claimed_as_what_it_was_normalised_to() {
    let table = Table::new(8);
    let made = TargetGroup::normalize([0, 9, -3, 9, 4, i128::MAX]).unwrap();
    assert_eq!(made.dropped.len(), 4);
    assert!(made.dropped.contains(&Dropped::NotATarget(-3)));
    let request = ringfence_model::rules::ClaimRequest { group: made.group, ..ask("a", &[1]) };
    table.engine.ask(&request, None, Duration::ZERO).unwrap().unwrap();
    let records = table.snapshot().into_keys().filter(|path| {
        path.extension().is_some_and(|e| e == "json") && !path.ends_with("table.json")
    });
    assert_eq!(records.count(), 2);
    assert_eq!(table.read(9).group.primary.unwrap().get(), 9);
    let many = TargetGroup::normalize(1..=70).unwrap();
    assert_eq!((many.group.len(), many.dropped.len()), (64, 6));
    let request = ringfence_model::rules::ClaimRequest { group: many.group, ..ask("b", &[1]) };
    let refused = table.engine.ask(&request, None, Duration::ZERO).unwrap().unwrap_err();
    assert_eq!(refused.conflicts.len(), 2);
    table.engine.grab("c", &[65, 70], None).unwrap().unwrap();
}
