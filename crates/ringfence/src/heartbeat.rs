//! Heartbeat: one group, or everything a coordinator holds in one batch.

use ringfence_engine::{Failure, UnitOutcome};
use ringfence_model::rules::{self, Lost};
use ringfence_model::{TargetGroup, Timestamp, Token};

use crate::target_table::{KeysOfAll, TargetTable, keys, members};

/// A renewed lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Renewed {
    /// The one moment that every member was renewed at.
    pub updated: Timestamp,
    /// The first moment at which the group is expired, by the wall clock.
    pub expires_at: Timestamp,
}

impl TargetTable {
    /// Renews every member of `group`, all held under exactly `token`, with one common moment.
    ///
    /// A group that has expired but that nobody took over may still be renewed.
    /// *Durability:* a renewal that is returned survives a power cut. *Lost:* nothing was written.
    /// *Failure:* the lease is as it was, or for [`Failure::Unknown`] renewed in part; trying again
    /// is always right, because the token is compared and not the last renewal.
    pub fn heartbeat(
        &self,
        group: &TargetGroup,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<Renewed, HeartbeatError> {
        let mut renewed = None;
        let _done = self.engine.decide(&self.request(&keys(group), now), |view| {
            renewed = Some(renewal(view, group));
            rules::heartbeat(view, group, token)
        })??;
        renewed.ok_or_else(|| unreachable!("a heartbeat without a decision"))
    }

    /// Renews several groups that share the cost of becoming durable.
    ///
    /// Each group is renewed whole or not at all; the batch is not atomic. A lost or busy group does
    /// not hold the others back. After a failure no further group is begun, and what was already
    /// renewed is made durable and acknowledged all the same.
    pub fn heartbeat_many(
        &self,
        leases: &[(&TargetGroup, &Token)],
        now: Option<Timestamp>,
    ) -> BatchedHeartbeat {
        let mut keys = KeysOfAll::default();
        for (group, _) in leases {
            keys.push(members(group));
        }
        let units = keys.requests(self, now);
        let mut seen: Vec<Option<Result<Renewed, Lost>>> = leases.iter().map(|_| None).collect();
        let report = self.engine.transact_each(&units, &mut |index, view| {
            let (group, token) = leases.get(index)?;
            let (answer, transition) = match rules::heartbeat(view, group, token) {
                Ok(transition) => (Ok(renewal(view, group)), Some(transition)),
                Err(lost) => (Err(lost), None),
            };
            if let Some(slot) = seen.get_mut(index) {
                *slot = Some(answer);
            }
            transition
        });
        let answer = |(outcome, seen)| match (outcome, seen) {
            (UnitOutcome::Done(_), Some(Ok(renewed))) => Renewal::Renewed(renewed),
            (UnitOutcome::Refused, Some(Err(lost))) => Renewal::Lost(lost),
            (UnitOutcome::Failed(failure), _) => Renewal::Failed(failure),
            (UnitOutcome::NotBegun, _) => Renewal::NotBegun,
            _ => unreachable!("an outcome without its decision"),
        };
        let renewals = report.units.into_iter().zip(seen).map(answer).collect();
        BatchedHeartbeat { renewals, directory_syncs: report.barriers }
    }
}

/// What [`rules::heartbeat`] makes of the group at the moment of `view`.
fn renewal(view: &ringfence_model::View, group: &TargetGroup) -> Renewed {
    let updated = view.moment.wall;
    let ttl = view
        .entries
        .iter()
        .filter_map(|(_, entry)| match entry {
            ringfence_model::Entry::Present(record) => Some(record.holder().ttl(view.default_ttl)),
            _ => None,
        })
        .reduce(|a, b| if b < a { b } else { a });
    debug_assert_eq!(view.entries.len(), group.len(), "a view of the group");
    Renewed { updated, expires_at: updated.after(ttl.unwrap_or(view.default_ttl)) }
}

/// How a batch of heartbeats ended.
#[derive(Debug)]
#[must_use = "a lease may be lost"]
pub struct BatchedHeartbeat {
    /// One answer per group, in the order they were given.
    pub renewals: Vec<Renewal>,
    /// Directory syncs of the whole batch.
    pub directory_syncs: u64,
}

impl BatchedHeartbeat {
    /// The first failure, if any.
    pub fn first_failure(&self) -> Option<&Failure> {
        self.renewals.iter().find_map(|renewal| match renewal {
            Renewal::Failed(failure) => Some(failure),
            _ => None,
        })
    }
}

/// How one group of a batch ended.
#[derive(Debug)]
pub enum Renewal {
    /// Renewed, durably.
    Renewed(Renewed),
    /// No longer held under the token; nothing was written.
    Lost(Lost),
    /// Failed; try again before the lease expires.
    Failed(Failure),
    /// Not begun, because an earlier one failed; try again before the lease expires.
    NotBegun,
}

/// Why a group was not renewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeartbeatError {
    /// It is no longer held under the token; nothing was written.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// It failed; the lease may still be renewed before it expires.
    #[error("the heartbeat failed: {0}")]
    Failed(#[from] Failure),
}

impl HeartbeatError {
    /// Whether the same heartbeat may succeed if it is made again.
    pub fn is_retryable(&self) -> bool {
        // Also after an unknown outcome: the token is compared, not the last renewal.
        matches!(self, Self::Failed(_))
    }
}
