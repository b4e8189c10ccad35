//! A file system that breaks one promise on purpose.
//!
//! Each kind stands for a bug that the engine, the kernel or the disk could have. The checks must
//! notice every one of them; a kind that nothing notices is a hole in the checks.

mod file;
mod journal;
mod kind;
mod lock;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{
    Fs, Identity, LockFd, Name, OpenWrite, RandomFile, Read, SharedWords, Stat, World, WriteFile,
};
use ringfence_model::{RecordId, ShardCount};

use crate::frames::is_segment;
use crate::setup::{SHARDS, root, target};
use file::SabotagedFile;
use journal::{JournalMemory, SabotagedSegment, SabotagedWords};
pub use kind::Sabotage;
use lock::{NoLock, SharedLock};

#[derive(Debug, Default)]
struct Memory {
    /// Directories in which a name was removed last.
    unlinked_in: Vec<PathBuf>,
    renamed_in: Vec<PathBuf>,
    dirs_synced: u64,
    renames: u64,
    failed: bool,
    locks: Vec<std::sync::Weak<dyn LockFd>>,
    /// Somebody else's intent is being finished.
    recovering: bool,
    /// Slots that this process has open and has not written into.
    found: Vec<PathBuf>,
    /// An intent of this process stands.
    intends: bool,
    /// Directories whose sync comes after the retirement.
    deferred: Vec<PathBuf>,
    /// An intent that waits for the first rename.
    late_intent: Option<(PathBuf, Vec<u8>)>,
    /// What the last call looked at: a reader looks at records first, and then at intents.
    last: Look,
    /// The file that was opened for writing last.
    opened: PathBuf,
    journal: JournalMemory,
}

/// What a call looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Look {
    #[default]
    Elsewhere,
    /// A record or a shard.
    Records,
    /// An intent, right after records.
    Intents,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct SabotagedFs {
    inner: Arc<dyn Fs>,
    /// The world without the broken promise.
    world: World,
    kind: Sabotage,
    proc: usize,
    memory: Arc<Mutex<Memory>>,
}

impl SabotagedFs {
    /// Breaks one promise of a world's file system, for one process.
    pub fn new(world: &World, kind: Sabotage, proc: usize) -> Self {
        let (inner, world) = (Arc::clone(&world.fs), world.clone());
        Self { inner, world, kind, proc, memory: Arc::default() }
    }

    fn with<T>(&self, see: impl FnOnce(&mut Memory) -> T) -> T {
        see(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that a call failed: what comes next is putting back.
    fn watch<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done
            && !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
        {
            self.with(|memory| memory.failed = true);
        }
        done
    }

    fn is_recovering(&self) -> bool {
        self.with(|memory| memory.recovering)
    }

    fn looks(&self, at: Look) {
        self.with(|memory| memory.last = at);
    }

    /// Whether what is read now is read by a reader: after records, under no lock.
    fn is_reader(&self) -> bool {
        self.with(|memory| memory.last != Look::Elsewhere)
    }

    /// The directories whose syncs were put off until an intent was retired.
    fn sync_deferred(&self) -> io::Result<()> {
        let dirs = self.with(|memory| {
            memory.intends = false;
            std::mem::take(&mut memory.deferred)
        });
        dirs.iter().try_for_each(|dir| self.inner.sync_dir(dir))
    }

    /// The intent that was put off until a record had changed.
    fn write_late_intent(&self) -> io::Result<()> {
        let Some((path, bytes)) = self.with(|memory| memory.late_intent.take()) else {
            return Ok(());
        };
        let mut file = self.inner.open_write(&path, OpenWrite::Overwrite, 0o600)?;
        ringfence_env::steps::write_all_at(&mut *file, &bytes, 0)?;
        file.sync_data()
    }

    fn has_failed(&self) -> bool {
        self.with(|memory| memory.failed)
    }

    fn lock_path(&self, path: &Path) -> PathBuf {
        // The second process takes each lock of the pair where it means the other: the same two
        // locks in the opposite order.
        if self.kind == Sabotage::LockOrder && self.proc % 2 == 1 {
            let [one, two] = PAIR.map(lock_file);
            if path == one {
                return two;
            }
            if path == two {
                return one;
            }
        }
        path.to_owned()
    }

    /// Gives up every lock on a record that this process still has open.
    fn unlock_early(&self) {
        let locks = self.with(|memory| std::mem::take(&mut memory.locks));
        for lock in locks.iter().filter_map(std::sync::Weak::upgrade) {
            let _ = lock.unlock();
        }
    }
}

/// The targets whose locks [`Sabotage::LockOrder`] mixes up.
pub const PAIR: [u64; 2] = [1, 2];

fn lock_file(number: u64) -> PathBuf {
    let id = RecordId::of_target(target(number));
    let shards = ShardCount::new(SHARDS).expect("in range");
    root().join(id.shard(shards).to_string()).join(format!("{id}.json.lock"))
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "json")
        && path.file_stem().is_some_and(|stem| stem.len() == 64)
}

fn is_shard(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn starts(path: &Path, with: &str) -> bool {
    path.file_name().unwrap_or_default().to_string_lossy().starts_with(with)
}

fn is_intent(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "intents")
}

fn is_record_temp(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "tmp")
        && path.file_name().unwrap_or_default().to_string_lossy().contains(".json.")
        && path.parent().is_some_and(is_shard)
}

impl Fs for SabotagedFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        self.looks(if is_record(path) { Look::Records } else { Look::Elsewhere });
        if self.kind == Sabotage::RecoversAnything && is_record(path) && self.is_recovering() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.inner.read(path, max)
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        let read = self.inner.read_head(path, len)?;
        match read {
            Read::Bytes(mut bytes)
                if self.kind == Sabotage::ReaderIgnoresAbort
                    && is_intent(path)
                    && self.with(|memory| memory.last == Look::Intents) =>
            {
                bytes.iter_mut().skip(512).take(512).for_each(|byte| *byte = 0);
                Ok(Read::Bytes(bytes))
            }
            other => Ok(other),
        }
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        let inner = self.watch(self.inner.open_write(path, how, mode))?;
        self.looks(Look::Elsewhere);
        self.with(|memory| path.clone_into(&mut memory.opened));
        Ok(Box::new(SabotagedFile::new(inner, self.clone(), path.into())))
    }

    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        let inner = self.inner.open_random(path, write)?;
        if !is_segment(path) {
            return Ok(inner);
        }
        Ok(Box::new(SabotagedSegment::new(inner, self.clone(), path.into())))
    }

    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        let inner = self.inner.map_shared(path, words)?;
        let words = SabotagedWords::new(inner, self.clone());
        if self.kind == Sabotage::DeadWriterBelieved {
            words.believe_dead_writers();
        }
        Ok(Box::new(words))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.inner.stat(path)
    }

    fn identity(&self, path: &Path) -> io::Result<Option<Identity>> {
        self.inner.identity(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        match (is_shard(dir), is_intent(dir) && self.is_reader()) {
            (true, _) => self.looks(Look::Records),
            (_, true) => self.looks(Look::Intents),
            _ => self.looks(Look::Elsewhere),
        }
        if self.kind == Sabotage::ReaderBlind && self.with(|it| it.last == Look::Intents) {
            return Ok(Vec::new());
        }
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let dir = to.parent().unwrap_or(to).to_owned();
        let count = self.with(|memory| {
            memory.renames += u64::from(is_record(to));
            memory.renamed_in.push(dir.clone());
            memory.renames
        });
        if self.kind == Sabotage::BarrierBeforeRename && is_record(to) {
            self.inner.sync_dir(&dir)?;
        }
        if self.kind == Sabotage::RestoreForgotten && is_record(to) && self.has_failed() {
            return self.inner.unlink(from);
        }
        if self.kind == Sabotage::SettledBelieved && is_record(to) && self.is_recovering() {
            let read = |path: &Path| self.inner.read(path, usize::MAX);
            if let (Ok(Read::Bytes(new)), Ok(Read::Bytes(now))) = (read(from), read(to))
                && new == now
            {
                return self.inner.unlink(from);
            }
        }
        if starts(to, "checkpoint") {
            self.with(|memory| memory.journal.has_checkpoint = true);
            if self.kind == Sabotage::ErasedTooEarly {
                let late = (from.to_owned(), to.to_owned());
                self.with(|memory| memory.journal.late_checkpoint = Some(late));
                return Ok(());
            }
            if self.kind == Sabotage::CutTooEarly {
                self.cut_segments()?;
            }
        }
        if self.kind == Sabotage::LostRename && is_record(to) && count.is_multiple_of(2) {
            return self.inner.unlink(from);
        }
        if self.kind == Sabotage::InPlace
            && is_record(to)
            && let Ok(Read::Bytes(bytes)) = self.inner.read(from, usize::MAX)
        {
            let mut file = self.inner.open_write(to, OpenWrite::Overwrite, 0o600)?;
            file.set_len(0)?;
            ringfence_env::steps::write_all(&mut *file, &bytes)?;
            file.sync()?;
            return self.inner.unlink(from);
        }
        self.watch(self.inner.rename(from, to))?;
        if is_record(to) { self.write_late_intent() } else { Ok(()) }
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        if self.kind == Sabotage::TempsForgotten && is_record_temp(path) {
            return Ok(());
        }
        if self.kind == Sabotage::RestoreForgotten && is_record(path) && self.has_failed() {
            return Ok(());
        }
        let dir = path.parent().unwrap_or(path).to_owned();
        if is_record(path) {
            self.with(|memory| memory.unlinked_in.push(dir));
        }
        self.watch(self.inner.unlink(path))
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.inner.mkdir(path, mode)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        self.inner.rmdir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let (unlinked, count, renamed) = self.with(|memory| {
            memory.dirs_synced += u64::from(is_shard(dir));
            let unlinked = memory.unlinked_in.iter().any(|noted| noted == dir);
            let renamed = memory.renamed_in.iter().any(|noted| noted == dir);
            memory.unlinked_in.retain(|noted| noted != dir);
            memory.renamed_in.retain(|noted| noted != dir);
            (unlinked, memory.dirs_synced, renamed)
        });
        let dropped = match self.kind {
            Sabotage::DirSyncAfterRename => is_shard(dir) && !unlinked,
            Sabotage::DirSyncAfterUnlink => is_shard(dir) && unlinked,
            Sabotage::LaterDirSyncs => is_shard(dir) && count > 1,
            Sabotage::BarrierBeforeRename => is_shard(dir),
            Sabotage::FenceDirSync => !is_shard(dir) && renamed,
            Sabotage::MkdirSync => !is_shard(dir) && !renamed,
            Sabotage::RestoreSync => self.has_failed(),
            Sabotage::IntentDirSync => is_intent(dir),
            Sabotage::RecoverySync => is_shard(dir) && self.is_recovering(),
            Sabotage::AuditDirSync => {
                dir == root() && self.with(|memory| starts(&memory.opened, "audit"))
            }
            Sabotage::ParentSync => Some(dir) == root().parent(),
            Sabotage::CheckpointDirSync => {
                dir == root() && self.with(|memory| memory.journal.has_checkpoint)
            }
            _ => false,
        };
        if self.kind == Sabotage::RetiredEarly && is_shard(dir) && self.with(|it| it.intends) {
            self.with(|memory| memory.deferred.push(dir.to_owned()));
            return Ok(());
        }
        if dropped {
            return Ok(());
        }
        if self.kind == Sabotage::EarlyUnlock && is_shard(dir) {
            self.unlock_early();
        }
        match self.watch(self.inner.sync_dir(dir)) {
            Err(_) if self.kind == Sabotage::SyncRetried => self.inner.sync_dir(dir),
            other => other,
        }
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        self.looks(Look::Elsewhere);
        let inner = self.inner.open_lock(&self.lock_path(path), create, mode)?;
        let broken = match self.kind {
            Sabotage::LockExcludesNobody => path.extension().is_some_and(|end| end == "lock"),
            Sabotage::FenceLockExcludesNobody => starts(path, "fence.lock"),
            Sabotage::SlotLock => is_intent(path),
            Sabotage::AppendLock => starts(path, "append.lock"),
            _ => false,
        };
        if broken {
            return Ok(Box::new(NoLock(inner)));
        }
        if self.kind == Sabotage::EarlyUnlock && path.to_string_lossy().ends_with(".json.lock") {
            let shared: Arc<dyn LockFd> = Arc::from(inner);
            self.with(|memory| memory.locks.push(Arc::downgrade(&shared)));
            return Ok(Box::new(SharedLock(shared)));
        }
        Ok(inner)
    }

    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock> {
        self.inner.lock_in_child(path, patience)
    }

    fn mount_type(&self, path: &Path) -> io::Result<String> {
        self.inner.mount_type(path)
    }
}
