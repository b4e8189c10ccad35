//! A file system that counts its calls and fails the ones it is told to.
//!
//! For tests and benchmarks. A failed call does nothing before it fails, like a system call that
//! was refused; a short write writes what it says it wrote.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fs::{
    Fs, Identity, LockFd, LockMode, Name, OpenWrite, RandomFile, Read, Stat, WriteFile,
};
use crate::process::ChildLock;
use crate::shared::SharedWords;

/// The kinds of call that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the call of the same name")]
pub enum Call {
    Read,
    OpenWrite,
    Write,
    SyncFile,
    SetLen,
    Stat,
    List,
    Rename,
    Unlink,
    Mkdir,
    Rmdir,
    SyncDir,
    OpenLock,
    TryLock,
    Unlock,
    LockInChild,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails with this error number.
    Errno(i32),
    /// If it is a write, it writes only this many bytes (at least one); else it passes.
    ShortWrite(usize),
}

/// Which calls an effect is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The N-th call of any kind from now, counted from 1.
    Nth(u64),
    /// The N-th call of one kind from now, counted from 1.
    NthOf(Call, u64),
    /// Every call of any kind from the N-th on.
    From(u64),
    /// Every call of one kind from the N-th on.
    FromOf(Call, u64),
}

type Hook = Arc<dyn Fn(Call, &Path) + Send + Sync>;

#[derive(Default)]
struct State {
    counts: BTreeMap<Call, u64>,
    armed: Vec<(When, Effect)>,
    since: BTreeMap<Call, u64>,
    since_any: u64,
    fired: u64,
    hook: Option<Hook>,
    /// So many changes of shared words succeed from now on.
    words_left: Option<u64>,
}

/// See the module.
#[derive(Clone)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    state: Arc<Mutex<State>>,
}

impl FaultFs {
    /// Wraps a file system; nothing is armed.
    pub fn new(inner: Arc<dyn Fs>) -> Self {
        Self { inner, state: Arc::default() }
    }

    /// Adds a fault; its N is counted from the last [`FaultFs::arm`] or [`FaultFs::disarm`].
    pub fn arm(&self, when: When, effect: Effect) {
        let mut state = self.state();
        state.since.clear();
        state.since_any = 0;
        state.armed.push((when, effect));
    }

    /// Removes every fault.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.armed.clear();
        state.since.clear();
        state.since_any = 0;
        state.fired = 0;
    }

    /// Gives up every change of shared words but the next `stores`, or none; they are not counted as
    /// calls.
    pub fn limit_words(&self, stores: Option<u64>) {
        self.state().words_left = stores;
    }

    /// Whether there is memory for one more change of shared words.
    fn has_memory(&self) -> bool {
        match &mut self.state().words_left {
            Some(0) => false,
            left => {
                *left = left.map(|left| left - 1);
                true
            }
        }
    }

    /// Calls `hook` before each call, with no lock held; a test may block in it.
    pub fn on_call(&self, hook: impl Fn(Call, &Path) + Send + Sync + 'static) {
        self.state().hook = Some(Arc::new(hook));
    }

    /// How many calls a fault changed since it was armed.
    pub fn fired(&self) -> u64 {
        self.state().fired
    }

    /// Calls of one kind so far.
    pub fn count(&self, call: Call) -> u64 {
        self.state().counts.get(&call).copied().unwrap_or(0)
    }

    /// Calls of every kind so far.
    pub fn total(&self) -> u64 {
        self.state().counts.values().sum()
    }

    /// Calls per kind so far.
    pub fn counts(&self) -> BTreeMap<Call, u64> {
        self.state().counts.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, call: Call, path: &Path) -> Result<Option<usize>, io::Error> {
        let hook = self.state().hook.clone();
        if let Some(hook) = hook {
            hook(call, path);
        }
        let mut guard = self.state();
        let state = &mut *guard;
        *state.counts.entry(call).or_default() += 1;
        state.since_any += 1;
        let of_kind = state.since.entry(call).or_default();
        *of_kind += 1;
        let (any, of_kind) = (state.since_any, *of_kind);
        let hit = state.armed.iter().find(|(when, _)| match *when {
            When::Nth(n) => any == n,
            When::NthOf(kind, n) => kind == call && of_kind == n,
            When::From(n) => any >= n,
            When::FromOf(kind, n) => kind == call && of_kind >= n,
        });
        match hit.map(|(_, effect)| *effect) {
            None => Ok(None),
            Some(Effect::Errno(errno)) => {
                state.fired += 1;
                Err(io::Error::from_raw_os_error(errno))
            }
            Some(Effect::ShortWrite(bytes)) => {
                state.fired += u64::from(call == Call::Write);
                Ok(Some(bytes.max(1)))
            }
        }
    }

    fn wrap(&self, path: &Path, inner: Box<dyn WriteFile>) -> Box<dyn WriteFile> {
        Box::new(FaultFile { inner, fs: self.clone(), path: path.into() })
    }
}

impl fmt::Debug for FaultFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultFs").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct FaultWords {
    inner: Box<dyn SharedWords>,
    fs: FaultFs,
}

impl SharedWords for FaultWords {
    fn load(&self, index: usize) -> u64 {
        self.inner.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        self.inner.store(index, value);
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.inner.add(index, value)
    }

    fn try_store(&self, index: usize, values: &[u64]) -> bool {
        self.fs.has_memory() && self.inner.try_store(index, values)
    }

    fn try_add(&self, index: usize, value: i8) -> bool {
        self.fs.has_memory() && self.inner.try_add(index, value)
    }

    fn wait(&self, index: usize, seen: u64, patience: Duration) {
        self.inner.wait(index, seen, patience);
    }

    fn wake(&self, index: usize, count: u32) {
        self.inner.wake(index, count);
    }
}

impl Fs for FaultFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        self.enter(Call::Read, path)?;
        self.inner.read(path, max)
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        self.enter(Call::Read, path)?;
        self.inner.read_head(path, len)
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        self.enter(Call::OpenWrite, path)?;
        Ok(self.wrap(path, self.inner.open_write(path, how, mode)?))
    }

    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        self.enter(if write { Call::OpenWrite } else { Call::Read }, path)?;
        let inner = self.inner.open_random(path, write)?;
        Ok(Box::new(FaultRandom { inner, fs: self.clone(), path: path.into() }))
    }

    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        self.enter(Call::OpenWrite, path)?;
        Ok(Box::new(FaultWords { inner: self.inner.map_shared(path, words)?, fs: self.clone() }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.enter(Call::Stat, path)?;
        self.inner.stat(path)
    }

    fn identity(&self, path: &Path) -> io::Result<Option<Identity>> {
        self.enter(Call::Stat, path)?;
        self.inner.identity(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        self.enter(Call::List, dir)?;
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter(Call::Rename, to)?;
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.enter(Call::Unlink, path)?;
        self.inner.unlink(path)
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.enter(Call::Mkdir, path)?;
        self.inner.mkdir(path, mode)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        self.enter(Call::Rmdir, path)?;
        self.inner.rmdir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.enter(Call::SyncDir, dir)?;
        self.inner.sync_dir(dir)
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        self.enter(Call::OpenLock, path).inspect_err(|_| {
            // The real one looks at what it opened, so a file may be there that it could not look at.
            let _ = self.inner.open_lock(path, create, mode);
        })?;
        let inner = self.inner.open_lock(path, create, mode)?;
        Ok(Box::new(FaultLock { inner, fs: self.clone(), path: path.into() }))
    }

    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock> {
        self.enter(Call::LockInChild, path)?;
        self.inner.lock_in_child(path, patience)
    }

    fn mount_type(&self, path: &Path) -> io::Result<String> {
        self.inner.mount_type(path)
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Box<dyn WriteFile>,
    fs: FaultFs,
    path: Box<Path>,
}

impl WriteFile for FaultFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.fs.enter(Call::Write, &self.path)? {
            Some(short) => self.inner.write(bytes.get(..short).unwrap_or(bytes)),
            None => self.inner.write(bytes),
        }
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.fs.enter(Call::Write, &self.path)? {
            Some(short) => self.inner.write_at(bytes.get(..short).unwrap_or(bytes), offset),
            None => self.inner.write_at(bytes, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.enter(Call::SyncFile, &self.path)?;
        self.inner.sync()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.enter(Call::SyncFile, &self.path)?;
        self.inner.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fs.enter(Call::SetLen, &self.path)?;
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.fs.enter(Call::Stat, &self.path)?;
        self.inner.stat()
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        self.fs.enter(Call::Stat, &self.path)?;
        self.inner.identity()
    }
}

#[derive(Debug)]
struct FaultRandom {
    inner: Box<dyn RandomFile>,
    fs: FaultFs,
    path: Box<Path>,
}

impl RandomFile for FaultRandom {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.fs.enter(Call::Read, &self.path)?;
        self.inner.read_at(into, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.fs.enter(Call::Write, &self.path)? {
            Some(short) => self.inner.write_at(bytes.get(..short).unwrap_or(bytes), offset),
            None => self.inner.write_at(bytes, offset),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.enter(Call::SyncFile, &self.path)?;
        self.inner.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fs.enter(Call::SetLen, &self.path)?;
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.fs.enter(Call::Stat, &self.path)?;
        self.inner.stat()
    }
}

#[derive(Debug)]
struct FaultLock {
    inner: Box<dyn LockFd>,
    fs: FaultFs,
    path: Box<Path>,
}

impl LockFd for FaultLock {
    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        self.fs.enter(Call::TryLock, &self.path)?;
        self.inner.try_lock(mode)
    }

    fn unlock(&self) -> io::Result<()> {
        self.fs.enter(Call::Unlock, &self.path)?;
        self.inner.unlock()
    }

    fn share_with_children(&self) -> io::Result<()> {
        self.inner.share_with_children()
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        self.fs.enter(Call::Stat, &self.path)?;
        self.inner.is_unlinked()
    }
}
