//! How job verbs fail. Each is a refusal (nothing was written, in either part) or a failure.

use ringfence_engine::Failure;
use ringfence_model::rules::{JobAbandonRefused, JobCompleteRefused, JobRefused, WorkClaimRefused};

/// Why a job was not claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobClaimError {
    /// Somebody holds part of the group, or the item is taken or done.
    #[error(transparent)]
    Refused(#[from] JobRefused),
    /// Others came before, and wait for the item or some of the targets; nothing was written.
    #[error("busy: {before} others wait for some of these targets already; wait as well")]
    Queued {
        /// How many they are.
        before: usize,
    },
    /// The wait was cancelled; nothing was written.
    #[error("the wait for the job was cancelled")]
    Cancelled,
    /// It failed; the failure says what was put back.
    #[error("the job was not claimed: {0}")]
    Failed(#[from] Failure),
}

impl JobClaimError {
    /// Whether the same claim may succeed later without anybody's intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(JobRefused::Group(refused)) => refused.damaged.is_empty(),
            // What is committing will be done, and what is done stays so.
            Self::Refused(refused) => {
                matches!(refused, JobRefused::Work(WorkClaimRefused::Leased(_)))
            }
            Self::Queued { .. } | Self::Cancelled => true,
            Self::Failed(failure) => failure.is_retryable(),
        }
    }

    pub(super) fn is_worth_waiting(&self) -> bool {
        !matches!(self, Self::Cancelled) && self.is_retryable()
    }
}

/// Why a job was not completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobCompleteError {
    /// The group is lost, or the item is not committing under the token.
    #[error(transparent)]
    Refused(#[from] JobCompleteRefused),
    /// It failed; repeating it is right.
    #[error("the job was not completed: {0}")]
    Failed(#[from] Failure),
}

/// Why a job's publication was not finished. The item stays committing, the group leased.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobReplayError<E> {
    /// The group is lost, or the item is not committing under the token.
    #[error(transparent)]
    Refused(JobCompleteRefused),
    /// The publication failed.
    #[error("the publication failed: {0}")]
    Publish(E),
    /// The store failed; what was published is published again by the next try.
    #[error("the job was not completed: {0}")]
    Failed(#[from] Failure),
}

/// Why a job was not given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobAbandonError {
    /// The group is lost, or the item is past its lease or superseded.
    #[error(transparent)]
    Refused(#[from] JobAbandonRefused),
    /// It failed.
    #[error("the job was not given up: {0}")]
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

retryable!(JobCompleteError, JobAbandonError);
