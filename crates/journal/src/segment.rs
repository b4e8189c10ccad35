//! The two files that frames are appended to, in turn.
//!
//! S1. A segment's number is never used twice. Its file holds nothing but zeros, durably, before its
//!     header gives it the number: whatever is found after the header was appended to this segment.
//! S2. The header is one sector, so it is there whole or not at all.
//! S3. A segment that failed stays marked so until its file is made ready for another number.

use std::io;

use ringfence_env::{Fs, RandomFile};
use twox_hash::XxHash3_64;

use crate::codec::{In, Malformed, Out};
use crate::frame::SECTOR;
use crate::layout::{Layout, SLOTS};

const MAGIC: u32 = u32::from_le_bytes(*b"RFs1");
/// Where the first frame is.
pub const FIRST_FRAME: u64 = SECTOR as u64;
/// Zeros are written in pieces of this many bytes.
const PIECE: usize = 256 * 1024;

/// What the first sector says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The number of the segment.
    pub segment: u64,
    /// The size of the file.
    pub bytes: u64,
    /// The last durable frame, if a sync failed: nothing after it counts, nothing may be appended.
    pub failed_after: Option<u64>,
}

impl SegmentHeader {
    fn encode(&self, table: u64) -> Vec<u8> {
        let mut out = Out::default();
        out.u32(MAGIC);
        out.u32(1);
        out.u64(self.segment);
        out.u64(self.bytes);
        out.u64(u64::from(self.failed_after.is_some()));
        out.u64(self.failed_after.unwrap_or(0));
        let checksum = XxHash3_64::oneshot_with_seed(table, &out.0);
        out.u64(checksum);
        let Out(mut bytes) = out;
        bytes.resize(SECTOR, 0);
        bytes
    }

    fn decode(sector: &[u8], table: u64) -> Result<Self, Malformed> {
        let mut from = In::new(sector);
        if (from.u32()?, from.u32()?) != (MAGIC, 1) {
            return Err(Malformed("the magic"));
        }
        let (segment, bytes) = (from.u64()?, from.u64()?);
        let (failed, after) = (from.u64()?, from.u64()?);
        let covered = sector.get(..from.position()).ok_or(Malformed("the length"))?;
        if from.u64()? != XxHash3_64::oneshot_with_seed(table, covered) {
            return Err(Malformed("the checksum"));
        }
        Ok(Self { segment, bytes, failed_after: (failed != 0).then_some(after) })
    }
}

/// The files of the segments, open.
#[derive(Debug)]
pub struct Segments {
    files: [Box<dyn RandomFile>; SLOTS],
    table: u64,
}

impl Segments {
    /// Opens them.
    pub fn open(fs: &dyn Fs, layout: &Layout, table: u64, write: bool) -> io::Result<Self> {
        let open = |slot| fs.open_random(&layout.segment(slot), write);
        Ok(Self { files: [open(0)?, open(1)?], table })
    }

    /// One of the files.
    pub fn file(&self, slot: usize) -> io::Result<&dyn RandomFile> {
        let file = self.files.get(slot).map(|file| &**file);
        file.ok_or_else(|| io::Error::other("there is no such segment file"))
    }

    /// What a file's first sector says, if it says anything.
    pub fn header(&self, slot: usize) -> io::Result<Option<SegmentHeader>> {
        let mut sector = [0; SECTOR];
        let read = read_full(self.file(slot)?, &mut sector, 0)?;
        let sector = sector.get(..read).unwrap_or_default();
        Ok(SegmentHeader::decode(sector, self.table).ok())
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

    /// Marks a segment as failed, for everybody who looks; not durable by itself.
    pub fn fail(&self, slot: usize, header: &SegmentHeader, durable: u64) -> io::Result<()> {
        let failed = SegmentHeader { failed_after: Some(durable), ..*header };
        write_full(self.file(slot)?, &failed.encode(self.table), 0)
    }

    /// Makes a file ready to be the segment `number`, durably. Whatever was in it is gone.
    pub fn prepare(&self, slot: usize, number: u64, bytes: u64) -> io::Result<()> {
        let file = self.file(slot)?;
        // The header first: nobody may take what is half erased for the old segment.
        write_full(file, &[0; SECTOR], 0)?;
        let zeros = vec![0; PIECE];
        let mut at = FIRST_FRAME;
        while at < bytes {
            let left = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
            write_full(file, zeros.get(..left).unwrap_or(&zeros), at)?;
            at += left as u64;
        }
        file.sync_data()?;
        let header = SegmentHeader { segment: number, bytes, failed_after: None };
        write_full(file, &header.encode(self.table), 0)?;
        file.sync_data()
    }
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
pub fn write_full(file: &dyn RandomFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}
