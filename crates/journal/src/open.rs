//! Making a table and opening one.
//!
//! O1. A table is described by `table.json`, which is written last, durably: a directory with a
//!     description has everything else.
//! O2. Nothing of a directory is used unless it is a directory itself, belongs to the user who runs
//!     this process, and nobody else may write in it.
//! O3. A file system that other hosts may share is refused: the shared memory and the order of
//!     appends hold within one kernel only.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{FileKind, FileLock, LockMode, World, steps};
use ringfence_model::{ShardCount, Ttl};
use twox_hash::XxHash3_64;

use crate::binding;
use crate::checkpoint::{self, CheckpointError, Head, Position};
use crate::engine::JournalEngine;
use crate::hints::{Hints, WORDS};
use crate::journal::{Journal, Locks};
use crate::layout::{FILE_MODE, Layout, SLOTS};
use crate::lives::{Children, Ended, Life};
use crate::meta::{MetaError, TableMeta};
use crate::replica::{Follow, LOADS, ReadError, Replica, Tail};
use crate::segment::{FIRST_FRAME, Segments};
use crate::sync::{AtomicBool, AtomicU64, Mutex};

/// How a table is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitOptions {
    /// In how many parts batches of independent calls are ordered.
    pub shards: ShardCount,
    /// The ttl of claims and records that name none.
    pub ttl: Ttl,
    /// Bytes of a segment while little is held; it has a quarter of the checkpoint more where much is.
    /// No call stores more than this.
    pub segment_bytes: u64,
}

impl Default for InitOptions {
    /// 8 shards, a ttl of 60 seconds, segments of 4 MiB.
    fn default() -> Self {
        let valid = "constants in range";
        #[expect(clippy::expect_used, reason = "constants, covered by a test")]
        Self {
            shards: ShardCount::new(8).expect(valid),
            ttl: Ttl::from_seconds(60.0).expect(valid),
            segment_bytes: 4 * 1024 * 1024,
        }
    }
}

const DIR_MODE: u32 = 0o700;
const PATIENCE: Duration = Duration::from_secs(10);
/// File systems that several hosts may have mounted.
const SHARED: [&str; 12] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "lustre",
];

/// What a table is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Everything,
    Reading,
    /// Raising its fences, which also a copy may have done.
    Raise,
}

impl JournalEngine {
    /// Makes a table, or opens the one that is there if it was made alike.
    pub fn init(world: &World, root: &Path, options: &InitOptions) -> Result<Self, InitError> {
        let root: PathBuf = root.components().collect();
        steps::among_makers(|| Self::init_once(world, &root, options))
    }

    fn init_once(world: &World, root: &Path, options: &InitOptions) -> Result<Self, InitError> {
        match world.fs.mkdir(root, DIR_MODE) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                renew_root(world, root).map_err(|source| storage("make", root, source))?;
            }
            made => made.map_err(|source| storage("make", root, source))?,
        }
        check_root(world, root)?;
        let layout = Layout::new(root);
        let parent = root.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let sync = |dir: &Path| {
            world.fs.sync_dir(dir).map_err(|source| storage("sync directory", dir, source))
        };
        let is_there = existing(world, &layout, options)?.is_some();
        if !is_there {
            survey(world, &layout)?;
        }
        sync(parent)?;
        let deadline = world.clock.deadline(PATIENCE);
        let path = layout.maintain_lock();
        let (fs, clock) = (&*world.fs, &*world.clock);
        let lock =
            FileLock::acquire(fs, clock, &path, LockMode::Exclusive, Some(FILE_MODE), deadline)
                .map_err(|error| storage("lock", &path, io::Error::other(error)))?;
        if let Some(engine) = existing(world, &layout, options)? {
            // Its maker may have died before its name was durable, or after a sync of it had failed:
            // then one that succeeds proves nothing, and it is described anew.
            binding::describe(world, &layout, &engine.journal.meta)
                .map_err(|source| storage("write", &layout.meta(), source))?;
            return Ok(engine);
        }
        make(world, &layout, options)?;
        drop(lock);
        Ok(Self::open(world, root)?)
    }

    /// Opens a table for every operation.
    pub fn open(world: &World, root: &Path) -> Result<Self, OpenError> {
        Self::open_as(world, root, Purpose::Everything)
    }

    /// Opens a table for [`view`](ringfence_engine::Engine::view) and
    /// [`scan`](ringfence_engine::Engine::scan) only. Writes nothing.
    pub fn open_read_only(world: &World, root: &Path) -> Result<Self, OpenError> {
        Self::open_as(world, root, Purpose::Reading)
    }

    pub(crate) fn open_as(world: &World, root: &Path, purpose: Purpose) -> Result<Self, OpenError> {
        let write = purpose != Purpose::Reading;
        let root: PathBuf = root.components().collect();
        check_root(world, &root)?;
        let layout = Layout::new(&root);
        let describe = || match TableMeta::read(&*world.fs, &layout) {
            Err(MetaError::Missing) => Err(OpenError::NotATable { root: root.clone() }),
            other => Ok(other?),
        };
        let mut meta = describe()?;
        let fail = |source| StorageError::new("open the files of", root.display(), source);
        while let (Purpose::Everything, Some(binding)) = (purpose, meta.binding)
            && !binding.names(world, &root, &layout.meta()).map_err(fail)?
        {
            // Somebody may have described it anew between the two looks.
            let now = describe()?;
            if now.binding == meta.binding {
                let reader = Self::open_as(world, &root, Purpose::Reading)?;
                let limit = reader.journal.replica().fence;
                return Err(OpenError::Restored { root, limit });
            }
            meta = now;
        }
        let table = XxHash3_64::oneshot(meta.table.as_bytes());
        let segments = Segments::open(world, &layout, table, write).map_err(fail)?;
        let locks = if write { Some(Locks::open(world, &layout).map_err(fail)?) } else { None };
        let hints = if write {
            Hints::open(world, &layout, table).map_err(fail)?
        } else {
            Hints::private(world, table)
        };
        let read = |reason| OpenError::Read { root: root.clone(), reason };
        let mut replica = Replica::load(&*world.fs, &layout, &segments, table).map_err(read)?;
        let how = Follow { is_first: write, ..Follow::default() };
        let mut loads = 0;
        loop {
            let tail = replica.follow(&segments, table, how).map_err(read)?;
            if tail == Tail::Recycled && loads < LOADS {
                // Others have gone on since the checkpoint was read, in another segment or epoch.
                loads += 1;
                replica = Replica::load(&*world.fs, &layout, &segments, table).map_err(read)?;
                continue;
            }
            let end = replica.at;
            // Everything that was acknowledged in this boot is there.
            if hints.durable(replica.epoch()) == Some(end.sequence) {
                break;
            }
            let Err(damage) = replica.look_for_damage(&segments, table) else { break };
            // Others may have gone on since: then it reads by now.
            let tail = replica.follow(&segments, table, how).map_err(read)?;
            let may_reload = tail == Tail::Recycled && loads < LOADS;
            if replica.at == end && !may_reload {
                return Err(read(damage));
            }
        }
        let journal = Journal {
            world: world.clone(),
            layout,
            meta,
            table,
            segments,
            hints,
            replica: Mutex::new(replica),
            vouched: AtomicBool::new(false),
            ready: AtomicU64::new(0),
            ended: Ended::default(),
            locks,
        };
        Ok(Self { journal: Arc::new(journal), life: None })
    }

    /// A handle whose leases are tied to the life of this process: once it is gone they are over at
    /// once, for everybody in the same PID namespace of the same boot, and by their ttl for others.
    ///
    /// A lease is tied by whoever renewed it last. The tie ends when the last clone of this handle is
    /// dropped; what it still holds then counts as left behind by a process that is gone.
    pub fn tied(&self, children: Children) -> Result<Self, StorageError> {
        let life = Some(Arc::new(Life::begin(&self.journal, children)?));
        Ok(Self { journal: Arc::clone(&self.journal), life })
    }

    /// The table's directory.
    pub fn root(&self) -> &Path {
        self.journal.layout.root()
    }
}

fn existing(
    world: &World,
    layout: &Layout,
    options: &InitOptions,
) -> Result<Option<JournalEngine>, InitError> {
    match TableMeta::read(&*world.fs, layout) {
        Err(MetaError::Missing) => Ok(None),
        Err(error) => Err(InitError::Open(error.into())),
        Ok(meta) => {
            let same = (meta.shards, meta.ttl, meta.segment_bytes)
                == (options.shards, options.ttl, options.segment_bytes);
            if !same {
                let root = layout.root().to_owned();
                return Err(InitError::Differs { root, meta: Box::new(meta) });
            }
            Ok(Some(JournalEngine::open(world, layout.root())?))
        }
    }
}

/// Everything but the description, then the description. What another maker left half done is made
/// again.
fn make(world: &World, layout: &Layout, options: &InitOptions) -> Result<(), InitError> {
    let root = layout.root();
    let fail = |source| storage("make a table in", root, source);
    let meta = TableMeta {
        table: format!("{:032x}", world.entropy.nonce().map_err(fail)?).into(),
        shards: options.shards,
        ttl: options.ttl,
        segment_bytes: options.segment_bytes,
        binding: None,
    };
    let table = XxHash3_64::oneshot(meta.table.as_bytes());
    for path in (0..SLOTS).map(|slot| layout.segment(slot)) {
        remove(world, &path).map_err(fail)?;
        // Taking back what was half written needs no room then, if that can be helped.
        steps::stage_in_place(&*world.fs, &path, FILE_MODE).map_err(fail)?;
    }
    remove(world, &layout.hints()).map_err(fail)?;
    steps::stage_words(&*world.fs, &layout.hints(), WORDS, FILE_MODE).map_err(fail)?;
    let segments = Segments::open(world, layout, table, true).map_err(fail)?;
    for (slot, number) in (0..SLOTS).zip(1..) {
        let bytes = meta.segment_bytes;
        segments.prepare(slot, number, bytes, bytes).map_err(fail)?;
    }
    Locks::open(world, layout).map_err(fail)?;
    match world.fs.mkdir(&layout.lives(), DIR_MODE) {
        // Another maker's sync of its name may have failed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let temp = layout.new_lives();
            remove_dir(world, &temp).map_err(fail)?;
            steps::renew_empty_dir(&*world.fs, &temp, &layout.lives(), DIR_MODE).map_err(fail)?;
        }
        made => made.map_err(fail)?,
    }
    // Its sync of the directory covers every name but that of the description.
    let chain = world.entropy.nonce().map_err(fail)?;
    let chain = u64::try_from(chain & u128::from(u64::MAX)).unwrap_or(0);
    let base = Position { segment: 1, offset: FIRST_FRAME, sequence: 0, chain };
    let head = Head { epoch: 1, base, fence: 0, records: 0, ended: Vec::new() };
    let nothing = std::iter::empty::<Result<_, CheckpointError>>();
    checkpoint::write(&*world.fs, layout, table, &head, nothing)
        .map_err(|error| fail(io::Error::other(error.to_string())))?;
    // Nothing was issued yet.
    let hints = Hints::open(world, layout, table).map_err(fail)?;
    // Where it cannot be told the first change ends the epoch.
    let _: bool = hints.set_issued(0) && hints.set_ready(SLOTS as u64);
    let done = binding::describe(world, layout, &meta);
    if done.is_err() {
        // A name whose sync failed may be gone after a power cut: it must not be taken for a table.
        remove(world, &layout.meta()).map_err(fail)?;
    }
    done.map_err(fail)
}

/// A root that is empty and looks like one of ours may be what a maker left who could not make its name
/// durable: a new one is put in its place.
fn renew_root(world: &World, root: &Path) -> io::Result<()> {
    let stat = world.fs.stat(root)?;
    let is_ours = stat.kind == FileKind::Dir && stat.mode == DIR_MODE && stat.uid == world.host.uid;
    if is_ours && world.fs.list(root)?.is_empty() {
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        let temp = root.with_file_name(format!("{name}.{}.tmp", world.unique()?));
        steps::renew_empty_dir(&*world.fs, &temp, root, DIR_MODE)?;
    }
    Ok(())
}

fn remove_dir(world: &World, path: &Path) -> io::Result<()> {
    match world.fs.rmdir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(crate) fn remove(world: &World, path: &Path) -> io::Result<()> {
    match world.fs.unlink(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A directory that is to become a table is empty, or was on its way to become one.
fn survey(world: &World, layout: &Layout) -> Result<(), InitError> {
    const OURS: [&str; 12] = [
        "lives",
        "lives.tmp",
        "journal.0",
        "journal.1",
        "hints",
        "checkpoint",
        "checkpoint.tmp",
        "table.tmp",
        "append.lock",
        "sync.lock",
        "maintain.lock",
        "lost+found",
    ];
    let root = layout.root();
    for name in world.fs.list(root).map_err(|source| storage("list", root, source))? {
        let name = name.name.to_string_lossy().into_owned();
        if !Layout::is_probe(&name) && !OURS.contains(&name.as_str()) {
            return Err(InitError::NotEmpty { root: root.to_owned(), name });
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
    // O3. Where the mount table does not tell, the locks decide.
    if let Ok(kind) = world.fs.mount_type(root)
        && SHARED.contains(&kind.as_str())
    {
        return Err(refuse(format!(
            "it is on {kind}, which other hosts may share: use the files engine there"
        )));
    }
    Ok(())
}

fn storage(operation: &'static str, path: &Path, source: io::Error) -> InitError {
    InitError::Open(OpenError::Storage(StorageError::new(operation, path.display(), source)))
}

/// Why a table was not opened; nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no table.
    #[error("{} is not a table: make one with `ringfence init`", root.display())]
    NotATable {
        /// The directory.
        root: PathBuf,
    },
    /// The description is damaged.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Somebody else could change the table.
    #[error("{} is not safe to use: {reason}", root.display())]
    Unsafe {
        /// The directory.
        root: PathBuf,
        /// Why.
        reason: String,
    },
    /// It was put back from a backup, or is a copy of another table.
    #[error(
        "{} is a copy: this table was restored from a backup or copied from another place, so fences \
         above {limit} may have been handed out. Stop every program that uses it, then run `ringfence \
         check STORE --repair --bump-fence N`, with an N that is not less than the number of grants \
         since the copy was made (1000000000 does no harm); nothing was changed",
        root.display()
    )]
    Restored {
        /// The directory.
        root: PathBuf,
        /// The highest fence that it knows of.
        limit: u64,
    },
    /// The journal does not read.
    #[error("{}: {reason}", root.display())]
    Read {
        /// The directory.
        root: PathBuf,
        /// Why.
        #[source]
        reason: ReadError,
    },
    /// The operating system refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A lock failed.
    #[error(transparent)]
    Failure(Box<Failure>),
}

/// Why a table was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// As when opening.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A table is there, made with other options.
    #[error(
        "{} is a journal table already, with {} shards, a ttl of {} and segments of {} bytes: it \
         keeps them",
        root.display(), meta.shards.get(), meta.ttl, meta.segment_bytes
    )]
    Differs {
        /// The directory.
        root: PathBuf,
        /// What is there.
        meta: Box<TableMeta>,
    },
    /// The directory holds something else.
    #[error("{} is not empty ({name:?} is in it): name a new directory", root.display())]
    NotEmpty {
        /// The directory.
        root: PathBuf,
        /// What is in it.
        name: String,
    },
}
