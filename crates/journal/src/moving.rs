//! Holding a table still, and closing it for good: what moving it elsewhere needs.
//!
//! X1. While a table is held still nothing is appended and no segment is made ready; whatever was
//!     appended before is durable.
//! X2. A closed table is refused by every handle of every process, by those that had it open before
//!     too: the segment that is written has no header any more, and nobody goes on without one.
//! X3. It is closed by one write of one sector, which names the line that says where the table went.
//!     The frames stay where they are, for whoever must look at them.
//!
//! ```text
//! In use -[hold_still]-> Still -[close]-> Closed        Still -[dropped]-> In use
//! ```

use std::io;
use std::path::Path;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, RandomFile, Read, World, steps};
use ringfence_model::Fence;
use twox_hash::XxHash3_64;

use crate::codec::Out;
use crate::commit::Ticket;
use crate::engine::JournalEngine;
use crate::frame::SECTOR;
use crate::journal::{Held, Which};
use crate::layout::{FILE_MODE, Layout, SLOTS};
use crate::segment::{read_full, write_full};

const MAGIC: u32 = u32::from_le_bytes(*b"RFmv");

/// A table that nobody changes as long as this lives.
#[must_use = "a table that is dropped is in use again"]
#[derive(Debug)]
pub struct Still<'e> {
    engine: &'e JournalEngine,
    /// No fence above this was ever handed out.
    pub fence: Fence,
    /// The file that is written.
    slot: usize,
    _maintain: Held<'e>,
    _append: Held<'e>,
}

impl JournalEngine {
    /// Waits until nobody appends, makes everything durable, and keeps everybody out.
    pub fn hold_still(&self, deadline: Deadline) -> Result<Still<'_>, Failure> {
        let journal = &*self.journal;
        let append = journal.lock(Which::Append, deadline)?;
        let (place, fence) = {
            let mut replica = journal.replica();
            journal.catch_up_for_writing(&mut replica, &append).map_err(Failure::Untouched)?;
            // J10. As many as may have been handed out and lost.
            let lost = replica.segment_bytes() / SECTOR as u64;
            let unknown = || replica.fence.saturating_add(lost);
            let issued = journal.hints.issued().unwrap_or_else(unknown);
            (replica.place(), issued.max(replica.fence))
        };
        let (epoch, sequence) = (place.epoch, place.at.sequence);
        let ticket = Ticket { epoch, sequence, token: None, stored: false, frees: false };
        journal.wait_durable(&ticket)?;
        let maintain = journal.lock(Which::Maintain, deadline)?;
        let (fence, slot) = (Fence(fence), place.slot);
        Ok(Still { engine: self, fence, slot, _maintain: maintain, _append: append })
    }
}

impl Still<'_> {
    /// Closes the table for good: `line` says where it went.
    ///
    /// *Durability:* done means that it is closed after a power cut too. On failure it may be closed or
    /// not: [`closed`] tells.
    pub fn close(self, line: &str) -> Result<(), StorageError> {
        let journal = &*self.engine.journal;
        let (fs, layout) = (&*journal.world.fs, &journal.layout);
        let fail = |source| StorageError::new("close", layout.root().display(), source);
        let moved = moved(layout.root());
        let named = journal.world.unique().and_then(|name| {
            let temp = layout.root().join(format!("moved.{name}.tmp"));
            // Says nothing yet: only the sector makes it true.
            steps::durable_replace(fs, &temp, &moved, line.as_bytes(), FILE_MODE)
        });
        named.map_err(fail)?;
        let file = journal.segments.file(self.slot).map_err(fail)?;
        let mut header = [0; SECTOR];
        read_full(file, &mut header, 0).map_err(fail)?;
        write_full(file, &sector(line.as_bytes()), 0).map_err(|error| {
            // Half of it would be neither a header nor a close.
            let _ = write_full(file, &header, 0);
            fail(error)
        })?;
        RandomFile::sync_data(file).map_err(fail)
    }
}

/// The line that says where the table at `root` went, if it is closed. Writes nothing.
pub fn closed(world: &World, root: &Path) -> Result<Option<String>, StorageError> {
    let path = moved(root);
    let fail = |source| StorageError::new("read", path.display(), source);
    let line = match world.fs.read(&path, 64 * 1024) {
        Ok(Read::Bytes(bytes)) => bytes,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(fail(source)),
    };
    let layout = Layout::new(root);
    for path in (0..SLOTS).map(|slot| layout.segment(slot)) {
        let fail = |source| StorageError::new("read", path.display(), source);
        let file = world.fs.open_random(&path, false).map_err(fail)?;
        let mut found = [0; SECTOR];
        read_full(&*file, &mut found, 0).map_err(fail)?;
        if *found.as_slice() == *sector(&line) {
            return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
        }
    }
    Ok(None)
}

fn moved(root: &Path) -> std::path::PathBuf {
    root.join("moved")
}

/// What stands in place of a header.
fn sector(line: &[u8]) -> Vec<u8> {
    let mut out = Out::default();
    out.u32(MAGIC);
    out.u32(1);
    out.u64(XxHash3_64::oneshot(line));
    out.u64(XxHash3_64::oneshot_with_seed(u64::from(MAGIC), line));
    let Out(mut bytes) = out;
    bytes.resize(SECTOR, 0);
    bytes
}
