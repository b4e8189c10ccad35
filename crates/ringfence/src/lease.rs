//! A granted group.

use std::time::Duration;

use ringfence_model::{Fence, TargetGroup, Timestamp, Token, Ttl};

use crate::heartbeat::HeartbeatError;
use crate::release::ReleaseError;
use crate::target_table::TargetTable;

/// A group that was granted under one token.
///
/// Dropping it releases nothing: the lease then runs out by itself. That is deliberate, because a
/// release can fail and a drop cannot say so.
#[must_use = "a lease that is dropped is not released, it runs out by its ttl"]
#[derive(Debug)]
pub struct Lease {
    table: TargetTable,
    group: TargetGroup,
    token: Token,
    fence: Fence,
    ttl: Ttl,
    updated: Timestamp,
    /// The boot-time clock just before the last grant or renewal began.
    renewed: Duration,
}

impl Lease {
    pub(crate) fn new(
        table: TargetTable,
        group: TargetGroup,
        token: Token,
        fence: Fence,
        ttl: Ttl,
        updated: Timestamp,
        renewed: Duration,
    ) -> Self {
        Self { table, group, token, fence, ttl, updated, renewed }
    }

    /// The group.
    pub fn group(&self) -> &TargetGroup {
        &self.group
    }

    /// The token, compared whole by the table.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The number that downstream systems compare: larger than that of every earlier grant.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// How long it lasts without a heartbeat.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The last grant or heartbeat, by the wall clock.
    pub fn updated(&self) -> Timestamp {
        self.updated
    }

    /// The first moment at which it is expired, by the wall clock.
    pub fn expires_at(&self) -> Timestamp {
        self.updated.after(self.ttl)
    }

    /// The boot-time clock at which it is surely not held by us any more, unless renewed: counted
    /// from before the last renewal began, and running on in suspend.
    pub fn expires_boottime(&self) -> Duration {
        self.renewed.saturating_add(self.ttl.duration())
    }

    /// The table that granted it.
    pub fn table(&self) -> &TargetTable {
        &self.table
    }

    /// Renews it; see [`TargetTable::heartbeat`].
    pub fn heartbeat(&mut self) -> Result<(), HeartbeatError> {
        let began = self.table.world.clock.boottime();
        let renewed = self.table.heartbeat(&self.group, &self.token, None)?;
        self.updated = renewed.updated;
        self.renewed = began;
        Ok(())
    }

    /// Gives it back; see [`TargetTable::release`]. On failure the lease is handed back.
    pub fn release(self) -> Result<(), NotReleased> {
        match self.table.release(&self.group, &self.token, None) {
            Ok(()) => Ok(()),
            Err(error) => Err(NotReleased { lease: Box::new(self), error: Box::new(error) }),
        }
    }
}

/// A release that did not happen, with the lease.
#[derive(Debug, thiserror::Error)]
#[error("the lease was not released")]
pub struct NotReleased {
    /// The lease, to try again.
    pub lease: Box<Lease>,
    /// Why.
    #[source]
    pub error: Box<ReleaseError>,
}
