//! Segments and shared words that break their promises.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_env::{RandomFile, SharedWords, Stat};
use ringfence_journal::JournalEngine;
use ringfence_journal::frame::{self, HEADER, Header, Kind, SECTOR};
use ringfence_journal::layout::Layout;

use super::{Sabotage, SabotagedFs};
use crate::frames;
use crate::setup::root;
use crate::subject::SEGMENT_BYTES;

/// What was done to a journal so far.
#[derive(Debug, Default)]
pub(super) struct JournalMemory {
    /// It was synced before a frame was written.
    synced_early: bool,
    /// A checkpoint was renamed.
    pub(super) has_checkpoint: bool,
    /// A checkpoint that waits for its rename.
    pub(super) late_checkpoint: Option<(PathBuf, PathBuf)>,
}

/// An open segment, with its promises.
#[derive(Debug)]
pub(super) struct SabotagedSegment {
    inner: Box<dyn RandomFile>,
    fs: SabotagedFs,
    path: PathBuf,
}

impl SabotagedSegment {
    pub(super) fn new(inner: Box<dyn RandomFile>, fs: SabotagedFs, path: PathBuf) -> Self {
        Self { inner, fs, path }
    }

    /// The file's bytes as an engine would take them that does not check what it should.
    fn believed(&self) -> io::Result<Vec<u8>> {
        let fs = &*self.fs.inner;
        let mut bytes = frames::bytes(fs, &self.path);
        let (Some(table), Some(segment)) = (frames::table(fs), frames::segment(&bytes)) else {
            return Ok(bytes);
        };
        let before = self.end_of_the_segment_before(table, segment);
        let mut last: Option<frame::Checked> = None;
        let mut at = frames::first_frame();
        while let Some(rest) = bytes.get(at..)
            && let Ok(checked) = frame::read(rest, table, rest.len())
        {
            let is_here = checked.header.segment == segment;
            let fits = last.as_ref().is_none_or(|last| frames::follows(last, &checked));
            let unchecked = match self.fs.kind {
                Sabotage::ChainUnchecked => is_here,
                Sabotage::RecycledBelieved => true,
                _ => false,
            };
            let next = match last.or(before) {
                _ if is_here && fits => checked,
                Some(last) if unchecked => {
                    let sequence = last.header.sequence + 1;
                    let previous = last.checksum;
                    let header = Header { segment, sequence, previous, ..checked.header };
                    let body = rest.get(HEADER..HEADER + checked.body).unwrap_or_default();
                    let (frame, _) = frame::encode(&header, table, |out| out.raw(body));
                    bytes[at..at + frame.len()].copy_from_slice(&frame);
                    frame::read(&frame, table, frame.len()).expect("just encoded")
                }
                _ => break,
            };
            last = Some(next);
            at += next.len;
        }
        let rest = bytes.get_mut(at..).unwrap_or_default();
        match self.fs.kind {
            Sabotage::DamageCut => rest.fill(0),
            Sabotage::TornTailRefused if rest.iter().any(|byte| *byte != 0) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            _ => {}
        }
        Ok(bytes)
    }

    /// The last frame of the segment before, if it is there.
    fn end_of_the_segment_before(&self, table: u64, segment: u64) -> Option<frame::Checked> {
        let layout = Layout::new(&root());
        let other = [0, 1].map(|slot| layout.segment(slot)).into_iter().find(|it| *it != self.path);
        let bytes = frames::bytes(&*self.fs.inner, &other?);
        let is_before = frames::segment(&bytes)? + 1 == segment;
        let frames = frames::chain(&bytes, table, frames::first_frame());
        frames.last().filter(|_| is_before).map(|(_, last)| *last)
    }

    fn ends_in_a_seal(&self) -> bool {
        let fs = &*self.fs.inner;
        let bytes = frames::bytes(fs, &self.path);
        let Some(table) = frames::table(fs) else { return false };
        let frames = frames::chain(&bytes, table, frames::first_frame());
        frames.last().is_some_and(|(_, last)| last.header.kind == Kind::Seal)
    }
}

/// Whether these bytes mark a segment as one of which a sync failed.
fn is_mark(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RFm1")
}

impl RandomFile for SabotagedSegment {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        use Sabotage::{ChainUnchecked, DamageCut, RecycledBelieved, TornTailRefused};
        let looks = [ChainUnchecked, DamageCut, RecycledBelieved, TornTailRefused];
        if offset < frames::first_frame() as u64 || !looks.contains(&self.fs.kind) {
            return self.inner.read_at(into, offset);
        }
        let bytes = self.believed()?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = into.len().min(bytes.len() - from);
        into[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let is_frame = offset >= frames::first_frame() as u64 && bytes.starts_with(b"RFj1");
        let is_erasure = bytes.len() > SECTOR && bytes.iter().all(|byte| *byte == 0);
        match self.fs.kind {
            Sabotage::MarkForgotten if is_mark(bytes) => return Ok(bytes.len()),
            Sabotage::RecycledBelieved if is_erasure => return Ok(bytes.len()),
            Sabotage::SyncBeforeFrame if is_frame => {
                self.inner.sync_data()?;
                self.fs.with(|memory| memory.journal.synced_early = true);
            }
            Sabotage::ErasedTooEarly if bytes.starts_with(b"RFs1") => {
                self.fs.rename_late_checkpoint()?;
            }
            _ => {}
        }
        self.inner.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let dropped = match self.fs.kind {
            Sabotage::DataSync => true,
            Sabotage::SyncBeforeFrame => {
                self.fs.with(|memory| std::mem::take(&mut memory.journal.synced_early))
            }
            Sabotage::BorderSync => self.ends_in_a_seal(),
            _ => false,
        };
        if dropped {
            return Ok(());
        }
        match self.inner.sync_data() {
            Err(_) if self.fs.kind == Sabotage::SyncRetried => self.inner.sync_data(),
            other => other,
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }
}

/// Shared memory, with its promises.
#[derive(Debug)]
pub(super) struct SabotagedWords {
    inner: Box<dyn SharedWords>,
    fs: SabotagedFs,
}

/// The word that names the table and the boot.
const IDENTITY: usize = 0;
/// The words that say what is durable, what was appended, which checkpoint is in force, and which
/// fence was issued last; a checksum comes after each.
const DURABLE: usize = 24;
const APPENDED: usize = 32;
const NAMED: usize = 56;
const ISSUED: usize = 64;
/// The word that says after which frame nothing comes.
const END: usize = 120;
/// The word that says that a sync has failed.
const FAILED: usize = 80;

impl SabotagedWords {
    pub(super) fn new(inner: Box<dyn SharedWords>, fs: SabotagedFs) -> Self {
        Self { inner, fs }
    }

    /// The epoch that counts for the number in a word.
    fn epoch_of(&self, word: usize) -> Option<u64> {
        let fs = &*self.fs.inner;
        let epoch = || Some(frames::head(fs, frames::table(fs)?)?.epoch);
        if word == ISSUED { Some(0) } else { epoch() }
    }

    /// What is to stand after a number for it to be believed.
    fn checksum(&self, word: usize, epoch: u64, number: u64) -> u64 {
        ringfence_journal::hints::checksum(self.inner.load(IDENTITY), word, epoch, number)
    }

    /// Takes every frame that is there for durable.
    pub(super) fn believe_dead_writers(&self) {
        if let Ok(engine) = JournalEngine::open_read_only(&self.fs.world, &root())
            && let Ok(place) = engine.place()
        {
            self.inner.store(DURABLE, place.sequence);
            let checksum = self.checksum(DURABLE, place.epoch, place.sequence);
            self.inner.store(DURABLE + 1, checksum);
        }
    }
}

impl SharedWords for SabotagedWords {
    fn load(&self, index: usize) -> u64 {
        if self.fs.kind == Sabotage::HintUnchecked
            && [DURABLE + 1, NAMED + 1, ISSUED + 1].contains(&index)
            && let Some(epoch) = self.epoch_of(index - 1)
        {
            return self.checksum(index - 1, epoch, self.inner.load(index - 1));
        }
        self.inner.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        // A failed sync is told by a mark and here; whoever died at once told it in neither.
        let untold = [Sabotage::MarkForgotten, Sabotage::DeadWriterBelieved];
        if untold.contains(&self.fs.kind) && [FAILED, FAILED + 1].contains(&index) {
            return;
        }
        // Nothing but the beginning of a boot sets anything to zero.
        if self.fs.kind == Sabotage::HintUnchecked && value == 0 {
            return;
        }
        if self.fs.kind == Sabotage::EndKept && value == 0 && [END, END + 1].contains(&index) {
            return;
        }
        self.inner.store(index, value);
        if self.fs.kind == Sabotage::AppendedIsDurable
            && index == APPENDED + 1
            && let Some(epoch) = self.epoch_of(DURABLE)
        {
            let sequence = self.inner.load(APPENDED);
            self.inner.store(DURABLE, sequence);
            self.inner.store(DURABLE + 1, self.checksum(DURABLE, epoch, sequence));
        }
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.inner.add(index, value)
    }

    fn wait(&self, index: usize, seen: u64, patience: Duration) {
        self.inner.wait(index, seen, patience);
    }

    fn wake(&self, index: usize, count: u32) {
        self.inner.wake(index, count);
    }
}

impl SabotagedFs {
    /// Makes the files of segments small again which have grown.
    pub(super) fn cut_segments(&self) -> io::Result<()> {
        let layout = Layout::new(&root());
        for path in [0, 1].map(|slot| layout.segment(slot)) {
            let file = self.inner.open_random(&path, true)?;
            if file.stat()?.len > SEGMENT_BYTES {
                file.set_len(SEGMENT_BYTES)?;
            }
        }
        Ok(())
    }

    /// Puts the checkpoint in force whose turn has come.
    fn rename_late_checkpoint(&self) -> io::Result<()> {
        let Some((from, to)) = self.with(|memory| memory.journal.late_checkpoint.take()) else {
            return Ok(());
        };
        self.inner.rename(&from, &to)?;
        self.inner.sync_dir(&root())
    }
}
