//! What ends a campaign or one of its coordinators.

use std::io;
use std::path::{Path, PathBuf};

/// Why a campaign could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be used.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The store could not be made or opened.
    #[error("the lease store: {0}")]
    Store(String),
    /// The campaign directory is for something else; nothing was changed.
    #[error("{} belongs to another campaign: {reason}", dir.display())]
    Bound {
        /// The campaign directory.
        dir: PathBuf,
        /// What differs.
        reason: String,
    },
    /// A file of the campaign is not what it must be.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        reason: String,
    },
    /// The worker cannot be used at all.
    #[error("the worker: {0}")]
    Worker(String),
    /// A process could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// An option makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }
}
