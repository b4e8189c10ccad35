//! Claim: the whole group or nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringfence_engine::Failure;
use ringfence_model::rules::{self, ClaimRefused, ClaimRequest};
use ringfence_model::{Key, Owner, OwnerError, Payload, TargetGroup, Timestamp, Ttl};

use crate::lease::Lease;
use crate::target_table::{TargetTable, keys};
use crate::wait::{Patience, Wait, until_changed};

/// Who claims, and how.
#[derive(Clone, Debug)]
pub struct Claim {
    pub(crate) owner: Owner,
    pub(crate) worker: i64,
    pub(crate) payload: Payload,
    pub(crate) ttl: Option<Ttl>,
    pub(crate) wait: Option<Duration>,
    pub(crate) now: Option<Timestamp>,
    pub(crate) cancelled: Option<Arc<AtomicBool>>,
}

impl Claim {
    /// A claim by `owner`: worker 0, no payload, the table's ttl, no waiting.
    pub fn by(owner: &str) -> Result<Self, OwnerError> {
        Ok(Self::by_owner(Owner::new(owner)?))
    }

    /// The same with a checked name.
    pub fn by_owner(owner: Owner) -> Self {
        Self {
            owner,
            worker: 0,
            payload: Payload::empty(),
            ttl: None,
            wait: None,
            now: None,
            cancelled: None,
        }
    }

    /// The caller's number for the worker that will run the job.
    #[must_use]
    pub fn worker(self, worker: i64) -> Self {
        Self { worker, ..self }
    }

    /// An object to store with every member.
    #[must_use]
    pub fn payload(self, payload: Payload) -> Self {
        Self { payload, ..self }
    }

    /// How long the lease lasts without a heartbeat. It is stored with the lease: a contender with
    /// a shorter ttl of its own waits all the same.
    #[must_use]
    pub fn ttl(self, ttl: Ttl) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Waits this long in all for the whole group, kernel locks included.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Replaces every clock: for tests and for campaigns with their own clock.
    #[must_use]
    pub fn now(self, now: Timestamp) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Stops waiting soon after the flag is set.
    #[must_use]
    pub fn cancelled_by(self, flag: Arc<AtomicBool>) -> Self {
        Self { cancelled: Some(flag), ..self }
    }

    /// What the rule is asked.
    pub(crate) fn request(&self, group: &TargetGroup, default_ttl: Ttl) -> ClaimRequest {
        ClaimRequest {
            group: group.clone(),
            owner: self.owner.clone(),
            worker: self.worker,
            payload: self.payload.clone(),
            ttl: self.ttl.unwrap_or(default_ttl),
        }
    }
}

impl TargetTable {
    /// Leases every member of `group`, or none.
    ///
    /// *Durability:* a lease that is returned survives a power cut. *Refused:* nothing was written.
    /// *Failure:* see [`Failure`]; only [`Failure::Unknown`] may have granted anything, and what it
    /// granted expires by itself. The caller must not assume that readers see the members change at
    /// one instant.
    ///
    /// *Order:* where the engine keeps a queue (the journal does), whoever came first is served first,
    /// for every target by itself. While somebody waits for a target, a claim that does not wait is
    /// refused, also if the target is free; so no waiter is starved, however large its group is.
    /// Without a queue it is luck.
    pub fn claim(&self, group: &TargetGroup, claim: &Claim) -> Result<Lease, ClaimError> {
        let request = claim.request(group, self.engine.default_ttl());
        let keys = keys(group);
        let Some(wait) = claim.wait else {
            return match self.engine.waiting(&keys) {
                0 => self.claim_once(&request, claim.now, self.patience),
                before => Err(ClaimError::Queued { before }),
            };
        };
        let place = self.engine.queue(&keys).map_err(Failure::Untouched)?;
        let patience = Patience::new(&self.world, wait, claim.cancelled.clone());
        let waiting = Waiting { table: self, request: &request, keys: &keys, now: claim.now };
        let try_once = |one_try| self.claim_once(&request, claim.now, one_try);
        patience.spend(place.as_deref(), try_once, waiting)
    }

    fn claim_once(
        &self,
        request: &ClaimRequest,
        now: Option<Timestamp>,
        patience: Duration,
    ) -> Result<Lease, ClaimError> {
        let keys = keys(&request.group);
        // Read before the engine reads its clocks, so that the lease ends here no later than there.
        let began = self.world.clock.boottime();
        let mut updated = None;
        let done = self.engine.decide(
            &ringfence_engine::Request { keys: &keys, now, patience },
            |view| {
                updated = Some(view.moment.wall);
                rules::claim(view, request)
            },
        )??;
        let (Some(token), Some(updated)) = (done.token, updated) else {
            unreachable!("a grant without a token")
        };
        let group = request.group.clone();
        Ok(Lease::new(
            self.clone(),
            group,
            token.into(),
            token.fence(),
            request.ttl,
            updated,
            began,
        ))
    }
}

/// A claim that waits.
struct Waiting<'a> {
    table: &'a TargetTable,
    request: &'a ClaimRequest,
    keys: &'a [Key],
    now: Option<Timestamp>,
}

impl Wait<ClaimError> for Waiting<'_> {
    fn is_worth_it(&self, error: &ClaimError) -> bool {
        error.is_worth_waiting()
    }

    fn in_the_way(&mut self) -> Option<ClaimError> {
        // Looking costs no lock: a claim is only worth it once nobody is in the way.
        let view = self.table.engine.view(self.keys, self.now).ok()?;
        rules::claim(&view, self.request).err().map(ClaimError::Refused)
    }

    fn behind_others(&self) -> ClaimError {
        // Itself is one of them.
        ClaimError::Queued { before: self.table.engine.waiting(self.keys).saturating_sub(1).max(1) }
    }

    fn changes_within(&self, error: &ClaimError) -> Option<Duration> {
        let period = self.table.engine.default_ttl().duration() / 3;
        match error {
            ClaimError::Refused(refused) => Some(until_changed(&refused.conflicts, period)),
            ClaimError::Queued { .. } => Some(period),
            _ => None,
        }
    }

    fn cancelled(&self) -> ClaimError {
        ClaimError::Cancelled
    }
}

/// Why a group was not claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Somebody holds part of it; nothing was written.
    #[error(transparent)]
    Refused(#[from] ClaimRefused),
    /// Others came before, and wait for some of the targets; nothing was written.
    #[error("busy: {before} others wait for some of these targets already; wait as well")]
    Queued {
        /// How many they are.
        before: usize,
    },
    /// The wait was cancelled; nothing was written.
    #[error("the wait for the group was cancelled")]
    Cancelled,
    /// It failed; the failure says what was put back.
    #[error("the claim failed: {0}")]
    Failed(#[from] Failure),
}

impl ClaimError {
    /// Whether the same claim may succeed later without anybody's intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.damaged.is_empty(),
            Self::Queued { .. } | Self::Cancelled => true,
            Self::Failed(failure) => failure.is_retryable(),
        }
    }

    fn is_worth_waiting(&self) -> bool {
        !matches!(self, Self::Cancelled) && self.is_retryable()
    }
}
