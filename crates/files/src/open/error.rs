//! Why a table was not made or opened.

use std::path::PathBuf;

use ringfence_engine::{Failure, StorageError};

use crate::binding::Restored;
use crate::meta::{Durability, MetaError, TableMeta};
use crate::probe::ProbeError;

/// Why a table was not opened; nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no table.
    #[error("{} is not a table: make one with `ringfence init`", root.display())]
    NotATable {
        /// The directory.
        root: PathBuf,
    },
    /// The description is damaged.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Somebody else could change the table.
    #[error("{} is not safe to use: {reason}", root.display())]
    Unsafe {
        /// The directory.
        root: PathBuf,
        /// Why.
        reason: String,
    },
    /// The description was edited: it says `record`, and the table has a place for intents.
    #[error(
        "{} says durability \"record\", but {} is of a table of durability \"group\": put the \
         description back as it was made",
        meta.display(), found.display()
    )]
    Contradicts {
        /// The description.
        meta: PathBuf,
        /// What contradicts it.
        found: PathBuf,
    },
    /// Something that `init` made is not there.
    #[error("{} is missing: `ringfence check STORE --repair` makes it again", missing.display())]
    Incomplete {
        /// What.
        missing: PathBuf,
    },
    /// The caller asked for the other durability.
    #[error(
        "{} is a table of durability {:?}, not {:?}: it keeps what it was made with; make another one \
         with `ringfence init --durability {}`",
        root.display(), found.as_str(), wanted.as_str(), wanted.as_str()
    )]
    OtherDurability {
        /// The directory.
        root: PathBuf,
        /// What was asked for.
        wanted: Durability,
        /// What it is.
        found: Durability,
    },
    /// It was put back from a backup, or is a copy.
    #[error(transparent)]
    Restored(#[from] Restored),
    /// The directory cannot carry the protocol.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// What a dead writer left could not be finished; it stands until it is.
    #[error("cannot finish what a dead writer left: {0}")]
    Recovery(#[source] Box<Failure>),
    /// The operating system refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a table was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// As when opening.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A table is there, made with other options.
    #[error(
        "{} is a table already, with {} shards, {} work shards, a ttl of {} and durability {:?}: \
         it keeps them",
        root.display(), meta.shards.get(), meta.work_shards.get(), meta.ttl,
        meta.durability.as_str()
    )]
    Differs {
        /// The directory.
        root: PathBuf,
        /// What is there.
        meta: Box<TableMeta>,
    },
    /// The directory holds something else.
    #[error("{} is not empty ({name:?} is in it): name a new directory", root.display())]
    NotEmpty {
        /// The directory.
        root: PathBuf,
        /// What is in it.
        name: String,
    },
    /// A record of another program is placed by another shard count.
    #[error("{} is not where {shards} shards would place it: give that table's count", path.display())]
    OtherShards {
        /// The record.
        path: PathBuf,
        /// The count asked for.
        shards: u16,
    },
    /// A lock failed.
    #[error(transparent)]
    Failure(Box<Failure>),
}

impl From<Failure> for InitError {
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure))
    }
}

impl From<MetaError> for InitError {
    fn from(error: MetaError) -> Self {
        Self::Open(error.into())
    }
}

impl From<ProbeError> for InitError {
    fn from(error: ProbeError) -> Self {
        Self::Open(error.into())
    }
}

impl From<StorageError> for InitError {
    fn from(error: StorageError) -> Self {
        Self::Open(error.into())
    }
}
