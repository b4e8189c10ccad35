//! A group and a work item as one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringfence::model::WorkStatus;
use ringfence::model::rules::{
    AbandonRefused, CompleteRefused, JobAbandonRefused, JobCompleteRefused, JobRefused,
    WorkClaimRefused, WorkStale,
};
use ringfence::{
    Claim, Completion, Failure, JobAbandonError, JobClaimError, JobCompleteError, JobLease,
    JobReplayError, Owner, Payload, Store, Token,
};
use ringfence_env::fault::{Call, Effect, When};

use crate::support::{Bed, FakeClock, at, group, ttl};

fn execution() -> Payload {
    Payload::parse(r#"{"seed":"ab","solve":[1,2,3]}"#).unwrap()
}

fn manifest() -> Payload {
    Payload::parse(r#"{"outputs":["d1"]}"#).unwrap()
}

fn by(owner: &str, now: f64) -> Claim {
    Claim::by(owner).unwrap().worker(4).ttl(ttl(60.0)).now(at(now).unwrap())
}

fn claim(store: &Store, owner: &str, now: f64) -> Result<JobLease, JobClaimError> {
    store.jobs().claim(&group(&[1, 2, 3]), &execution(), &by(owner, now))
}

/// Everything in both tables, in words.
fn state(store: &Store) -> (Vec<String>, Vec<String>) {
    let targets = store.targets().list(at(1000.0)).unwrap().leases;
    let work = store.work().list(at(1000.0)).unwrap();
    (
        targets.iter().map(|listed| format!("{:?}", listed.state)).collect(),
        work.iter().map(|item| format!("{:?}", item.record)).collect(),
    )
}

/// How many targets are held, and how the item stands.
fn shape(store: &Store) -> (usize, Option<WorkStatus>) {
    let work = store.work().list(at(1000.0)).unwrap();
    assert!(work.len() <= 1);
    let status = work.first().map(|item| item.record.as_ref().unwrap().status);
    (store.targets().list(at(1000.0)).unwrap().leases.len(), status)
}

fn decide(store: &Store, job: &JobLease) {
    store.work().begin_commit(job.work.id, &job.work.token, &manifest(), at(1001.0)).unwrap();
}

#[test]
fn a_job_is_granted_under_one_token_and_completed_as_one() {
    let bed = Bed::new();
    let job = claim(&bed.store, "a", 1000.0).unwrap();
    assert_eq!(job.group.token(), &job.work.token);
    assert_eq!(job.group.fence().0, job.work.generation);
    assert_eq!(job.group.expires_at(), job.work.expires_at);
    assert_eq!(shape(&bed.other()), (3, Some(WorkStatus::Leased)));
    for listed in bed.other().targets().list(at(1000.0)).unwrap().leases {
        let holder = &listed.state.record().unwrap().holder;
        assert_eq!((&*holder.owner, holder.worker), ("a", 4));
        assert_eq!(holder.token, job.work.token);
        assert_eq!(holder.payload, Payload::empty(), "the execution stands with the item");
    }
    let item = bed.other().work().get(job.work.id, at(1000.0)).unwrap().unwrap().record.unwrap();
    assert_eq!(item.holder.payload, execution());
    assert_eq!((&*item.holder.owner, item.holder.worker), ("a", 4));

    let members = group(&[1, 2, 3]);
    let jobs = bed.other().jobs();
    let early = jobs.complete_once(&members, job.work.id, &job.work.token, at(1001.0));
    assert!(matches!(
        early,
        Err(JobCompleteError::Refused(JobCompleteRefused::Work(CompleteRefused::NotCommitting)))
    ));
    decide(&bed.store, &job);
    let done = jobs.complete_once(&members, job.work.id, &job.work.token, at(1002.0)).unwrap();
    assert_eq!(done, Completion::Completed);
    assert_eq!(shape(&bed.store), (0, Some(WorkStatus::Done)));
    let again = jobs.complete_once(&members, job.work.id, &job.work.token, at(1003.0)).unwrap();
    assert_eq!(again, Completion::Already);
    let late = claim(&bed.store, "b", 9999.0);
    assert!(matches!(late, Err(JobClaimError::Refused(JobRefused::Work(WorkClaimRefused::Done)))));
    assert_eq!(shape(&bed.store), (0, Some(WorkStatus::Done)), "no target for what is done");
}

#[test]
fn a_refused_job_changes_neither_part_whichever_is_in_the_way() {
    let bed = Bed::new();
    let (targets, work) = (bed.store.targets(), bed.store.work());
    let owner = Owner::new("other").unwrap();

    let held = targets.claim(&group(&[3, 9]), &by("other", 1000.0)).unwrap();
    let before = state(&bed.store);
    let Err(JobClaimError::Refused(JobRefused::Group(refused))) = claim(&bed.store, "a", 1001.0)
    else {
        panic!("a member is held")
    };
    assert_eq!(refused.conflicts[0].target.get(), 3);
    assert_eq!(&*refused.conflicts[0].holding.owner, "other");
    assert_eq!(state(&bed.other()), before);
    held.release().unwrap();

    let taken = work.claim(&execution(), &owner, 1, Some(ttl(60.0)), at(1000.0)).unwrap();
    for committing in [false, true] {
        if committing {
            work.begin_commit(taken.id, &taken.token, &manifest(), at(1001.0)).unwrap();
        }
        let before = state(&bed.store);
        let refused = claim(&bed.store, "a", 1002.0).unwrap_err();
        assert_eq!(refused.is_retryable(), !committing, "{refused}");
        let JobClaimError::Refused(JobRefused::Work(refused)) = refused else { panic!() };
        assert_eq!(matches!(refused, WorkClaimRefused::Committing(_)), committing);
        assert_eq!(matches!(refused, WorkClaimRefused::Leased(_)), !committing);
        assert_eq!(state(&bed.other()), before);
    }
}

/// B26, B27: a superseded attempt speaks under the same owner and worker.
#[test]
fn a_superseded_job_is_refused_by_every_verb_and_changes_nothing() {
    let bed = Bed::new();
    let old = claim(&bed.store, "same", 1000.0).unwrap();
    let new = claim(&bed.other(), "same", 1060.0).unwrap();
    assert!(new.group.fence() > old.group.fence());
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    let (id, token) = (old.work.id, &old.work.token);
    let check = || {
        let before = state(&bed.other());
        let complete = jobs.complete_once(&members, id, token, at(1061.0));
        let stale = |refused: &CompleteRefused| {
            matches!(refused, CompleteRefused::Stale(WorkStale::OtherToken(_)))
        };
        assert!(matches!(
            complete,
            Err(JobCompleteError::Refused(JobCompleteRefused::Work(ref why))) if stale(why)
        ));
        let replay = jobs.replay_commit_once(&members, id, token, at(1061.0), |_| {
            panic!("a stale attempt must not publish");
            #[expect(unreachable_code, reason = "names the error type")]
            Ok::<(), String>(())
        });
        assert!(matches!(replay, Err(JobReplayError::Refused(JobCompleteRefused::Work(_)))));
        let abandon = jobs.abandon(&members, id, token, at(1061.0));
        assert!(matches!(
            abandon,
            Err(JobAbandonError::Refused(JobAbandonRefused::Work(AbandonRefused::Stale(_))))
        ));
        assert_eq!(state(&bed.other()), before);
    };
    check();
    decide(&bed.store, &new);
    check();
}

#[test]
fn a_job_whose_group_is_lost_keeps_its_item_which_can_be_finished_alone() {
    let bed = Bed::new();
    let job = claim(&bed.store, "a", 1000.0).unwrap();
    let (id, token) = (job.work.id, &job.work.token);
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    // The group runs out and one member goes to somebody else, while the item is committing.
    decide(&bed.store, &job);
    let _other = bed.other().targets().claim(&group(&[2]), &by("b", 1060.0)).unwrap();
    let before = state(&bed.store);
    let complete = jobs.complete_once(&members, id, token, at(1061.0));
    let Err(JobCompleteError::Refused(JobCompleteRefused::Group(lost))) = complete else {
        panic!("{complete:?}")
    };
    assert_eq!(lost.members.len(), 1);
    let replay = jobs.replay_commit_once(&members, id, token, at(1061.0), |_| {
        panic!("not while the group is somebody else's");
        #[expect(unreachable_code, reason = "names the error type")]
        Ok::<(), String>(())
    });
    assert!(matches!(replay, Err(JobReplayError::Refused(JobCompleteRefused::Group(_)))));
    assert_eq!(state(&bed.store), before);
    let alone = bed.store.work().complete_once(id, token, at(1062.0)).unwrap();
    assert_eq!(alone, Completion::Completed);
    assert_eq!(shape(&bed.store), (3, Some(WorkStatus::Done)));
}

#[test]
fn a_job_that_was_recovered_by_somebody_else_gives_its_group_back_without_publishing() {
    let bed = Bed::new();
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    let job = claim(&bed.store, "a", 1000.0).unwrap();
    decide(&bed.store, &job);
    let (id, token) = (job.work.id, &job.work.token);
    bed.other().work().complete_once(id, token, at(1002.0)).unwrap();
    let replay = jobs.replay_commit_once(&members, id, token, at(1003.0), |_| {
        panic!("it is published");
        #[expect(unreachable_code, reason = "names the error type")]
        Ok::<(), String>(())
    });
    assert_eq!(replay.unwrap(), Completion::Already);
    assert_eq!(shape(&bed.other()), (0, Some(WorkStatus::Done)));
}

#[test]
fn a_publication_that_fails_leaves_the_job_as_it_was_and_is_made_again() {
    let bed = Bed::new();
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    let job = claim(&bed.store, "a", 1000.0).unwrap();
    decide(&bed.store, &job);
    let (id, token) = (job.work.id, &job.work.token);
    let before = state(&bed.store);
    let failed = jobs.replay_commit_once(&members, id, token, at(1002.0), |_| Err("disk full"));
    assert!(matches!(failed, Err(JobReplayError::Publish("disk full"))));
    assert_eq!(state(&bed.other()), before);
    let mut published = Vec::new();
    let done = jobs.replay_commit_once(&members, id, token, at(1003.0), |record| {
        published.push(record.manifest.clone().unwrap());
        Ok::<(), String>(())
    });
    assert_eq!(done.unwrap(), Completion::Completed);
    assert_eq!(published, [manifest()]);
    assert_eq!(shape(&bed.other()), (0, Some(WorkStatus::Done)));
}

#[test]
fn a_job_is_given_up_whole_and_may_be_claimed_again() {
    let bed = Bed::new();
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    let first = claim(&bed.store, "a", 1000.0).unwrap();
    jobs.abandon(&members, first.work.id, &first.work.token, at(1001.0)).unwrap();
    assert_eq!(shape(&bed.other()), (0, None));
    let second = claim(&bed.store, "b", 1002.0).unwrap();
    assert!(second.group.fence() > first.group.fence());
    decide(&bed.store, &second);
    let before = state(&bed.store);
    let late = jobs.abandon(&members, second.work.id, &second.work.token, at(1003.0));
    assert!(matches!(
        late,
        Err(JobAbandonError::Refused(JobAbandonRefused::Work(AbandonRefused::Committing)))
    ));
    assert_eq!(state(&bed.other()), before);
}

#[test]
fn a_waiting_claim_gets_the_job_once_both_parts_are_free_and_ends_where_waiting_is_in_vain() {
    let clock = FakeClock::new();
    let bed = Bed::with_clock(&clock);
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    let ask = |owner: &str| Claim::by(owner).unwrap().ttl(ttl(5.0));
    let _held = bed.store.targets().claim(&group(&[2]), &ask("other")).unwrap();
    let owner = Owner::new("another").unwrap();
    let _taken = bed.store.work().claim(&execution(), &owner, 0, Some(ttl(9.0)), None).unwrap();
    let short = jobs.claim(&members, &execution(), &ask("a").wait(Duration::from_secs(2)));
    assert!(matches!(short, Err(JobClaimError::Refused(_))), "{short:?}");
    let stop = Arc::new(AtomicBool::new(true));
    let waiting = ask("a").wait(Duration::from_secs(60)).cancelled_by(stop);
    let cancelled = jobs.claim(&members, &execution(), &waiting);
    assert!(matches!(cancelled, Err(JobClaimError::Cancelled)), "{cancelled:?}");
    let got = jobs.claim(&members, &execution(), &ask("a").wait(Duration::from_secs(60))).unwrap();

    bed.store.work().begin_commit(got.work.id, &got.work.token, &manifest(), None).unwrap();
    bed.store.jobs().complete_once(&members, got.work.id, &got.work.token, None).unwrap();
    let before = ringfence_env::Clock::monotonic(&clock);
    let done = jobs.claim(&members, &execution(), &ask("b").wait(Duration::from_secs(60)));
    assert!(matches!(done, Err(JobClaimError::Refused(JobRefused::Work(WorkClaimRefused::Done)))));
    assert_eq!(ringfence_env::Clock::monotonic(&clock), before, "nobody waits for what is done");
}

/// What the joint calls are for.
#[test]
fn each_joint_call_is_one_transaction_and_on_the_journal_one_sync() {
    let bed = Bed::new();
    let (jobs, members) = (bed.store.jobs(), group(&[1, 2, 3]));
    // The first call of an opened journal may have more to make durable than its own frame.
    let _early = claim(&bed.store, "warm-up", 900.0).unwrap();
    let syncs = || bed.fs.count(Call::SyncFile) + bed.fs.count(Call::SyncDir);
    let cost = |call: &mut dyn FnMut()| {
        let before = syncs();
        call();
        syncs() - before
    };
    let mut job = None;
    let claimed = cost(&mut || job = Some(claim(&bed.store, "a", 1000.0).unwrap()));
    let first = job.take().unwrap();
    let (id, token) = (first.work.id, &first.work.token);
    let abandoned = cost(&mut || jobs.abandon(&members, id, token, at(1001.0)).unwrap());
    let second = claim(&bed.store, "a", 1002.0).unwrap();
    decide(&bed.store, &second);
    let token = &second.work.token;
    let completed = cost(&mut || {
        jobs.complete_once(&members, id, token, at(1003.0)).unwrap();
    });
    let refused = cost(&mut || drop(claim(&bed.store, "a", 1004.0).unwrap_err()));
    assert_eq!(refused, 0);
    if crate::JOURNAL {
        assert_eq!((claimed, abandoned, completed), (1, 1, 1));
    } else {
        // The same calls apart: what one transaction saves here is the second intent's share.
        let apart = cost(&mut || {
            let lease = bed.store.targets().claim(&members, &by("a", 2000.0)).unwrap();
            let owner = Owner::new("a").unwrap();
            let other = Payload::parse(r#"{"seed":"cd"}"#).unwrap();
            let _item = bed.store.work().claim(&other, &owner, 4, None, at(2000.0)).unwrap();
            drop(lease);
        });
        assert!(claimed <= apart, "{claimed} syncs as one, {apart} apart");
    }
}

/// Both parts as before, or both as after; never one of each.
fn check_whole(
    store: &Store,
    old: &(usize, Option<WorkStatus>),
    new: &(usize, Option<WorkStatus>),
) {
    let now = shape(store);
    assert!(now == *old || now == *new, "{now:?} is neither {old:?} nor {new:?}");
}

/// Fails every call of one verb in turn and checks what is left.
fn every_failure(
    ready: impl Fn(&Store) -> Option<JobLease>,
    verb: impl Fn(&Store, Option<&JobLease>) -> Result<(), Option<Failure>>,
    new: (usize, Option<WorkStatus>),
) {
    for errno in [libc_errno::EIO, libc_errno::ENOSPC] {
        for nth in 1.. {
            let bed = Bed::small();
            let job = ready(&bed.store);
            let old = shape(&bed.other());
            // So that what is broken is the verb and not its first look around.
            let _ = bed.store.work().list(at(1000.0)).unwrap();
            bed.fs.arm(When::Nth(nth), Effect::Errno(errno));
            let outcome = verb(&bed.store, job.as_ref());
            let fired = bed.fs.fired() > 0;
            bed.fs.disarm();
            check_whole(&bed.other(), &old, &new);
            match &outcome {
                Ok(()) => assert_eq!(shape(&bed.other()), new, "call {nth}: done and not there"),
                Err(Some(failure)) if failure.restored() => {
                    assert_eq!(shape(&bed.other()), old, "call {nth}: {failure}");
                    verb(&bed.store, job.as_ref()).unwrap();
                    assert_eq!(shape(&bed.other()), new, "call {nth}: tried again");
                }
                Err(Some(_)) => {}
                Err(None) => panic!("call {nth}: a failure of the store is no refusal"),
            }
            if !fired {
                assert!(nth > 3, "the verb makes calls");
                break;
            }
        }
    }
}

/// Numbers of errors that storage gives.
mod libc_errno {
    pub(super) const EIO: i32 = 5;
    pub(super) const ENOSPC: i32 = 28;
}

#[test]
fn whatever_call_fails_a_job_is_claimed_whole_or_not_at_all() {
    every_failure(
        |_| None,
        |store, _| match claim(store, "a", 1000.0) {
            Ok(_) => Ok(()),
            Err(JobClaimError::Failed(failure)) => Err(Some(failure)),
            Err(_) => Err(None),
        },
        (3, Some(WorkStatus::Leased)),
    );
}

#[test]
fn whatever_call_fails_a_job_is_completed_whole_or_not_at_all() {
    every_failure(
        |store| {
            let job = claim(store, "a", 1000.0).unwrap();
            decide(store, &job);
            Some(job)
        },
        |store, job| {
            let work = &job.unwrap().work;
            let (jobs, members) = (store.jobs(), group(&[1, 2, 3]));
            match jobs.complete_once(&members, work.id, &work.token, at(1002.0)) {
                Ok(_) => Ok(()),
                Err(JobCompleteError::Failed(failure)) => Err(Some(failure)),
                Err(_) => Err(None),
            }
        },
        (0, Some(WorkStatus::Done)),
    );
}

#[test]
fn whatever_call_fails_a_job_is_given_up_whole_or_not_at_all() {
    every_failure(
        |store| Some(claim(store, "a", 1000.0).unwrap()),
        |store, job| {
            let work = &job.unwrap().work;
            let (jobs, members) = (store.jobs(), group(&[1, 2, 3]));
            match jobs.abandon(&members, work.id, &work.token, at(1002.0)) {
                Ok(()) => Ok(()),
                Err(JobAbandonError::Failed(failure)) => Err(Some(failure)),
                Err(_) => Err(None),
            }
        },
        (0, None),
    );
}

#[test]
fn of_many_claimants_at_once_one_gets_the_whole_job() {
    let bed = Bed::new();
    let got: Vec<Token> = std::thread::scope(|scope| {
        let claimants: Vec<_> = (0..8)
            .map(|number| {
                let store = if number % 2 == 0 { bed.other() } else { bed.store.clone() };
                scope.spawn(move || {
                    let jobs = store.jobs().with_patience(Duration::from_mins(10));
                    let claim = by(&format!("claimant {number}"), 1000.0);
                    match jobs.claim(&group(&[1, 2, 3]), &execution(), &claim) {
                        Ok(job) => Some(job.work.token),
                        Err(JobClaimError::Refused(JobRefused::Work(_))) => None,
                        Err(error) => panic!("{error}"),
                    }
                })
            })
            .collect();
        claimants.into_iter().filter_map(|claimant| claimant.join().unwrap()).collect()
    });
    assert_eq!(got.len(), 1);
    for listed in bed.store.targets().list(at(1000.0)).unwrap().leases {
        assert_eq!(listed.state.record().unwrap().holder.token, got[0]);
    }
    assert_eq!(shape(&bed.store), (3, Some(WorkStatus::Leased)));
}
