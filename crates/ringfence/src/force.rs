//! Force-release: an operator removes a lease by naming its token.

use ringfence_engine::Failure;
use ringfence_model::rules::{self, ForceRefused};
use ringfence_model::{TargetGroup, Token};

use crate::target_table::{TargetTable, keys};

impl TargetTable {
    /// Removes every member of `group` whose token is exactly `token`, whoever holds it.
    ///
    /// For a damaged record the token is the digest that `show` and `check` print. One audit line
    /// with `reason` is durable before the release is. *Refused:* nothing was written.
    ///
    /// The holder, if it lives, finds its lease lost at its next heartbeat; until then it may still
    /// work. Only its fence keeps its results out.
    pub fn force_release(
        &self,
        group: &TargetGroup,
        token: &Token,
        reason: &str,
    ) -> Result<(), ForceReleaseError> {
        let _done = self.engine.decide(&self.request(&keys(group), None), |view| {
            rules::force_release(view, group, token, reason)
        })??;
        Ok(())
    }
}

/// Why a group was not force-released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForceReleaseError {
    /// Not held, or held under another token; nothing was written.
    #[error(transparent)]
    Refused(#[from] ForceRefused),
    /// It failed; the failure says what was put back.
    #[error("the force-release failed: {0}")]
    Failed(#[from] Failure),
}

impl ForceReleaseError {
    /// Whether the same call may succeed if it is made again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.is_retryable())
    }
}
