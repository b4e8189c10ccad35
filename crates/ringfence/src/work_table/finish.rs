//! Finishing what others left: publication, expired leases, old results.

use std::time::Duration;

use ringfence_engine::{Request, StorageError};
use ringfence_model::rules::{self, CompleteRefused, WorkStale};
use ringfence_model::{Entry, Key, Record, RecordId, Timestamp, Token, WorkRecord, WorkStatus};

use super::{Completion, ReplayError, WorkItem, WorkTable};
use crate::force::ForceReleaseError;

impl WorkTable {
    /// Publishes a committing item's manifest under the record's lock, then completes it.
    ///
    /// `publish` is called for the current committing attempt only, whoever it belonged to, and may
    /// be called again after a crash: publication must be idempotent, which it is when objects are
    /// named by their content digest. If it fails, the item stays committing, to be tried again by
    /// any coordinator.
    pub fn replay_commit_once<E>(
        &self,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
        mut publish: impl FnMut(&WorkRecord) -> Result<(), E>,
    ) -> Result<Completion, ReplayError<E>> {
        enum Stop<E> {
            Refused(CompleteRefused),
            Publish(E),
        }
        let outcome = self.run(id, now, |view| {
            let transition = rules::complete(view, token).map_err(Stop::Refused)?;
            let [(_, Entry::Present(Record::Work(record)))] = view.entries.as_slice() else {
                return Err(Stop::Refused(WorkStale::NotHeld.into()));
            };
            publish(record).map_err(Stop::Publish)?;
            Ok(transition)
        })?;
        match outcome {
            Ok(_) => Ok(Completion::Completed),
            Err(Stop::Refused(CompleteRefused::Already)) => Ok(Completion::Already),
            Err(Stop::Refused(refused)) => Err(ReplayError::Refused(refused)),
            Err(Stop::Publish(error)) => Err(ReplayError::Publish(error)),
        }
    }

    /// Leased items whose ttl has passed: whoever claims them takes over.
    pub fn recover_expired(&self, now: Option<Timestamp>) -> Result<Vec<WorkItem>, StorageError> {
        Ok(self.list(now)?.into_iter().filter(|item| item.expired).collect())
    }

    /// Items whose publication has to be finished, whether or not their coordinator lives.
    pub fn recover_committing(
        &self,
        now: Option<Timestamp>,
    ) -> Result<Vec<WorkItem>, StorageError> {
        let committing = |item: &WorkItem| {
            item.record.as_ref().is_ok_and(|record| record.status == WorkStatus::Committing)
        };
        Ok(self.list(now)?.into_iter().filter(committing).collect())
    }

    /// Removes an item's record whose token is exactly `token`, whatever its state.
    ///
    /// For a damaged record the token is the digest that [`WorkTable::list`] shows. One audit line
    /// with `reason` is durable before the removal is. *Refused:* nothing was written.
    pub fn force_release(
        &self,
        id: RecordId,
        token: &Token,
        reason: &str,
    ) -> Result<(), ForceReleaseError> {
        let _done =
            self.run(id, None, |view| rules::force_release_work(view, id, token, reason))??;
        Ok(())
    }

    /// Removes done items that were completed longer ago than `age`; returns how many.
    ///
    /// A pruned execution may be claimed and run again; a late attempt of it is still refused,
    /// because no record bears its token.
    pub fn prune_done(&self, age: Duration, now: Option<Timestamp>) -> Result<usize, StorageError> {
        let wall = match now {
            Some(now) => now,
            None => Timestamp::from_unix(self.world.clock.wall()),
        };
        let before = (wall.seconds() - age.as_secs_f64()).max(0.0);
        let Ok(before) = Timestamp::from_seconds(before) else { return Ok(0) };
        let done = |item: &WorkItem| {
            item.record.as_ref().is_ok_and(|record| {
                record.status == WorkStatus::Done
                    && record.holder.updated.seconds() < before.seconds()
            })
        };
        let keys: Vec<[Key; 1]> =
            self.list(now)?.iter().filter(|item| done(item)).map(|i| [Key::work(i.id)]).collect();
        let units: Vec<Request<'_>> =
            keys.iter().map(|keys| Request { keys, now, patience: self.patience }).collect();
        let report =
            self.engine.transact_each(&units, &mut |_, view| rules::prune_done(view, before));
        let mut pruned = 0;
        for unit in report.units {
            match unit {
                ringfence_engine::UnitOutcome::Done(_) => pruned += 1,
                ringfence_engine::UnitOutcome::Failed(failure) => {
                    let error = std::io::Error::other(failure.to_string());
                    return Err(StorageError::new("prune", "done work items", error));
                }
                _ => {}
            }
        }
        Ok(pruned)
    }
}
