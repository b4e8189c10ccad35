//! The state of the table in this process: a checkpoint, and what the frames after it changed.
//!
//! R1. A frame is applied only in its chain, so two replicas at one frame are alike.
//! R2. The end of the journal is where no frame follows *in a segment that is still the same*: the
//!     header is looked at after the last frame that did not read.
//! R3. Bytes that do not read are a torn tail unless a later frame calls them durable; then they are
//!     damage, which is reported and never cut off.

use std::io;
use std::sync::Arc;

use ringfence_env::{Fs, RandomFile};
use ringfence_model::record::Holder;
use ringfence_model::{Entry, Key, Record, Space};

use crate::changed::{Change, Changed, Unread};
use crate::checkpoint::{Checkpoint, CheckpointError, Position};
use crate::codec::Malformed;
use crate::codec::page::{Latest, Page, Said, Stored};
use crate::frame::{self, Checked, HEADER, Kind, NoFrame, SECTOR};
use crate::layout::Layout;
use crate::segment::{FIRST_FRAME, SegmentHeader, Segments, read_full};

/// The first read of the tail; where there is more, further ones are longer.
const FIRST_READ: usize = 4096;
const LONG_READ: usize = 128 * 1024;
/// How often a checkpoint is opened again whose segment was taken for a new one meanwhile.
pub(crate) const LOADS: usize = 16;

/// What the journal is in this process.
#[derive(Debug)]
pub struct Replica {
    /// The checkpoint it began with.
    pub checkpoint: Arc<Checkpoint>,
    /// The frame it is at.
    pub at: Position,
    /// The file of that frame's segment.
    pub slot: usize,
    /// The highest fence issued.
    pub fence: u64,
    /// A sequence number that some frame called durable.
    pub durable: u64,
    /// The last frame that was there when the segments were opened; 0 once that no longer matters.
    pub suspect: u64,
    changed: Changed,
    segment_bytes: u64,
    tail: Tailing,
}

/// What the reads of the tail keep from one to the next.
#[derive(Debug)]
struct Tailing {
    buffer: Vec<u8>,
    /// How much is read at first: somewhat more than there was the last time.
    first: usize,
    /// What the page at hand says.
    members: Vec<(Key, Said)>,
}

impl Default for Tailing {
    fn default() -> Self {
        Self { buffer: Vec::new(), first: FIRST_READ, members: Vec::new() }
    }
}

/// How far the journal is followed.
#[derive(Clone, Copy)]
pub struct Follow<'a> {
    /// No further than this frame.
    pub until: u64,
    /// What is there was there before this process opened the segments.
    pub is_first: bool,
    /// Whether it is known without a look that nothing follows.
    pub is_end: &'a dyn Fn(&Replica) -> bool,
}

impl Default for Follow<'_> {
    /// To the end, which is looked for.
    fn default() -> Self {
        Self { until: u64::MAX, is_first: false, is_end: &|_| false }
    }
}

/// Where a replica is, without its records.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The epoch.
    pub epoch: u64,
    /// The frame.
    pub at: Position,
    /// The file of its segment.
    pub slot: usize,
    /// A sequence number that some frame called durable.
    pub durable: u64,
    /// The segment before this one, while what counts may rest on what is in it.
    pub before: Option<u64>,
}

/// Where following the journal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// At its end.
    End,
    /// A sync of this segment failed; frames after `durable` do not count.
    Failed {
        /// The last frame that does.
        durable: u64,
    },
    /// The segment is another one by now: the state must be loaded again.
    Recycled,
    /// At a closed checkpoint: an epoch has ended and the next one has not begun.
    Closed,
}

impl Replica {
    /// Loads the checkpoint in force. Nothing is followed yet.
    pub fn load(
        fs: &dyn Fs,
        layout: &Layout,
        segments: &Segments,
        table: u64,
    ) -> Result<Self, ReadError> {
        for _ in 0..LOADS {
            let checkpoint = Checkpoint::open(fs, layout, table)?;
            let base = checkpoint.head.base;
            let found = if checkpoint.head.is_closed() {
                Some((0, 0))
            } else {
                segments.find(base.segment)?.map(|(slot, header)| (slot, header.bytes))
            };
            if let Some((slot, segment_bytes)) = found {
                return Ok(Self {
                    at: base,
                    slot,
                    fence: checkpoint.head.fence,
                    durable: base.sequence,
                    suspect: 0,
                    changed: Changed::default(),
                    segment_bytes,
                    tail: Tailing::default(),
                    checkpoint: Arc::new(checkpoint),
                });
            }
        }
        Err(ReadError::NoSegment)
    }

    /// Takes a state that was loaded anew; what is still to be written again stays so.
    pub fn replace(&mut self, mut fresh: Self) {
        fresh.suspect = self.suspect;
        fresh.tail = std::mem::take(&mut self.tail);
        *self = fresh;
    }

    /// The epoch it is in.
    pub fn epoch(&self) -> u64 {
        self.checkpoint.head.epoch
    }

    /// Whether the journal goes on in no segment.
    pub fn is_closed(&self) -> bool {
        self.checkpoint.head.is_closed()
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        let (epoch, at, slot, durable) = (self.epoch(), self.at, self.slot, self.durable);
        Place { epoch, at, slot, durable, before: self.before() }
    }

    /// J3: once this segment has a frame, all before it is durable.
    fn before(&self) -> Option<u64> {
        let begins = self.at.offset == FIRST_FRAME;
        (begins && self.checkpoint.head.base.segment < self.at.segment)
            .then(|| self.at.segment.saturating_sub(1))
    }

    /// Bytes of the segment it is in.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Applies every frame that follows.
    pub fn follow(
        &mut self,
        segments: &Segments,
        table: u64,
        how: Follow<'_>,
    ) -> Result<Tail, ReadError> {
        if self.is_closed() {
            return Ok(Tail::Closed);
        }
        let mut buffer = std::mem::take(&mut self.tail.buffer);
        let first = self.tail.first;
        let mut used = 0;
        let tail = self.read_tail(segments, table, how, &mut buffer, first, &mut used);
        // Those who catch up twice in a call find little the second time.
        let first = (used + FIRST_READ).max(first / 2).next_multiple_of(FIRST_READ).min(LONG_READ);
        buffer.truncate(LONG_READ);
        (self.tail.buffer, self.tail.first) = (buffer, first);
        tail
    }

    fn read_tail(
        &mut self,
        segments: &Segments,
        table: u64,
        how: Follow<'_>,
        buffer: &mut Vec<u8>,
        first: usize,
        used_in_all: &mut usize,
    ) -> Result<Tail, ReadError> {
        let mut want = first;
        loop {
            let room = usize::try_from(self.segment_bytes.saturating_sub(self.at.offset));
            let room = room.unwrap_or(usize::MAX);
            let asked = want.min(room);
            if buffer.len() < asked {
                buffer.resize(asked, 0);
            }
            let piece = buffer.get_mut(..asked).unwrap_or_default();
            let read = read_full(segments.file(self.slot)?, piece, self.at.offset)?;
            let piece = piece.get(..read).unwrap_or_default();
            let segment = self.at.segment;
            let (more, used) = self.apply_all(segments, Some(table), piece, how)?;
            *used_in_all += used;
            match more {
                More::Enough => return Ok(Tail::End),
                More::Recycled => return Ok(Tail::Recycled),
                More::OtherSegment => want = FIRST_READ,
                // The rest of a frame that is longer than what was read.
                More::Read(least) if used > 0 || asked < least.min(room) => {
                    // No length is believed that is more than there is.
                    if least > LONG_READ && !self.is_there(segments, least)? {
                        return self.end(segments, segment);
                    }
                    want = least.max(want.saturating_mul(2).min(LONG_READ));
                }
                More::Read(_) | More::None if (how.is_end)(self) => return Ok(Tail::End),
                More::Read(_) | More::None => return self.end(segments, segment),
            }
        }
    }

    /// Applies frames that were just appended here, as everybody else will when he reads them.
    pub fn append(&mut self, segments: &Segments, frames: &[u8]) -> Result<(), ReadError> {
        self.apply_all(segments, None, frames, Follow::default()).map(|_| ())
    }

    /// Whether the file goes on for this many bytes.
    fn is_there(&self, segments: &Segments, bytes: usize) -> io::Result<bool> {
        let len = segments.file(self.slot)?.stat()?.len;
        Ok(len.saturating_sub(self.at.offset) >= bytes as u64)
    }

    fn end(&self, segments: &Segments, segment: u64) -> Result<Tail, ReadError> {
        // The sync that is due before the first frame of a segment is of the one before.
        if let Some(before) = self.before()
            && let Some(header) = segments.header(1 - self.slot)?
            && header.segment == before
            && let Some(durable) = header.failed_after
        {
            return Ok(Tail::Failed { durable });
        }
        Ok(match segments.header(self.slot)? {
            Some(SegmentHeader { segment: now, failed_after: None, .. }) if now == segment => {
                Tail::End
            }
            Some(SegmentHeader { segment: now, failed_after: Some(durable), .. })
                if now == segment =>
            {
                Tail::Failed { durable }
            }
            _ => Tail::Recycled,
        })
    }

    /// Applies the frames at the beginning of `bytes`; says what is missing, and how many it used. Without
    /// a `table` they are our own.
    fn apply_all(
        &mut self,
        segments: &Segments,
        table: Option<u64>,
        bytes: &[u8],
        how: Follow<'_>,
    ) -> Result<(More, usize), ReadError> {
        let mut used = 0;
        loop {
            if self.at.sequence >= how.until {
                return Ok((More::Enough, used));
            }
            let rest = bytes.get(used..).unwrap_or_default();
            let room = self.segment_bytes.saturating_sub(self.at.offset);
            let limit = usize::try_from(room).unwrap_or(usize::MAX);
            let read = match table {
                Some(table) => frame::read(rest, table, limit),
                None => frame::read_own(rest, limit),
            };
            let checked = match read {
                Ok(checked) if self.is_next(&checked) => checked,
                Err(NoFrame::Short(least)) => return Ok((More::Read(least), used)),
                Ok(_) | Err(NoFrame::Bad) => return Ok((More::None, used)),
            };
            if how.is_first {
                self.suspect = checked.header.sequence;
            }
            let next = self.at.segment + 1;
            let is_seal = checked.header.kind == Kind::Seal;
            // Before it is applied: whoever is told that this failed, or does not reload, must not go on
            // behind a seal.
            let goes_on = if is_seal { segments.find(next)? } else { None };
            if is_seal && goes_on.is_none() {
                return Ok((More::Recycled, used));
            }
            let frame = rest.get(..HEADER + checked.body).unwrap_or_default();
            self.apply(&checked, frame)?;
            used += checked.len;
            if let Some((slot, header)) = goes_on {
                self.at = Position { segment: next, offset: FIRST_FRAME, ..self.at };
                (self.slot, self.segment_bytes) = (slot, header.bytes);
                return Ok((More::OtherSegment, used));
            }
        }
    }

    fn is_next(&self, checked: &Checked) -> bool {
        let header = &checked.header;
        header.segment == self.at.segment
            && header.sequence == self.at.sequence + 1
            && header.previous == self.at.chain
    }

    fn apply(&mut self, checked: &Checked, frame: &[u8]) -> Result<(), ReadError> {
        if checked.header.kind == Kind::Changes {
            let members = &mut self.tail.members;
            members.clear();
            let page = Page::walk(frame.to_vec(), HEADER, members).map_err(|reason| {
                ReadError::Damaged { segment: self.at.segment, offset: self.at.offset, reason }
            })?;
            let sequence = checked.header.sequence;
            let applied = self.changed.apply(sequence, page, members, &self.checkpoint);
            applied.map_err(|why| self.unread(why))?;
        }
        self.at.offset += checked.len as u64;
        self.at.sequence = checked.header.sequence;
        self.at.chain = checked.checksum;
        self.fence = self.fence.max(checked.header.fence);
        self.durable = self.durable.max(checked.header.durable);
        Ok(())
    }

    /// R3. Looks for a frame that calls durable what does not read at the end of the journal.
    pub fn look_for_damage(&self, segments: &Segments, table: u64) -> Result<(), ReadError> {
        if self.is_closed() {
            return Ok(());
        }
        let reason = Malformed("a frame that was acknowledged");
        let damaged = || {
            let (segment, offset) = (self.at.segment, self.at.offset);
            Err(ReadError::Damaged { segment, offset, reason })
        };
        // Whether a frame of `segment` that calls durable what does not read begins at a place. Its head
        // is looked at first: only few of those who may be one are read whole.
        let calls_durable = |file: &dyn RandomFile, segment, at, end: u64| -> io::Result<bool> {
            let claims = |bytes: &[u8]| {
                let header = frame::head(bytes);
                header
                    .filter(|header| header.segment == segment)
                    .is_some_and(|header| header.durable > self.at.sequence)
            };
            let mut head = [0; HEADER];
            let read = read_full(file, &mut head, at)?;
            let len = frame::length(&head);
            if read < HEADER || !claims(&head) || len as u64 > end.saturating_sub(at) {
                return Ok(false);
            }
            let mut whole = vec![0; len];
            let read = read_full(file, &mut whole, at)?;
            Ok(read == len && frame::read(&whole, table, usize::MAX).is_ok())
        };
        let file = segments.file(self.slot)?;
        // The header may say more than there is.
        let end = self.segment_bytes.min(file.stat()?.len);
        let mut piece = vec![0; LONG_READ];
        let mut at = self.at.offset;
        while at < end {
            let read = read_full(file, &mut piece, at)?;
            if read == 0 {
                break;
            }
            for sector in (0..read).step_by(SECTOR) {
                let rest = piece.get(sector..read).unwrap_or_default();
                if frame::may_begin(rest)
                    && calls_durable(file, self.at.segment, at + sector as u64, end)?
                {
                    return damaged();
                }
            }
            at += read as u64;
        }
        let next = self.at.segment + 1;
        if let Some((slot, _)) = segments.find(next)? {
            let file = segments.file(slot)?;
            if calls_durable(file, next, FIRST_FRAME, file.stat()?.len)? {
                return damaged();
            }
        }
        Ok(())
    }

    /// Adds what is stored under a key to `entries`.
    pub fn show(&self, key: Key, entries: &mut Vec<(Key, Entry)>) -> Result<(), ReadError> {
        let record = self.find(&key)?.map(|latest| latest.record()).transpose();
        let record = record.map_err(|why| self.damaged_record(why))?;
        entries.push((key, record.map_or(Entry::Vacant, Entry::Present)));
        Ok(())
    }

    /// Who holds what is stored under a key: most of a record is not looked at.
    pub fn holder(&self, key: &Key) -> Result<Option<Holder>, ReadError> {
        let Some(latest) = self.find(key)? else { return Ok(None) };
        latest.holder().map(Some).map_err(|why| self.damaged_record(why))
    }

    fn find<'a>(&'a self, key: &'a Key) -> Result<Option<Latest<'a>>, ReadError> {
        self.changed.find(key, &self.checkpoint).map_err(|why| self.unread(why))
    }

    fn unread(&self, why: Unread) -> ReadError {
        match why {
            Unread::Checkpoint(error) => error.into(),
            Unread::Malformed(reason) => self.damaged_record(reason),
        }
    }

    fn damaged_record(&self, reason: Malformed) -> ReadError {
        ReadError::Damaged { segment: self.at.segment, offset: self.at.offset, reason }
    }

    /// Whether `key` may have changed after the frame `sequence`.
    pub fn changed_since(&self, key: Key, sequence: u64) -> bool {
        // What a checkpoint swallowed is no longer known one by one.
        self.checkpoint.head.base.sequence > sequence
            || self.changed.sequence(key).is_some_and(|changed| changed > sequence)
    }

    /// The last frame that changed one of `keys`, as far back as the checkpoint.
    pub fn last_change(&self, keys: &[Key]) -> u64 {
        keys.iter().filter_map(|&key| self.changed.sequence(key)).max().unwrap_or(0)
    }

    /// How many keys have changed since the checkpoint.
    pub fn changes(&self) -> usize {
        self.changed.len()
    }

    /// Every record in key order.
    pub fn records(&self) -> Records {
        let changed: Result<Vec<_>, Malformed> = self.changed.all().collect();
        let damaged = changed.as_ref().err().copied();
        let mut changed = changed.unwrap_or_default();
        changed.sort_unstable_by(|a, b| a.0.cmp(&b.0).reverse());
        let checkpoint = self.checkpoint.clone();
        Records { checkpoint, block: 0, in_block: Vec::new(), changed, damaged }
    }

    /// Every record of one space, in key order.
    pub fn space(&self, space: Space) -> Result<Vec<(Key, Record)>, ReadError> {
        let mut found = Vec::new();
        for item in self.records() {
            let (key, stored) = item?;
            if key.space == space
                && let Some(record) = stored.record().map_err(|why| self.damaged_record(why))?
            {
                found.push((key, record));
            }
        }
        Ok(found)
    }
}

enum More {
    Enough,
    None,
    Read(usize),
    OtherSegment,
    Recycled,
}

/// A checkpoint and later changes, merged in key order.
#[derive(Debug)]
pub struct Records {
    checkpoint: Arc<Checkpoint>,
    block: usize,
    in_block: Vec<(Key, Stored)>,
    changed: Vec<(Key, Change)>,
    damaged: Option<Malformed>,
}

impl Records {
    /// The next change, over what the checkpoint has.
    fn changed(&mut self, before: Option<Stored>) -> Option<<Self as Iterator>::Item> {
        let (key, change) = self.changed.pop()?;
        let stored = change.after(before).map(|stored| (key, stored));
        Some(stored.map_err(|reason| CheckpointError::Damaged { offset: 0, reason }))
    }
}

impl Iterator for Records {
    type Item = Result<(Key, Stored), CheckpointError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(reason) = self.damaged.take() {
            return Some(Err(CheckpointError::Damaged { offset: 0, reason }));
        }
        while self.in_block.is_empty() && self.block < self.checkpoint.blocks() {
            match self.checkpoint.block(self.block) {
                Ok(records) => self.in_block = records.iter().rev().cloned().collect(),
                Err(error) => {
                    self.block = usize::MAX;
                    return Some(Err(error));
                }
            }
            self.block += 1;
        }
        let old = self.in_block.last().map(|(key, _)| *key);
        let new = self.changed.last().map(|(key, _)| *key);
        match (old, new) {
            (Some(old), Some(new)) if old < new => self.in_block.pop().map(Ok),
            (Some(old), Some(new)) if old == new => {
                let before = self.in_block.pop().map(|(_, stored)| stored);
                self.changed(before)
            }
            (_, Some(_)) => self.changed(None),
            (Some(_), None) => self.in_block.pop().map(Ok),
            (None, None) => None,
        }
    }
}

/// Why the journal was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The checkpoint was not read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint goes on in a segment that is not there.
    #[error("the segment that the checkpoint goes on in is not there")]
    NoSegment,
    /// Something acknowledged does not read.
    #[error("segment {segment} is damaged at byte {offset}: {reason}; nothing was changed")]
    Damaged {
        /// The segment.
        segment: u64,
        /// Where.
        offset: u64,
        /// What.
        reason: Malformed,
    },
}
