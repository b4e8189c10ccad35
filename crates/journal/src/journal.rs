//! One open table: its files, its replica, and the locks of its steps.
//!
//! Locks are taken in this order and no other: append, sync, maintain. Each is a kernel lock, so it
//! ends with its holder's process, and a guard of this process's threads around it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, LockFd, LockMode, World, process_id};

use crate::checkpoint::CheckpointError;
use crate::hints::{APPEND, Hints, SYNC};
use crate::layout::{FILE_MODE, Layout};
use crate::lives::Ended;
use crate::meta::TableMeta;
use crate::replica::{Follow, ReadError, Replica, Tail};
use crate::segment::Segments;
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard};

/// An open table.
#[derive(Debug)]
pub struct Journal {
    pub(crate) world: World,
    pub(crate) layout: Layout,
    pub(crate) meta: TableMeta,
    /// The table's identity as a number, for checksums.
    pub(crate) table: u64,
    pub(crate) segments: Segments,
    pub(crate) hints: Hints,
    pub(crate) replica: Mutex<Replica>,
    /// Whether a sync of ours counts for every frame there is.
    pub(crate) vouched: AtomicBool,
    /// The last segment that is known to be ready.
    pub(crate) ready: AtomicU64,
    /// Lives that have ended, as far as this process has asked.
    pub(crate) ended: Ended,
    /// Absent where the table was opened for reading.
    pub(crate) locks: Option<Locks>,
}

/// The kernel locks, each with a guard for the threads of this process.
#[derive(Debug)]
pub(crate) struct Locks {
    append: Mutex<Box<dyn LockFd>>,
    sync: Mutex<Box<dyn LockFd>>,
    maintain: Mutex<Box<dyn LockFd>>,
    /// A forked child has the same locks as its parent: they would not exclude each other.
    process: u32,
}

impl Locks {
    pub(crate) fn open(world: &World, layout: &Layout) -> io::Result<Self> {
        let open = |path: &Path| world.fs.open_lock(path, true, FILE_MODE).map(Mutex::new);
        Ok(Self {
            append: open(&layout.append_lock())?,
            sync: open(&layout.sync_lock())?,
            maintain: open(&layout.maintain_lock())?,
            process: process_id(),
        })
    }
}

/// A held lock; given up when dropped.
#[must_use = "a lock that is dropped is given up"]
#[derive(Debug)]
pub(crate) struct Held<'a> {
    fd: MutexGuard<'a, Box<dyn LockFd>>,
    tell: Option<(&'a Hints, usize, bool)>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The kernel frees it at the latest when the process ends.
        let _ = self.fd.unlock();
        if let Some((hints, word, all)) = self.tell {
            hints.tell(word, all);
        }
    }
}

/// What a step that may have to wait for a lock does next.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    Append,
    Sync,
    Maintain,
}

impl Journal {
    fn locks(&self) -> Result<&Locks, StorageError> {
        let root = self.layout.root();
        let locks = self.locks.as_ref().ok_or_else(|| {
            let why = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
            StorageError::new("change a table that was opened for reading at", root.display(), why)
        })?;
        if locks.process != process_id() {
            let why = io::Error::other("a forked process must open it for itself");
            return Err(StorageError::new("change", root.display(), why));
        }
        Ok(locks)
    }

    /// Whether this process may change the table through this handle at all; says which process it is.
    pub(crate) fn is_writable(&self) -> Result<u32, StorageError> {
        self.locks().map(|locks| locks.process)
    }

    /// Takes a lock if it is free.
    pub(crate) fn try_lock(&self, which: Which) -> Result<Option<Held<'_>>, StorageError> {
        self.try_lock_of(self.locks()?, which)
    }

    fn try_lock_of<'a>(
        &'a self,
        locks: &'a Locks,
        which: Which,
    ) -> Result<Option<Held<'a>>, StorageError> {
        let (lock, tell) = match which {
            Which::Append => (&locks.append, Some((&self.hints, APPEND, false))),
            Which::Sync => (&locks.sync, Some((&self.hints, SYNC, true))),
            Which::Maintain => (&locks.maintain, None),
        };
        let fd = match lock.try_lock() {
            Ok(fd) => fd,
            // Whoever panicked while he held it changed nothing that the next holder does not check.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        match fd.try_lock(LockMode::Exclusive) {
            Ok(true) => Ok(Some(Held { fd, tell })),
            Ok(false) => Ok(None),
            Err(source) => Err(StorageError::new("lock", self.path_of(which).display(), source)),
        }
    }

    fn path_of(&self, which: Which) -> PathBuf {
        match which {
            Which::Append => self.layout.append_lock(),
            Which::Sync => self.layout.sync_lock(),
            Which::Maintain => self.layout.maintain_lock(),
        }
    }

    /// Takes a lock, waiting until `deadline`.
    pub(crate) fn lock(&self, which: Which, deadline: Deadline) -> Result<Held<'_>, Failure> {
        let began = self.world.clock.monotonic();
        let word = match which {
            Which::Append => APPEND,
            Which::Sync | Which::Maintain => SYNC,
        };
        let locks = self.locks().map_err(Failure::Untouched)?;
        loop {
            let seen = self.hints.seen(word);
            if let Some(held) = self.try_lock_of(locks, which).map_err(Failure::Untouched)? {
                return Ok(held);
            }
            let left = self.world.clock.left(deadline);
            if left.is_zero() {
                let what = self.path_of(which);
                let waited = self.world.clock.monotonic().saturating_sub(began);
                return Err(Failure::Busy { what: what.display().to_string(), waited });
            }
            self.hints.wait(word, seen, left);
        }
    }

    /// The replica of this process.
    pub(crate) fn replica(&self) -> MutexGuard<'_, Replica> {
        // A panic while it was held left it between two frames at worst: it is in its chain.
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the replica to the end of the journal as anybody sees it who holds no lock.
    pub(crate) fn catch_up(&self, replica: &mut Replica) -> Result<Tail, ReadError> {
        self.catch_up_until(replica, &|_| false)
    }

    /// The same for somebody who stores nothing without looking again: where the end is known he does not
    /// look for it. H4.
    pub(crate) fn catch_up_to_look(&self, replica: &mut Replica) -> Result<Tail, ReadError> {
        self.catch_up_until(replica, &|replica| self.is_known_to_be_at_the_end(replica))
    }

    fn catch_up_until(
        &self,
        replica: &mut Replica,
        is_end: &dyn Fn(&Replica) -> bool,
    ) -> Result<Tail, ReadError> {
        for _ in 0..16 {
            if is_end(replica) {
                return Ok(Tail::End);
            }
            let (segments, table) = (&self.segments, self.table);
            let tail = replica.follow(segments, table, Follow { is_end, ..Follow::default() })?;
            // V1. A mark that could not be written counts all the same.
            let tail = match self.hints.failed(replica.epoch()) {
                Some(durable) if tail == Tail::End => Tail::Failed { durable },
                _ => tail,
            };
            match tail {
                Tail::End => return Ok(Tail::End),
                // What was dropped may have been applied already.
                Tail::Failed { durable } => {
                    let fresh = self.load(durable)?;
                    let same = fresh.epoch() == replica.epoch();
                    replica.replace(fresh);
                    if same {
                        return Ok(Tail::Failed { durable });
                    }
                }
                tail @ (Tail::Recycled | Tail::Closed) => {
                    let fresh = self.load(u64::MAX)?;
                    let closed = tail == Tail::Closed && fresh.is_closed();
                    replica.replace(fresh);
                    if closed {
                        return Ok(Tail::Closed);
                    }
                }
            }
        }
        Err(ReadError::NoSegment)
    }

    /// Whether nothing was appended behind this. H4.
    ///
    /// What a table that was moved says instead is read: its mover takes back what was told.
    fn is_known_to_be_at_the_end(&self, replica: &Replica) -> bool {
        let (epoch, at) = (replica.epoch(), replica.at);
        self.hints.is_end(epoch, at.segment, at.sequence) && self.hints.failed(epoch).is_none()
    }

    /// The state after the frame `until`, or at the end, from the files alone.
    pub(crate) fn load(&self, until: u64) -> Result<Replica, ReadError> {
        let how = Follow { until, ..Follow::default() };
        let mut replica = Replica::load(&*self.world.fs, &self.layout, &self.segments, self.table)?;
        for _ in 0..16 {
            match replica.follow(&self.segments, self.table, how)? {
                Tail::Recycled => {
                    replica =
                        Replica::load(&*self.world.fs, &self.layout, &self.segments, self.table)?;
                }
                Tail::Failed { durable } if replica.at.sequence > durable => {
                    replica =
                        Replica::load(&*self.world.fs, &self.layout, &self.segments, self.table)?;
                    replica.follow(&self.segments, self.table, Follow { until: durable, ..how })?;
                    return Ok(replica);
                }
                _ => return Ok(replica),
            }
        }
        Err(ReadError::NoSegment)
    }

    /// A failure to read, as engines report it.
    pub(crate) fn read_error(&self, error: ReadError) -> StorageError {
        let source = match error {
            ReadError::Io(source) | ReadError::Checkpoint(CheckpointError::Io(source)) => source,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        };
        StorageError::new("read the journal of", self.layout.root().display(), source)
    }

    /// A deadline for what must end but has no patience of its own.
    pub(crate) fn long(&self) -> Deadline {
        self.world.clock.deadline(Duration::from_secs(30))
    }
}
