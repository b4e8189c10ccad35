//! Making a table and opening one.
//!
//! O1. A table is described by `table.json`, which is written last, durably, under the gate: a
//!     directory with a description has everything else.
//! O2. Nothing of a directory is used unless it is a directory itself, belongs to the user who runs
//!     this process, and nobody else may write in it.
//! O3. Nothing is written by a process that has not seen the probe succeed on this host since boot.

mod error;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{FileKind, LockMode, World, steps};
use ringfence_model::{ShardCount, Space, Ttl};

use crate::batch::Barriers;
use crate::engine::FilesEngine;
use crate::fence::FenceCounter;
use crate::intent;
use crate::layout::{DIR_MODE, FILE_MODE, Layout, NameKind};
use crate::locks;
use crate::make;
use crate::meta::{Durability, MetaError, TableMeta};
use crate::probe;

pub use error::{InitError, OpenError};

/// How a table is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitOptions {
    /// Shards of the target table.
    pub shards: ShardCount,
    /// Shards of the work table.
    pub work_shards: ShardCount,
    /// The ttl of claims and records that name none.
    pub ttl: Ttl,
    /// What a crash may leave.
    pub durability: Durability,
}

impl Default for InitOptions {
    /// 8 target shards, 256 work shards, a ttl of 60 seconds, durability `group`.
    fn default() -> Self {
        let valid = "constants in range";
        #[expect(clippy::expect_used, reason = "constants, covered by a test")]
        Self {
            shards: ShardCount::new(8).expect(valid),
            work_shards: ShardCount::new(256).expect(valid),
            ttl: Ttl::from_seconds(60.0).expect(valid),
            durability: Durability::Group,
        }
    }
}

/// How an open table works; no setting changes what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How many file syncs of one group are under way at once; 1 is one after the other.
    pub sync_width: usize,
    /// When directories are synced.
    pub barriers: Barriers,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { sync_width: 16, barriers: Barriers::Batched }
    }
}

const GATE_PATIENCE: Duration = Duration::from_secs(10);

impl FilesEngine {
    /// Makes a table, or opens the one that is there if it was made alike.
    ///
    /// The parent of `root` must exist. `root` may be a table of another program of this line: its
    /// records must then be placed by the same shard count.
    pub fn init(world: &World, root: &Path, options: &InitOptions) -> Result<Self, InitError> {
        let root = &plain(root);
        steps::among_makers(|| Self::init_once(world, root, options))
    }

    fn init_once(world: &World, root: &Path, options: &InitOptions) -> Result<Self, InitError> {
        let made = match world.fs.mkdir(root, DIR_MODE) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                renew_root(world, root).map_err(|source| storage("make", root, source))?
            }
            Err(source) => return Err(storage("make", root, source)),
        };
        let done = Self::init_in(world, root, options);
        if made && done.is_err() {
            unmake(world, root);
        }
        done
    }

    fn init_in(world: &World, root: &Path, options: &InitOptions) -> Result<Self, InitError> {
        check_root(world, root)?;
        if let Some(engine) = Self::existing(world, root, options)? {
            return Ok(engine);
        }
        let meta = TableMeta {
            table: format!("{:032x}", world.entropy.nonce().map_err(|e| storage("name", root, e))?)
                .into(),
            shards: options.shards,
            work_shards: options.work_shards,
            ttl: options.ttl,
            durability: options.durability,
        };
        let layout = Layout::new(root, &meta);
        if let Err(error) = survey(world, &layout) {
            // Another maker may have finished since, and the table be in use.
            return Self::existing(world, root, options)?.ok_or(error);
        }
        // Before the first lock call of this process, which may never return.
        probe::ensure(world, root, "")?;
        let parent = root.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        world.fs.sync_dir(parent).map_err(|source| storage("sync directory", parent, source))?;
        let deadline = world.clock.deadline(GATE_PATIENCE);
        let gate = locks::acquire(world, &layout.gate(), LockMode::Exclusive, deadline)?;
        if !matches!(TableMeta::read(&*world.fs, root), Err(MetaError::Missing)) {
            // Opening may take the gate itself.
            drop(gate);
            let made = Self::existing(world, root, options)?;
            return made.ok_or_else(|| OpenError::NotATable { root: root.to_owned() }.into());
        }
        if meta.durability == Durability::Record {
            make::without_intents(world, &layout)?;
        }
        make::all(world, &layout, meta.durability, make::Doubt::Any)?;
        FenceCounter::new(&layout).create(world)?;
        let path = Layout::meta(root);
        let name = world.unique().map_err(|source| storage("name", root, source))?;
        let temp = root.join(format!("table.json.{name}.tmp"));
        let line = meta.to_line();
        if let Err(source) =
            steps::durable_replace(&*world.fs, &temp, &path, line.as_bytes(), FILE_MODE)
        {
            // A name whose sync failed may be gone after a power cut: nobody is to take it for a table.
            let _ = world.fs.unlink(&path);
            return Err(storage("write", &path, source));
        }
        probe::remember(world, root, &meta.table);
        drop(gate);
        let (world, tuning) = (world.clone(), Tuning::default());
        Ok(Self { world, layout, meta, tuning, read_only: false })
    }

    fn existing(
        world: &World,
        root: &Path,
        options: &InitOptions,
    ) -> Result<Option<Self>, InitError> {
        match TableMeta::read(&*world.fs, root) {
            Err(MetaError::Missing) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(meta) => {
                let same = meta.shards == options.shards
                    && meta.work_shards == options.work_shards
                    && meta.ttl == options.ttl
                    && meta.durability == options.durability;
                if !same {
                    return Err(InitError::Differs { root: root.to_owned(), meta: Box::new(meta) });
                }
                Ok(Some(Self::open(world, root, Tuning::default())?))
            }
        }
    }

    /// Opens a table for every operation.
    ///
    /// One that was put back from a backup is refused, and one whose description does not agree with
    /// what is in it.
    pub fn open(world: &World, root: &Path, tuning: Tuning) -> Result<Self, OpenError> {
        let engine = Self { tuning, read_only: false, ..Self::open_read_only(world, root)? };
        engine.agrees()?;
        if let Some(missing) = engine.missing_intents()? {
            return Err(OpenError::Incomplete { missing });
        }
        if let Some(restored) = FenceCounter::new(&engine.layout).restored(world)? {
            return Err(restored.into());
        }
        probe::ensure(world, engine.root(), &engine.meta.table)?;
        if engine.meta.durability == Durability::Group {
            let deadline = world.clock.deadline(GATE_PATIENCE);
            match engine.recover(None, deadline) {
                // Somebody is at work on a member; whoever meets the intent next finishes it.
                Ok(_) | Err(Failure::Busy { .. }) => {}
                // Without room it stands until there is some; who meets it is told, others go on.
                Err(Failure::Untouched(error)) if intent::is_full(&error) => {}
                Err(failure) => return Err(OpenError::Recovery(Box::new(failure))),
            }
        }
        Ok(engine)
    }

    /// The same, and refuses a table of another durability.
    pub fn open_as(
        world: &World,
        root: &Path,
        tuning: Tuning,
        wanted: Durability,
    ) -> Result<Self, OpenError> {
        let found = Self::open_read_only(world, root)?.meta.durability;
        if found != wanted {
            return Err(OpenError::OtherDurability { root: plain(root), wanted, found });
        }
        Self::open(world, root, tuning)
    }

    /// Opens a table for [`FilesEngine::repair_with`] only: also one in which something is missing, or
    /// that was put back from a backup. What dead writers left is left to the repair.
    pub fn open_to_repair(world: &World, root: &Path) -> Result<Self, OpenError> {
        let engine = Self { read_only: false, ..Self::open_read_only(world, root)? };
        engine.agrees()?;
        probe::ensure(world, engine.root(), &engine.meta.table)?;
        Ok(engine)
    }

    /// A table of durability `record` has no intents.
    pub(crate) fn agrees(&self) -> Result<(), OpenError> {
        let found = self.layout.intents();
        if self.meta.durability == Durability::Record && self.is_there(&found)? {
            return Err(OpenError::Contradicts { meta: Layout::meta(self.root()), found });
        }
        Ok(())
    }

    /// The directory of intents, where there should be one and is none.
    fn missing_intents(&self) -> Result<Option<PathBuf>, StorageError> {
        let dir = self.layout.intents();
        let missing = self.meta.durability == Durability::Group && !self.is_there(&dir)?;
        Ok(missing.then_some(dir))
    }

    fn is_there(&self, path: &Path) -> Result<bool, StorageError> {
        match self.world.fs.stat(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(StorageError::new("stat", path.display(), source)),
        }
    }

    /// Opens a table for [`view`](ringfence_engine::Engine::view) and
    /// [`scan`](ringfence_engine::Engine::scan) only. Writes nothing, not even a probe.
    pub fn open_read_only(world: &World, root: &Path) -> Result<Self, OpenError> {
        let root = &plain(root);
        check_root(world, root)?;
        let meta = match TableMeta::read(&*world.fs, root) {
            Err(MetaError::Missing) => return Err(OpenError::NotATable { root: root.to_owned() }),
            other => other?,
        };
        let (world, layout) = (world.clone(), Layout::new(root, &meta));
        check_parts(&world, &layout)?;
        Ok(Self { world, layout, meta, tuning: Tuning::default(), read_only: true })
    }
}

/// The same path without a trailing slash or dot, which would make the system follow a link.
fn plain(root: &Path) -> PathBuf {
    root.components().collect()
}

/// A root that is empty and looks like one of ours may be what a maker left who could not make its name
/// durable. Whether a new one was put in its place.
fn renew_root(world: &World, root: &Path) -> io::Result<bool> {
    let stat = world.fs.stat(root)?;
    if stat.kind != FileKind::Dir || stat.mode != DIR_MODE || stat.uid != world.host.uid {
        return Ok(false);
    }
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let temp = root.with_file_name(format!("{name}.{}.tmp", world.unique()?));
    Ok(world.fs.list(root)?.is_empty()
        && steps::renew_empty_dir(&*world.fs, &temp, root, DIR_MODE)?)
}

/// Removes a root of our own making in which nothing was put; otherwise it stays to be looked at.
fn unmake(world: &World, root: &Path) {
    let gate = root.join("gate.lock");
    if world.fs.stat(&gate).is_ok() {
        // Under the gate, so that nobody else is making a table here: a waiter that wins the lock of
        // the removed file makes a new one.
        let now = world.clock.deadline(Duration::ZERO);
        let Ok(_gate) = locks::acquire(world, &gate, LockMode::Exclusive, now) else { return };
        let _ = world.fs.unlink(&gate);
    }
    let _ = world.fs.rmdir(root);
}

/// The directories between the root and the shards are directories of their own.
fn check_parts(world: &World, layout: &Layout) -> Result<(), OpenError> {
    for part in [layout.space(Space::Work), layout.intents()] {
        match world.fs.stat(&part) {
            Ok(stat) if stat.kind == FileKind::Dir => {}
            Ok(stat) => {
                let reason = format!("{} is {}, not a directory", part.display(), stat.kind);
                return Err(OpenError::Unsafe { root: layout.root().to_owned(), reason });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(StorageError::new("stat", part.display(), source).into()),
        }
    }
    Ok(())
}

fn check_root(world: &World, root: &Path) -> Result<(), OpenError> {
    let refuse = |reason| OpenError::Unsafe { root: root.to_owned(), reason };
    let stat = world.fs.stat(root).map_err(|source| {
        if source.kind() == io::ErrorKind::NotFound {
            OpenError::NotATable { root: root.to_owned() }
        } else {
            OpenError::Storage(StorageError::new("stat", root.display(), source))
        }
    })?;
    if stat.kind != FileKind::Dir {
        return Err(refuse(format!("it is {}, not a directory", stat.kind)));
    }
    if stat.uid != world.host.uid {
        return Err(refuse(format!(
            "it belongs to user {}, this process acts as user {}",
            stat.uid, world.host.uid
        )));
    }
    if stat.mode & 0o022 != 0 {
        return Err(refuse(format!("others may write in it (mode {:o}): chmod go-w", stat.mode)));
    }
    Ok(())
}

/// A directory that is to become a table is empty, or a table of another program of this line whose
/// records are placed by the same shard count.
fn survey(world: &World, layout: &Layout) -> Result<(), InitError> {
    let root = layout.root();
    let list = |dir: &Path| world.fs.list(dir).map_err(|source| storage("list", dir, source));
    for name in list(root)? {
        let text = name.name.to_string_lossy().into_owned();
        let ours = layout.is_ours(Space::Targets, &text)
            || text == "lost+found"
            || text.starts_with(".nfs")
            || NameKind::of(&text) == NameKind::Temp;
        let shard = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !ours && !shard {
            return Err(InitError::NotEmpty { root: root.to_owned(), name: text });
        }
        if !shard {
            continue;
        }
        for record in list(&root.join(&text))? {
            let Some(NameKind::Record(id)) = record.name.to_str().map(NameKind::of) else {
                continue;
            };
            let shards = layout.shard_count(Space::Targets);
            if id.shard(shards).to_string() != text {
                let path = root.join(&text).join(&record.name);
                return Err(InitError::OtherShards { path, shards: shards.get() });
            }
        }
    }
    Ok(())
}

fn storage(operation: &'static str, path: &Path, source: io::Error) -> InitError {
    InitError::Open(OpenError::Storage(StorageError::new(operation, path.display(), source)))
}
