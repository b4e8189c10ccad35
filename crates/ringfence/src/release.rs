//! Release: the whole group or nothing.

use ringfence_engine::Failure;
use ringfence_model::rules::{self, Lost};
use ringfence_model::{TargetGroup, Timestamp, Token};

use crate::target_table::{TargetTable, keys};

impl TargetTable {
    /// Gives every member of `group` back, all held under exactly `token`; expiry does not matter.
    ///
    /// *Durability:* a release that is returned survives a power cut. *Lost:* nothing was removed,
    /// not even the members that are still held. *Failure:* see [`Failure`]; releasing again is
    /// right after every one that is retryable.
    pub fn release(
        &self,
        group: &TargetGroup,
        token: &Token,
        now: Option<Timestamp>,
    ) -> Result<(), ReleaseError> {
        let _done = self.engine.decide_at_a_glance(
            &self.request(&keys(group), now),
            &mut |glance| rules::give_back(glance, group, token),
            |view| rules::release(view, group, token),
        )??;
        Ok(())
    }
}

/// Why a group was not released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It is not held under the token as a whole; nothing was written.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// It failed; the failure says what was put back.
    #[error("the release failed: {0}")]
    Failed(#[from] Failure),
}

impl ReleaseError {
    /// Whether the same release may succeed if it is made again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Lost(_) => false,
            Self::Failed(failure) => failure.is_retryable(),
        }
    }
}
