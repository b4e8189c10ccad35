//! The directories of a table: made by `init`, made again by repair, by nobody else.
//!
//! K1. An operation never makes a directory: one that is missing was removed by hand, with all that
//!     was in it, and that is for an operator to see.
//! K2. No operation relies on a directory whose name is not durable. While directories are being made
//!     again a mark that names them stands in the root ([`mark`]). Their maker removes it once they are
//!     durable; if it fails or dies before, every operation on one of them is refused until a repair
//!     has put it in its place anew. Whoever moves a table makes the same mark, which then names none,
//!     to be let in ([`crate::moving`]).
//! K3. A directory that somebody else has made is not taken over by one more sync of its name, which
//!     proves nothing where an earlier one has failed: whoever is to make it durable and finds it empty
//!     puts a new one in its place. Nothing of ours is in it, by K2.

pub(crate) mod mark;

use std::io;
use std::path::{Path, PathBuf};

use ringfence_engine::StorageError;
use ringfence_env::{FileKind, Read, World, steps};
use ringfence_model::Space;

use crate::layout::{DIR_MODE, FILE_MODE, Layout};
use crate::meta::Durability;

/// Every directory that a table has below its root, the ones above others first.
fn directories(layout: &Layout, durability: Durability) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for space in [Space::Targets, Space::Work] {
        let top = layout.space(space);
        if top != layout.root() {
            all.push(top);
        }
        all.extend(layout.shard_count(space).shards().map(|shard| layout.shard_dir(space, shard)));
    }
    if durability == Durability::Group {
        all.push(layout.intents());
    }
    all
}

/// The directories of a table that are not there.
pub(crate) fn missing(
    world: &World,
    layout: &Layout,
    durability: Durability,
) -> Result<Vec<PathBuf>, StorageError> {
    let mut missing = Vec::new();
    for dir in directories(layout, durability) {
        if !exists(world, &dir)? {
            missing.push(dir);
        }
    }
    Ok(missing)
}

/// Which of the directories that are there already may have names that are not durable, since the sync
/// of them may have failed for whoever made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt<'a> {
    /// Any of them.
    Any,
    /// These.
    These(&'a [PathBuf]),
}

impl Doubt<'_> {
    fn is_about(self, dir: &PathBuf) -> bool {
        match self {
            Self::Any => true,
            Self::These(dirs) => dirs.contains(dir),
        }
    }
}

/// Makes every directory of a table, durably. The caller holds the gate alone.
pub(crate) fn all(
    world: &World,
    layout: &Layout,
    durability: Durability,
    doubt: Doubt<'_>,
) -> Result<(), StorageError> {
    for dir in directories(layout, durability) {
        let fresh = one(world, &dir)?;
        if !fresh && doubt.is_about(&dir) {
            renew(world, layout, &dir)?;
        }
    }
    if durability == Durability::Group {
        first_slot(world, layout)?;
    }
    vouch(world, layout)
}

/// Makes the directories again that are not there; returns them. The caller holds the gate alone.
pub(crate) fn again(
    world: &World,
    layout: &Layout,
    durability: Durability,
) -> Result<Vec<PathBuf>, StorageError> {
    let missing = missing(world, layout, durability)?;
    let mut doubted = mark::doubted(world, layout)?;
    let new: Vec<PathBuf> = missing.iter().filter(|dir| !doubted.contains(dir)).cloned().collect();
    if !new.is_empty() {
        // Before the first directory, so that nobody sees one without the mark.
        mark::add(world, layout, &new)?;
        doubted.extend(new);
    }
    if !doubted.is_empty() {
        all(world, layout, durability, Doubt::These(&doubted)).inspect_err(|_| {
            // Nobody uses what may be lost, since the mark stands; an operator is to see what is not
            // there as missing.
            for dir in missing.iter().rev() {
                let _ = if *dir == layout.intents() {
                    without_intents(world, layout).is_ok()
                } else {
                    world.fs.rmdir(dir).is_ok()
                };
            }
        })?;
    }
    if mark::stands(world, layout)? {
        mark::remove(world, layout)?;
    }
    if !doubted.is_empty() {
        // A power cut that brought it back would have operations refused until the next repair.
        let root = layout.root();
        let fail = |source| StorageError::new("sync directory", root.display(), source);
        world.fs.sync_dir(root).map_err(fail)?;
    }
    Ok(missing)
}

/// K2. Refuses where a repair has left directories in doubt.
pub(crate) fn refuse_doubted(world: &World, layout: &Layout) -> Result<(), StorageError> {
    let doubted = mark::doubted(world, layout)?;
    doubted.iter().try_for_each(|dir| mark::refuse(&doubted, dir))
}

/// K2. Takes the mark away if it names nothing; otherwise it stays, and that is refused. The caller holds
/// the gate, so no maker is at work.
pub(crate) fn unmark(world: &World, layout: &Layout) -> Result<(), StorageError> {
    refuse_doubted(world, layout)?;
    mark::remove(world, layout)
}

/// Makes the names of all directories durable.
fn vouch(world: &World, layout: &Layout) -> Result<(), StorageError> {
    for dir in [layout.space(Space::Work), layout.root().to_owned()] {
        world
            .fs
            .sync_dir(&dir)
            .map_err(|source| StorageError::new("sync directory", dir.display(), source))?;
    }
    Ok(())
}

fn exists(world: &World, path: &Path) -> Result<bool, StorageError> {
    match world.fs.stat(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(StorageError::new("stat", path.display(), source)),
    }
}

/// Whether it was not there before.
fn one(world: &World, dir: &Path) -> Result<bool, StorageError> {
    match world.fs.mkdir(dir, DIR_MODE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            check(world, dir).map(|()| false)
        }
        Err(source) => Err(StorageError::new("make", dir.display(), source)),
        Ok(()) => Ok(true),
    }
}

/// K3. Gives a directory that was found its name anew.
fn renew(world: &World, layout: &Layout, dir: &Path) -> Result<(), StorageError> {
    let fail = |source| StorageError::new("make again", dir.display(), source);
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let temp = dir.with_file_name(format!("{name}.{}.tmp", world.unique().map_err(fail)?));
    let fs = &*world.fs;
    if *dir == layout.intents() {
        // A slot that was never used: it is made again at the end.
        let slot = layout.intent(0);
        if let Ok(Read::Bytes(bytes)) = fs.read_head(&slot, FREE_SLOT.len() + 1)
            && FREE_SLOT.starts_with(&bytes)
        {
            fs.unlink(&slot).map_err(fail)?;
        }
    }
    if *dir == layout.space(Space::Work) {
        // Shards that hold something stay, and it with them; the others are made again next.
        for shard in layout.shard_count(Space::Work).shards() {
            let _ = fs.rmdir(&layout.shard_dir(Space::Work, shard));
        }
    }
    steps::renew_empty_dir(fs, &temp, dir, DIR_MODE).map(drop).map_err(fail)
}

/// A part of a table must be a directory of its own.
pub(crate) fn check(world: &World, dir: &Path) -> Result<(), StorageError> {
    let fail = |source| StorageError::new("use directory", dir.display(), source);
    match world.fs.stat(dir) {
        Ok(stat) if stat.kind == FileKind::Dir => Ok(()),
        Ok(stat) => {
            let why = format!("it is {}, a shard must be a directory", stat.kind);
            Err(fail(io::Error::new(io::ErrorKind::InvalidInput, why)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let why = "somebody removed it, with every lease in it; \
                       `ringfence check STORE --repair` makes an empty one";
            Err(fail(io::Error::new(io::ErrorKind::NotFound, why)))
        }
        Err(error) => Err(fail(error)),
    }
}

const FREE_SLOT: [u8; 1024] = [0; 1024];

/// Makes one free slot, so that a lone process never makes another.
fn first_slot(world: &World, layout: &Layout) -> Result<(), StorageError> {
    let (dir, slot) = (layout.intents(), layout.intent(0));
    match steps::stage_synced(&*world.fs, &slot, &FREE_SLOT, FILE_MODE) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(StorageError::new("make", slot.display(), error))
        }
        _ => world
            .fs
            .sync_dir(&dir)
            .map_err(|source| StorageError::new("sync directory", dir.display(), source)),
    }
}

/// Takes away the directory of intents that a maker left who died before there was a table.
pub(crate) fn without_intents(world: &World, layout: &Layout) -> Result<(), StorageError> {
    let (dir, slot) = (layout.intents(), layout.intent(0));
    if !exists(world, &dir)? {
        return Ok(());
    }
    if exists(world, &slot)? {
        let fail = |source| StorageError::new("remove", slot.display(), source);
        world.fs.unlink(&slot).map_err(fail)?;
    }
    let fail = |source| StorageError::new("remove", dir.display(), source);
    world.fs.rmdir(&dir).map_err(fail)
}
