//! Why a table was not moved.

use std::path::PathBuf;

use ringfence_engine::{Failure, StorageError};
use ringfence_files::CheckError;

use crate::store::OpenError;

/// Why a table was not moved. But for [`MigrateError::Unfinished`] the old place is in use as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The old place could not be opened: it is no table, is not safe, was restored, or was moved.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something is at the new place.
    #[error("{} exists: name a place where nothing is", to.display())]
    Exists {
        /// The new place.
        to: PathBuf,
    },
    /// The old place and the new one are the same.
    #[error("{} is where the table is: name another place", at.display())]
    Same {
        /// Both.
        at: PathBuf,
    },
    /// One of the two places is inside of the other.
    #[error("{} and {} lie within each other: name a place outside of the table", from.display(), to.display())]
    Nested {
        /// The old place.
        from: PathBuf,
        /// The new place.
        to: PathBuf,
    },
    /// Another move to the new place was begun.
    #[error(
        "{} is in the way: another table is being moved to the same place, or its move was given up; \
         look at it, then remove it",
        staging.display()
    )]
    Occupied {
        /// Where new tables are made.
        staging: PathBuf,
    },
    /// Operations were under way all the time, or what a dead writer left could not be finished.
    #[error("the table could not be held still: {0}")]
    NotStill(#[source] Failure),
    /// It was changed while everybody was kept out: by another program than Ringfence.
    #[error("{} is being changed by another program: stop it first", root.display())]
    Changing {
        /// The old place.
        root: PathBuf,
    },
    /// Something in it is damaged or out of place.
    #[error(
        "the table is not sound: {}; see `ringfence check`, repair it or force-release what is damaged, \
         then move it",
        findings.join("; ")
    )]
    NotSound {
        /// What was found.
        findings: Vec<String>,
    },
    /// The old place could not be looked over.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The new table was not made.
    #[error(transparent)]
    Files(#[from] ringfence_files::InitError),
    /// The new table was not made.
    #[error(transparent)]
    Journal(#[from] ringfence_journal::InitError),
    /// A record was not stored in the new table.
    #[error("the new table was not filled: {0}")]
    Fill(#[from] Failure),
    /// What was stored there does not read back as what was carried over.
    #[error("the new table does not hold what the old one does")]
    NotAlike,
    /// No fence is left above those of the old table.
    #[error("the fences of the table are exhausted")]
    Exhausted,
    /// The operating system refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// It is decided: the old place is closed. The same move finishes what is left, and so does
    /// whoever opens the new place.
    #[error("the table was moved, but the move is not finished: {0}; move it again to finish")]
    Unfinished(#[source] StorageError),
}
