//! Holding a table still, and closing it for good: what moving it elsewhere needs.
//!
//! X1. While a table is held still no operation of Ringfence changes it: the gate is taken alone, and
//!     nothing that a dead writer left is unfinished. Other programs do not know the gate.
//! X2. A closed table is refused by every operation of every process, by those that had it open
//!     before too: the mark of a maker of directories stands in the root, which sends every operation
//!     off the short way, to the line that says where the table went.
//! X3. It is closed by one rename. Until then the mark costs operations a look at it and no more. A mark
//!     of a repair that did not end is not taken for that of a mover, nor away: the table is not moved.
//! X4. A busy table becomes still as soon as those at work are done: whoever wants it still makes the
//!     mark and holds a lock on it, and operations that begin meanwhile give the gate back and wait for
//!     that lock. It ends with its holder, so a mover that dies or gives up keeps nobody waiting.
//!
//! ```text
//! In use -[knock]-> Draining -[the gate]-> Still -[close]-> Closed      Still -[dropped]-> In use
//!            \-[deadline]-> In use
//! ```

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, FileLock, LockError, LockMode, OpenWrite, Read, World, steps};
use ringfence_model::Fence;
use ringfence_model::field::Fields;

use crate::engine::FilesEngine;
use crate::fence::FenceCounter;
use crate::intent::{Standing, standing_intents};
use crate::layout::{FILE_MODE, Layout};
use crate::locks;
use crate::make;

/// How long one who gives up waits for a repair to end.
const SOON: Duration = Duration::from_secs(1);

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
        let (world, layout) = (&self.world, &self.layout);
        let untouched = Failure::Untouched;
        loop {
            let knock = locks::acquire(world, &layout.making(), LockMode::Exclusive, deadline)?;
            let gate = match self.alone(deadline) {
                Ok(gate) => gate,
                Err(failure) => {
                    go_away(world, layout, knock);
                    return Err(failure);
                }
            };
            refuse_closed(world, layout).map_err(untouched)?;
            // The gate keeps everybody out from here on.
            make::unmark(world, layout).map_err(untouched)?;
            drop(knock);
            let standing = standing_intents(world, layout, None).map_err(untouched)?;
            if standing.iter().all(|found| found.standing == Standing::Retired) {
                let limit = FenceCounter::new(layout).limit(world);
                let fence = Fence(limit.map_err(untouched)?);
                return Ok(Still { engine: self, fence, _gate: gate });
            }
            // Its writer is dead, or makes a batch durable. Recovery shares the gate.
            drop(gate);
            self.recover(None, deadline)?;
            if world.clock.left(deadline).is_zero() {
                let what = format!("an intent in {}", layout.intents().display());
                return Err(Failure::Busy { what, waited: Duration::ZERO });
            }
        }
    }
}

/// X4, for who knocked in vain. What fails here costs operations a look at the mark until somebody knocks
/// again.
///
/// The mark goes before its lock does: whoever knocks next must not lock one that is about to go, and
/// then wait where nobody sees him.
fn go_away(world: &World, layout: &Layout, _knock: FileLock) {
    let soon = world.clock.deadline(SOON);
    if let Ok(_gate) = locks::acquire(world, &layout.gate(), LockMode::Shared, soon)
        && let Ok(None) = closed_at(world, &layout.moved())
    {
        let _ = make::unmark(world, layout);
    }
}

/// X4, for an operation that has the gate and met the mark: lets whoever knocks have the table first.
pub(crate) fn let_pass(
    world: &World,
    layout: &Layout,
    mut gate: FileLock,
    deadline: Deadline,
) -> Result<FileLock, Failure> {
    while let Some(busy) = knocking(world, layout, world.clock.deadline(Duration::ZERO))? {
        drop(gate);
        if knocking(world, layout, deadline)?.is_some() {
            return Err(busy);
        }
        gate = locks::acquire(world, &layout.gate(), LockMode::Shared, deadline)?;
    }
    Ok(gate)
}

/// Waits until nobody knocks; whoever still does at the deadline is in the way.
fn knocking(
    world: &World,
    layout: &Layout,
    deadline: Deadline,
) -> Result<Option<Failure>, Failure> {
    let mark = layout.making();
    match FileLock::acquire(&*world.fs, &*world.clock, &mark, LockMode::Shared, None, deadline) {
        Ok(_) => Ok(None),
        Err(LockError::Busy { path, waited }) => {
            Ok(Some(Failure::Busy { what: path.display().to_string(), waited }))
        }
        Err(LockError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let why = io::Error::other(error.to_string());
            Err(Failure::Untouched(StorageError::new("lock", mark.display(), why)))
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
    let Some(line) = closed_at(world, &layout.moved())? else { return Ok(()) };
    let to = Fields::parse(line.as_bytes()).and_then(|mut line| line.required::<Arc<str>>("to"));
    let why = match to {
        Ok(to) => format!("the table was moved: it is {to} now"),
        Err(_) => format!("the table was moved; {} does not read", layout.moved().display()),
    };
    let why = io::Error::new(io::ErrorKind::InvalidInput, why);
    Err(StorageError::new("use", layout.root().display(), why))
}

#[cfg(test)]
mod tests {
    use ringfence_env::Deadline;

    use super::*;
    use crate::open::InitOptions;

    #[test]
    fn one_who_knocks_while_another_gives_up_is_seen() {
        let world = World::system();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("table");
        let engine = FilesEngine::init(&world, &root, &InitOptions::default()).unwrap();
        let layout = &engine.layout;
        let after = |millis| -> Deadline { world.clock.deadline(Duration::from_millis(millis)) };
        let lock = |path: &Path, millis| {
            locks::acquire(&world, path, LockMode::Exclusive, after(millis)).unwrap()
        };
        // Like a repair that is at work.
        let gate = lock(&layout.gate(), 0);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| engine.hold_still(after(50)).map(drop));
            let second = scope.spawn(|| {
                world.clock.sleep(Duration::from_millis(20));
                lock(&layout.making(), 60_000)
            });
            first.join().unwrap().unwrap_err();
            drop(gate);
            let _knock = second.join().unwrap();
            assert!(layout.making().exists(), "operations do not see who knocks");
        });
    }
}
