//! How a call ends.

use std::fmt;
use std::io;
use std::time::Duration;

use ringfence_model::FencingToken;

/// The end of a transaction that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a refused transaction changed nothing"]
pub enum Outcome {
    /// Stored whole and durable.
    Done(Done),
    /// The rule refused; nothing was written.
    Refused,
}

/// A transaction that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The token, if it was a grant.
    pub token: Option<FencingToken>,
    /// Directory syncs (or the engine's like) that it took to become durable.
    pub barriers: u64,
}

/// A transaction that failed. Never success, never a refusal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The exclusion was not to be had in time. Nothing was written.
    #[error("{what} stayed locked for {waited:?}")]
    Busy {
        /// What was locked.
        what: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It failed before anything was changed.
    #[error("nothing was changed")]
    Untouched(#[source] StorageError),
    /// It failed on the way; exactly what was there before was put back, durably.
    #[error("the previous state was put back")]
    Restored(#[source] StorageError),
    /// It failed on the way, and putting the old state back failed too. The members named may be
    /// old or new; read them before acting.
    #[error(
        "the outcome is unknown for {}: putting the previous state back failed too ({restore})",
        .members.join(", ")
    )]
    Unknown {
        /// What failed first.
        source: StorageError,
        /// What failed while the old state was put back.
        restore: StorageError,
        /// The records whose state is not known.
        members: Vec<String>,
    },
}

impl Failure {
    /// Whether the state before the call is certainly the state after it.
    pub fn restored(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    /// Whether the same call may succeed if it is simply made again.
    pub fn is_retryable(&self) -> bool {
        self.restored()
    }

    /// The failed operation, if it is not [`Failure::Busy`].
    pub fn storage(&self) -> Option<&StorageError> {
        match self {
            Self::Busy { .. } => None,
            Self::Untouched(error) | Self::Restored(error) => Some(error),
            Self::Unknown { source, .. } => Some(source),
        }
    }
}

/// One operation on the store that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {location}: {source}")]
pub struct StorageError {
    /// What was tried: `sync`, `replace`, ...
    pub operation: &'static str,
    /// On what: a path, a key.
    pub location: String,
    /// Why not.
    pub source: io::Error,
}

impl StorageError {
    /// Names a failed operation.
    pub fn new(operation: &'static str, location: impl fmt::Display, source: io::Error) -> Self {
        Self { operation, location: location.to_string(), source }
    }
}

/// How a batch of independent units ended.
#[derive(Debug)]
#[must_use = "a unit may have been refused or have failed"]
pub struct EachReport {
    /// One outcome per unit, in the order of the request.
    pub units: Vec<UnitOutcome>,
    /// Directory syncs (or the engine's like) of the whole batch.
    pub barriers: u64,
}

/// How one unit of a batch ended.
#[derive(Debug)]
pub enum UnitOutcome {
    /// Stored whole and durable.
    Done(Option<FencingToken>),
    /// Its rule refused; nothing was written.
    Refused,
    /// It failed.
    Failed(Failure),
    /// An earlier unit failed; this one was not begun.
    NotBegun,
}
