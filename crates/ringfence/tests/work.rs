use std::time::Duration;

use ringfence::model::WorkStatus;
use ringfence::model::rules::{BeginCommitRefused, CompleteRefused, WorkClaimRefused, WorkStale};
use ringfence::{
    AbandonError, BeginCommitError, CompleteError, Completion, Owner, Payload, ReplayError,
    WorkClaimError, WorkTable,
};
use ringfence_env::fault::{Call, Effect, When};

use crate::support::{Bed, at, ttl};

fn payload(text: &str) -> Payload {
    Payload::parse(text).unwrap()
}

pub(crate) fn claim(work: &WorkTable, now: f64) -> Result<ringfence::WorkLease, WorkClaimError> {
    let owner = Owner::new("same owner").unwrap();
    work.claim(&payload(r#"{"seed":"ab"}"#), &owner, 1, Some(ttl(10.0)), at(now))
}

#[test]
fn one_execution_is_leased_committed_and_done_once() {
    let bed = Bed::new();
    let work = bed.store.work();
    let lease = claim(&work, 1000.0).unwrap();
    let second = claim(&work, 1005.0);
    assert!(matches!(second, Err(WorkClaimError::Refused(WorkClaimRefused::Leased(_)))));
    work.heartbeat(lease.id, &lease.token, at(1008.0)).unwrap();
    let manifest = payload(r#"{"outputs":["d1"]}"#);
    let early = work.complete_once(lease.id, &lease.token, at(1009.0));
    assert!(matches!(early, Err(CompleteError::Refused(CompleteRefused::NotCommitting))));
    work.begin_commit(lease.id, &lease.token, &manifest, at(1009.0)).unwrap();
    work.begin_commit(lease.id, &lease.token, &manifest, at(1010.0)).unwrap();
    let other = work.begin_commit(lease.id, &lease.token, &payload("{}"), at(1010.0));
    assert!(matches!(other, Err(BeginCommitError::Refused(BeginCommitRefused::OtherManifest))));
    let taken = claim(&work, 9999.0);
    assert!(
        matches!(taken, Err(WorkClaimError::Refused(WorkClaimRefused::Committing(_)))),
        "never stolen by time"
    );
    assert!(matches!(
        work.abandon(lease.id, &lease.token, at(1010.0)),
        Err(AbandonError::Refused(_))
    ));
    assert_eq!(
        work.complete_once(lease.id, &lease.token, at(1011.0)).unwrap(),
        Completion::Completed
    );
    assert_eq!(
        work.complete_once(lease.id, &lease.token, at(1012.0)).unwrap(),
        Completion::Already
    );
    assert!(matches!(claim(&work, 9999.0), Err(WorkClaimError::Refused(WorkClaimRefused::Done))));
}

/// B27: the superseded attempt speaks under the same owner and worker.
#[test]
fn b27_a_superseded_attempt_is_refused_by_every_verb() {
    let bed = Bed::new();
    let work = bed.store.work();
    let old = claim(&work, 1000.0).unwrap();
    let new = claim(&work, 1010.0).unwrap();
    assert!(new.generation > old.generation && new.token > old.token);
    let stale = |e: &WorkStale| matches!(e, WorkStale::OtherToken(_));
    let begin = work.begin_commit(old.id, &old.token, &payload("{}"), at(1011.0));
    assert!(
        matches!(begin, Err(BeginCommitError::Refused(BeginCommitRefused::Stale(ref e))) if stale(e))
    );
    assert!(work.heartbeat(old.id, &old.token, at(1011.0)).is_err());
    assert!(work.abandon(old.id, &old.token, at(1011.0)).is_err());
    work.begin_commit(new.id, &new.token, &payload("{}"), at(1011.0)).unwrap();
    let complete = work.complete_once(old.id, &old.token, at(1011.0));
    assert!(
        matches!(complete, Err(CompleteError::Refused(CompleteRefused::Stale(ref e))) if stale(e))
    );
    let published = work.replay_commit_once(old.id, &old.token, at(1011.0), |_| {
        panic!("a stale attempt must not publish");
        #[expect(unreachable_code, reason = "names the error type")]
        Ok::<(), String>(())
    });
    assert!(matches!(published, Err(ReplayError::Refused(CompleteRefused::Stale(_)))));
}

/// B28: results are kept out by the token, not by the presence of a record.
#[test]
fn b28_after_the_done_record_is_pruned_a_late_writer_is_still_refused() {
    let bed = Bed::new();
    let work = bed.store.work();
    let old = claim(&work, 1000.0).unwrap();
    let new = claim(&work, 1010.0).unwrap();
    work.begin_commit(new.id, &new.token, &payload("{}"), at(1011.0)).unwrap();
    work.complete_once(new.id, &new.token, at(1012.0)).unwrap();
    assert_eq!(work.prune_done(Duration::from_secs(100), at(1050.0)).unwrap(), 0);
    assert_eq!(work.prune_done(Duration::from_secs(100), at(1200.0)).unwrap(), 1);
    let late = work.begin_commit(old.id, &old.token, &payload("{}"), at(1201.0));
    assert!(matches!(
        late,
        Err(BeginCommitError::Refused(BeginCommitRefused::Stale(WorkStale::NotHeld)))
    ));
    assert!(work.list(at(1201.0)).unwrap().is_empty());
}

/// B31: work left by a dead coordinator is found again.
#[test]
fn b31_expired_and_committing_items_are_listed_and_any_coordinator_finishes_them() {
    let bed = Bed::new();
    let work = bed.store.work();
    let lease = claim(&work, 1000.0).unwrap();
    assert!(work.recover_expired(at(1009.0)).unwrap().is_empty());
    assert_eq!(work.recover_expired(at(1010.0)).unwrap()[0].id, lease.id);
    work.begin_commit(lease.id, &lease.token, &payload(r#"{"o":"d1"}"#), at(1010.0)).unwrap();
    let survivor = bed.other().work();
    let found = survivor.recover_committing(at(5000.0)).unwrap();
    let record = found[0].record.as_ref().unwrap();
    let failed = survivor.replay_commit_once(lease.id, &record.holder.token, at(5000.0), |_| {
        Err("the public directory is full")
    });
    assert!(matches!(failed, Err(ReplayError::Publish("the public directory is full"))));
    assert_eq!(survivor.recover_committing(at(5000.0)).unwrap().len(), 1, "still committing");
    let mut published = Vec::new();
    let done = survivor.replay_commit_once(lease.id, &record.holder.token, at(5000.0), |record| {
        published.push(record.manifest.clone().unwrap().as_str().to_owned());
        Ok::<(), String>(())
    });
    assert_eq!(done.unwrap(), Completion::Completed);
    assert_eq!(published, [r#"{"o":"d1"}"#]);
    let record = survivor.get(lease.id, at(5000.0)).unwrap().unwrap().record.unwrap();
    assert_eq!(record.status, WorkStatus::Done);
    assert!(survivor.recover_committing(at(5000.0)).unwrap().is_empty());
}

#[test]
fn a_failed_commit_decision_is_no_decision_and_can_be_made_again() {
    let bed = Bed::new();
    let work = bed.store.work();
    let lease = claim(&work, 1000.0).unwrap();
    let call = if crate::JOURNAL { Call::SyncFile } else { Call::SyncDir };
    bed.fs.arm(When::NthOf(call, 1), Effect::Errno(5));
    let failed = work.begin_commit(lease.id, &lease.token, &payload("{}"), at(1001.0));
    assert!(matches!(failed, Err(BeginCommitError::Failed(ref f)) if f.restored()), "{failed:?}");
    bed.fs.disarm();
    let record = work.get(lease.id, at(1001.0)).unwrap().unwrap().record.unwrap();
    assert_eq!(record.status, WorkStatus::Leased);
    work.begin_commit(lease.id, &lease.token, &payload("{}"), at(1002.0)).unwrap();
}

#[test]
fn an_abandoned_item_can_be_claimed_again_with_a_higher_generation() {
    let bed = Bed::new();
    let work = bed.store.work();
    let first = claim(&work, 1000.0).unwrap();
    work.abandon(first.id, &first.token, at(1001.0)).unwrap();
    let second = claim(&work, 1002.0).unwrap();
    assert_eq!(second.id, first.id);
    assert!(second.generation > first.generation);
}
