//! The work table: the same engine carries the work fence.

use ringfence_model::rules::{
    self, AbandonRefused, BeginCommitRefused, CompleteRefused, WorkClaimRefused, WorkStale,
};
use ringfence_model::{Key, Payload, RecordId, Space, Token, WorkStatus};

use super::Testbed;
use super::kit::*;

fn manifest(name: &str) -> Payload {
    Payload::parse(&format!(r#"{{"objects":["{name}"]}}"#)).unwrap()
}

pub(super) fn an_item_lives_from_leased_to_done<T: Testbed>(bed: &T) {
    let (engine, item) = (bed.engine(), ask_work("a", 1));
    let token: Token = claim_work(&engine, &item, at(0.0)).unwrap().into();
    assert_eq!(work_record(&engine, &item).status, WorkStatus::Leased);
    let refused = claim_work(&bed.engine(), &item, at(1.0)).unwrap_err();
    assert!(matches!(refused, WorkClaimRefused::Leased(_)));
    on_work(&engine, &item, at(30.0), |v| rules::heartbeat_work(v, &token)).unwrap();
    assert_eq!(work_record(&engine, &item).holder.updated, at(30.0).unwrap());

    let publish = manifest("x");
    on_work(&engine, &item, at(31.0), |v| rules::begin_commit(v, &token, &publish)).unwrap();
    let record = work_record(&bed.engine(), &item);
    assert_eq!((record.status, record.manifest), (WorkStatus::Committing, Some(publish)));
    let refused = on_work(&engine, &item, at(32.0), |v| rules::abandon(v, &token)).unwrap_err();
    assert_eq!(refused, AbandonRefused::Committing);
    let refused = on_work(&engine, &item, at(32.0), |v| rules::heartbeat_work(v, &token));
    assert_eq!(refused.unwrap_err(), WorkStale::NotLeased);

    on_work(&engine, &item, at(33.0), |v| rules::complete(v, &token)).unwrap();
    assert_eq!(work_record(&engine, &item).status, WorkStatus::Done);
    let again = on_work(&engine, &item, at(34.0), |v| rules::complete(v, &token)).unwrap_err();
    assert_eq!(again, CompleteRefused::Already);
    let refused = claim_work(&bed.engine(), &item, at(1e6)).unwrap_err();
    assert_eq!(refused, WorkClaimRefused::Done);
}

pub(super) fn a_generation_rises_with_every_claim_and_across_abandon<T: Testbed>(bed: &T) {
    let item = ask_work("a", 1);
    let (mut last, mut now) = (0, 0.0);
    for round in 0..6 {
        let engine = if round == 3 { bed.reopen() } else { bed.engine() };
        let token = claim_work(&engine, &item, at(now)).unwrap();
        let generation = work_record(&engine, &item).generation;
        assert!(generation > last, "round {round}: {generation} after {last}");
        assert_eq!(generation, token.fence().0);
        last = generation;
        if round % 2 == 0 {
            on_work(&engine, &item, at(now), |v| rules::abandon(v, &token.into())).unwrap();
            assert_eq!(records(&engine, Space::Work).len(), 0);
        } else {
            now += 60.0;
        }
    }
}

pub(super) fn a_committing_item_is_never_taken_over_by_time<T: Testbed>(bed: &T) {
    let item = ask_work("a", 1);
    let token: Token = claim_work(&bed.engine(), &item, at(0.0)).unwrap().into();
    let publish = manifest("x");
    on_work(&bed.engine(), &item, at(1.0), |v| rules::begin_commit(v, &token, &publish)).unwrap();
    let refused = without_a_trace(bed, |engine| claim_work(engine, &item, at(1e8)).unwrap_err());
    let WorkClaimRefused::Committing(holding) = refused else { panic!("{refused}") };
    // Whoever meets it finishes it under the token that the record names.
    on_work(&bed.reopen(), &item, at(1e8), |v| rules::complete(v, &holding.token)).unwrap();
}

pub(super) fn a_commit_decision_repeats_with_the_same_manifest_only<T: Testbed>(bed: &T) {
    let (engine, item) = (bed.engine(), ask_work("a", 1));
    let token: Token = claim_work(&engine, &item, at(0.0)).unwrap().into();
    let (one, other) = (manifest("one"), manifest("other"));
    on_work(&engine, &item, at(1.0), |v| rules::begin_commit(v, &token, &one)).unwrap();
    without_a_trace(bed, |engine| {
        on_work(engine, &item, at(2.0), |v| rules::begin_commit(v, &token, &one)).unwrap();
        let refused = on_work(engine, &item, at(2.0), |v| rules::begin_commit(v, &token, &other));
        assert_eq!(refused.unwrap_err(), BeginCommitRefused::OtherManifest);
    });
    assert_eq!(work_record(&engine, &item).manifest, Some(one));
}

pub(super) fn a_late_result_is_refused<T: Testbed>(bed: &T) {
    let (engine, item) = (bed.engine(), ask_work("a", 1));
    let late: Token = claim_work(&engine, &item, at(0.0)).unwrap().into();
    // The same owner and worker: only the token tells the two attempts apart.
    let current: Token = claim_work(&engine, &item, at(60.0)).unwrap().into();
    let publish = manifest("x");
    let stale_everywhere = || {
        without_a_trace(bed, |engine| {
            on_work(engine, &item, at(61.0), |v| rules::heartbeat_work(v, &late)).unwrap_err();
            on_work(engine, &item, at(61.0), |v| rules::begin_commit(v, &late, &publish))
                .unwrap_err();
            on_work(engine, &item, at(61.0), |v| rules::complete(v, &late)).unwrap_err();
            on_work(engine, &item, at(61.0), |v| rules::abandon(v, &late)).unwrap_err();
        });
    };
    stale_everywhere();
    on_work(&engine, &item, at(62.0), |v| rules::begin_commit(v, &current, &publish)).unwrap();
    stale_everywhere();
    on_work(&engine, &item, at(63.0), |v| rules::complete(v, &current)).unwrap();
    stale_everywhere();
}

pub(super) fn done_items_are_pruned_by_their_age<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let prune = |item: &_, before: f64| {
        on_work(&engine, item, at(1e3), |v| rules::prune_done(v, at(before).unwrap()).ok_or(()))
    };
    let (done, open) = (ask_work("a", 1), ask_work("a", 2));
    let token: Token = claim_work(&engine, &done, at(0.0)).unwrap().into();
    claim_work(&engine, &open, at(0.0)).unwrap();
    let publish = manifest("x");
    on_work(&engine, &done, at(1.0), |v| rules::begin_commit(v, &token, &publish)).unwrap();
    on_work(&engine, &done, at(2.0), |v| rules::complete(v, &token)).unwrap();
    prune(&done, 2.0).expect_err("not older than that");
    prune(&open, 1e9).expect_err("not done");
    prune(&done, 3.0).unwrap();
    let left: Vec<Key> = records(&bed.engine(), Space::Work).into_keys().collect();
    assert_eq!(left, [Key::work(open.id())]);
    let late = on_work(&engine, &done, at(4.0), |v| rules::complete(v, &token)).unwrap_err();
    assert_eq!(late, CompleteRefused::Stale(WorkStale::NotHeld), "its token is in no record");
}

pub(super) fn the_tables_are_apart<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let id = RecordId::of_target(target(1));
    claim(&engine, &ask("a", [1]), at(0.0)).unwrap();
    let (one, other) = (Key { space: Space::Targets, id }, Key { space: Space::Work, id });
    let view = engine.view(&[one, other], None).unwrap();
    assert!(matches!(view.entries[0].1, ringfence_model::Entry::Present(_)));
    assert!(matches!(view.entries[1].1, ringfence_model::Entry::Vacant));
    claim_work(&engine, &ask_work("a", 1), at(0.0)).unwrap();
    assert_eq!(records(&engine, Space::Targets).len(), 1);
    assert_eq!(records(&engine, Space::Work).len(), 1);
}
