//! Holding a table still, and closing it for good: what moving it elsewhere needs.
//!
//! X1. While a table is held still no operation of Ringfence changes it: the gate is taken alone, and
//!     nothing that a dead writer left is unfinished. Other programs do not know the gate.
//! X2. A closed table is refused by every operation of every process, by those that had it open
//!     before too: the mark of a maker of directories stands in the root, which sends every operation
//!     off the short way, to the line that says where the table went.
//! X3. It is closed by one rename. Until then the mark costs operations two syncs and no more.
//!
//! ```text
//! In use -[hold_still]-> Still -[close]-> Closed        Still -[dropped]-> In use
//! ```

use std::io;
use std::path::Path;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, FileLock, OpenWrite, Read, World, steps};
use ringfence_model::Fence;

use crate::engine::FilesEngine;
use crate::fence::FenceCounter;
use crate::intent::{Standing, standing_intents};
use crate::layout::{FILE_MODE, Layout};
use crate::make;

/// A table that nobody changes as long as this lives.
#[must_use = "a table that is dropped is in use again"]
#[derive(Debug)]
pub struct Still<'e> {
    engine: &'e FilesEngine,
    /// No fence above this was ever handed out.
    pub fence: Fence,
    _gate: FileLock,
}

impl FilesEngine {
    /// Waits until no operation is under way, finishes what dead writers left, and keeps everybody out.
    pub fn hold_still(&self, deadline: Deadline) -> Result<Still<'_>, Failure> {
        loop {
            let gate = self.alone(deadline)?;
            let untouched = Failure::Untouched;
            refuse_closed(&self.world, &self.layout).map_err(untouched)?;
            // What a move that died before it closed anything left, or a repair.
            let durability = self.meta.durability;
            if make::is_under_way(&self.world, &self.layout).map_err(untouched)?
                && make::missing(&self.world, &self.layout, durability)
                    .map_err(untouched)?
                    .is_empty()
            {
                make::again(&self.world, &self.layout, durability).map_err(untouched)?;
            }
            let standing = standing_intents(&self.world, &self.layout, None).map_err(untouched)?;
            if standing.iter().all(|found| found.standing == Standing::Retired) {
                let limit = FenceCounter::new(&self.layout).limit(&self.world);
                let fence = Fence(limit.map_err(untouched)?);
                return Ok(Still { engine: self, fence, _gate: gate });
            }
            // Its writer is dead, or makes a batch durable. Recovery shares the gate.
            drop(gate);
            self.recover(None, deadline)?;
            if self.world.clock.left(deadline).is_zero() {
                let what = format!("an intent in {}", self.layout.intents().display());
                return Err(Failure::Busy { what, waited: std::time::Duration::ZERO });
            }
        }
    }
}

impl Still<'_> {
    /// Closes the table for good: `line` says where it went.
    ///
    /// *Durability:* done means that it is closed after a power cut too. On failure it may be closed or
    /// not: [`closed`] tells.
    pub fn close(self, line: &str) -> Result<(), StorageError> {
        let (world, layout) = (&self.engine.world, &self.engine.layout);
        let (moved, mark) = (layout.moved(), layout.making());
        let fail = |source| StorageError::new("close", layout.root().display(), source);
        drop(world.fs.open_write(&mark, OpenWrite::Overwrite, FILE_MODE).map_err(fail)?);
        let closed = world.fs.sync_dir(layout.root()).and_then(|()| {
            let temp = layout.root().join(format!("moved.{}.tmp", world.unique()?));
            steps::durable_replace(&*world.fs, &temp, &moved, line.as_bytes(), FILE_MODE)
        });
        closed.map_err(|error| {
            // If it is closed the mark is what keeps it so.
            if matches!(closed_at(world, &moved), Ok(None)) {
                let _ = world.fs.unlink(&mark);
            }
            fail(error)
        })
    }
}

/// The line that says where the table at `root` went, if it is closed. Writes nothing.
pub fn closed(world: &World, root: &Path) -> Result<Option<String>, StorageError> {
    closed_at(world, &root.join(MOVED))
}

pub(crate) const MOVED: &str = "moved";

fn closed_at(world: &World, path: &Path) -> Result<Option<String>, StorageError> {
    let fail = |source| StorageError::new("read", path.display(), source);
    match world.fs.read(path, 64 * 1024) {
        Ok(Read::Bytes(bytes)) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Ok(_) => Err(fail(io::Error::new(io::ErrorKind::InvalidData, "it is no line"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(fail(source)),
    }
}

/// X2, for an operation that met the mark.
pub(crate) fn refuse_closed(world: &World, layout: &Layout) -> Result<(), StorageError> {
    if closed_at(world, &layout.moved())?.is_none() {
        return Ok(());
    }
    let why = format!("it was moved: {} says where to", layout.moved().display());
    let why = io::Error::new(io::ErrorKind::InvalidInput, why);
    Err(StorageError::new("use", layout.root().display(), why))
}
