//! A file system that breaks one promise on purpose.
//!
//! Each kind stands for a bug that the engine, the kernel or the disk could have. The checks must
//! notice every one of them; a kind that nothing notices is a hole in the checks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{Fs, LockFd, LockMode, Name, OpenWrite, Read, Stat, WriteFile};
use ringfence_model::{RecordId, ShardCount};

use crate::setup::{SHARDS, root, target};

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A record's temporary is renamed without having been synced.
    RecordFileSync,
    /// A shard is not synced after a rename in it.
    DirSyncAfterRename,
    /// A shard is not synced after a removal in it.
    DirSyncAfterUnlink,
    /// Of several shards only the first is synced.
    LaterDirSyncs,
    /// The raised fence limit is not synced before its rename.
    FenceFileSync,
    /// The root is not synced after the fence limit was raised.
    FenceDirSync,
    /// The table's description is not synced.
    MetaFileSync,
    /// New directories are not made durable.
    MkdirSync,
    /// The audit line is not synced.
    AuditSync,
    /// The directory is synced before the rename instead of after it.
    BarrierBeforeRename,
    /// What is put back after a failure is not synced.
    RestoreSync,
    /// What should be put back after a failure is not.
    RestoreForgotten,
    /// A failed sync is tried again, and the second answer believed.
    SyncRetried,
    /// Locks exclude nobody.
    LockExcludesNobody,
    /// The lock of the fence counter excludes nobody.
    FenceLockExcludesNobody,
    /// One process of two takes its locks in the opposite order.
    LockOrder,
    /// The lock is given up before the barrier.
    EarlyUnlock,
    /// A replacement reports success and does nothing, now and then.
    LostRename,
    /// Temporaries are not removed after a failure.
    TempsForgotten,
    /// Replacing writes the record in place.
    InPlace,
    /// Files of the intent directory are not synced.
    IntentFileSync,
    /// The intent directory is not synced.
    IntentDirSync,
    /// The intent is not retired.
    RetirementForgotten,
    /// The intent is retired, but not durably.
    RetirementSync,
    /// A shard in which recovery found nothing to change is not synced.
    SettledDirSync,
    /// A failed group is undone without an abort mark.
    AbortForgotten,
    /// The abort mark is not synced before the first undo.
    AbortSync,
}

#[derive(Debug, Default)]
struct Memory {
    /// Directories in which a name was removed last.
    unlinked_in: Vec<PathBuf>,
    renamed_in: Vec<PathBuf>,
    dirs_synced: u64,
    renames: u64,
    failed: bool,
    locks: Vec<std::sync::Weak<dyn LockFd>>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct SabotagedFs {
    inner: Arc<dyn Fs>,
    kind: Sabotage,
    proc: usize,
    memory: Arc<Mutex<Memory>>,
}

impl SabotagedFs {
    /// Breaks one promise of a file system, for one process.
    pub fn new(inner: Arc<dyn Fs>, kind: Sabotage, proc: usize) -> Self {
        Self { inner, kind, proc, memory: Arc::default() }
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
        self.inner.read(path, max)
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        self.inner.read_head(path, len)
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        let inner = self.watch(self.inner.open_write(path, how, mode))?;
        let (fs, path) = (self.clone(), path.into());
        Ok(Box::new(SabotagedFile { inner, fs, path, last: Mark::Intent }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
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
        self.watch(self.inner.rename(from, to))
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
            Sabotage::SettledDirSync => is_shard(dir) && !renamed && !unlinked,
            _ => false,
        };
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
        let inner = self.inner.open_lock(&self.lock_path(path), create, mode)?;
        let broken = match self.kind {
            Sabotage::LockExcludesNobody => path.extension().is_some_and(|end| end == "lock"),
            Sabotage::FenceLockExcludesNobody => starts(path, "fence.lock"),
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

#[derive(Debug)]
struct SabotagedFile {
    inner: Box<dyn WriteFile>,
    fs: SabotagedFs,
    path: PathBuf,
    last: Mark,
}

/// What was written into a slot of an intent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Intent,
    Abort,
    Retirement,
}

impl SabotagedFile {
    fn drops_sync(&self) -> bool {
        match self.fs.kind {
            Sabotage::RecordFileSync => is_record_temp(&self.path),
            Sabotage::FenceFileSync => starts(&self.path, "fence."),
            Sabotage::MetaFileSync => starts(&self.path, "table.json"),
            Sabotage::AuditSync => starts(&self.path, "audit"),
            Sabotage::RestoreSync => self.fs.has_failed(),
            Sabotage::IntentFileSync => is_intent(&self.path) && self.last == Mark::Intent,
            Sabotage::RetirementSync => self.last == Mark::Retirement,
            Sabotage::AbortSync => self.last == Mark::Abort,
            _ => false,
        }
    }
}

impl WriteFile for SabotagedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.inner.write(bytes);
        self.fs.watch(done)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.last = match offset {
            0 if bytes.iter().all(|byte| *byte == 0) => Mark::Retirement,
            512 => Mark::Abort,
            _ => Mark::Intent,
        };
        let forgotten = match self.fs.kind {
            Sabotage::RetirementForgotten => self.last == Mark::Retirement,
            Sabotage::AbortForgotten => self.last == Mark::Abort,
            _ => false,
        };
        if forgotten {
            return Ok(bytes.len());
        }
        let done = self.inner.write_at(bytes, offset);
        self.fs.watch(done)
    }

    fn sync(&self) -> io::Result<()> {
        if self.drops_sync() {
            return Ok(());
        }
        match self.fs.watch(self.inner.sync()) {
            Err(_) if self.fs.kind == Sabotage::SyncRetried => self.inner.sync(),
            other => other,
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }
}

/// A lock that everybody gets.
#[derive(Debug)]
struct NoLock(Box<dyn LockFd>);

impl LockFd for NoLock {
    fn try_lock(&self, _mode: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        self.0.is_unlinked()
    }
}

/// A lock that somebody else may give up.
#[derive(Debug)]
struct SharedLock(Arc<dyn LockFd>);

impl LockFd for SharedLock {
    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        self.0.try_lock(mode)
    }

    fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        self.0.is_unlinked()
    }
}
