//! The log of force-releases: one JSON line each, durable before the release is.
//!
//! After a crash in between, or where the release could not be stored, a line stands for a release
//! that did not happen, never the other way round.

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{World, steps};
use ringfence_model::Audit;

use crate::layout::{FILE_MODE, Layout};
use crate::open::remove;

/// Appends a line durably. The append lock is held, so nobody else is at it.
pub(crate) fn append(world: &World, layout: &Layout, line: &Audit) -> Result<(), Failure> {
    let (path, temp) = (layout.audit(), layout.new_audit());
    remove(world, &temp)
        .and_then(|()| steps::durable_line(&*world.fs, &temp, &path, &line.0, FILE_MODE))
        .map(drop)
        .map_err(|source| {
            Failure::Untouched(StorageError::new("append to", path.display(), source))
        })
}
