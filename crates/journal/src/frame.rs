//! One transaction as bytes.
//!
//! ```text
//!  0 magic:u32       8 checksum:u64       24 segment:u64     40 durable:u64   56 previous:u64
//!  4 length:u32     16 kind:u64           32 sequence:u64    48 fence:u64     64 body, zeros to 512
//! ```
//! F1. A frame ends on a sector: a torn write never reaches bytes that were acknowledged.
//! F2. `length` is bounded before it is believed.
//! F3. `checksum` covers everything after it and the length, seeded by the table, so the bytes of
//!     another table are no frame. The segment's number tells an earlier use of the file apart.
//!     Zeros are no frame.
//! F4. `previous` is the checksum of the frame before: a frame counts only in its chain.
//! F5. `durable` is a sequence number that was durable when this frame was written. A frame that
//!     does not read, but which a later one calls durable, was acknowledged and is damaged; one that
//!     none calls durable was never finished.

use twox_hash::XxHash3_64;

use crate::codec::page::PageWriter;
use crate::codec::{In, Malformed, Out};

/// What a torn write may leave half old and half new.
pub const SECTOR: usize = 512;
/// Bytes before the body.
pub const HEADER: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"RFj1");
const CHECKSUM_AT: usize = 8;
const COVERED_FROM: usize = 16;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its body is a page of changes.
    Changes,
    /// The journal goes on in the next segment.
    Seal,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it says.
    pub kind: Kind,
    /// The segment it is in.
    pub segment: u64,
    /// One more than that of the frame before.
    pub sequence: u64,
    /// A sequence number that was durable when it was written.
    pub durable: u64,
    /// The highest fence issued so far, its own included.
    pub fence: u64,
    /// The checksum of the frame before.
    pub previous: u64,
}

/// A frame that read: its checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its head.
    pub header: Header,
    /// Bytes of the body, which begins after [`HEADER`].
    pub body: usize,
    /// Bytes with the padding.
    pub len: usize,
    /// What the next frame names as `previous`.
    pub checksum: u64,
}

/// Why there is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFrame {
    /// It may be one, of this many bytes, but not all of them are there.
    Short(usize),
    /// It is none.
    Bad,
}

/// The checksum of a frame of this many bytes before the padding.
fn checksum(table: u64, frame: &[u8]) -> u64 {
    let seed = table ^ (frame.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    XxHash3_64::oneshot_with_seed(seed, frame.get(COVERED_FROM..).unwrap_or_default())
}

/// The whole frame, padded: `write_body` appends the body.
pub fn encode(header: &Header, table: u64, write_body: impl FnOnce(&mut Out)) -> (Vec<u8>, u64) {
    let mut out = Out(Vec::with_capacity(2 * SECTOR));
    out.u32(MAGIC);
    out.u32(0);
    out.u64(0);
    out.u64(match header.kind {
        Kind::Changes => 1,
        Kind::Seal => 2,
    });
    for word in [header.segment, header.sequence, header.durable, header.fence, header.previous] {
        out.u64(word);
    }
    write_body(&mut out);
    let Out(mut bytes) = out;
    let body = u32::try_from(bytes.len() - HEADER).unwrap_or(u32::MAX);
    put(&mut bytes, 4, &body.to_le_bytes());
    let checksum = checksum(table, &bytes);
    put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    (bytes, checksum)
}

/// Bytes of the frame that a page becomes, with the padding.
pub fn length_of(page: &PageWriter, audit: Option<&str>) -> usize {
    (HEADER + page.whole_len(audit)).next_multiple_of(SECTOR)
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + part.len()) {
        place.copy_from_slice(part);
    }
}

/// Whether a frame may begin here, to tell quickly where none does.
pub fn may_begin(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// How many bytes a frame that begins here says that it has; nothing of it is checked.
pub fn length(bytes: &[u8]) -> usize {
    let body = parse(bytes.get(..HEADER).unwrap_or_default()).map_or(0, |(_, body, _)| body);
    HEADER.saturating_add(body)
}

/// What a frame that begins here says of itself; nothing of it is checked.
pub fn head(bytes: &[u8]) -> Option<Header> {
    parse(bytes.get(..HEADER)?).ok().map(|(header, _, _)| header)
}

/// Reads the frame at the beginning of `bytes`; at most `limit` bytes may belong to it.
pub fn read(bytes: &[u8], table: u64, limit: usize) -> Result<Checked, NoFrame> {
    let checked = read_own(bytes, limit)?;
    let frame = bytes.get(..HEADER + checked.body).unwrap_or_default();
    if checksum(table, frame) == checked.checksum { Ok(checked) } else { Err(NoFrame::Bad) }
}

/// The same for a frame that [`encode`] has just made: nothing can have happened to it.
pub fn read_own(bytes: &[u8], limit: usize) -> Result<Checked, NoFrame> {
    let Some(head) = bytes.get(..HEADER) else { return Err(NoFrame::Short(HEADER)) };
    let (header, body, checksum) = parse(head).map_err(|_| NoFrame::Bad)?;
    let whole = HEADER.saturating_add(body);
    let len = whole.next_multiple_of(SECTOR);
    if len > limit {
        return Err(NoFrame::Bad);
    }
    if bytes.len() < whole {
        return Err(NoFrame::Short(len));
    }
    Ok(Checked { header, body, len, checksum })
}

fn parse(head: &[u8]) -> Result<(Header, usize, u64), Malformed> {
    let mut from = In::new(head);
    if from.u32()? != MAGIC {
        return Err(Malformed("the magic"));
    }
    let body = usize::try_from(from.u32()?).map_err(|_| Malformed("the length"))?;
    let checksum = from.u64()?;
    let kind = match from.u64()? {
        1 => Kind::Changes,
        2 => Kind::Seal,
        _ => return Err(Malformed("the kind")),
    };
    let header = Header {
        kind,
        segment: from.u64()?,
        sequence: from.u64()?,
        durable: from.u64()?,
        fence: from.u64()?,
        previous: from.u64()?,
    };
    Ok((header, body, checksum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: u64 = 77;

    fn header() -> Header {
        Header {
            kind: Kind::Changes,
            segment: 3,
            sequence: 9,
            durable: 8,
            fence: 40,
            previous: 0xabcd,
        }
    }

    #[test]
    fn a_frame_reads_back_ends_on_a_sector_and_belongs_to_its_table() {
        for body in [0, 1, 447, 448, 449, 5000] {
            let (bytes, checksum) = encode(&header(), TABLE, |out| out.raw(&vec![7; body]));
            assert_eq!(bytes.len() % SECTOR, 0);
            let checked = read(&bytes, TABLE, 1 << 20).unwrap();
            let len = bytes.len();
            assert_eq!(checked, Checked { header: header(), body, len, checksum });
            assert_eq!(read(&bytes, TABLE + 1, 1 << 20), Err(NoFrame::Bad), "another table");
            assert_eq!(read(&bytes, TABLE, len - 1), Err(NoFrame::Bad), "over the limit");
            assert!(
                read(&bytes[..HEADER + body - body.min(1)], TABLE, 1 << 20).is_err() || body == 0
            );
        }
    }

    #[test]
    fn zeros_of_any_length_are_no_frame() {
        for len in [0, 1, 63, 64, 65, 512, 4096] {
            assert!(read(&vec![0; len], 0, 1 << 20).is_err());
            assert!(read(&vec![0; len], TABLE, 1 << 20).is_err());
        }
    }

    #[test]
    fn every_single_bit_of_a_frame_counts() {
        let (bytes, _) = encode(&header(), TABLE, |out| out.raw(&[0x5a; 100]));
        for bit in 0..(HEADER + 100) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad, TABLE, 1 << 20).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_within_bounds(bytes: Vec<u8>, limit in 0_usize..4096) {
            if let Ok(checked) = read(&bytes, TABLE, limit) {
                prop_assert!(checked.len <= limit);
            }
        }
    }
}
