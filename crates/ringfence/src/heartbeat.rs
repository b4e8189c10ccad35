//! Heartbeat: one group, or everything a coordinator holds in one batch.

use std::cell::Cell;
use std::collections::BTreeMap;

use ringfence_engine::{Failure, UnitOutcome};
use ringfence_model::rules::{self, Lost};
use ringfence_model::{Glance, Shown, TargetGroup, Timestamp, Token, View};

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
        // The last decision counts.
        let renewed = Cell::new(None);
        let _done = self.engine.decide_at_a_glance(
            &self.request(&keys(group), now),
            &mut |glance| {
                renewed.set(Some(renewal(glance, group)));
                rules::renew(glance, group, token)
            },
            |view| {
                renewed.set(Some(renewal(view, group)));
                rules::heartbeat(view, group, token)
            },
        )??;
        renewed.get().ok_or_else(|| unreachable!("a heartbeat without a decision"))
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
        // The last decision counts.
        let renewed: Vec<Cell<Option<Renewed>>> = vec![Cell::default(); leases.len()];
        let mut lost = BTreeMap::new();
        let mut glance = |index: usize, glance: &Glance| {
            let (group, token) = leases.get(index)?;
            let alike = rules::renew(glance, group, token)?;
            renewed.get(index)?.set(Some(renewal(glance, group)));
            Some(alike)
        };
        let mut decide = |index: usize, view: &View| {
            let (group, token) = leases.get(index)?;
            let decided = rules::heartbeat(view, group, token);
            renewed.get(index)?.set(decided.is_ok().then(|| renewal(view, group)));
            decided.map_err(|why| lost.insert(index, why)).ok()
        };
        let report = self.engine.transact_each_at_a_glance(&units, &mut glance, &mut decide);
        let undecided = || unreachable!("an outcome without its decision");
        let answer = |(index, (outcome, renewed)): (_, (_, Cell<Option<Renewed>>))| match outcome {
            UnitOutcome::Done(_) => renewed.get().map_or_else(undecided, Renewal::Renewed),
            UnitOutcome::Refused => lost.remove(&index).map_or_else(undecided, Renewal::Lost),
            UnitOutcome::Failed(failure) => Renewal::Failed(failure),
            UnitOutcome::NotBegun => Renewal::NotBegun,
        };
        let units = report.units.into_iter().zip(renewed).enumerate();
        let renewals = units.map(answer).collect();
        BatchedHeartbeat { renewals, directory_syncs: report.barriers }
    }
}

/// What [`rules::heartbeat`] makes of the group at the moment of `view`.
fn renewal<E: Shown>(view: &View<E>, group: &TargetGroup) -> Renewed {
    let updated = view.moment.wall;
    let ttls = view.holders().map(|holder| holder.ttl(view.default_ttl));
    let ttl = ttls.reduce(|a, b| if b < a { b } else { a });
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
