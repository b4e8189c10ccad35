//! A group and a work item as one: claimed, completed and given up together.
//!
//! Each verb is one transaction over the group's records and the item's, under one token:
//!
//! Q1. Both parts change or neither does: a refusal of either leaves both as they were.
//! Q2. On the engine `journal` it costs one sync, as much as either part alone. On `files` the group's
//!     records and the item's are changed in id order and put back together.
//! Q3. Whoever may claim the group can know what was done under it: the item is done no later than
//!     the group is free.
//!
//! Between claim and end the parts are renewed, those of many jobs in one batch, by
//! [`JobTable::heartbeat_many`], and committed by the verbs of [`WorkTable`](crate::WorkTable), under
//! the same token.
//!
//! ```
//! use ringfence::{Claim, Completion, InitOptions, Payload, Store, TargetGroup};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("leases");
//! let store = Store::init(&path, &InitOptions::default())?;
//! let group = TargetGroup::from_numbers([77, 88])?;
//! let execution = Payload::parse(r#"{"seed":"ab","solve":[77,88]}"#)?;
//! let job = store.jobs().claim(&group, &execution, &Claim::by("coordinator-1")?)?;
//! // ... solve, stage the outputs ...
//! let (id, token) = (job.work.id, &job.work.token);
//! let manifest = Payload::parse(r#"{"outputs":["d1"]}"#)?;
//! store.work().begin_commit(id, token, &manifest, None)?;
//! // ... publish them ...
//! assert_eq!(store.jobs().complete_once(&group, id, token, None)?, Completion::Completed);
//! assert!(store.targets().list(None)?.leases.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod errors;
mod heartbeat;

use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Done, Engine, Failure};
use ringfence_env::World;
use ringfence_model::rules::{
    self, ClaimRequest, CompleteRefused, JobCompleteRefused, JobRefused, WorkClaim,
    WorkClaimRefused, WorkStale,
};
use ringfence_model::{
    Entry, Key, Payload, Record, RecordId, TargetGroup, Timestamp, Token, Transition, View,
    WorkRecord, WorkStatus,
};

pub use errors::{JobAbandonError, JobClaimError, JobCompleteError, JobReplayError};
pub use heartbeat::{JobHeartbeats, JobPart, PartLost, PartRenewal};

use crate::claim::Claim;
use crate::lease::Lease;
use crate::target_table::{TargetTable, keys};
use crate::wait::{Patience, Wait, until_changed, until_over};
use crate::work_table::{Completion, WorkLease};

/// The verbs on a group and a work item. Cheap to clone.
#[derive(Clone, Debug)]
pub struct JobTable {
    targets: TargetTable,
}

/// A granted group and a granted work item, under one token.
#[must_use = "a job that is dropped is not given up, it runs out by its ttl"]
#[derive(Debug)]
pub struct JobLease {
    /// The group.
    pub group: Lease,
    /// The item.
    pub work: WorkLease,
}

impl JobTable {
    /// The tables of an engine.
    pub fn on(engine: Arc<dyn Engine>, world: World) -> Self {
        Self { targets: TargetTable::on(engine, world) }
    }

    /// The same with another patience for kernel locks.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { targets: self.targets.with_patience(patience) }
    }

    /// Leases every member of `group` and the exact execution that `execution` names, or nothing.
    ///
    /// The claim's owner, worker, ttl and wait are those of both; its payload is the members'.
    ///
    /// *Durability:* a job that is returned survives a power cut, both parts of it. *Refused:* nothing
    /// was written; an item that is done, committing or leased is told before a group that is held.
    /// *Failure:* see [`Failure`]; only [`Failure::Unknown`] may have granted anything, and what it
    /// granted expires by itself. A wait ends at once where waiting cannot help: the item is done or
    /// committing, or a record is damaged.
    pub fn claim(
        &self,
        group: &TargetGroup,
        execution: &Payload,
        claim: &Claim,
    ) -> Result<JobLease, JobClaimError> {
        let targets = claim.request(group, self.targets.engine.default_ttl());
        let item = WorkClaim {
            payload: execution.clone(),
            owner: targets.owner.clone(),
            worker: targets.worker,
            ttl: targets.ttl,
        };
        let keys = job_keys(group, item.id());
        let Some(wait) = claim.wait else {
            return match self.targets.engine.waiting(&keys) {
                0 => self.claim_once(&keys, &targets, &item, claim.now, self.targets.patience),
                before => Err(JobClaimError::Queued { before }),
            };
        };
        let place = self.targets.engine.queue(&keys).map_err(Failure::Untouched)?;
        let patience = Patience::new(&self.targets.world, wait, claim.cancelled.clone());
        let waiting =
            Waiting { jobs: self, targets: &targets, item: &item, keys: &keys, now: claim.now };
        let try_once = |one_try| self.claim_once(&keys, &targets, &item, claim.now, one_try);
        patience.spend(place.as_deref(), try_once, waiting)
    }

    /// Marks a committing item as done and gives `group` back, both under exactly `token`.
    ///
    /// Where this attempt's item was completed before, by whoever finished its commit, the group alone
    /// is given back and the answer is [`Completion::Already`]; so it is where nothing is left to do.
    ///
    /// *Durability:* what is returned survives a power cut. *Refused:* nothing was written; if the
    /// group is lost the item can still be completed alone, by
    /// [`WorkTable::complete_once`](crate::WorkTable::complete_once). *Failure:* see [`Failure`];
    /// repeating the call is right after every one, also when the outcome is unknown.
    pub fn complete_once(
        &self,
        group: &TargetGroup,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<Completion, JobCompleteError> {
        let mut before = false;
        let done = self.run(&job_keys(group, id), now, |view| {
            before = is_done(view);
            rules::complete_job(view, group, token)
        })?;
        match done {
            Ok(_) if before => Ok(Completion::Already),
            Ok(_) => Ok(Completion::Completed),
            Err(JobCompleteRefused::Work(CompleteRefused::Already)) => Ok(Completion::Already),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Publishes a committing item's manifest, then completes the item and gives `group` back.
    ///
    /// `publish` is called for the current committing attempt only, while it holds the whole group, and
    /// may be called again, after a race or a crash: it must be idempotent, see
    /// [`WorkTable::replay_commit_once`](crate::WorkTable::replay_commit_once). It runs within the
    /// transaction: on the engine `files` whoever renews the group meanwhile waits for it. If it fails
    /// nothing is changed: the item stays committing and the group leased. Otherwise as
    /// [`JobTable::complete_once`].
    pub fn replay_commit_once<E>(
        &self,
        group: &TargetGroup,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
        mut publish: impl FnMut(&WorkRecord) -> Result<(), E>,
    ) -> Result<Completion, JobReplayError<E>> {
        enum Stop<E> {
            Refused(JobCompleteRefused),
            Publish(E),
        }
        let mut before = false;
        let outcome = self.run(&job_keys(group, id), now, |view| {
            let transition = rules::complete_job(view, group, token).map_err(Stop::Refused)?;
            before = is_done(view);
            if before {
                return Ok(transition);
            }
            let Some(record) = item(view) else {
                return Err(Stop::Refused(CompleteRefused::Stale(WorkStale::NotHeld).into()));
            };
            publish(record).map_err(Stop::Publish)?;
            Ok(transition)
        })?;
        match outcome {
            Ok(_) if before => Ok(Completion::Already),
            Ok(_) => Ok(Completion::Completed),
            Err(Stop::Refused(JobCompleteRefused::Work(CompleteRefused::Already))) => {
                Ok(Completion::Already)
            }
            Err(Stop::Refused(refused)) => Err(JobReplayError::Refused(refused)),
            Err(Stop::Publish(error)) => Err(JobReplayError::Publish(error)),
        }
    }

    /// Gives both parts up before the commit decision: the item may be claimed again, and so may every
    /// member of `group`.
    ///
    /// *Durability:* what is returned survives a power cut. *Refused:* nothing was written, not even
    /// in the part that is still held; that can be given up alone. *Failure:* see [`Failure`].
    pub fn abandon(
        &self,
        group: &TargetGroup,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<(), JobAbandonError> {
        let _done =
            self.run(&job_keys(group, id), now, |view| rules::abandon_job(view, group, token))??;
        Ok(())
    }

    fn claim_once(
        &self,
        keys: &[Key],
        targets: &ClaimRequest,
        item: &WorkClaim,
        now: Option<Timestamp>,
        patience: Duration,
    ) -> Result<JobLease, JobClaimError> {
        // Read before the engine reads its clocks, so that the lease ends here no later than there.
        let began = self.targets.world.clock.boottime();
        let mut updated = None;
        let request = ringfence_engine::Request { keys, now, patience };
        let done = self.targets.engine.decide(&request, |view| {
            updated = Some(view.moment.wall);
            rules::claim_job(view, targets, item)
        })??;
        let (Some(token), Some(updated)) = (done.token, updated) else {
            unreachable!("a grant without a token")
        };
        let work = WorkLease {
            id: item.id(),
            token: token.into(),
            generation: token.fence().0,
            expires_at: updated.after(item.ttl),
        };
        let (table, group) = (self.targets.clone(), targets.group.clone());
        let (fence, ttl) = (token.fence(), targets.ttl);
        let group = Lease::new(table, group, token.into(), fence, ttl, updated, began);
        Ok(JobLease { group, work })
    }

    fn run<R>(
        &self,
        keys: &[Key],
        now: Option<Timestamp>,
        rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Result<Result<Done, R>, Failure> {
        self.targets.engine.decide(&self.targets.request(keys, now), rule)
    }
}

/// A claim that waits.
struct Waiting<'a> {
    jobs: &'a JobTable,
    targets: &'a ClaimRequest,
    item: &'a WorkClaim,
    keys: &'a [Key],
    now: Option<Timestamp>,
}

impl Wait<JobClaimError> for Waiting<'_> {
    fn is_worth_it(&self, error: &JobClaimError) -> bool {
        error.is_worth_waiting()
    }

    fn in_the_way(&mut self) -> Option<JobClaimError> {
        let view = self.jobs.targets.engine.view(self.keys, self.now).ok()?;
        rules::claim_job(&view, self.targets, self.item).err().map(JobClaimError::Refused)
    }

    fn behind_others(&self) -> JobClaimError {
        // Itself is one of them.
        let all = self.jobs.targets.engine.waiting(self.keys);
        JobClaimError::Queued { before: all.saturating_sub(1).max(1) }
    }

    fn changes_within(&self, error: &JobClaimError) -> Option<Duration> {
        let period = self.jobs.targets.engine.default_ttl().duration() / 3;
        match error {
            JobClaimError::Refused(JobRefused::Group(refused)) => {
                Some(until_changed(&refused.conflicts, period))
            }
            JobClaimError::Refused(JobRefused::Work(WorkClaimRefused::Leased(holding))) => {
                Some(until_over(holding, period))
            }
            JobClaimError::Queued { .. } => Some(period),
            _ => None,
        }
    }

    fn cancelled(&self) -> JobClaimError {
        JobClaimError::Cancelled
    }
}

/// The group's keys and the item's, in key order.
fn job_keys(group: &TargetGroup, id: RecordId) -> Vec<Key> {
    let mut keys = keys(group);
    // Targets come before work items.
    keys.push(Key::work(id));
    keys
}

fn item(view: &View) -> Option<&WorkRecord> {
    view.entries.iter().find_map(|(_, entry)| match entry {
        Entry::Present(Record::Work(record)) => Some(record),
        _ => None,
    })
}

fn is_done(view: &View) -> bool {
    item(view).is_some_and(|record| record.status == WorkStatus::Done)
}
