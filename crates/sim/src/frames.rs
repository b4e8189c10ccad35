//! What can be told of a journal from its bytes: for checks and planted bugs that look at frames.

use std::path::Path;

use ringfence_env::{Fs, Read};
use ringfence_journal::checkpoint::{Checkpoint, Head};
use ringfence_journal::frame::{self, Checked};
use ringfence_journal::layout::Layout;
use ringfence_journal::meta::TableMeta;
use ringfence_journal::segment::FIRST_FRAME;
use twox_hash::XxHash3_64;

use crate::setup::root;

/// Where the first frame of a segment is.
pub(crate) fn first_frame() -> usize {
    usize::try_from(FIRST_FRAME).unwrap_or(usize::MAX)
}

/// The table's identity as its checksums are seeded with it; nothing before there is a table.
pub(crate) fn table(fs: &dyn Fs) -> Option<u64> {
    let meta = TableMeta::read(fs, &Layout::new(&root())).ok()?;
    Some(XxHash3_64::oneshot(meta.table.as_bytes()))
}

/// The head of the checkpoint in force.
pub(crate) fn head(fs: &dyn Fs, table: u64) -> Option<Head> {
    Checkpoint::open(fs, &Layout::new(&root()), table).ok().map(|checkpoint| checkpoint.head)
}

/// Whether a path is that of a segment's file.
pub(crate) fn is_segment(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("journal.") && path.parent() == Some(&root())
}

/// All bytes of a file.
pub(crate) fn bytes(fs: &dyn Fs, path: &Path) -> Vec<u8> {
    match fs.read(path, usize::MAX) {
        Ok(Read::Bytes(bytes)) => bytes,
        _ => Vec::new(),
    }
}

/// The number of the segment that a file is, if its header says one.
pub(crate) fn segment(bytes: &[u8]) -> Option<u64> {
    let number = bytes.get(8..16)?.try_into().ok()?;
    bytes.starts_with(b"RFs1").then(|| u64::from_le_bytes(number))
}

/// The frames of a segment, each with its place, from the first one on as long as they are in one
/// chain. The first of them begins at `from`.
pub(crate) fn chain(bytes: &[u8], table: u64, from: usize) -> Vec<(usize, Checked)> {
    let mut found: Vec<(usize, Checked)> = Vec::new();
    let mut at = from;
    while let Some(rest) = bytes.get(at..)
        && let Ok(checked) = frame::read(rest, table, rest.len())
        && Some(checked.header.segment) == segment(bytes)
        && found.last().is_none_or(|(_, last)| follows(last, &checked))
    {
        found.push((at, checked));
        at += checked.len;
    }
    found
}

/// Whether a frame is the next one in its chain.
pub(crate) fn follows(last: &Checked, next: &Checked) -> bool {
    next.header.sequence == last.header.sequence + 1 && next.header.previous == last.checksum
}
