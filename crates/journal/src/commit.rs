//! From a decision to something durable.
//!
//! J1. Nothing is acknowledged before a sync that began after its frame was whole has succeeded.
//! J2. A decision may rest on frames that are not durable yet: its own sync covers them too.
//! J3. The first frame of a segment is appended only once everything before it is durable, so one
//!     sync of the last segment covers the whole journal.
//! J4. A failed sync is final: the segment is marked, and nobody syncs it again ([`crate::recover`]).
//! J5. Frames that were there before this process opened the file, and that nothing calls durable, may
//!     belong to a writer that died, and the system may have failed to write them back and told
//!     nobody who is still alive. No sync of ours counts for them: the epoch is ended, and the
//!     checkpoint that ends it holds them, in a file of its own ([`crate::recover`]).
//! J10. No fence is put into a token twice, also when the frame with the first one is lost: shared
//!     memory knows the highest one. Where it does not, as after a boot, the epoch is ended, and
//!     durably as many are passed over as there may have been frames that were never durable.
//!
//! ```text
//! Decided -[append]-> Appended -[wait_durable]-> Durable -> Done
//!    \ Stale: decide again  \ Full: maintain       \ Failed -[recover]-> Restored | Unknown
//! ```

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, RandomFile};
use ringfence_model::{Fence, FencingToken, Key, Space, Transition};

use crate::audit;
use crate::codec::page::PageWriter;
use crate::each::copy;
use crate::frame::{self, Header, Kind, SECTOR};
use crate::hints::{APPEND, SYNC};
use crate::journal::{Held, Journal, Which};
use crate::layout::Layout;
use crate::recover::{Counts, into_storage};
use crate::replica::{Place, Replica, Tail};
use crate::segment::{FIRST_FRAME, SegmentHeader, read_full, write_full};

/// The longest that a leader waits for as many frames as the last sync covered.
const LONGEST_GATHER: Duration = Duration::from_micros(300);
/// The longest that somebody who has just opened the table waits for others to sync what he found.
const LONGEST_SETTLING: Duration = Duration::from_millis(20);

/// A decided transition on its way into the journal.
pub(crate) struct Planned<'a> {
    pub(crate) keys: &'a [Key],
    /// The epoch and the frame that it was decided after.
    pub(crate) seen: (u64, u64),
    pub(crate) transition: Option<Transition>,
    pub(crate) end: Ended,
}

/// How far it has come.
pub(crate) enum Ended {
    /// Not appended yet.
    Waiting,
    /// Something it rests on has changed: it must be decided again.
    Stale,
    /// Appended, or known to change nothing.
    Appended(Ticket),
    /// It cannot be stored; nothing was written.
    Failed(Failure),
}

/// A frame that was appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) token: Option<FencingToken>,
    /// Whether there is a frame at all.
    pub(crate) stored: bool,
    /// Whether somebody who waits should look again once it is durable.
    pub(crate) frees: bool,
}

/// Whether all that was planned came to an end.
pub(crate) enum Progress {
    All,
    /// The segment is full and the next one is not ready.
    Full,
}

impl Journal {
    /// Appends what is still waiting, as far as there is room.
    pub(crate) fn append(
        &self,
        planned: &mut [Planned<'_>],
        deadline: Deadline,
    ) -> Result<Progress, Failure> {
        let held = self.lock(Which::Append, deadline)?;
        let mut replica = self.replica();
        let issued = self.catch_up_for_writing(&mut replica, &held).map_err(Failure::Untouched)?;
        let mut batch = Batch::after(&replica, issued);
        for at in 0..planned.len() {
            let Some(unit) = planned.get_mut(at).filter(|unit| matches!(unit.end, Ended::Waiting))
            else {
                continue;
            };
            let stale = unit.seen.0 != replica.epoch()
                || unit.keys.iter().any(|&key| replica.changed_since(key, unit.seen.1));
            if stale {
                unit.end = Ended::Stale;
                continue;
            }
            if changes_nothing(unit) {
                // It rests on what is there, which must be durable before anybody is told.
                let ticket = Ticket {
                    epoch: replica.epoch(),
                    sequence: batch.sequence,
                    token: None,
                    stored: false,
                    frees: false,
                };
                unit.end = Ended::Appended(ticket);
                continue;
            }
            match self.push(&mut batch, &replica, unit) {
                Ok(true) => {}
                Ok(false) => {
                    // What is whole goes first. This one is decided again: its token may be too old
                    // by the time that there is room.
                    unit.end = Ended::Stale;
                    let flushed = self.flush(&mut batch, &mut replica, &held);
                    flushed.map_err(|failure| batch.take_back(planned, failure))?;
                    let Some(issued) = self.rotate(&mut replica, &held)? else {
                        return Ok(Progress::Full);
                    };
                    batch = Batch::after(&replica, issued);
                }
                Err(failure) => unit.end = Ended::Failed(failure),
            }
        }
        let flushed = self.flush(&mut batch, &mut replica, &held);
        flushed.map_err(|failure| batch.take_back(planned, failure))?;
        Ok(Progress::All)
    }

    /// Adds a unit's frame to the batch; `false` if there is no room for it.
    fn push(
        &self,
        batch: &mut Batch,
        replica: &Replica,
        unit: &mut Planned<'_>,
    ) -> Result<bool, Failure> {
        let (edits, audit, token) = match unit.transition.take() {
            None => return Ok(true),
            Some(Transition::Edits { edits, audit }) => (edits, audit, None),
            Some(Transition::Grant(grant)) => {
                let fence = batch.fence.max(batch.issued).max(grant.above.0).checked_add(1);
                let fence = fence.ok_or_else(exhausted)?;
                self.hints.set_issued(fence);
                batch.issued = fence;
                let nonce = self.world.entropy.nonce().map_err(|source| {
                    Failure::Untouched(StorageError::new("draw", "a token", source))
                })?;
                let token = FencingToken::new(Fence(fence), nonce);
                (grant.under(token), None, Some(token))
            }
        };
        let mut page = PageWriter::default();
        for edit in &edits {
            assert!(unit.keys.contains(&edit.key), "an edit of a key that was not asked for");
            page.push(edit.key, edit.to.as_ref());
        }
        let header = Header {
            kind: Kind::Changes,
            segment: replica.at.segment,
            sequence: batch.sequence + 1,
            durable: self.known_durable(&replica.place()),
            fence: token.map_or(batch.fence, |token| token.fence().0),
            previous: batch.chain,
        };
        let (frame, checksum) = frame::encode(&header, self.table, |out| {
            page.finish(audit.as_ref().map(|line| line.0.as_str()), out);
        });
        let whole = FIRST_FRAME + (frame.len() + SECTOR) as u64;
        if whole > replica.segment_bytes() {
            return Err(too_large(replica.segment_bytes()));
        }
        // There is always room for a seal.
        let end = batch.offset + (batch.bytes.len() + frame.len() + SECTOR) as u64;
        if end > replica.segment_bytes() {
            return Ok(false);
        }
        if let Some(line) = &audit {
            audit::append(&self.world, &self.layout, line)?;
        }
        batch.bytes.extend_from_slice(&frame);
        (batch.sequence, batch.chain, batch.fence) = (header.sequence, checksum, header.fence);
        let epoch = replica.epoch();
        // What was removed, and items that are done or given up.
        let frees = token.is_none()
            && edits.iter().any(|edit| edit.to.is_none() || edit.key.space == Space::Work);
        let ticket = Ticket { epoch, sequence: header.sequence, token, stored: true, frees };
        unit.end = Ended::Appended(ticket);
        Ok(true)
    }

    /// Writes the frames of a batch and applies them as everybody else will.
    fn flush(
        &self,
        batch: &mut Batch,
        replica: &mut Replica,
        held: &Held<'_>,
    ) -> Result<(), Failure> {
        if batch.bytes.is_empty() {
            return Ok(());
        }
        let path = self.layout.segment(replica.slot);
        let fail = |source| StorageError::new("append to", path.display(), source);
        let file = self.segments.file(replica.slot).map_err(|why| Failure::Untouched(fail(why)))?;
        let (from, until) = (replica.at.offset, batch.sequence);
        let written = write_full(file, &batch.bytes, from);
        batch.bytes.clear();
        if let Err(source) = written {
            // The first byte was refused, and nothing was tried after it.
            if is_refusal(&source) && Self::is_clear(replica, file).unwrap_or(false) {
                return Err(Failure::Untouched(fail(source)));
            }
            // Whatever of it stands must not be taken for a frame, by the next one or after a power cut:
            // the epoch ends before it, durably.
            let first = replica.at.sequence;
            let erased = write_full(file, &[0; SECTOR], from).map_err(fail);
            self.hints.set_failed(replica.epoch(), first);
            let closed = erased.and_then(|()| self.close(replica, Counts::UpTo(first), held));
            return Err(match closed {
                Ok(()) => Failure::Restored(fail(source)),
                Err(restore) => Failure::Unknown {
                    source: fail(source),
                    restore,
                    members: vec![path.display().to_string()],
                },
            });
        }
        let answer = replica.follow(&self.segments, self.table, until, false);
        if answer.is_err() || replica.at.sequence != until {
            let source = match answer {
                Err(error) => io::Error::other(error.to_string()),
                Ok(_) => io::Error::other("what was written does not read back"),
            };
            let restore = io::Error::other("it cannot be told what is there");
            return Err(Failure::Unknown {
                source: fail(source),
                restore: fail(restore),
                members: vec![path.display().to_string()],
            });
        }
        batch.offset = replica.at.offset;
        self.hints.set_appended(replica.epoch(), until);
        Ok(())
    }

    /// Whether there is nothing at all where the next frame goes.
    fn is_clear(replica: &Replica, file: &dyn RandomFile) -> io::Result<bool> {
        let room = replica.segment_bytes().saturating_sub(replica.at.offset);
        let mut there = vec![0; usize::try_from(room).unwrap_or(0)];
        let read = read_full(file, &mut there, replica.at.offset)?;
        Ok(read == there.len() && there.iter().all(|byte| *byte == 0))
    }

    /// Goes on in the next segment, if it is ready. J3: only once this one is durable.
    fn rotate(&self, replica: &mut Replica, held: &Held<'_>) -> Result<Option<u64>, Failure> {
        let path = self.layout.segment(replica.slot);
        let fail = |source| Failure::Untouched(StorageError::new("seal", path.display(), source));
        let next = self.segments.find(replica.at.segment + 1).map_err(fail)?;
        let ready = |header: &SegmentHeader| {
            let known = !self.hints.are_shared() || self.hints.is_ready(header.segment);
            known && header.failed_after.is_none()
        };
        let Some((slot, ready)) = next.filter(|(_, header)| ready(header)) else {
            return Ok(None);
        };
        let header = Header {
            kind: Kind::Seal,
            segment: replica.at.segment,
            sequence: replica.at.sequence + 1,
            durable: self.known_durable(&replica.place()),
            fence: replica.fence,
            previous: replica.at.chain,
        };
        let (seal, _) = frame::encode(&header, self.table, |_| {});
        let file = self.segments.file(replica.slot).map_err(fail)?;
        if !self.hints.are_shared() {
            self.segments.renew(slot, &ready).map_err(fail)?;
        }
        write_full(file, &seal, replica.at.offset).map_err(fail)?;
        self.catch_up_for_writing(replica, held).map(Some).map_err(Failure::Untouched)
    }

    /// Brings the replica to the end, ready to be appended to; says the highest fence that may be in
    /// some token. The append lock is held.
    pub(crate) fn catch_up_for_writing(
        &self,
        replica: &mut Replica,
        held: &Held<'_>,
    ) -> Result<u64, StorageError> {
        for _ in 0..8 {
            match self.catch_up(replica).map_err(|error| self.read_error(error))? {
                Tail::Failed { durable } => self.close(replica, Counts::UpTo(durable), held)?,
                Tail::Closed => self.reopen(replica, held)?,
                Tail::End | Tail::Recycled => match self.hints.issued() {
                    Some(issued) if self.are_known(replica) => {
                        if self.finish_segment(replica)? {
                            self.ensure_named(replica)?;
                            self.vouched.store(true, Ordering::SeqCst);
                            return Ok(issued);
                        }
                    }
                    _ => self.close(replica, Counts::All, held)?,
                },
            }
        }
        let why = io::Error::other("it fails again and again");
        Err(StorageError::new("bring up to date", self.layout.root().display(), why))
    }

    /// Makes sure that the checkpoint which decides what counts is in force after a power cut.
    fn ensure_named(&self, replica: &Replica) -> Result<(), StorageError> {
        if self.hints.is_named(&replica.checkpoint.head) {
            return Ok(());
        }
        let _maintain = self.lock(Which::Maintain, self.long()).map_err(into_storage)?;
        self.put_in_force_again()
    }

    /// J5. Whether the frames that were there before this process opened the file are durable. Their
    /// writers are waited for a moment, as they may be alive.
    fn are_known(&self, replica: &mut Replica) -> bool {
        let until = self.world.clock.deadline(LONGEST_SETTLING);
        loop {
            let seen = self.hints.seen(SYNC);
            if replica.suspect <= self.known_durable(&replica.place()) {
                replica.suspect = 0;
                return true;
            }
            let left = self.world.clock.left(until);
            if left.is_zero() || !self.hints.are_shared() {
                return false;
            }
            self.hints.wait(SYNC, seen, left);
        }
    }

    /// J3. `false` if a sync failed and the state must be looked at again.
    fn finish_segment(&self, replica: &Replica) -> Result<bool, StorageError> {
        let place = replica.place();
        if place.before.is_none() || place.at.sequence <= self.known_durable(&place) {
            return Ok(true);
        }
        // The seal of the segment before was written, perhaps by a dead process.
        let sync = self.lock(Which::Sync, self.long()).map_err(into_storage)?;
        self.sync_all(&place, &sync)
    }

    /// What is certainly durable.
    pub(crate) fn known_durable(&self, place: &Place) -> u64 {
        let hint = self.hints.durable_here(place.epoch).unwrap_or(0);
        // A hint from beyond the journal is none.
        let hint = if hint > place.at.sequence { 0 } else { hint };
        place.durable.max(hint)
    }

    /// Syncs the journal up to `place`, and tells. `false` if that failed.
    fn sync_all(&self, place: &Place, _sync: &Held<'_>) -> Result<bool, StorageError> {
        let known = self.known_durable(place);
        let before = place.before.map(|segment| (1 - place.slot, segment));
        for (slot, expected) in before.into_iter().chain([(place.slot, place.at.segment)]) {
            let path = self.layout.segment(slot);
            let fail = |source| StorageError::new("sync", path.display(), source);
            let header = self.segments.header(slot).map_err(fail)?;
            let here = slot == place.slot;
            let header = match header {
                Some(header) if header.segment == expected => header,
                // The one before was made ready again, which took a checkpoint of all of it.
                _ if !here => continue,
                _ => return Ok(false),
            };
            if header.failed_after.is_some() || self.hints.failed(place.epoch).is_some() {
                return Ok(false);
            }
            let synced = self.segments.file(slot).and_then(RandomFile::sync_data);
            self.syncs.fetch_add(1, Ordering::Relaxed);
            if synced.is_err() {
                // Where others could not have said what is durable, all that is there counts.
                let durable = match self.hints.durable(place.epoch) {
                    Some(hint) => place.durable.max(hint),
                    None => place.at.sequence,
                };
                self.hints.set_failed(place.epoch, durable);
                // V1. The one before first: what is in it is told apart by its mark alone.
                let here = Some((place.slot, place.at.segment));
                for (slot, segment) in before.into_iter().chain(here) {
                    self.segments.end(slot, segment, durable).map_err(fail)?;
                }
                return Ok(false);
            }
        }
        self.hints.set_last_batch(place.at.sequence.saturating_sub(known));
        self.hints.set_durable(place.epoch, place.at.sequence);
        Ok(true)
    }

    /// Returns once the frame is durable: by a sync of ours or of somebody else.
    pub(crate) fn wait_durable(&self, ticket: &Ticket) -> Result<(), Failure> {
        if !self.vouched.load(Ordering::SeqCst) {
            let held = self.lock(Which::Append, self.long())?;
            let mut replica = self.replica();
            self.catch_up_for_writing(&mut replica, &held).map_err(Failure::Untouched)?;
        }
        let place = self.replica().place();
        if place.epoch != ticket.epoch || place.at.sequence < ticket.sequence {
            return self.look_again(ticket);
        }
        let deadline = self.long();
        loop {
            let seen = self.hints.seen(SYNC);
            if self.hints.durable_here(ticket.epoch).is_some_and(|to| to >= ticket.sequence) {
                return Ok(());
            }
            let sync = self.try_lock(Which::Sync).map_err(|error| unknown(&self.layout, error))?;
            if let Some(sync) = sync {
                return self.lead(ticket, place, sync);
            }
            if self.world.clock.left(deadline).is_zero() {
                let why = io::Error::from(io::ErrorKind::TimedOut);
                return Err(unknown(&self.layout, StorageError::new("sync", "the journal", why)));
            }
            self.hints.wait(SYNC, seen, self.world.clock.left(deadline));
        }
    }

    /// Syncs for everybody who has appended.
    fn lead(&self, ticket: &Ticket, mut place: Place, sync: Held<'_>) -> Result<(), Failure> {
        let durable = self.hints.durable_here(ticket.epoch);
        if durable.is_some_and(|to| to >= ticket.sequence) {
            return Ok(());
        }
        self.gather(ticket.epoch, durable.unwrap_or(0));
        // A thread that appends may hold the replica and wait for the lock that is held here.
        if let Ok(mut replica) = self.replica.try_lock()
            && let Ok(Tail::End) = self.catch_up(&mut replica)
            && replica.epoch() == ticket.epoch
        {
            place = replica.place();
        }
        match self.sync_all(&place, &sync) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(unknown(&self.layout, error)),
        }
        drop(sync);
        self.look_again(ticket)
    }

    /// The sync failed, for us or for somebody before us: what counts is decided, once, for all.
    fn look_again(&self, ticket: &Ticket) -> Result<(), Failure> {
        let held = match self.lock(Which::Append, self.long()) {
            Ok(held) => held,
            Err(failure) => return Err(unknown(&self.layout, into_storage(failure))),
        };
        let mut replica = self.replica();
        match self.catch_up_for_writing(&mut replica, &held) {
            Ok(_) => self.fate(&replica, ticket),
            Err(error) => Err(unknown(&self.layout, error)),
        }
    }

    /// Waits a moment for as many frames as the last sync covered; not at all when alone.
    fn gather(&self, epoch: u64, durable: u64) {
        let last = self.hints.last_batch();
        if last < 2 {
            return;
        }
        let until = self.world.clock.deadline(LONGEST_GATHER);
        loop {
            let seen = self.hints.seen(APPEND);
            let there = self.hints.appended(epoch).unwrap_or(0).saturating_sub(durable);
            let left = self.world.clock.left(until);
            if there >= last || left.is_zero() {
                return;
            }
            self.hints.wait(APPEND, seen, left);
        }
    }

    /// What became of a frame of an earlier epoch.
    fn fate(&self, replica: &Replica, ticket: &Ticket) -> Result<(), Failure> {
        let ended = &replica.checkpoint.head.ended;
        let end = ended.iter().find(|(epoch, _)| *epoch == ticket.epoch).map(|(_, end)| *end);
        let dropped = || {
            let why =
                io::Error::other("a sync failed, and what it should have covered was dropped");
            StorageError::new("sync", self.layout.root().display(), why)
        };
        match end {
            Some(end) if ticket.sequence <= end => Ok(()),
            Some(_) => Err(Failure::Restored(dropped())),
            // Its segment was made ready for another number, which took a checkpoint of it.
            None if replica.epoch() == ticket.epoch
                && replica.checkpoint.head.base.sequence >= ticket.sequence =>
            {
                Ok(())
            }
            None => Err(unknown(&self.layout, dropped())),
        }
    }
}

/// Frames that are being put together, as if they were appended already.
struct Batch {
    bytes: Vec<u8>,
    offset: u64,
    sequence: u64,
    chain: u64,
    fence: u64,
    /// The highest fence that may be in some token.
    issued: u64,
    /// The last frame before those of this batch.
    before: u64,
}

impl Batch {
    fn after(replica: &Replica, issued: u64) -> Self {
        Self {
            bytes: Vec::new(),
            offset: replica.at.offset,
            sequence: replica.at.sequence,
            chain: replica.at.chain,
            fence: replica.fence,
            issued,
            before: replica.at.sequence,
        }
    }

    /// What was put into frames that were not written ends as the write did. Others stay as they are.
    fn take_back(&self, planned: &mut [Planned<'_>], failure: Failure) -> Failure {
        for unit in planned {
            match &unit.end {
                Ended::Appended(ticket) if ticket.stored && ticket.sequence > self.before => {
                    unit.end = match failure {
                        Failure::Unknown { .. } => Ended::Failed(copy(&failure)),
                        _ => Ended::Waiting,
                    };
                }
                _ => {}
            }
        }
        failure
    }
}

/// No fence is left above one of those in the view.
pub(crate) fn exhausted() -> Failure {
    let why = io::Error::other("the fences are exhausted");
    Failure::Untouched(StorageError::new("issue", "a token", why))
}

/// Errors of a system that did not begin to write, unlike those of a device.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{
        FileTooLarge, Interrupted, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let kind = error.kind();
    matches!(kind, FileTooLarge | Interrupted | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

fn changes_nothing(unit: &Planned<'_>) -> bool {
    matches!(&unit.transition, Some(Transition::Edits { edits, audit: None }) if edits.is_empty())
}

/// A failure after which nobody can say what counts.
fn unknown(layout: &Layout, source: StorageError) -> Failure {
    let why = io::Error::other("nothing could be put back");
    let restore = StorageError::new("decide", "what counts", why);
    Failure::Unknown { source, restore, members: vec![layout.root().display().to_string()] }
}

fn too_large(segment: u64) -> Failure {
    let why = format!("one call is larger than a segment of {segment} bytes");
    let why = io::Error::new(io::ErrorKind::InvalidInput, why);
    Failure::Untouched(StorageError::new("store", "the records", why))
}
