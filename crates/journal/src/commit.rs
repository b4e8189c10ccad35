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

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, RandomFile};
use ringfence_model::{Audit, Edit, Fence, FencingToken, Grant, Key, MAX_GROUP, Space};

use crate::audit;
use crate::codec::page::PageWriter;
use crate::codec::renewal::Renewal;
use crate::each::copy;
use crate::frame::{self, Header, Kind, SECTOR};
use crate::hints::SYNC;
use crate::journal::{Held, Journal, Which};
use crate::look::Seen;
use crate::recover::{Counts, into_storage};
use crate::replica::{Replica, Tail};
use crate::segment::{FIRST_FRAME, SegmentHeader, read_full, write_full, write_part};

/// Units that need no frame of their own share one until it has so many bytes.
const SHARED_BYTES: usize = 256 * 1024;
/// Room for so many members is made at once.
const SHARED_MEMBERS: usize = 1024;
/// The longest that somebody who has just opened the table waits for others to sync what he found.
const LONGEST_SETTLING: Duration = Duration::from_millis(20);

/// A decided transition on its way into the journal, or several that are one renewal.
pub(crate) struct Planned<'a> {
    /// Where in the order of the call its units are.
    pub(crate) places: Range<usize>,
    pub(crate) keys: Cow<'a, [Key]>,
    /// What it was decided after.
    pub(crate) seen: Seen,
    /// Taken once it is on its way.
    pub(crate) change: Option<Change>,
    pub(crate) end: Ended,
}

/// What a decision stores.
pub(crate) enum Change {
    /// Known already; with what goes into the audit log.
    Edits(Vec<Edit>, Option<Audit>),
    /// Known once there is a token.
    Grant(Grant),
    /// All keys are renewed, or only these, and nothing else of them changes.
    Renewal(Renewal, Option<Vec<Key>>),
    /// All keys are removed, or only these.
    Removal(Option<Vec<Key>>),
}

impl Planned<'_> {
    /// Takes a unit in that comes next and is renewed alike, as long as both together are no larger than
    /// a single one may be.
    pub(crate) fn takes(
        &mut self,
        place: usize,
        keys: &[Key],
        change: &Change,
        seen: Seen,
    ) -> bool {
        let alike = match (&self.change, change) {
            (Some(Change::Renewal(own, None)), Change::Renewal(other, None)) => own.is_same(other),
            _ => false,
        };
        let fits = self.keys.len() + keys.len() <= MAX_GROUP;
        let joins = alike && fits && self.places.end == place && self.seen == seen;
        if joins {
            self.places.end += 1;
            if let Cow::Borrowed(first) = self.keys {
                let mut both = Vec::with_capacity(MAX_GROUP);
                both.extend_from_slice(first);
                self.keys = Cow::Owned(both);
            }
            self.keys.to_mut().extend_from_slice(keys);
        }
        joins
    }
}

/// How far it has come.
pub(crate) enum Ended {
    /// Not appended yet.
    Waiting,
    /// Something it rests on has changed: it must be decided again.
    Stale,
    /// Appended, or known to change nothing; with the token, if it is a grant.
    Appended(Ticket, Option<Box<FencingToken>>),
    /// It cannot be stored; nothing was written.
    Failed(Box<Failure>),
}

/// A frame that was appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
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
        let mut batch = Batch::after(&replica, self.table, issued);
        // What shares a frame with others gets room for all of them at once.
        let members: usize = planned.iter().map(|unit| unit.keys.len()).sum();
        let members = members.min(SHARED_MEMBERS);
        for at in 0..planned.len() {
            let Some(unit) = planned.get_mut(at).filter(|unit| matches!(unit.end, Ended::Waiting))
            else {
                continue;
            };
            let (epoch, at) = unit.seen;
            // Where nothing came after, nothing has changed.
            let stale = epoch != replica.epoch()
                || (at != replica.at.sequence
                    && unit.keys.iter().any(|&key| replica.changed_since(key, at)));
            if stale {
                unit.end = Ended::Stale;
                continue;
            }
            if changes_nothing(unit) {
                // It rests on what is there, which must be durable before anybody is told.
                let ticket = Ticket {
                    epoch: replica.epoch(),
                    sequence: batch.header.sequence,
                    stored: false,
                    frees: false,
                };
                unit.end = Ended::Appended(ticket, None);
                continue;
            }
            match self.push(&mut batch, &replica, unit, members) {
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
                    batch = Batch::after(&replica, self.table, issued);
                }
                Err(failure) => unit.end = Ended::Failed(Box::new(failure)),
            }
        }
        let flushed = self.flush(&mut batch, &mut replica, &held);
        flushed.map_err(|failure| batch.take_back(planned, failure))?;
        Ok(Progress::All)
    }

    /// Adds a unit to the batch; `false` if there is no room for it. A frame that it shares has `members`.
    fn push(
        &self,
        batch: &mut Batch,
        replica: &Replica,
        unit: &mut Planned<'_>,
        members: usize,
    ) -> Result<bool, Failure> {
        let Some(change) = unit.change.take() else { return Ok(true) };
        let (change, token) = match change {
            Change::Grant(grant) => {
                let fence = batch.fence.max(batch.issued).max(grant.above.0).checked_add(1);
                let fence = fence.ok_or_else(exhausted)?;
                // J10.
                if !self.hints.set_issued(fence) {
                    return Err(Failure::Untouched(self.not_told("tell a fence in")));
                }
                batch.issued = fence;
                let nonce = self.world.entropy.nonce().map_err(|source| {
                    Failure::Untouched(StorageError::new("draw", "a token", source))
                })?;
                let token = FencingToken::new(Fence(fence), nonce);
                (Change::Edits(grant.under(token), None), Some(token))
            }
            known => (known, None),
        };
        let audit = match &change {
            Change::Edits(_, audit) => audit.as_ref(),
            _ => None,
        };
        // A token is of one frame, and so is a line of the audit log.
        let alone = token.is_some() || audit.is_some();
        if alone || batch.page.as_ref().is_some_and(|page| page.len() >= SHARED_BYTES) {
            batch.finish(None);
        }
        let mark = batch.page.as_ref().map(PageWriter::mark);
        let members = if alone { unit.keys.len() } else { members };
        let page = batch.page.get_or_insert_with(|| PageWriter::with_members(members));
        change.write(&unit.keys, page);
        let line = audit.map(|line| line.0.as_str());
        // There is always room for a seal.
        let len = (frame::length_of(page, line) + SECTOR) as u64;
        let end = batch.offset + batch.bytes.len() as u64 + len;
        // S6. Whether it fits at all does not depend on how large the present segment happens to be.
        let fits_nowhere = mark.is_none() && FIRST_FRAME + len > self.meta.segment_bytes;
        if fits_nowhere || end > replica.segment_bytes() {
            match mark {
                Some(mark) => page.back_to(mark),
                None => batch.page = None,
            }
            return if fits_nowhere { Err(too_large(self.meta.segment_bytes)) } else { Ok(false) };
        }
        if let Some(line) = audit
            && let Err(failure) = audit::append(&self.world, &self.layout, line)
        {
            batch.page = None;
            return Err(failure);
        }
        if mark.is_none() {
            batch.begin(token, self.known_durable(&replica.place()));
        }
        let frees = token.is_none() && change.frees();
        let (epoch, sequence) = (replica.epoch(), batch.header.sequence);
        let ticket = Ticket { epoch, sequence, stored: true, frees };
        unit.end = Ended::Appended(ticket, token.map(Box::new));
        if alone {
            batch.finish(line);
        }
        Ok(true)
    }

    /// Writes the frames of a batch and applies them as everybody else will.
    fn flush(
        &self,
        batch: &mut Batch,
        replica: &mut Replica,
        held: &Held<'_>,
    ) -> Result<(), Failure> {
        batch.finish(None);
        if batch.bytes.is_empty() {
            return Ok(());
        }
        let slot = replica.slot;
        let path = || self.layout.segment(slot).display().to_string();
        let fail = |source| StorageError::new("append to", path(), source);
        let file = self.segments.file(replica.slot).map_err(|why| Failure::Untouched(fail(why)))?;
        let (from, until) = (replica.at.offset, batch.header.sequence);
        let frames = std::mem::take(&mut batch.bytes);
        // H4.
        if !self.hints.forget_end() {
            return Err(Failure::Untouched(self.not_told("tell of a frame in")));
        }
        if let Err((done, source)) = write_frames(file, &frames, from) {
            // What was refused never comes to be, so this is no frame and will be none, as if its writer
            // had died there. But one of several may be whole.
            let is_one = until == batch.before + 1;
            let lacks = |rest: &[u8]| is_one && rest.iter().any(|byte| *byte != 0);
            if is_refusal(&source) && (done == 0 || frames.get(done..).is_some_and(lacks)) {
                let _ = write_full(file, &vec![0; done.min(SECTOR)], from);
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
                Err(restore) => {
                    Failure::Unknown { source: fail(source), restore, members: vec![path()] }
                }
            });
        }
        let applied = replica.append(&self.segments, &frames);
        if applied.is_err() || replica.at.sequence != until {
            let source = match applied {
                Err(error) => io::Error::other(error.to_string()),
                Ok(()) => io::Error::other("what was written does not read back"),
            };
            let restore = io::Error::other("it cannot be told what is there");
            return Err(Failure::Unknown {
                source: fail(source),
                restore: fail(restore),
                members: vec![path()],
            });
        }
        batch.offset = replica.at.offset;
        self.hints.set_appended(replica.epoch(), replica.at.segment, until);
        self.hints.set_end(replica.epoch(), replica.at.segment, until);
        Ok(())
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
        if !self.hints.forget_end() {
            return Err(Failure::Untouched(self.not_told("tell of a seal in")));
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
                    issued => {
                        self.close(replica, Counts::All, held)?;
                        if issued.is_none() && self.hints.issued().is_none() {
                            return Err(self.not_told("tell the highest fence in"));
                        }
                    }
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
}

impl Change {
    /// Adds it to a page; only `keys`, which are sorted, may be changed.
    fn write(&self, keys: &[Key], page: &mut PageWriter) {
        match self {
            Self::Edits(edits, _) => {
                let mut next = 0;
                for edit in edits {
                    let is_asked_for = find_from(keys, |key| *key, edit.key, &mut next).is_some();
                    assert!(is_asked_for, "an edit of a key that was not asked for");
                    page.push(edit.key, edit.to.as_ref());
                }
            }
            Self::Renewal(renewal, only) => {
                page.push_renewals(only.as_deref().unwrap_or(keys), renewal);
            }
            Self::Removal(only) => page.push_removals(only.as_deref().unwrap_or(keys)),
            Self::Grant(_) => unreachable!("it has no token yet"),
        }
    }

    /// Whether somebody may get what he waits for: by what is removed, and by items that are done or given
    /// up.
    fn frees(&self) -> bool {
        match self {
            Self::Edits(edits, _) => {
                edits.iter().any(|edit| edit.to.is_none() || edit.key.space == Space::Work)
            }
            Self::Removal(_) => true,
            Self::Grant(_) | Self::Renewal(..) => false,
        }
    }
}

/// Finds a key in a sorted list, at once if keys are asked for in its order: `next` is where to look first.
pub(crate) fn find_from<'l, T>(
    list: &'l [T],
    key_of: impl Fn(&T) -> Key,
    key: Key,
    next: &mut usize,
) -> Option<&'l T> {
    let at = match list.get(*next) {
        Some(item) if key_of(item) == key => *next,
        _ => list.binary_search_by_key(&key, key_of).ok()?,
    };
    *next = at + 1;
    list.get(at)
}

/// Frames that are being put together, as if they were appended already.
struct Batch {
    table: u64,
    bytes: Vec<u8>,
    offset: u64,
    /// Of the last frame, or of the one that `page` becomes.
    header: Header,
    /// What goes into the next frame: units that share it, none of which has a token.
    page: Option<PageWriter>,
    /// The checksum of the last whole frame.
    chain: u64,
    fence: u64,
    /// The highest fence that may be in some token.
    issued: u64,
    /// The last frame before those of this batch.
    before: u64,
}

impl Batch {
    fn after(replica: &Replica, table: u64, issued: u64) -> Self {
        let at = replica.at;
        Self {
            table,
            bytes: Vec::new(),
            offset: at.offset,
            header: Header {
                kind: Kind::Changes,
                segment: at.segment,
                sequence: at.sequence,
                durable: replica.durable,
                fence: replica.fence,
                previous: at.chain,
            },
            page: None,
            chain: at.chain,
            fence: replica.fence,
            issued,
            before: at.sequence,
        }
    }

    /// The page that was begun is the next frame's.
    fn begin(&mut self, token: Option<FencingToken>, durable: u64) {
        self.fence = token.map_or(self.fence, |token| token.fence().0);
        self.header.sequence += 1;
        self.header.durable = durable;
        self.header.fence = self.fence;
        self.header.previous = self.chain;
    }

    /// Makes a frame of the page, if there is one.
    fn finish(&mut self, audit: Option<&str>) {
        let Some(page) = self.page.take() else { return };
        let (frame, checksum) = frame::encode(&self.header, self.table, |out| {
            page.finish(audit, out);
        });
        self.chain = checksum;
        if self.bytes.is_empty() {
            self.bytes = frame;
        } else {
            self.bytes.extend_from_slice(&frame);
        }
    }

    /// What was put into frames that were not written ends as the write did. Others stay as they are.
    fn take_back(&self, planned: &mut [Planned<'_>], failure: Failure) -> Failure {
        for unit in planned {
            match &unit.end {
                Ended::Appended(ticket, _) if ticket.stored && ticket.sequence > self.before => {
                    unit.end = match failure {
                        Failure::Unknown { .. } => Ended::Failed(Box::new(copy(&failure))),
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

/// Writes frames; of what failed it says how many bytes were written before.
///
/// A segment is made of zeros. Where no more than those at the end are refused, and are there, every frame is
/// whole and somebody may have read it: nothing has failed.
fn write_frames(file: &dyn RandomFile, frames: &[u8], from: u64) -> Result<(), (usize, io::Error)> {
    write_part(file, frames, from).or_else(|(done, source)| {
        let rest = frames.get(done..).unwrap_or_default();
        let mut there = vec![1; rest.len()];
        let is_there = is_refusal(&source)
            && rest.iter().all(|byte| *byte == 0)
            && read_full(file, &mut there, from + done as u64).is_ok()
            && there == rest;
        if is_there { Ok(()) } else { Err((done, source)) }
    })
}

fn changes_nothing(unit: &Planned<'_>) -> bool {
    match &unit.change {
        Some(Change::Edits(edits, None)) => edits.is_empty(),
        Some(Change::Renewal(_, Some(only)) | Change::Removal(Some(only))) => only.is_empty(),
        _ => false,
    }
}

fn too_large(segment: u64) -> Failure {
    let why = format!("one call is larger than a segment of {segment} bytes");
    let why = io::Error::new(io::ErrorKind::InvalidInput, why);
    Failure::Untouched(StorageError::new("store", "the records", why))
}
