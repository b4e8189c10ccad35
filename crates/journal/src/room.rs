//! What is said where there is no room.

use std::io;

use ringfence_engine::StorageError;

use crate::checkpoint::CheckpointError;
use crate::frame::SECTOR;
use crate::hints::no_room_for_words;
use crate::journal::Journal;

/// A disk or quota is full, and what would help; the source of the error that is told.
#[derive(Debug, thiserror::Error)]
#[error(
    "{source}. The first change since this host started, and one after a failed sync, needs room for a \
     second checkpoint: make room for {need} bytes there, or raise the quota, and try again; leases are \
     as they were"
)]
#[non_exhaustive]
pub struct NoRoom {
    /// Bytes that are needed; twice that where the file system copies what it changes.
    pub need: u64,
    /// What the system said.
    pub source: io::Error,
}

/// A disk or quota is full, and a page of the memory that processes share cannot be changed for it; the
/// source of the error that is told.
#[derive(Debug, thiserror::Error)]
#[error(
    "no room is left on the disk, or in its quota, for a page of the memory that processes share: make \
     room for a megabyte there, or raise the quota, and try again"
)]
#[non_exhaustive]
pub struct NoRoomForWords;

impl Journal {
    /// Why something could not be told to others, who must know it.
    pub(crate) fn not_told(&self, operation: &'static str) -> StorageError {
        StorageError::new(operation, self.layout.hints().display(), no_room_for_words())
    }

    /// Why a checkpoint was not written.
    pub(crate) fn not_written(&self, error: CheckpointError) -> StorageError {
        let source = match error {
            CheckpointError::Io(source) => source,
            // Of what was read for it.
            damaged @ CheckpointError::Damaged { .. } => return self.read_error(damaged.into()),
        };
        let source = if is_full(&source) {
            let now = self.world.fs.stat(&self.layout.checkpoint()).map_or(0, |stat| stat.len);
            // One more block of records, and blocks of the file system.
            let need = (now + 16 * 1024).next_multiple_of(SECTOR as u64);
            io::Error::new(source.kind(), NoRoom { need, source })
        } else {
            source
        };
        StorageError::new("write a checkpoint of", self.layout.root().display(), source)
    }
}

/// Whether an error says that a disk or quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
