//! Files in memory of which a sync makes durable what was there when it began; each call that others can
//! notice is a place where another thread may go on.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{
    Fs, LockFd, Name, OpenWrite, RandomFile, Read, SharedWords, Stat, World, WriteFile,
};

use crate::memory::MemoryFs;

/// What a sync does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// It does nothing and says that it has.
    SaysSynced,
    /// It makes durable what the one before should have.
    CoversEarlier,
}

#[derive(Debug, Default)]
struct State {
    durable: BTreeMap<PathBuf, Vec<u8>>,
    earlier: BTreeMap<PathBuf, Vec<u8>>,
    /// Syncs of segments until one fails.
    fails_in: Option<u64>,
    lie: Option<Lie>,
}

/// See the module. Clones share all of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchingFs {
    inner: MemoryFs,
    state: Arc<Mutex<State>>,
}

fn switch() {
    shuttle::thread::yield_now();
}

impl SwitchingFs {
    /// The world with these files.
    pub(crate) fn world(&self) -> World {
        self.inner.world().with_fs(Arc::new(self.clone()))
    }

    /// Lets the sync after so many others fail, and every sync lie.
    pub(crate) fn arm(&self, fails_in: Option<u64>, lie: Option<Lie>) {
        let mut state = self.state.lock().unwrap();
        (state.fails_in, state.lie) = (fails_in, lie);
    }

    /// What a power cut would leave: of segments what was synced; the rest is replaced whole, after a
    /// sync of its own.
    pub(crate) fn durable(&self) -> MemoryFs {
        let copy = MemoryFs::default();
        let root = Path::new("/table");
        for name in ["table.json", "checkpoint"] {
            copy.put(&root.join(name), self.inner.bytes(&root.join(name)));
        }
        for (path, bytes) in &self.state.lock().unwrap().durable {
            copy.put(path, bytes.clone());
        }
        copy
    }
}

impl Fs for SwitchingFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        self.inner.read(path, max)
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        self.inner.read_head(path, len)
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        self.inner.open_write(path, how, mode)
    }

    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        let inner = self.inner.open_random(path, write)?;
        Ok(Box::new(Segment { inner, path: path.to_owned(), fs: self.clone() }))
    }

    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        Ok(Box::new(Words(self.inner.map_shared(path, words)?)))
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
        self.inner.sync_dir(dir)
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        self.inner.open_lock(path, create, mode)
    }

    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock> {
        self.inner.lock_in_child(path, patience)
    }

    fn mount_type(&self, path: &Path) -> io::Result<String> {
        self.inner.mount_type(path)
    }
}

#[derive(Debug)]
struct Segment {
    inner: Box<dyn RandomFile>,
    path: PathBuf,
    fs: SwitchingFs,
}

impl RandomFile for Segment {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(into, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        switch();
        let written = self.inner.write_at(bytes, offset);
        switch();
        written
    }

    fn sync_data(&self) -> io::Result<()> {
        switch();
        let (now, path) = (self.fs.inner.bytes(&self.path), self.path.clone());
        switch();
        {
            let mut state = self.fs.state.lock().unwrap();
            let fails = state.fails_in == Some(0);
            state.fails_in = state.fails_in.and_then(|left| left.checked_sub(1));
            if fails {
                return Err(io::Error::from_raw_os_error(5));
            }
            match state.lie {
                None => drop(state.durable.insert(path, now)),
                Some(Lie::SaysSynced) => {}
                Some(Lie::CoversEarlier) => {
                    if let Some(earlier) = state.earlier.insert(path.clone(), now) {
                        state.durable.insert(path, earlier);
                    }
                }
            }
        }
        switch();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        switch();
        self.inner.set_len(len)?;
        switch();
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }
}

#[derive(Debug)]
struct Words(Box<dyn SharedWords>);

impl SharedWords for Words {
    fn load(&self, index: usize) -> u64 {
        self.0.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        self.0.store(index, value);
        switch();
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.0.add(index, value)
    }

    fn wait(&self, index: usize, seen: u64, patience: Duration) {
        switch();
        self.0.wait(index, seen, patience.min(Duration::from_micros(50)));
    }

    fn wake(&self, index: usize, count: u32) {
        self.0.wake(index, count);
        switch();
    }
}
