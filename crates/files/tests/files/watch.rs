//! A file system that records in what order calls *returned*, slowly enough to lose a race.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{Fs, LockFd, Name, OpenWrite, Read, RealFs, Stat, WriteFile};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Wrote(PathBuf),
    Synced(PathBuf),
    Renamed(PathBuf, PathBuf),
    Unlinked(PathBuf),
    SyncedDir(PathBuf),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WatchFs {
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    /// How long a file sync takes.
    pub(crate) sync_takes: Duration,
}

impl WatchFs {
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl Fs for WatchFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        RealFs.read(path, max)
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        RealFs.read_head(path, len)
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        let inner = RealFs.open_write(path, how, mode)?;
        Ok(Box::new(Watched { inner, fs: self.clone(), path: path.into() }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        RealFs.stat(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        RealFs.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.rename(from, to)?;
        self.note(Event::Renamed(from.into(), to.into()));
        Ok(())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        RealFs.unlink(path)?;
        self.note(Event::Unlinked(path.into()));
        Ok(())
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        RealFs.mkdir(path, mode)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        RealFs.rmdir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFs.sync_dir(dir)?;
        self.note(Event::SyncedDir(dir.into()));
        Ok(())
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        RealFs.open_lock(path, create, mode)
    }

    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock> {
        RealFs.lock_in_child(path, patience)
    }

    fn mount_type(&self, path: &Path) -> io::Result<String> {
        RealFs.mount_type(path)
    }
}

#[derive(Debug)]
struct Watched {
    inner: Box<dyn WriteFile>,
    fs: WatchFs,
    path: PathBuf,
}

impl WriteFile for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.fs.note(Event::Wrote(self.path.clone()));
        Ok(written)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let written = self.inner.write_at(bytes, offset)?;
        self.fs.note(Event::Wrote(self.path.clone()));
        Ok(written)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        std::thread::sleep(self.fs.sync_takes);
        self.inner.sync()?;
        self.fs.note(Event::Synced(self.path.clone()));
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }
}
