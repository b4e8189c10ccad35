//! The state of the table as of one frame, sorted, to be looked up without reading all of it.
//!
//! ```text
//! file   = head (4096 bytes)  block*  index
//! block  = a page of at most 64 records in key order        index = (first key, offset, length, checksum)*
//! ```
//! C1. It replaces the last one by rename, once its bytes are durable: whoever opens the name finds a
//!     whole one, and whoever has one open keeps it.
//! C2. It never contains what is not durable in the journal, unless it ends an epoch.
//! C3. Its head decides which journal counts: the epoch, the segment and the frame it goes on after.
//!     A closed one, at offset 0, goes on nowhere.
//! C4. Head, index and each block have a checksum that is checked before anything is believed.

use std::io;
use std::sync::OnceLock;

use ringfence_env::{Fs, OpenWrite, RandomFile, WriteFile, steps};
use ringfence_model::{Key, RecordId, Space};
use twox_hash::XxHash3_64;

use crate::codec::page::{Change, Page, PageWriter, Stored};
use crate::codec::{In, Malformed, Out};
use crate::layout::{FILE_MODE, Layout};
use crate::segment::read_full;

const MAGIC: u32 = u32::from_le_bytes(*b"RFc1");
const HEAD: usize = 4096;
const BLOCK_RECORDS: usize = 64;
/// Ends of earlier epochs that are remembered.
const EPOCHS: usize = 32;
/// No epoch, segment or frame has a number above this; so all that follow have one as well.
const HIGHEST: u64 = u64::MAX / 2;
/// Bytes of one entry of the index.
const ENTRY: usize = 33 + 8 + 4 + 8;

/// A place in the journal: just after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The segment.
    pub segment: u64,
    /// Where the next frame begins.
    pub offset: u64,
    /// The sequence number of the last frame.
    pub sequence: u64,
    /// Its checksum.
    pub chain: u64,
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Rises when frames are dropped after a failed sync.
    pub epoch: u64,
    /// The frame it is the state after.
    pub base: Position,
    /// The highest fence issued by then.
    pub fence: u64,
    /// How many records it has.
    pub records: u64,
    /// The last frames that counted in earlier epochs, newest last.
    pub ended: Vec<(u64, u64)>,
}

/// An open checkpoint. Reads blocks when they are asked for and keeps them.
#[derive(Debug)]
pub struct Checkpoint {
    /// What it says of itself.
    pub head: Head,
    file: Box<dyn RandomFile>,
    index: Vec<Block>,
}

/// Where a checkpoint has a record; of another checkpoint it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    block: u32,
    at: u32,
}

impl Head {
    /// Whether no frame follows, wherever it may be: an epoch has ended here.
    pub fn is_closed(&self) -> bool {
        self.base.offset == 0
    }
}

type Records = Vec<(Key, Stored)>;

#[derive(Debug)]
struct Block {
    first: Key,
    offset: u64,
    len: usize,
    checksum: u64,
    /// Once somebody asked for it.
    records: OnceLock<Records>,
}

/// Why a checkpoint was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are not what was written.
    #[error("the checkpoint is damaged at byte {offset}: {reason}")]
    Damaged {
        /// Where.
        offset: u64,
        /// What does not read.
        reason: Malformed,
    },
}

fn damaged(offset: u64, reason: Malformed) -> CheckpointError {
    CheckpointError::Damaged { offset, reason }
}

impl Checkpoint {
    /// Opens the one that is in force.
    pub fn open(fs: &dyn Fs, layout: &Layout, table: u64) -> Result<Self, CheckpointError> {
        let file = fs.open_random(&layout.checkpoint(), false)?;
        let mut bytes = vec![0; HEAD];
        let read = read_full(&*file, &mut bytes, 0)?;
        bytes.truncate(read);
        let (head, at, len, sum) = decode_head(&bytes, table).map_err(|why| damaged(0, why))?;
        let whole = file.stat()?.len;
        if at.checked_add(len as u64).is_none_or(|end| end > whole) {
            return Err(damaged(at, Malformed("the length of the index")));
        }
        let mut bytes = vec![0; len];
        read_full(&*file, &mut bytes, at)?;
        if XxHash3_64::oneshot_with_seed(table, &bytes) != sum {
            return Err(damaged(at, Malformed("the index")));
        }
        let index = decode_index(&bytes, whole).map_err(|why| damaged(at, why))?;
        Ok(Self { head, file, index })
    }

    /// Where a key is, if it is there.
    pub fn find(&self, key: Key) -> Result<Option<Found>, CheckpointError> {
        let Some(block) = self.index.partition_point(|block| block.first <= key).checked_sub(1)
        else {
            return Ok(None);
        };
        let at = self.block(block)?.binary_search_by_key(&key, |(key, _)| *key);
        let number = |number| u32::try_from(number).map_err(|_| damaged(0, Malformed("the index")));
        at.ok().map(|at| Ok(Found { block: number(block)?, at: number(at)? })).transpose()
    }

    /// What is stored there.
    pub fn stored(&self, found: Found) -> Result<&Stored, CheckpointError> {
        let Found { block, at } = found;
        let records = self.block(usize::try_from(block).unwrap_or(usize::MAX))?;
        let record = usize::try_from(at).ok().and_then(|at| records.get(at));
        record.map(|(_, stored)| stored).ok_or_else(|| damaged(0, Malformed("a place in it")))
    }

    /// What is stored under a key.
    pub fn get(&self, key: Key) -> Result<Option<&Stored>, CheckpointError> {
        self.find(key)?.map(|found| self.stored(found)).transpose()
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.index.len()
    }

    /// The records of one block, in key order; none if there is no such block.
    pub fn block(&self, number: usize) -> Result<&[(Key, Stored)], CheckpointError> {
        let Some(block) = self.index.get(number) else { return Ok(&[]) };
        if let Some(records) = block.records.get() {
            return Ok(records);
        }
        let records = self.read_block(block)?;
        Ok(block.records.get_or_init(|| records))
    }

    fn read_block(&self, block: &Block) -> Result<Records, CheckpointError> {
        let mut bytes = vec![0; block.len];
        let read = read_full(&*self.file, &mut bytes, block.offset)?;
        if read != block.len || XxHash3_64::oneshot(&bytes) != block.checksum {
            return Err(damaged(block.offset, Malformed("a block")));
        }
        let contents = Page::read(bytes, 0).map_err(|why| damaged(block.offset, why))?;
        if !contents.members.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(damaged(block.offset, Malformed("the order of a block")));
        }
        let stored = |(key, change): (Key, Change)| Ok((key, change.after(None)?));
        let records: Result<Records, Malformed> =
            contents.members.into_iter().map(stored).collect();
        records.map_err(|why| damaged(block.offset, why))
    }
}

/// Writes a checkpoint of `records`, which come in key order, and puts it in force.
///
/// *Durability:* done means that it is in force after a power cut. On failure the old one may be in
/// force or the new one; both are true if C2 was kept.
pub fn write<E: From<CheckpointError>>(
    fs: &dyn Fs,
    layout: &Layout,
    table: u64,
    head: &Head,
    records: impl Iterator<Item = Result<(Key, Stored), E>>,
) -> Result<(), E> {
    let io = |error: io::Error| E::from(CheckpointError::Io(error));
    let temp = layout.new_checkpoint();
    match fs.unlink(&temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let mut file = fs.open_write(&temp, OpenWrite::CreateNew, FILE_MODE).map_err(io)?;
    let written = fill(&mut *file, table, head, records);
    let done = written.and_then(|()| {
        file.sync().and_then(|()| fs.rename(&temp, &layout.checkpoint())).map_err(io)
    });
    if let Err(error) = done {
        let _ = fs.unlink(&temp);
        return Err(error);
    }
    fs.sync_dir(layout.root()).map_err(io)
}

fn fill<E: From<CheckpointError>>(
    file: &mut dyn WriteFile,
    table: u64,
    head: &Head,
    records: impl Iterator<Item = Result<(Key, Stored), E>>,
) -> Result<(), E> {
    let io = |error: io::Error| E::from(CheckpointError::Io(error));
    let mut at = HEAD as u64;
    let (mut index, mut count) = (Out::default(), 0);
    let mut page: Option<(Key, PageWriter)> = None;
    let mut in_page = 0;
    let mut close = |first: Key, page: PageWriter| -> io::Result<()> {
        let mut out = Out::default();
        page.finish(None, &mut out);
        steps::write_all_at(file, &out.0, at)?;
        write_key(first, &mut index);
        index.u64(at);
        index.count(out.0.len());
        index.u64(XxHash3_64::oneshot(&out.0));
        at += out.0.len() as u64;
        Ok(())
    };
    for record in records {
        let (key, stored) = record?;
        let record = stored.record().map_err(|why| E::from(damaged(0, why)))?;
        let Some(record) = record else { continue };
        count += 1;
        let (_, writer) = page.get_or_insert_with(|| (key, PageWriter::default()));
        writer.push(key, Some(&record));
        in_page += 1;
        if in_page == BLOCK_RECORDS {
            in_page = 0;
            if let Some((first, full)) = page.take() {
                close(first, full).map_err(io)?;
            }
        }
    }
    if let Some((first, last)) = page.take() {
        close(first, last).map_err(io)?;
    }
    let head = Head { records: count, ..head.clone() };
    let sum = XxHash3_64::oneshot_with_seed(table, &index.0);
    steps::write_all_at(file, &index.0, at).map_err(io)?;
    let bytes = encode_head(&head, table, at, index.0.len(), sum);
    steps::write_all_at(file, &bytes, 0).map_err(io)
}

fn write_key(key: Key, out: &mut Out) {
    out.u8(u8::from(key.space == Space::Work));
    out.raw(key.id.as_bytes());
}

fn read_key(from: &mut In<'_>) -> Result<Key, Malformed> {
    let space = if from.u8()? == 0 { Space::Targets } else { Space::Work };
    Ok(Key { space, id: RecordId::from_bytes(from.id()?) })
}

fn encode_head(head: &Head, table: u64, index: u64, len: usize, sum: u64) -> Vec<u8> {
    let mut out = Out::default();
    out.u32(MAGIC);
    out.u32(1);
    for word in [
        head.epoch,
        head.base.segment,
        head.base.offset,
        head.base.sequence,
        head.base.chain,
        head.fence,
        head.records,
        index,
        len as u64,
        sum,
    ] {
        out.u64(word);
    }
    let ended = head.ended.len().min(EPOCHS);
    out.count(ended);
    for (epoch, last) in head.ended.iter().skip(head.ended.len() - ended) {
        out.u64(*epoch);
        out.u64(*last);
    }
    let checksum = XxHash3_64::oneshot_with_seed(table, &out.0);
    out.u64(checksum);
    let Out(mut bytes) = out;
    bytes.resize(HEAD, 0);
    bytes
}

fn decode_head(bytes: &[u8], table: u64) -> Result<(Head, u64, usize, u64), Malformed> {
    let mut from = In::new(bytes);
    if (from.u32()?, from.u32()?) != (MAGIC, 1) {
        return Err(Malformed("the head"));
    }
    let epoch = from.u64()?;
    let (segment, offset) = (from.u64()?, from.u64()?);
    let base = Position { segment, offset, sequence: from.u64()?, chain: from.u64()? };
    let (fence, records) = (from.u64()?, from.u64()?);
    let (at, len, sum) = (from.u64()?, from.u64()?, from.u64()?);
    let count = from.count(16)?;
    let ended = (0..count).map(|_| Ok((from.u64()?, from.u64()?))).collect::<Result<_, _>>()?;
    let covered = bytes.get(..from.position()).ok_or(Malformed("the head"))?;
    if from.u64()? != XxHash3_64::oneshot_with_seed(table, covered) {
        return Err(Malformed("the checksum of the head"));
    }
    if [epoch, base.segment, base.sequence].iter().any(|number| *number > HIGHEST) {
        return Err(Malformed("a number that no table comes to"));
    }
    let len = usize::try_from(len).map_err(|_| Malformed("the length of the index"))?;
    Ok((Head { epoch, base, fence, records, ended }, at, len, sum))
}

/// The index of a file of `whole` bytes.
fn decode_index(bytes: &[u8], whole: u64) -> Result<Vec<Block>, Malformed> {
    let mut from = In::new(bytes);
    let mut index = Vec::with_capacity(bytes.len() / ENTRY);
    while !from.is_empty() {
        let first = read_key(&mut from)?;
        let offset = from.u64()?;
        let len = usize::try_from(from.u32()?).map_err(|_| Malformed("the length of a block"))?;
        if offset.checked_add(len as u64).is_none_or(|end| end > whole) {
            return Err(Malformed("the length of a block"));
        }
        let checksum = from.u64()?;
        index.push(Block { first, offset, len, checksum, records: OnceLock::new() });
    }
    if index.is_sorted_by(|a, b| a.first < b.first) {
        Ok(index)
    } else {
        Err(Malformed("the order of the index"))
    }
}
