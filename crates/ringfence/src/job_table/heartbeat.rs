//! Heartbeats of everything a coordinator runs, in one batch.

use ringfence_engine::{Failure, UnitOutcome};
use ringfence_model::rules::{self, Lost, WorkStale};
use ringfence_model::{Glance, Key, RecordId, TargetGroup, Timestamp, Token, Transition, View};

use super::JobTable;
use crate::target_table::{KeysOfAll, members};

/// One part of a job.
#[derive(Clone, Copy, Debug)]
pub enum JobPart<'a> {
    /// Its group.
    Group(&'a TargetGroup),
    /// Its work item.
    Item(RecordId),
}

impl JobTable {
    /// Renews parts of any number of jobs, each under its token, sharing the cost of becoming durable:
    /// one sync on the engine `journal`, one for each directory that is touched on `files`.
    ///
    /// Each part is renewed whole or not at all, by itself; the batch is not atomic. A part that is
    /// lost or busy does not hold the others back. After a failure no further part is begun, and what
    /// was already renewed is made durable and acknowledged all the same.
    ///
    /// *Durability:* a renewal that is returned survives a power cut. *Lost:* nothing was written in
    /// that part. *Failure:* as [`TargetTable::heartbeat`](crate::TargetTable::heartbeat); trying again
    /// is always right.
    pub fn heartbeat_many(
        &self,
        parts: &[(JobPart<'_>, &Token)],
        now: Option<Timestamp>,
    ) -> JobHeartbeats {
        let mut keys = KeysOfAll::default();
        for (part, _) in parts {
            match part {
                JobPart::Group(group) => keys.push(members(group)),
                JobPart::Item(id) => keys.push(std::iter::once(Key::work(*id))),
            }
        }
        let units = keys.requests(&self.targets, now);
        let mut lost: Vec<Option<PartLost>> = parts.iter().map(|_| None).collect();
        let mut glance = |index: usize, glance: &Glance| match parts.get(index)? {
            (JobPart::Group(group), token) => rules::renew(glance, group, token),
            (JobPart::Item(_), _) => None,
        };
        let mut decide = |index: usize, view: &View| {
            let (part, token) = parts.get(index)?;
            let renewed = part.renew(view, token);
            let (transition, why) = match renewed {
                Ok(transition) => (Some(transition), None),
                Err(why) => (None, Some(why)),
            };
            // The last decision counts.
            if let Some(slot) = lost.get_mut(index) {
                *slot = why;
            }
            transition
        };
        let engine = &self.targets.engine;
        let report = engine.transact_each_at_a_glance(&units, &mut glance, &mut decide);
        let answer = |(outcome, lost)| match (outcome, lost) {
            (UnitOutcome::Done(_), _) => PartRenewal::Renewed,
            (UnitOutcome::Refused, Some(lost)) => PartRenewal::Lost(lost),
            (UnitOutcome::Failed(failure), _) => PartRenewal::Failed(failure),
            (UnitOutcome::NotBegun, _) => PartRenewal::NotBegun,
            (UnitOutcome::Refused, None) => unreachable!("refused without asking the rule"),
        };
        let parts = report.units.into_iter().zip(lost).map(answer).collect();
        JobHeartbeats { parts, barriers: report.barriers }
    }
}

impl JobPart<'_> {
    fn renew(&self, view: &View, token: &Token) -> Result<Transition, PartLost> {
        Ok(match self {
            Self::Group(group) => rules::heartbeat(view, group, token)?,
            Self::Item(_) => rules::heartbeat_work(view, token)?,
        })
    }
}

/// How a batch of heartbeats of jobs ended.
#[derive(Debug)]
#[must_use = "a lease may be lost"]
pub struct JobHeartbeats {
    /// One answer per part, in the order they were given.
    pub parts: Vec<PartRenewal>,
    /// What the whole batch cost: syncs of the journal, or of directories.
    pub barriers: u64,
}

/// How one part of a batch ended.
#[derive(Debug)]
pub enum PartRenewal {
    /// Renewed, durably.
    Renewed,
    /// No longer held under the token; nothing was written.
    Lost(PartLost),
    /// Failed; try again before the lease expires.
    Failed(Failure),
    /// Not begun, because an earlier one failed; try again before the lease expires.
    NotBegun,
}

/// Why a part of a job is not held any more.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartLost {
    /// The group.
    #[error(transparent)]
    Group(#[from] Lost),
    /// The work item. One whose commit was decided is not leased any more either.
    #[error(transparent)]
    Item(#[from] WorkStale),
}
