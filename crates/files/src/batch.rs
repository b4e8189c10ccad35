//! Mutations of names whose directory syncs are shared.
//!
//! M5. Each directory is synced once, in the order in which it was first noted.
//! M9. A replacement that crosses directories is refused before the rename: its two directories
//!     would need an order that this batch does not keep.
//!
//! A directory is noted only after the operation in it succeeded.

use std::io;
use std::path::{Path, PathBuf};

use ringfence_engine::StorageError;
use ringfence_env::Fs;

/// When a noted directory is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// Once per directory, at the end.
    Batched,
    /// At once after each mutation: the reference that the batch is measured against.
    PerRecord,
}

/// A batch of replacements and removals.
#[must_use = "nothing in a batch is durable before it is flushed"]
#[derive(Debug)]
pub struct DirectorySyncBatch<'f> {
    fs: &'f dyn Fs,
    barriers: Barriers,
    pending: Vec<PathBuf>,
    synced: u64,
}

impl<'f> DirectorySyncBatch<'f> {
    /// An empty batch.
    pub fn new(fs: &'f dyn Fs, barriers: Barriers) -> Self {
        Self { fs, barriers, pending: Vec::new(), synced: 0 }
    }

    /// Replaces `path` by `temp`, which must be in the same directory.
    pub fn replace(&mut self, temp: &Path, path: &Path) -> Result<(), StorageError> {
        let fail = |source| StorageError::new("replace", path.display(), source);
        if temp.parent() != path.parent() {
            let why = "a batched replacement must stay in its directory";
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        self.fs.rename(temp, path).map_err(fail)?;
        self.note(path)
    }

    /// Removes `path`.
    pub fn unlink(&mut self, path: &Path) -> Result<(), StorageError> {
        let fail = |source| StorageError::new("remove", path.display(), source);
        self.fs.unlink(path).map_err(fail)?;
        self.note(path)
    }

    /// Notes the directory of a name whose change is to become durable.
    pub fn note(&mut self, path: &Path) -> Result<(), StorageError> {
        let dir = path.parent().unwrap_or(path);
        match self.barriers {
            Barriers::PerRecord => return self.sync(dir),
            Barriers::Batched if self.pending.iter().any(|noted| noted == dir) => {}
            Barriers::Batched => self.pending.push(dir.to_owned()),
        }
        Ok(())
    }

    /// Syncs every noted directory; the number of syncs of the whole batch is returned.
    ///
    /// Stops at the first failure; then nothing noted may be assumed durable.
    pub fn flush(mut self) -> Result<u64, StorageError> {
        for dir in std::mem::take(&mut self.pending) {
            self.sync(&dir)?;
        }
        Ok(self.synced)
    }

    /// The same, but goes on after a failure: what can become durable does.
    pub fn flush_every(mut self) -> Result<u64, Unsynced> {
        let mut failed: Option<Unsynced> = None;
        for dir in std::mem::take(&mut self.pending) {
            if let Err(error) = self.sync(&dir) {
                let unsynced = failed.get_or_insert(Unsynced { error, dirs: Vec::new() });
                unsynced.dirs.push(dir);
            }
        }
        failed.map_or(Ok(self.synced), Err)
    }

    fn sync(&mut self, dir: &Path) -> Result<(), StorageError> {
        self.synced += 1;
        let fail = |source| StorageError::new("sync directory", dir.display(), source);
        self.fs.sync_dir(dir).map_err(fail)
    }
}

/// Directories that could not be synced: nothing noted in them may be assumed durable.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unsynced {
    /// The first failure.
    #[source]
    pub error: StorageError,
    /// Every directory that failed, in the order in which they were noted.
    pub dirs: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_env::fault::{Call, FaultFs};
    use ringfence_env::{RealFs, steps};
    use std::sync::Arc;

    #[test]
    fn m9_a_batch_refuses_to_cross_directories_before_the_rename() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        RealFs.mkdir(&one, 0o700).unwrap();
        RealFs.mkdir(&two, 0o700).unwrap();
        let (from, to) = (one.join("x.tmp"), two.join("x"));
        steps::stage_synced(&RealFs, &from, b"bytes", 0o600).unwrap();
        let fs = FaultFs::new(Arc::new(RealFs));
        let mut batch = DirectorySyncBatch::new(&fs, Barriers::Batched);
        let error = batch.replace(&from, &to).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(batch.flush().unwrap(), 0, "nothing was noted");
        assert_eq!((fs.count(Call::Rename), fs.count(Call::SyncDir)), (0, 0));
        assert!(from.exists() && !to.exists());
    }

    #[test]
    fn m5_each_directory_is_synced_once_and_only_after_its_operation_succeeded() {
        let dir = tempfile::tempdir().unwrap();
        let fs = FaultFs::new(Arc::new(RealFs));
        let mut batch = DirectorySyncBatch::new(&fs, Barriers::Batched);
        for name in ["a", "b", "c"] {
            let temp = dir.path().join(format!("{name}.tmp"));
            steps::stage_synced(&fs, &temp, b"x", 0o600).unwrap();
            batch.replace(&temp, &dir.path().join(name)).unwrap();
        }
        batch.unlink(&dir.path().join("a")).unwrap();
        batch.unlink(&dir.path().join("missing/x")).unwrap_err();
        assert_eq!(batch.flush().unwrap(), 1);
        assert_eq!(fs.count(Call::SyncDir), 1);
    }
}
