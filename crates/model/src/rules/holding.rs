//! Who is in the way: what every refusal says.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::record::Holder;
use crate::target::Target;
use crate::time::{Timestamp, Ttl};
use crate::token::{Fence, Token};
use crate::view::{Damage, View};

/// A holder as a refusal describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    /// The owner's name.
    pub owner: Arc<str>,
    /// The owner's worker number.
    pub worker: i64,
    /// The host that wrote the record last, where known.
    pub host: Option<Arc<str>>,
    /// The process there, where known.
    pub pid: Option<u32>,
    /// The token; what force-release needs.
    pub token: Token,
    /// The token's fence, where Ringfence granted it.
    pub fence: Option<Fence>,
    /// The last grant or heartbeat.
    pub updated: Timestamp,
    /// The first moment at which it is expired, by the wall clock.
    pub expires_at: Timestamp,
    /// Seconds until then from the moment of the view; negative when past.
    pub expires_in: f64,
    /// Whether it is over earlier if the process that it is tied to ends.
    pub tied: bool,
}

impl Holding {
    /// Describes a holder at the moment of `view`.
    pub fn of(holder: &Holder, wall: Timestamp, default_ttl: Ttl) -> Self {
        let expires_at = holder.expires_at(default_ttl);
        Self {
            owner: Arc::clone(&holder.owner),
            worker: holder.worker,
            host: holder.writer.as_ref().map(|writer| Arc::clone(&writer.host)),
            pid: holder.writer.as_ref().map(|writer| writer.pid),
            token: holder.token.clone(),
            fence: holder.token.fence(),
            updated: holder.updated,
            expires_at,
            expires_in: expires_at.seconds() - wall.seconds(),
            tied: holder
                .writer
                .as_ref()
                .and_then(|w| w.boot.as_ref())
                .is_some_and(|b| b.life.is_some()),
        }
    }

    pub(super) fn seen(holder: &Holder, view: &View) -> Self {
        Self::of(holder, view.moment.wall, view.default_ttl)
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held by {:?} (worker {}", self.owner, self.worker)?;
        if let Some(host) = &self.host {
            // From a record that anybody may have written: no control character reaches a terminal.
            write!(f, ", host {}", host.escape_debug())?;
        }
        if let Some(pid) = self.pid {
            write!(f, ", pid {pid}")?;
        }
        if let Some(fence) = self.fence {
            write!(f, ", fence {fence}")?;
        }
        if self.expires_in >= 0.0 {
            write!(f, "), {:.1} s left", self.expires_in)
        } else {
            write!(f, "), expired by the wall clock {:.1} s ago", -self.expires_in)
        }
    }
}

/// One target of a group that somebody else holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// The target.
    pub target: Target,
    /// Its holder.
    pub holding: Holding,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target {} is {}", self.target, self.holding)
    }
}

/// One target of a group whose record is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedMember {
    /// The target.
    pub target: Target,
    /// What is stored instead of a record.
    pub damage: Damage,
}

/// The caller's token no longer holds the whole group; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the lease is lost: {}", join(.members))]
pub struct Lost {
    /// Every member that is not held under the caller's token.
    pub members: Vec<LostMember>,
}

/// Why one member is not held under the caller's token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LostMember {
    /// No record: it was released, or never claimed.
    NotHeld(Target),
    /// Under another token.
    OtherToken(Conflict),
    /// The record is damaged.
    Damaged(DamagedMember),
}

impl fmt::Display for LostMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHeld(target) => write!(f, "target {target} is not held"),
            Self::OtherToken(conflict) => conflict.fmt(f),
            Self::Damaged(member) => {
                write!(f, "target {} has a damaged record: {}", member.target, member.damage)
            }
        }
    }
}

/// Joins what a refusal names; long lists are cut after the first eight.
pub(super) fn join<T: fmt::Display>(items: &[T]) -> String {
    let mut text = items.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if let Some(more) = items.len().checked_sub(8).filter(|more| *more > 0) {
        let _ = write!(text, "; and {more} more");
    }
    text
}
