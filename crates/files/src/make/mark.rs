//! The mark that stands while directories are being made again: it names the ones in doubt.
//!
//! It has a line for each of them, as its path below the root. An empty one is that of somebody who
//! waits to move the table, or of where it was moved from: then nothing is in doubt.
//!
//! It is written before the first of them is made and only ever grows until all of them are durable, so
//! a maker that dies at any moment has named every directory that it may have left. A power cut may
//! leave anything of it; but then what is seen is on the medium, and nothing is in doubt.

use std::io;
use std::path::{Path, PathBuf};

use ringfence_engine::StorageError;
use ringfence_env::{OpenWrite, Read, World, steps};

use super::{directories, exists};
use crate::layout::{FILE_MODE, Layout};
use crate::meta::Durability;

/// A line for each of 2,000 shards is shorter.
const LONGEST: usize = 64 * 1024;

/// Whether the mark stands.
pub(crate) fn stands(world: &World, layout: &Layout) -> Result<bool, StorageError> {
    exists(world, &layout.making())
}

/// The directories of which nobody knows whether their names are durable, the ones above others first.
pub(crate) fn doubted(world: &World, layout: &Layout) -> Result<Vec<PathBuf>, StorageError> {
    let mark = layout.making();
    let fail = |source| StorageError::new("read", mark.display(), source);
    let bytes = match world.fs.read(&mark, LONGEST) {
        Ok(Read::Bytes(bytes)) => bytes,
        Ok(_) => return Err(fail(io::Error::new(io::ErrorKind::InvalidData, "it is no mark"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(fail(source)),
    };
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let named = |dir: &PathBuf| text.lines().any(|line| layout.root().join(line) == *dir);
    // Nothing is joined that is no directory of this table.
    Ok(directories(layout, Durability::Group).into_iter().filter(named).collect())
}

/// Names directories that are about to be made. The caller holds the gate alone.
pub(super) fn add(world: &World, layout: &Layout, dirs: &[PathBuf]) -> Result<(), StorageError> {
    let mark = layout.making();
    // A line that a dying maker cut short does not swallow the next one.
    let line =
        |dir: &PathBuf| format!("\n{}\n", dir.strip_prefix(layout.root()).unwrap_or(dir).display());
    let text: String = dirs.iter().map(line).collect();
    let opened = world.fs.open_write(&mark, OpenWrite::Append, FILE_MODE);
    opened
        .and_then(|mut file| steps::write_all(&mut *file, text.as_bytes()))
        .map_err(|source| StorageError::new("mark", mark.display(), source))
}

/// Takes the mark away: nothing is in doubt.
pub(super) fn remove(world: &World, layout: &Layout) -> Result<(), StorageError> {
    let mark = layout.making();
    match world.fs.unlink(&mark) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| StorageError::new("remove", mark.display(), source)),
    }
}

/// Refuses a directory that is in doubt, or below one that is.
pub(crate) fn refuse(doubted: &[PathBuf], dir: &Path) -> Result<(), StorageError> {
    let Some(doubted) = doubted.iter().find(|doubted| dir.starts_with(doubted)) else {
        return Ok(());
    };
    let why = "a repair that was making it again did not end, and a power cut may take it away; \
               `ringfence check STORE --repair` ends it";
    let why = io::Error::other(why);
    Err(StorageError::new("use directory", doubted.display(), why))
}
