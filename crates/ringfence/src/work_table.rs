//! The work fence: one exact execution, one commit.
//!
//! `leased --begin_commit--> committing --complete--> done`
//!
//! W1. A result touches shared state only after begin-commit, which needs the current token.
//! W2. A committing item is never taken over by time; any coordinator may finish its publication.
//! W3. An attempt that was superseded is refused by every verb, even under the same owner's name.

mod errors;
mod finish;

use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Done, Engine, Failure, Request, StorageError};
use ringfence_env::World;
use ringfence_model::rules::{self, CompleteRefused, Holding, WorkClaim};
use ringfence_model::{
    Damage, Entry, Key, Owner, Payload, Record, RecordId, Space, Timestamp, Token, Transition, Ttl,
    View, WorkRecord, WorkStatus,
};

pub use errors::{
    AbandonError, BeginCommitError, CompleteError, ReplayError, WorkClaimError, WorkHeartbeatError,
};

use crate::target_table::PATIENCE;

/// The verbs on work items. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkTable {
    engine: Arc<dyn Engine>,
    world: World,
    patience: Duration,
}

/// A granted work item.
#[must_use = "a work lease that is dropped is not abandoned, it runs out by its ttl"]
#[derive(Clone, Debug, PartialEq)]
pub struct WorkLease {
    /// The item.
    pub id: RecordId,
    /// The token of this attempt.
    pub token: Token,
    /// Rises with every claim of this item.
    pub generation: u64,
    /// The first moment at which it is expired, by the wall clock.
    pub expires_at: Timestamp,
}

/// How a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// This call completed it.
    Completed,
    /// The same attempt had completed it before.
    Already,
}

/// A work item as stored.
#[derive(Clone, Debug)]
pub struct WorkItem {
    /// The item.
    pub id: RecordId,
    /// Its record, or what is stored instead of one.
    pub record: Result<WorkRecord, Damage>,
    /// Whether its lease has run out: whoever claims it takes over.
    pub expired: bool,
    /// Whether nothing was heard of its holder for a ttl, or its process is proven to be gone, also
    /// where no lease can run out any more, because the item is committing or done.
    pub silent: bool,
}

impl WorkTable {
    /// The table of an engine.
    pub fn on(engine: Arc<dyn Engine>, world: World) -> Self {
        Self { engine, world, patience: PATIENCE }
    }

    /// The same table with another patience for kernel locks.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Leases one exact execution, named by its payload.
    ///
    /// Refused while it is leased and not run out, while it is committing, and when it is done.
    pub fn claim(
        &self,
        payload: &Payload,
        owner: &Owner,
        worker: i64,
        ttl: Option<Ttl>,
        now: Option<Timestamp>,
    ) -> Result<WorkLease, WorkClaimError> {
        let request = WorkClaim {
            payload: payload.clone(),
            owner: owner.clone(),
            worker,
            ttl: ttl.unwrap_or(self.engine.default_ttl()),
        };
        let id = request.id();
        let mut expires_at = None;
        let done = self.run(id, now, |view| {
            expires_at = Some(view.moment.wall.after(request.ttl));
            rules::claim_work(view, &request)
        })??;
        let (Some(token), Some(expires_at)) = (done.token, expires_at) else {
            unreachable!("a grant without a token")
        };
        Ok(WorkLease { id, generation: token.fence().0, token: token.into(), expires_at })
    }

    /// Renews a leased item.
    pub fn heartbeat(
        &self,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<(), WorkHeartbeatError> {
        let _done = self.run(id, now, |view| rules::heartbeat_work(view, token))??;
        Ok(())
    }

    /// Takes the irreversible fencing decision, before a result touches shared state.
    ///
    /// `manifest` names by content digest what will be published. Repeating the call with the same
    /// manifest is accepted.
    pub fn begin_commit(
        &self,
        id: RecordId,
        token: &Token,
        manifest: &Payload,
        now: Option<Timestamp>,
    ) -> Result<(), BeginCommitError> {
        let _done = self.run(id, now, |view| rules::begin_commit(view, token, manifest))??;
        Ok(())
    }

    /// Marks a committing item as done.
    pub fn complete_once(
        &self,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<Completion, CompleteError> {
        match self.run(id, now, |view| rules::complete(view, token))? {
            Ok(_) => Ok(Completion::Completed),
            Err(CompleteRefused::Already) => Ok(Completion::Already),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Gives up a lease before the commit decision.
    pub fn abandon(
        &self,
        id: RecordId,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<(), AbandonError> {
        let _done = self.run(id, now, |view| rules::abandon(view, token))??;
        Ok(())
    }

    /// One item; `None` if it was never claimed, was abandoned, or was pruned.
    pub fn get(
        &self,
        id: RecordId,
        now: Option<Timestamp>,
    ) -> Result<Option<WorkItem>, StorageError> {
        let view = self.engine.view(&[Key::work(id)], now)?;
        let item = |(key, entry)| item(key, entry, &view.moment, view.default_ttl);
        Ok(view.entries.iter().cloned().find_map(item))
    }

    /// Every item, in id order.
    pub fn list(&self, now: Option<Timestamp>) -> Result<Vec<WorkItem>, StorageError> {
        let scan = self.engine.scan(Space::Work, now)?;
        let item = |(key, entry)| item(key, entry, &scan.moment, scan.default_ttl);
        Ok(scan.entries.into_iter().filter_map(item).collect())
    }

    fn run<R>(
        &self,
        id: RecordId,
        now: Option<Timestamp>,
        rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Result<Result<Done, R>, Failure> {
        let keys = [Key::work(id)];
        self.engine.decide(&Request { keys: &keys, now, patience: self.patience }, rule)
    }
}

fn item(
    key: Key,
    entry: Entry,
    moment: &ringfence_model::Moment,
    default_ttl: Ttl,
) -> Option<WorkItem> {
    let (record, expired, silent) = match entry {
        Entry::Present(Record::Work(record)) => {
            let silent = record.holder.is_expired(moment, default_ttl);
            let expired = silent && record.status == WorkStatus::Leased;
            (Ok(record), expired, silent)
        }
        Entry::Damaged(damage) => (Err(damage), false, false),
        Entry::Present(Record::Target(_)) | Entry::Vacant => return None,
    };
    Some(WorkItem { id: key.id, record, expired, silent })
}

impl WorkItem {
    /// The holder, as a refusal would describe it at `now`.
    pub fn holding(&self, now: Timestamp, default_ttl: Ttl) -> Option<Holding> {
        self.record.as_ref().ok().map(|record| Holding::of(&record.holder, now, default_ttl))
    }
}
