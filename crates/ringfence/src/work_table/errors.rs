//! How work verbs fail. Each is a refusal (nothing was written) or a failure.

use ringfence_engine::Failure;
use ringfence_model::rules::{
    AbandonRefused, BeginCommitRefused, CompleteRefused, WorkClaimRefused, WorkStale,
};

/// Why a work item was not claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkClaimError {
    /// Leased, committing, done or damaged.
    #[error(transparent)]
    Refused(#[from] WorkClaimRefused),
    /// It failed.
    #[error("the work claim failed: {0}")]
    Failed(#[from] Failure),
}

/// Why a work item was not renewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkHeartbeatError {
    /// The fence.
    #[error(transparent)]
    Stale(#[from] WorkStale),
    /// It failed; trying again before the lease expires is right.
    #[error("the work heartbeat failed: {0}")]
    Failed(#[from] Failure),
}

/// Why a commit was not decided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginCommitError {
    /// The fence, or decided before with another manifest.
    #[error(transparent)]
    Refused(#[from] BeginCommitRefused),
    /// It failed; repeating it with the same manifest is right, also when the outcome is unknown.
    #[error("the commit decision failed: {0}")]
    Failed(#[from] Failure),
}

/// Why a work item was not completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// The fence, or not yet committing.
    #[error(transparent)]
    Refused(#[from] CompleteRefused),
    /// It failed; repeating it is right.
    #[error("the completion failed: {0}")]
    Failed(#[from] Failure),
}

/// Why a work lease was not given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AbandonError {
    /// The fence, or past the commit decision.
    #[error(transparent)]
    Refused(#[from] AbandonRefused),
    /// It failed.
    #[error("the work lease was not given up: {0}")]
    Failed(#[from] Failure),
}

/// Why a publication was not finished. The item stays committing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError<E> {
    /// The fence, or not committing.
    #[error(transparent)]
    Refused(CompleteRefused),
    /// The publication failed.
    #[error("the publication failed: {0}")]
    Publish(E),
    /// The store failed; what was published is published again by the next try.
    #[error("the completion failed: {0}")]
    Failed(#[from] Failure),
}

macro_rules! retryable {
    ($($error:ty),+) => {$(
        impl $error {
            /// Whether the same call may succeed if it is made again.
            pub fn is_retryable(&self) -> bool {
                matches!(self, Self::Failed(failure) if failure.is_retryable())
            }
        }
    )+};
}

retryable!(WorkClaimError, WorkHeartbeatError, BeginCommitError, CompleteError, AbandonError);
