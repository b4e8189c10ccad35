//! Holding a table still, and closing it for good: what moving it elsewhere needs.
//!
//! X1. While a table is held still nothing is appended and no segment is made ready; whatever was
//!     appended before is durable.
//! X2. A closed table is refused by every handle of every process, by those that had it open before
//!     too: a sector that says so stands in place of the header of the segment that was written. Whoever
//!     reads headers is refused there, with the new place; nobody appends, makes a segment ready or ends
//!     an epoch without having read them. A missing header alone would not do: a process that has been
//!     making the next segment ready since before it was written would take it for room.
//! X3. It is closed by one write of one sector, which names the line that says where the table went.
//!     The frames stay where they are, for whoever must look at them.
//!
//! ```text
//! In use -[hold_still]-> Still -[close]-> Closed        Still -[dropped]-> In use
//! ```

use std::io;
use std::path::Path;
use std::sync::Arc;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, Fs, RandomFile, Read, World, steps};
use ringfence_model::Fence;
use ringfence_model::field::Fields;
use twox_hash::XxHash3_64;

use crate::codec::Out;
use crate::engine::JournalEngine;
use crate::frame::SECTOR;
use crate::journal::{Held, Journal, Which};
use crate::layout::{FILE_MODE, Layout, SLOTS};
use crate::replica::Place;
use crate::segment::{read_full, write_full};

const MAGIC: u32 = u32::from_le_bytes(*b"RFmv");
const LONGEST_LINE: usize = 64 * 1024;
/// So many epochs may end before a table is not held still.
const EPOCHS: usize = 4;

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
        let (place, fence) = journal.settled(&append, deadline)?;
        let maintain = journal.lock(Which::Maintain, deadline)?;
        let (fence, slot) = (Fence(fence), place.slot);
        Ok(Still { engine: self, fence, slot, _maintain: maintain, _append: append })
    }
}

impl Journal {
    /// Makes everything durable that was appended, at the end of one epoch or another; says where that
    /// is, and the highest fence that may be in some token. The append lock is held.
    fn settled(&self, append: &Held<'_>, deadline: Deadline) -> Result<(Place, u64), Failure> {
        let untouched = Failure::Untouched;
        for _ in 0..EPOCHS {
            let (place, fence) = {
                let mut replica = self.replica();
                self.catch_up_for_writing(&mut replica, append).map_err(untouched)?;
                // J10. As many as may have been handed out and lost.
                let lost = replica.segment_bytes() / SECTOR as u64;
                let unknown = || replica.fence.saturating_add(lost);
                let issued = self.hints.issued().unwrap_or_else(unknown);
                (replica.place(), issued.max(replica.fence))
            };
            // Those who wait for the same sync have given the append lock up.
            let sync = self.lock(Which::Sync, deadline)?;
            if place.at.sequence <= self.known_durable(&place)
                || self.sync_all(&place, &sync).map_err(untouched)?
            {
                return Ok((place, fence));
            }
        }
        let why = io::Error::other("its syncs fail again and again");
        Err(untouched(StorageError::new("hold still", self.layout.root().display(), why)))
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
        // X2. From here on everybody reads headers before he decides.
        if !journal.hints.forget_end() {
            return Err(journal.not_told("tell of the close in"));
        }
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
    let line = match world.fs.read(&path, LONGEST_LINE) {
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

/// Whether what stands where a header is expected says that the table was moved.
pub(crate) fn is_close(sector: &[u8]) -> bool {
    sector.get(..4).is_some_and(|magic| magic == MAGIC.to_le_bytes())
}

/// X2, in words.
pub(crate) fn refusal(fs: &dyn Fs, root: &Path) -> io::Error {
    let to: Option<Arc<str>> = match fs.read(&moved(root), LONGEST_LINE) {
        Ok(Read::Bytes(line)) => {
            Fields::parse(&line).ok().and_then(|mut line| line.required("to").ok())
        }
        _ => None,
    };
    let why = match to {
        Some(to) => format!("the table was moved: it is {to} now"),
        None => format!("the table was moved; {} does not read", moved(root).display()),
    };
    io::Error::new(io::ErrorKind::InvalidInput, why)
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
