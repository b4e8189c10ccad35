//! Everything that a coordinator runs, renewed in one batch.

use ringfence::model::WorkStatus;
use ringfence::{
    Claim, JobLease, JobPart, PartLost, PartRenewal, Payload, Store, TargetGroup, Token,
};
use ringfence_env::fault::{Call, Effect, When};

use crate::support::{Bed, at, group, ttl};

fn claim(store: &Store, first: u64) -> (TargetGroup, JobLease) {
    let members = group(&[first, first + 1, first + 2]);
    let execution = Payload::parse(&format!(r#"{{"seed":"{first}"}}"#)).unwrap();
    let claim = Claim::by("a").unwrap().ttl(ttl(60.0)).now(at(1000.0).unwrap());
    let job = store.jobs().claim(&members, &execution, &claim).unwrap();
    (members, job)
}

fn parts(jobs: &[(TargetGroup, JobLease)]) -> Vec<(JobPart<'_>, &Token)> {
    jobs.iter()
        .flat_map(|(members, job)| {
            let token = &job.work.token;
            [(JobPart::Group(members), token), (JobPart::Item(job.work.id), token)]
        })
        .collect()
}

/// When each target and each item was last renewed.
fn updated(store: &Store) -> Vec<f64> {
    let targets = store.targets().list(at(1000.0)).unwrap().leases;
    let targets =
        targets.iter().map(|listed| listed.state.record().unwrap().holder.updated.seconds());
    let work = store.work().list(at(1000.0)).unwrap();
    targets
        .chain(work.iter().map(|item| item.record.as_ref().unwrap().holder.updated.seconds()))
        .collect()
}

#[test]
fn all_jobs_of_a_coordinator_are_renewed_for_the_price_of_one_sync() {
    let bed = Bed::new();
    let jobs: Vec<_> = (0..5).map(|number| claim(&bed.store, 1 + 10 * number)).collect();
    let before = bed.fs.count(Call::SyncFile);
    let batch = bed.store.jobs().heartbeat_many(&parts(&jobs), at(1010.0));
    assert_eq!(batch.parts.len(), 10);
    assert!(batch.parts.iter().all(|part| matches!(part, PartRenewal::Renewed)), "{batch:?}");
    assert_eq!(updated(&bed.other()), [1010.0; 20]);
    if crate::JOURNAL {
        assert_eq!((bed.fs.count(Call::SyncFile) - before, batch.barriers), (1, 1));
    } else {
        // 8 shards of targets and 256 of work items: at most one sync for each that was touched.
        assert!((1..=8 + 5).contains(&batch.barriers), "{batch:?}");
    }
}

#[test]
fn what_is_lost_is_told_apart_and_holds_nothing_else_back() {
    let bed = Bed::new();
    let jobs: Vec<_> = (0..3).map(|number| claim(&bed.store, 1 + 10 * number)).collect();
    let store = bed.other();
    store.targets().release(&jobs[0].0, &jobs[0].1.work.token, at(1001.0)).unwrap();
    let manifest = Payload::parse(r#"{"outputs":[]}"#).unwrap();
    let work = &jobs[1].1.work;
    store.work().begin_commit(work.id, &work.token, &manifest, at(1001.0)).unwrap();
    let batch = bed.store.jobs().heartbeat_many(&parts(&jobs), at(1010.0));
    let [group, item, other_group, committing, last @ ..] = batch.parts.as_slice() else {
        panic!("{batch:?}")
    };
    assert!(matches!(group, PartRenewal::Lost(PartLost::Group(_))), "{batch:?}");
    assert!(matches!(item, PartRenewal::Renewed), "{batch:?}");
    assert!(matches!(other_group, PartRenewal::Renewed), "{batch:?}");
    assert!(matches!(committing, PartRenewal::Lost(PartLost::Item(_))), "{batch:?}");
    assert!(last.iter().all(|part| matches!(part, PartRenewal::Renewed)), "{batch:?}");
    let mut times = updated(&store);
    times.sort_by(f64::total_cmp);
    assert_eq!(times, [vec![1001.0], vec![1010.0; 8]].concat());
    let status = |id| store.work().get(id, None).unwrap().unwrap().record.unwrap().status;
    assert_eq!(status(work.id), WorkStatus::Committing);
}

#[test]
fn a_batch_whose_sync_fails_acknowledges_nothing() {
    let bed = Bed::new();
    let jobs: Vec<_> = (0..2).map(|number| claim(&bed.store, 1 + 10 * number)).collect();
    bed.fs.arm(
        When::FromOf(if crate::JOURNAL { Call::SyncFile } else { Call::SyncDir }, 1),
        Effect::Errno(5),
    );
    let batch = bed.store.jobs().heartbeat_many(&parts(&jobs), at(1010.0));
    bed.fs.disarm();
    assert!(!batch.parts.iter().any(|part| matches!(part, PartRenewal::Renewed)), "{batch:?}");
    assert!(batch.parts.iter().any(|part| matches!(part, PartRenewal::Failed(_))), "{batch:?}");
    assert!(!batch.parts.iter().any(|part| matches!(part, PartRenewal::Lost(_))), "{batch:?}");
    let again = bed.other().jobs().heartbeat_many(&parts(&jobs), at(1020.0));
    assert!(again.parts.iter().all(|part| matches!(part, PartRenewal::Renewed)), "{again:?}");
    assert_eq!(updated(&bed.other()), [1020.0; 8]);
}
