//! The two files that frames are appended to, in turn.
//!
//! S1. A segment's number is never used twice. Its file holds nothing but zeros, durably, before its
//!     header gives it the number: whatever is found after the header was appended to this segment.
//! S2. The header is one sector, so it is there whole or not at all. Nothing else is ever written there
//!     while the segment counts: what failed is said in the sector after it.
//! S3. A segment that ended early stays marked so until its file is made ready for another number. The
//!     mark is for the processes of one boot, and nobody else believes it: after a power cut the frames
//!     that it counted on may be gone. The checkpoint's head decides then.
//! S4. A segment is gone on in only where it is known that its header is durable: its maker says so in
//!     shared memory, and where that is not known the file is made ready again. It is not enough that the
//!     header is there: its maker may have died, or his sync failed. Where there is no shared memory the
//!     header is written once more instead, and the sync that covers the first frame covers it too.
//! S5. Where a closed table's sector stands in place of a header nobody reads a header any more, nor
//!     takes its absence for room: it is an error that says where the table went ([`moving`]).
//! S6. A segment is chosen to have the table's `segment_bytes`, and a quarter of the checkpoint in force at
//!     the moment when its file is made ready: so a checkpoint has about four times the bytes of the
//!     frames that come before it at most, whatever the table holds, who opens it reads little more than
//!     the checkpoint, and the files become small again with it. Its header says how large it is, and
//!     nothing else does: whoever reads or appends goes by that. What one call may store goes by
//!     `segment_bytes`, so it fits in any of them.
//! S7. A file is cut or grown in place, since others have it open, and only while it has no header: then
//!     it counts for nothing. It is as long as its next header says, durably, before that is written
//!     (S1). A power cut in between may leave the header of the segment before over a file of another
//!     length, and one of a segment that was never gone on in (S4): the checkpoint in force goes on in
//!     neither, and whoever reads believes no length that is more than there is.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_env::{Fs, RandomFile, World};
use twox_hash::XxHash3_64;

use crate::codec::{In, Malformed, Out};
use crate::frame::SECTOR;
use crate::layout::{Layout, SLOTS};
use crate::meta::MAX_SEGMENT_BYTES;
use crate::moving;
use crate::room::is_full;

const MAGIC: u32 = u32::from_le_bytes(*b"RFs1");
const MARK: u32 = u32::from_le_bytes(*b"RFm1");
const MARK_AT: u64 = SECTOR as u64;
/// Where the first frame is.
pub const FIRST_FRAME: u64 = 2 * SECTOR as u64;
/// Zeros are written in pieces of this many bytes.
const PIECE: usize = 256 * 1024;

/// What the first two sectors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The number of the segment.
    pub segment: u64,
    /// The size of the file.
    pub bytes: u64,
    /// The last frame that counts, if the segment ended early: nothing may be appended any more.
    pub failed_after: Option<u64>,
}

impl SegmentHeader {
    fn encode(&self, table: u64) -> Vec<u8> {
        sector(MAGIC, self.segment, self.bytes, table)
    }

    fn decode(bytes: &[u8], table: u64, boot: u64) -> Result<Self, Malformed> {
        let (segment, bytes_of) = parse(MAGIC, bytes, table)?;
        if bytes_of > MAX_SEGMENT_BYTES {
            return Err(Malformed("the size of a segment"));
        }
        let after = usize::try_from(MARK_AT).ok().and_then(|at| bytes.get(at..));
        let mark = after.and_then(|mark| parse(MARK, mark, boot).ok());
        let failed_after = mark.filter(|(of, _)| *of == segment).map(|(_, after)| after);
        Ok(Self { segment, bytes: bytes_of, failed_after })
    }
}

/// One sector: magic, version, a segment, a number, and the checksum of all that.
fn sector(magic: u32, segment: u64, number: u64, seed: u64) -> Vec<u8> {
    let mut out = Out::default();
    out.u32(magic);
    out.u32(1);
    out.u64(segment);
    out.u64(number);
    let checksum = XxHash3_64::oneshot_with_seed(seed, &out.0);
    out.u64(checksum);
    let Out(mut bytes) = out;
    bytes.resize(SECTOR, 0);
    bytes
}

fn parse(magic: u32, bytes: &[u8], seed: u64) -> Result<(u64, u64), Malformed> {
    let mut from = In::new(bytes);
    if (from.u32()?, from.u32()?) != (magic, 1) {
        return Err(Malformed("the magic"));
    }
    let said = (from.u64()?, from.u64()?);
    let covered = bytes.get(..from.position()).ok_or(Malformed("the length"))?;
    if from.u64()? != XxHash3_64::oneshot_with_seed(seed, covered) {
        return Err(Malformed("the checksum"));
    }
    Ok(said)
}

/// The files of the segments, open.
#[derive(Debug)]
pub struct Segments {
    files: [Box<dyn RandomFile>; SLOTS],
    table: u64,
    /// The table and the boot.
    boot: u64,
    fs: Arc<dyn Fs>,
    root: PathBuf,
}

impl Segments {
    /// Opens them.
    pub fn open(world: &World, layout: &Layout, table: u64, write: bool) -> io::Result<Self> {
        let open = |slot| world.fs.open_random(&layout.segment(slot), write);
        let boot = world.host.boot.as_deref().unwrap_or_default();
        let boot = XxHash3_64::oneshot_with_seed(table, boot.as_bytes());
        let (fs, root) = (world.fs.clone(), layout.root().to_owned());
        Ok(Self { files: [open(0)?, open(1)?], table, boot, fs, root })
    }

    /// One of the files.
    pub fn file(&self, slot: usize) -> io::Result<&dyn RandomFile> {
        let file = self.files.get(slot).map(|file| &**file);
        file.ok_or_else(|| io::Error::other("there is no such segment file"))
    }

    /// What a file's first sectors say, if they say anything; an error if they say that the table was
    /// moved.
    pub fn header(&self, slot: usize) -> io::Result<Option<SegmentHeader>> {
        let mut sector = [0; 2 * SECTOR];
        let read = read_full(self.file(slot)?, &mut sector, 0)?;
        let sector = sector.get(..read).unwrap_or_default();
        if moving::is_close(sector) {
            return Err(moving::refusal(&*self.fs, &self.root));
        }
        Ok(SegmentHeader::decode(sector, self.table, self.boot).ok())
    }

    /// The file that has this segment.
    pub fn find(&self, segment: u64) -> io::Result<Option<(usize, SegmentHeader)>> {
        for slot in 0..SLOTS {
            if let Some(header) = self.header(slot)?
                && header.segment == segment
            {
                return Ok(Some((slot, header)));
            }
        }
        Ok(None)
    }

    /// Marks a segment as ended after the frame `last`, for everybody who looks; not durable by itself.
    pub fn end(&self, slot: usize, segment: u64, last: u64) -> io::Result<()> {
        write_full(self.file(slot)?, &sector(MARK, segment, last, self.boot), MARK_AT)
    }

    /// S4. Writes a header again as it is; not durable by itself.
    pub fn renew(&self, slot: usize, header: &SegmentHeader) -> io::Result<()> {
        write_full(self.file(slot)?, &header.encode(self.table), 0)
    }

    /// How many bytes the longer of the files has. No segment that frames may have been lost from was
    /// larger: its file had its length durably before it had its number (S7).
    pub fn longest(&self) -> io::Result<u64> {
        let lengths = (0..SLOTS).map(|slot| Ok(self.file(slot)?.stat()?.len));
        Ok(lengths.collect::<io::Result<Vec<u64>>>()?.into_iter().max().unwrap_or(0))
    }

    /// Makes a file ready to be the segment `number`, of `wanted` bytes, durably. Whatever was in it is
    /// gone. Where there is no room for so many, it has as many as the file had, and `least` at least.
    pub fn prepare(&self, slot: usize, number: u64, wanted: u64, least: u64) -> io::Result<()> {
        let file = self.file(slot)?;
        // The header first: nobody may take what is half erased for the old segment.
        write_full(file, &[0; SECTOR], 0)?;
        let had = file.stat()?.len;
        if had > wanted {
            file.set_len(wanted)?;
        }
        let bytes = match erase(file, wanted) {
            // A table on a full disk goes on in the room that it has.
            Err(error) if had < wanted && is_full(&error) => {
                let bytes = had.max(least).min(wanted);
                file.set_len(bytes)?;
                erase(file, bytes)?;
                bytes
            }
            erased => erased.map(|()| wanted)?,
        };
        file.sync_data()?;
        let header = SegmentHeader { segment: number, bytes, failed_after: None };
        self.renew(slot, &header)?;
        let synced = file.sync_data();
        if synced.is_err() {
            // Nobody may go on in what may be gone after a power cut.
            write_full(file, &[0; SECTOR], 0)?;
        }
        synced
    }
}

/// Fills a file with zeros up to `bytes`, but for its first sector.
fn erase(file: &dyn RandomFile, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; PIECE];
    let mut at = MARK_AT;
    while at < bytes {
        let left = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
        write_full(file, zeros.get(..left).unwrap_or(&zeros), at)?;
        at += left as u64;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
pub fn read_full(file: &dyn RandomFile, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..)
        && !rest.is_empty()
    {
        match file.read_at(rest, offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes everything, however short the single writes are.
pub fn write_full(file: &dyn RandomFile, bytes: &[u8], offset: u64) -> io::Result<()> {
    write_part(file, bytes, offset).map_err(|(_, error)| error)
}

/// The same; of what failed it says how many bytes were written before.
pub fn write_part(
    file: &dyn RandomFile,
    bytes: &[u8],
    offset: u64,
) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..)
        && !rest.is_empty()
    {
        match file.write_at(rest, offset + done as u64) {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(written) => done += written,
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}
