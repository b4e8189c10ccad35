//! A file system that may leave syncs out, one or all of a kind, and say that they were done.
//!
//! It calls every mount by one name, so that a disk that was recorded on one file system is known to
//! have passed the probe when it is recovered on another.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{Fs, LockFd, Name, OpenWrite, RandomFile, Read, SharedWords, Stat, WriteFile};

/// What is done wrong; nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lie {
    /// Leave out the N-th sync of this process, counted from 1; none if it is 0.
    pub(crate) drop: u64,
    /// The bug that a failed sync invites: it is made again, and the second answer counts.
    pub(crate) retry: bool,
    /// Leave out all syncs of a kind.
    pub(crate) without: Option<Syncs>,
}

/// A kind of sync.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syncs {
    /// Those of files.
    Files,
    /// Those of directories.
    Directories,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct LyingFs {
    inner: Arc<dyn Fs>,
    count: Arc<AtomicU64>,
    lie: Lie,
}

impl LyingFs {
    /// On top of another one.
    pub(crate) fn new(inner: Arc<dyn Fs>, lie: Lie) -> Self {
        Self { inner, count: Arc::default(), lie }
    }

    fn sync(&self, kind: Syncs, sync: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if number == self.lie.drop || self.lie.without == Some(kind) {
            return Ok(());
        }
        match sync() {
            Err(_) if self.lie.retry => sync(),
            done => done,
        }
    }
}

impl Fs for LyingFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        self.inner.read(path, max)
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        self.inner.read_head(path, len)
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        let inner = self.inner.open_write(path, how, mode)?;
        Ok(Box::new(LyingFile { inner, fs: self.clone() }))
    }

    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        let inner = self.inner.open_random(path, write)?;
        Ok(Box::new(LyingRandom { inner, fs: self.clone() }))
    }

    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        self.inner.map_shared(path, words)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.inner.unlink(path)
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.inner.mkdir(path, mode)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        self.inner.rmdir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.sync(Syncs::Directories, || self.inner.sync_dir(dir))
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        self.inner.open_lock(path, create, mode)
    }

    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock> {
        self.inner.lock_in_child(path, patience)
    }

    fn mount_type(&self, _: &Path) -> io::Result<String> {
        Ok("recorded".to_owned())
    }
}

#[derive(Debug)]
struct LyingRandom {
    inner: Box<dyn RandomFile>,
    fs: LyingFs,
}

impl RandomFile for LyingRandom {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(into, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.inner.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.sync(Syncs::Files, || self.inner.sync_data())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }
}

#[derive(Debug)]
struct LyingFile {
    inner: Box<dyn WriteFile>,
    fs: LyingFs,
}

impl WriteFile for LyingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.inner.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.sync(Syncs::Files, || self.inner.sync())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.sync(Syncs::Files, || self.inner.sync_data())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }
}
