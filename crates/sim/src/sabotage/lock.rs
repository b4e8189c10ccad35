//! Locks that break their promise.

use std::io;
use std::sync::Arc;

use ringfence_env::{LockFd, LockMode};

/// A lock that everybody gets.
#[derive(Debug)]
pub(super) struct NoLock(pub(super) Box<dyn LockFd>);

impl LockFd for NoLock {
    fn try_lock(&self, _mode: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        self.0.is_unlinked()
    }
}

/// A lock that somebody else may give up.
#[derive(Debug)]
pub(super) struct SharedLock(pub(super) Arc<dyn LockFd>);

impl LockFd for SharedLock {
    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        self.0.try_lock(mode)
    }

    fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        self.0.is_unlinked()
    }
}
