//! A file system in memory: any bytes can be put into it, and nothing of it fails or waits.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{
    Clock, Entropy, FileKind, Fs, HostIdentity, LockFd, LockMode, Name, OpenWrite, RandomFile,
    Read, SharedWords, Stat, World, WriteFile,
};

type Bytes = Arc<Mutex<Vec<u8>>>;

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<PathBuf, Bytes>,
    words: Option<Arc<Vec<AtomicU64>>>,
}

/// Files by their whole names; every other name is a directory. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFs(Arc<Mutex<Inner>>, Ticking);

impl MemoryFs {
    /// Puts a file there.
    pub(crate) fn put(&self, path: &Path, bytes: Vec<u8>) {
        self.0.lock().unwrap().files.insert(path.to_owned(), Arc::new(Mutex::new(bytes)));
    }

    /// What a file holds.
    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        self.file(path).unwrap().lock().unwrap().clone()
    }

    /// What processes share; the words that are not given are zeros.
    pub(crate) fn share(&self, words: &[u64], count: usize) {
        let words = words.iter().copied().chain(std::iter::repeat(0)).take(count);
        self.0.lock().unwrap().words = Some(Arc::new(words.map(AtomicU64::new).collect()));
    }

    /// A world with this file system, in a boot of its own.
    pub(crate) fn world(&self) -> World {
        World {
            fs: Arc::new(self.clone()),
            clock: Arc::new(self.1.clone()),
            entropy: Arc::new(Counting(AtomicU64::new(1))),
            host: Arc::new(HostIdentity { name: "host".into(), boot: Some("boot".into()), uid: 0 }),
        }
    }

    fn file(&self, path: &Path) -> io::Result<Bytes> {
        let inner = self.0.lock().unwrap();
        inner.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn stat(len: usize) -> Stat {
    let len = u64::try_from(len).unwrap();
    Stat { kind: FileKind::File, uid: 0, mode: 0o600, len, modified: 0.0 }
}

impl Fs for MemoryFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        let bytes = self.file(path)?.lock().unwrap().clone();
        let len = bytes.len();
        Ok(if len > max { Read::TooLarge(stat(len).len) } else { Read::Bytes(bytes) })
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        let mut bytes = self.file(path)?.lock().unwrap().clone();
        bytes.truncate(len);
        Ok(Read::Bytes(bytes))
    }

    fn open_write(&self, path: &Path, how: OpenWrite, _: u32) -> io::Result<Box<dyn WriteFile>> {
        let mut inner = self.0.lock().unwrap();
        if how.is_new() && inner.files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = inner.files.entry(path.to_owned()).or_default().clone();
        let at = if how == OpenWrite::Append { file.lock().unwrap().len() } else { 0 };
        Ok(Box::new(Open { file, at }))
    }

    fn open_random(&self, path: &Path, _: bool) -> io::Result<Box<dyn RandomFile>> {
        Ok(Box::new(Open { file: self.file(path)?, at: 0 }))
    }

    fn map_shared(&self, _: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        let mut inner = self.0.lock().unwrap();
        let new = || Arc::new((0..words).map(|_| AtomicU64::new(0)).collect());
        let words = inner.words.get_or_insert_with(new).clone();
        Ok(Box::new(Words(words, self.1.clone())))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        match self.file(path) {
            Ok(file) => Ok(stat(file.lock().unwrap().len())),
            Err(_) => Ok(Stat { kind: FileKind::Dir, mode: 0o700, ..stat(0) }),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        let inner = self.0.lock().unwrap();
        let names = inner.files.keys().filter_map(|path| path.strip_prefix(dir).ok());
        let names = names.filter(|name| name.components().count() == 1);
        Ok(names.map(|name| Name { name: name.into(), kind: FileKind::File }).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        let file = inner.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        inner.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let gone = self.0.lock().unwrap().files.remove(path);
        gone.map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn mkdir(&self, _: &Path, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn rmdir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn open_lock(&self, _: &Path, _: bool, _: u32) -> io::Result<Box<dyn LockFd>> {
        Ok(Box::new(Free))
    }

    fn lock_in_child(&self, _: &Path, _: Duration) -> io::Result<ChildLock> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn mount_type(&self, _: &Path) -> io::Result<String> {
        Ok("memory".into())
    }
}

#[derive(Debug)]
struct Open {
    file: Bytes,
    at: usize,
}

fn write_into(file: &Bytes, bytes: &[u8], offset: usize) -> usize {
    let mut file = file.lock().unwrap();
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
    bytes.len()
}

impl WriteFile for Open {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = write_into(&self.file, bytes, self.at);
        self.at += written;
        Ok(written)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        RandomFile::write_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.lock().unwrap().resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(stat(self.file.lock().unwrap().len()))
    }
}

impl RandomFile for Open {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        // As the kernel has it.
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let file = self.file.lock().unwrap();
        let from = file.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        // Nothing writes that far out; a disk would be full.
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < 1 << 24);
        let offset = offset.ok_or(io::ErrorKind::StorageFull)?;
        Ok(write_into(&self.file, bytes, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        WriteFile::set_len(self, len)
    }

    fn stat(&self) -> io::Result<Stat> {
        WriteFile::stat(self)
    }
}

/// A lock that nobody else wants.
#[derive(Debug)]
struct Free;

impl LockFd for Free {
    fn try_lock(&self, _: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        Ok(false)
    }
}

#[derive(Debug)]
struct Words(Arc<Vec<AtomicU64>>, Ticking);

impl SharedWords for Words {
    fn load(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.0.get(index) {
            word.store(value, Ordering::SeqCst);
        }
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.0.get(index).map_or(0, |word| word.fetch_add(value, Ordering::SeqCst))
    }

    fn wait(&self, _: usize, _: u64, patience: Duration) {
        self.1.sleep(patience);
    }

    fn wake(&self, _: usize, _: u32) {}
}

/// A clock that goes on by a moment whenever it is looked at.
#[derive(Clone, Debug, Default)]
struct Ticking(Arc<AtomicU64>);

impl Clock for Ticking {
    fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.monotonic()
    }

    fn boottime(&self) -> Duration {
        self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(10, Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(1 << 40);
        self.0.fetch_add(micros.min(1 << 40), Ordering::SeqCst);
    }
}

/// Draws that are always the same.
#[derive(Debug)]
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        let count = self.0.fetch_add(1, Ordering::SeqCst);
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = count.to_le_bytes()[at % 8] ^ 0x5a;
        }
        Ok(())
    }
}
