//! Making a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_engine::StorageError;
use ringfence_env::{FileKind, Read, World, steps};
use ringfence_files::{FilesEngine, Probe, ProbeError, probe};
use ringfence_journal::JournalEngine;
use ringfence_model::field::Fields;

use crate::store::{Kind, Store};

const DIR_MODE: u32 = 0o700;

/// How a store is made: by which engine, and with what.
///
/// The default is a journal: one sync per call, whole groups, on one host. `files` is for a directory
/// that other programs or hosts share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InitOptions {
    /// One file that is appended to.
    Journal(ringfence_journal::InitOptions),
    /// One record per file.
    Files(ringfence_files::InitOptions),
}

impl Default for InitOptions {
    /// A journal with 8 shards and a ttl of 60 seconds.
    fn default() -> Self {
        Self::Journal(ringfence_journal::InitOptions::default())
    }
}

impl From<ringfence_journal::InitOptions> for InitOptions {
    fn from(options: ringfence_journal::InitOptions) -> Self {
        Self::Journal(options)
    }
}

impl From<ringfence_files::InitOptions> for InitOptions {
    fn from(options: ringfence_files::InitOptions) -> Self {
        Self::Files(options)
    }
}

impl InitOptions {
    /// The engine's name: `journal` or `files`.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Journal(_) => "journal",
            Self::Files(_) => "files",
        }
    }
}

impl Store {
    /// Makes a store in the directory `path`, durably, or opens the one that was made alike.
    ///
    /// The parent directory must exist. The place is probed first: one that cannot carry the protocol
    /// is refused, see [`ringfence_files::probe`]; so is a store of the other engine, and for a
    /// journal a file system that other hosts share. What was there is then left as it was.
    pub fn init(path: impl AsRef<Path>, options: &InitOptions) -> Result<Self, InitError> {
        let (world, root) = (World::system(), path.as_ref());
        match engine_of(&world, root) {
            Some(found) if *found != *options.engine() => {
                let (root, wanted) = (root.to_owned(), options.engine());
                return Err(InitError::OtherEngine { root, wanted, found });
            }
            _ => {}
        }
        let engine = match options {
            InitOptions::Files(options) => Kind::Files(FilesEngine::init(&world, root, options)?),
            InitOptions::Journal(options) => {
                steps::among_makers(|| probed(&world, root))?;
                Kind::Journal(JournalEngine::init(&world, root, options)?)
            }
        };
        Ok(Self { engine, world })
    }
}

/// The engine that the table's description names. Anything else is left to the engine that says what is
/// wrong with it.
pub(crate) fn engine_of(world: &World, root: &Path) -> Option<Arc<str>> {
    let Ok(Read::Bytes(bytes)) = world.fs.read(&root.join("table.json"), 64 * 1024) else {
        return None;
    };
    Fields::parse(&bytes).ok()?.required("engine").ok()
}

/// Probes the directory of a journal that is yet to be made.
///
/// What is in a directory already was put there after a probe, or is not ours: then the engine goes on
/// with it or refuses it.
fn probed(world: &World, root: &Path) -> Result<(), InitError> {
    let fs = &*world.fs;
    let made = fs.mkdir(root, DIR_MODE).is_ok();
    let Ok(stat) = fs.stat(root) else { return Ok(()) };
    let is_ours = stat.uid == world.host.uid && stat.mode & 0o022 == 0;
    if stat.kind != FileKind::Dir || !is_ours {
        return Ok(());
    }
    let names = fs.list(root).map_err(|error| StorageError::new("list", root.display(), error))?;
    if !names.iter().all(|name| probe::is_place(Path::new(&name.name))) {
        return Ok(());
    }
    let probed = probe::run(world, root).and_then(Probe::require);
    if made && probed.is_err() {
        // Another maker may be at it.
        let _ = fs.rmdir(root);
    }
    Ok(probed?)
}

/// Why a store was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// As the engine `journal` says.
    #[error(transparent)]
    Journal(#[from] ringfence_journal::InitError),
    /// As the engine `files` says.
    #[error(transparent)]
    Files(#[from] ringfence_files::InitError),
    /// A table is there, of the other engine.
    #[error(
        "{} is a table of the engine {found} already: name that engine, or a new directory for one of \
         the engine {wanted}",
        root.display()
    )]
    OtherEngine {
        /// The directory.
        root: PathBuf,
        /// The engine asked for.
        wanted: &'static str,
        /// The engine of what is there.
        found: Arc<str>,
    },
    /// The place cannot carry the protocol.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The operating system refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}
