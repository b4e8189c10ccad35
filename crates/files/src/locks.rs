//! The locks of one transaction.
//!
//! M1. Every lock is taken in id order and given up in reverse order, so that overlapping groups
//!     wait for each other but never in a circle.
//!
//! The gate comes first: every operation of Ringfence shares it, and repair, which removes lock
//! files, takes it alone. Other programs of this line do not know the gate.

use std::io;
use std::path::Path;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, FileLock, LockError, LockMode, World};

use crate::layout::{FILE_MODE, Layout, RecordPaths};
use crate::make::mark;
use crate::{make, moving};

/// The locks on the members of one transaction.
#[must_use = "locks that are dropped are released"]
#[derive(Debug)]
pub struct GroupLocks {
    members: Vec<FileLock>,
    _gate: FileLock,
}

impl Drop for GroupLocks {
    fn drop(&mut self) {
        while self.members.pop().is_some() {}
    }
}

/// Takes the gate (shared) and the lock of every record, in the order given, all by one deadline.
pub fn lock_all(
    world: &World,
    layout: &Layout,
    records: &[RecordPaths],
    deadline: Deadline,
) -> Result<GroupLocks, Failure> {
    let mut gate = acquire(world, &layout.gate(), LockMode::Shared, deadline)?;
    // K2. A directory that a dying repair made is not relied on.
    let mut doubted = Vec::new();
    if mark::stands(world, layout).map_err(Failure::Untouched)? {
        gate = moving::let_pass(world, layout, gate, deadline)?;
        moving::refuse_closed(world, layout).map_err(Failure::Untouched)?;
        doubted = mark::doubted(world, layout).map_err(Failure::Untouched)?;
        mark::refuse(&doubted, &layout.intents()).map_err(Failure::Untouched)?;
    }
    let mut locks = GroupLocks { members: Vec::with_capacity(records.len()), _gate: gate };
    let mut checked: Vec<&Path> = Vec::new();
    for paths in records {
        if !checked.contains(&paths.dir.as_path()) {
            mark::refuse(&doubted, &paths.dir).map_err(Failure::Untouched)?;
            make::check(world, &paths.dir).map_err(Failure::Untouched)?;
            checked.push(&paths.dir);
        }
        locks.members.push(acquire(world, &paths.lock, LockMode::Exclusive, deadline)?);
    }
    Ok(locks)
}

/// Takes one lock.
pub fn acquire(
    world: &World,
    path: &Path,
    mode: LockMode,
    deadline: Deadline,
) -> Result<FileLock, Failure> {
    let create = Some(FILE_MODE);
    FileLock::acquire(&*world.fs, &*world.clock, path, mode, create, deadline).map_err(|error| {
        match error {
            LockError::Busy { path, waited } => {
                Failure::Busy { what: path.display().to_string(), waited }
            }
            LockError::NotRegular { path } => Failure::Untouched(StorageError::new(
                "lock",
                path.display(),
                io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"),
            )),
            LockError::Io { path, source } => {
                Failure::Untouched(StorageError::new("lock", path.display(), source))
            }
            other => Failure::Untouched(StorageError::new(
                "lock",
                path.display(),
                io::Error::other(other.to_string()),
            )),
        }
    })
}
