//! The log of force-releases: one JSON line each, durable before the release is.
//!
//! After a crash in between, or where the release could not be stored, a line stands for a release
//! that did not happen, never the other way round.

use std::io;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{OpenWrite, Read, World, steps};
use ringfence_model::Audit;

use crate::layout::{FILE_MODE, Layout};

/// Appends a line durably. The append lock is held, so nobody else is at it.
pub(crate) fn append(world: &World, layout: &Layout, line: &Audit) -> Result<(), Failure> {
    let path = layout.audit();
    let fail = |source| Failure::Untouched(StorageError::new("append to", path.display(), source));
    let mut file = world.fs.open_write(&path, OpenWrite::Append, FILE_MODE).map_err(fail)?;
    let before = file.stat().map_err(fail)?.len;
    let whole = match world.fs.read(&path, usize::MAX).map_err(fail)? {
        Read::Bytes(bytes) => bytes.last().is_none_or(|&last| last == b'\n'),
        _ => return Err(fail(io::ErrorKind::InvalidInput.into())),
    };
    // A line that a crash cut short stays as it is; the next one does not continue it.
    let lead = if whole { "" } else { "\n" };
    let written = steps::write_all(&mut *file, format!("{lead}{}\n", line.0).as_bytes())
        .and_then(|()| file.sync())
        .and_then(|()| world.fs.sync_dir(layout.root()));
    written.map_err(|source| {
        let _ = file.set_len(before);
        fail(source)
    })
}
