//! A kernel lock with a deadline.
//!
//! L1. The kernel frees the lock when its holder dies; nobody ever breaks it by age.
//! L2. Waiting ends at a deadline on the monotonic clock and then fails closed.
//! L3. A lock that was won on a file that has since been removed is not used: the name is opened
//!     again, so two processes never each hold "the" lock on two files of one name.
//! L4. The lock is given up explicitly, and only by the process that took it: a forked child that
//!     drops its copy frees nothing, and a child that keeps the descriptor open holds nothing back.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::{Clock, Deadline};
use crate::fs::{Fs, LockFd, LockMode};
use crate::process_id::process_id;

/// A held kernel lock; released when dropped.
#[must_use = "a lock that is dropped is released"]
#[derive(Debug)]
pub struct FileLock {
    fd: Box<dyn LockFd>,
    path: PathBuf,
    creator: u32,
}

const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

impl FileLock {
    /// Takes the lock on the file `path`, waiting until `deadline` at the latest.
    ///
    /// The file is created with `mode` if it is missing and `create` is given; it is never removed.
    /// At least one attempt is made, even past the deadline.
    pub fn acquire(
        fs: &dyn Fs,
        clock: &dyn Clock,
        path: &Path,
        wanted: LockMode,
        create: Option<u32>,
        deadline: Deadline,
    ) -> Result<Self, LockError> {
        let started = clock.monotonic();
        let fail = |source| LockError::Io { path: path.to_owned(), source };
        let mut pause = FIRST_PAUSE;
        let mut fd = Self::open(fs, path, create)?;
        loop {
            if fd.try_lock(wanted).map_err(fail)? {
                if !fd.is_unlinked().map_err(fail)? {
                    let creator = process_id();
                    return Ok(Self { fd, path: path.to_owned(), creator });
                }
                fd = Self::open(fs, path, create)?;
            }
            let left = clock.left(deadline);
            if left.is_zero() {
                let waited = clock.monotonic().saturating_sub(started);
                return Err(LockError::Busy { path: path.to_owned(), waited });
            }
            clock.sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn open(fs: &dyn Fs, path: &Path, create: Option<u32>) -> Result<Box<dyn LockFd>, LockError> {
        fs.open_lock(path, create.is_some(), create.unwrap_or(0)).map_err(|source| {
            if source.kind() == io::ErrorKind::InvalidInput {
                LockError::NotRegular { path: path.to_owned() }
            } else {
                LockError::Io { path: path.to_owned(), source }
            }
        })
    }

    /// Lets programs that this process starts keep the lock as well, see
    /// [`LockFd::share_with_children`].
    pub fn share_with_children(&self) -> io::Result<()> {
        self.fd.share_with_children()
    }

    /// The file that is locked.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if process_id() == self.creator {
            // Closing releases it too, unless a forked child still has it open.
            let _ = self.fd.unlock();
        }
    }
}

/// Why a kernel lock was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody held it until the deadline.
    #[error("the kernel lock {} was held by another process for {waited:?}", path.display())]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The name is a directory, a link, a pipe or a device.
    #[error("{} is not a regular file: remove it, lock files are made as needed", path.display())]
    NotRegular {
        /// The name.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("locking {} failed", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::real::RealFs;

    fn take(path: &Path, mode: LockMode, patience: Duration) -> Result<FileLock, LockError> {
        let deadline = SystemClock.deadline(patience);
        FileLock::acquire(&RealFs, &SystemClock, path, mode, Some(0o600), deadline)
    }

    #[test]
    fn a_held_lock_is_busy_until_the_deadline_and_free_after_drop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let held = take(&path, LockMode::Exclusive, Duration::ZERO).unwrap();
        let patience = Duration::from_millis(60);
        match take(&path, LockMode::Shared, patience) {
            Err(LockError::Busy { waited, .. }) => assert!(waited >= patience, "{waited:?}"),
            other => panic!("{other:?}"),
        }
        drop(held);
        let one = take(&path, LockMode::Shared, Duration::ZERO).unwrap();
        let two = take(&path, LockMode::Shared, Duration::ZERO).unwrap();
        drop((one, two));
        drop(take(&path, LockMode::Exclusive, Duration::ZERO).unwrap());
    }

    #[test]
    fn a_lock_won_on_a_removed_file_is_taken_again_on_the_current_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let old = take(&path, LockMode::Exclusive, Duration::ZERO).unwrap();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || take(&path, LockMode::Exclusive, Duration::from_mins(1))
        });
        SystemClock.sleep(Duration::from_millis(30));
        RealFs.unlink(&path).unwrap();
        drop(old);
        let held = waiter.join().unwrap().unwrap();
        let second = take(&path, LockMode::Exclusive, Duration::ZERO);
        assert!(matches!(second, Err(LockError::Busy { .. })), "{second:?}");
        drop(held);
    }

    #[test]
    fn links_directories_and_pipes_are_no_lock_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        drop(take(&file, LockMode::Exclusive, Duration::ZERO).unwrap());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [link.as_path(), pipe.as_path()] {
            let got = take(path, LockMode::Exclusive, Duration::ZERO);
            assert!(matches!(got, Err(LockError::NotRegular { .. })), "{got:?}");
        }
        let got = take(dir.path(), LockMode::Exclusive, Duration::ZERO);
        assert!(got.is_err());
    }
}
