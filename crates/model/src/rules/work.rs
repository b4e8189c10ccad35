//! The work fence: claim, heartbeat, begin-commit, complete, abandon.
//!
//! `leased --begin_commit--> committing --complete--> done`
//!
//! Begin-commit is the fencing decision: it is taken before a result touches shared state, it cannot
//! be undone, and no clock takes a committing item away.

use std::sync::Arc;

use super::holding::Holding;
use crate::id::RecordId;
use crate::json::Object;
use crate::owner::Owner;
use crate::payload::Payload;
use crate::record::{Granted, History, Holder, Record, WorkRecord, WorkStatus};
use crate::time::{Timestamp, Ttl};
use crate::token::{Fence, Token};
use crate::view::{Alike, Damage, Edit, Entry, Grant, Key, Space, Transition, View};

/// What a work claim asks for.
#[derive(Clone, Debug)]
pub struct WorkClaim {
    /// The exact execution; its canonical text names the item.
    pub payload: Payload,
    /// Who asks.
    pub owner: Owner,
    /// The caller's number for the worker.
    pub worker: i64,
    /// How long the lease lasts without a heartbeat.
    pub ttl: Ttl,
}

impl WorkClaim {
    /// The item's id: the digest of its canonical payload.
    pub fn id(&self) -> RecordId {
        RecordId::of_work(self.payload.as_str())
    }
}

/// Grants the item if it is new, or leased and run out.
///
/// # Panics
/// If the view is not of exactly this item: an engine that passes it is broken.
pub fn claim_work(view: &View, request: &WorkClaim) -> Result<Transition, WorkClaimRefused> {
    let id = request.id();
    assert!(items(view).iter().all(|(key, _)| *key == Key::work(id)), "a view of this item");
    let mut above = view.highest_fence();
    let history = match entry(view) {
        Seen::Vacant => History::first(),
        Seen::Damaged(damage) => return Err(WorkClaimRefused::Damaged(damage)),
        Seen::Present(old) => {
            let holding = || Holding::seen(&old.holder, view);
            match old.status {
                WorkStatus::Done => return Err(WorkClaimRefused::Done),
                WorkStatus::Committing => {
                    return Err(WorkClaimRefused::Committing(Box::new(holding())));
                }
                WorkStatus::Leased if !old.holder.is_expired(&view.moment, view.default_ttl) => {
                    return Err(WorkClaimRefused::Leased(Box::new(holding())));
                }
                WorkStatus::Leased => {
                    // Another program counts generations by itself; the next must rise above its.
                    above = above.max(Fence(old.generation));
                    old.history.taken_over(&old.holder.owner, request.owner.as_str())
                }
            }
        }
    };
    let (updated, writer) = (view.moment.wall, Arc::clone(&view.writer));
    let (owner, worker) = (request.owner.to_shared(), request.worker);
    let (payload, ttl) = (request.payload.clone(), request.ttl);
    Ok(Transition::Grant(Grant::new(above, move |token| {
        let grant = Granted { owner, worker, token: token.into(), ttl: Some(ttl), payload };
        let record = WorkRecord {
            id,
            status: WorkStatus::Leased,
            holder: Holder { grant: Arc::new(grant), updated, writer: Some(writer) },
            history,
            generation: token.fence().0,
            manifest: None,
            extra: Object::new(),
        };
        vec![Edit { key: Key::work(id), to: Some(Record::Work(record)) }]
    })))
}

/// Renews a leased item under exactly `token`.
pub fn heartbeat_work(view: &View, token: &Token) -> Result<Transition, WorkStale> {
    leased_under(view, token)?;
    Ok(Transition::Alike(Alike::renewal(view)))
}

/// Takes the fencing decision. Repeating it with the same manifest is accepted.
pub fn begin_commit(
    view: &View,
    token: &Token,
    manifest: &Payload,
) -> Result<Transition, BeginCommitRefused> {
    let record = under(view, token)?;
    match record.status {
        WorkStatus::Leased => Ok(put(WorkRecord {
            status: WorkStatus::Committing,
            manifest: Some(manifest.clone()),
            holder: record.holder.renewed(view),
            ..record.clone()
        })),
        // Stored once more: the first call may have died before its decision was durable.
        WorkStatus::Committing if record.manifest.as_ref() == Some(manifest) => {
            Ok(put(record.clone()))
        }
        WorkStatus::Committing => Err(BeginCommitRefused::OtherManifest),
        WorkStatus::Done => Err(BeginCommitRefused::Done),
    }
}

/// Marks a committing item as published.
pub fn complete(view: &View, token: &Token) -> Result<Transition, CompleteRefused> {
    let record = under(view, token)?;
    match record.status {
        WorkStatus::Committing => Ok(put(WorkRecord {
            status: WorkStatus::Done,
            holder: record.holder.renewed(view),
            ..record.clone()
        })),
        WorkStatus::Done => Err(CompleteRefused::Already),
        WorkStatus::Leased => Err(CompleteRefused::NotCommitting),
    }
}

/// Removes a lease before the commit decision.
pub fn abandon(view: &View, token: &Token) -> Result<Transition, AbandonRefused> {
    let record = under(view, token)?;
    match record.status {
        WorkStatus::Leased => {
            Ok(Transition::edits(vec![Edit { key: Key::work(record.id), to: None }]))
        }
        WorkStatus::Committing => Err(AbandonRefused::Committing),
        WorkStatus::Done => Err(AbandonRefused::Done),
    }
}

/// Removes a done item that was completed before `before`; anything else stays.
///
/// A late writer of a pruned item is refused as stale: its token is in no record.
pub fn prune_done(view: &View, before: Timestamp) -> Option<Transition> {
    match entry(view) {
        Seen::Present(record)
            if record.status == WorkStatus::Done
                && record.holder.updated.seconds() < before.seconds() =>
        {
            Some(Transition::edits(vec![Edit { key: Key::work(record.id), to: None }]))
        }
        _ => None,
    }
}

enum Seen<'v> {
    Vacant,
    Present(&'v WorkRecord),
    Damaged(Damage),
}

/// The part of a view that is of work items; it comes last.
fn items(view: &View) -> &[(Key, Entry)] {
    let begin = view.entries.partition_point(|(key, _)| key.space != Space::Work);
    view.entries.get(begin..).unwrap_or_default()
}

fn entry(view: &View) -> Seen<'_> {
    match items(view) {
        [(_, Entry::Vacant)] => Seen::Vacant,
        [(_, Entry::Present(Record::Work(record)))] => Seen::Present(record),
        [(_, Entry::Damaged(damage))] => Seen::Damaged(damage.clone()),
        _ => unreachable!("a view of one work item"),
    }
}

pub(super) fn under<'v>(view: &'v View, token: &Token) -> Result<&'v WorkRecord, WorkStale> {
    match entry(view) {
        Seen::Present(record) if record.holder.token == *token => Ok(record),
        Seen::Present(record) => Err(WorkStale::OtherToken(Holding::seen(&record.holder, view))),
        Seen::Vacant => Err(WorkStale::NotHeld),
        Seen::Damaged(damage) => Err(WorkStale::Damaged(damage)),
    }
}

fn leased_under<'v>(view: &'v View, token: &Token) -> Result<&'v WorkRecord, WorkStale> {
    let record = under(view, token)?;
    if record.status == WorkStatus::Leased { Ok(record) } else { Err(WorkStale::NotLeased) }
}

fn put(record: WorkRecord) -> Transition {
    Transition::edits(vec![Edit { key: Key::work(record.id), to: Some(Record::Work(record)) }])
}

/// Why a work claim was refused; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkClaimRefused {
    /// Leased and not run out.
    #[error("the work item is {0}")]
    Leased(Box<Holding>),
    /// Its result is being published; any coordinator may finish that.
    #[error("the work item is committing, {0}")]
    Committing(Box<Holding>),
    /// Published already.
    #[error("the work item is done")]
    Done,
    /// The record is damaged.
    #[error("the work item has a damaged record: {0}")]
    Damaged(Damage),
}

/// The caller's token is not the item's; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkStale {
    /// No record: abandoned, pruned, or never claimed.
    #[error("the work item is not held")]
    NotHeld,
    /// Superseded.
    #[error("the attempt was superseded: the work item is {0}")]
    OtherToken(Holding),
    /// Past the lease: committing or done.
    #[error("the work item is no longer leased: its commit was decided")]
    NotLeased,
    /// The record is damaged.
    #[error("the work item has a damaged record: {0}")]
    Damaged(Damage),
}

/// Why a commit decision was refused; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BeginCommitRefused {
    /// The fence: another attempt holds the item, or nobody does.
    #[error(transparent)]
    Stale(#[from] WorkStale),
    /// Decided before, with another manifest.
    #[error("the commit was decided with another manifest")]
    OtherManifest,
    /// Done before.
    #[error("the work item is done")]
    Done,
}

/// Why a completion changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteRefused {
    /// The same token completed it before.
    #[error("the work item was completed before by this attempt")]
    Already,
    /// The fence.
    #[error(transparent)]
    Stale(#[from] WorkStale),
    /// No commit decision yet.
    #[error("the work item is leased: begin the commit first")]
    NotCommitting,
}

/// Why a work lease could not be given up; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AbandonRefused {
    /// The fence.
    #[error(transparent)]
    Stale(#[from] WorkStale),
    /// The commit was decided; it must be finished.
    #[error("the work item is committing: finish its publication instead")]
    Committing,
    /// Published already.
    #[error("the work item is done")]
    Done,
}
