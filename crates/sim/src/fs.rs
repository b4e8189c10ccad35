//! The simulated disk behind the product's own seam.

mod random;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{
    FileKind, Fs, Identity, LockFd, LockMode, Name, OpenWrite, RandomFile, Read, SharedWords, Stat,
    WriteFile,
};

use crate::coverage::Event;
use crate::disk::{Body, DataChange, Disk, EEXIST, EISDIR, ENOENT, ENOTDIR, Ino};
use crate::faults::{Call, Strike};
use crate::machine::{Machine, Turn, is_slot};
use random::{SimRandom, SimWords};

/// The file system of a simulated host, as one of its processes sees it.
#[derive(Clone, Debug)]
pub struct SimFs {
    machine: Machine,
    proc: usize,
}

impl SimFs {
    pub(crate) fn new(machine: Machine, proc: usize) -> Self {
        Self { machine, proc }
    }
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// A sync takes time: what others write while it is under way is not covered, and its process may
/// die before it is over.
fn sync(turn: Turn<'_>, proc: usize, ino: Ino) -> io::Result<()> {
    let mark = turn.core.disk.mark(ino);
    let mut turn = turn.linger(proc);
    let failed = matches!(turn.strike, Strike::After(_));
    turn.core.disk.sync_from(ino, mark, !failed);
    if !failed && turn.core.watch.is_recovering(proc) && turn.core.disk.is_stuck(ino) {
        turn.core.watch.note(Event::RecoverySyncsLost);
    }
    turn.late(Ok(()))
}

fn describe(disk: &Disk, ino: Ino) -> Stat {
    let inode = disk.inode(ino);
    let (kind, len) = match &inode.body {
        Body::File(data) => (FileKind::File, data.now.len() as u64),
        Body::Dir(_) => (FileKind::Dir, 0),
    };
    Stat { kind, uid: 0, mode: inode.mode, len, modified: inode.modified }
}

/// Numbers are never given twice, so the number alone tells every file from every other.
fn identify(disk: &Disk, ino: Ino) -> Identity {
    let changed = Duration::try_from_secs_f64(disk.inode(ino).modified).unwrap_or_default();
    let changed = u64::try_from(changed.as_nanos()).unwrap_or(u64::MAX);
    Identity { device: 1, inode: ino, born: None, changed }
}

impl Fs for SimFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        let turn = self.machine.enter(self.proc, Call::Read, path)?;
        let ino = turn.core.disk.lookup(path)?;
        match &turn.core.disk.inode(ino).body {
            Body::Dir(_) => Ok(Read::NotRegular(FileKind::Dir)),
            Body::File(data) if data.now.len() > max => Ok(Read::TooLarge(data.now.len() as u64)),
            Body::File(data) => Ok(Read::Bytes((*data.now).clone())),
        }
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        let whole = len > 4096 && is_slot(path);
        let read = self.read(path, usize::MAX)?;
        if whole {
            self.machine.note_slot_read(self.proc, path);
        }
        match read {
            Read::Bytes(mut bytes) => {
                bytes.truncate(len);
                Ok(Read::Bytes(bytes))
            }
            other => Ok(other),
        }
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        let mut turn = self.machine.enter(self.proc, Call::OpenWrite, path)?;
        let modified = turn.core.wall_seconds();
        let ino = match turn.core.disk.lookup(path) {
            Ok(_) if how.is_new() => return Err(error(EEXIST)),
            Ok(ino) => match &turn.core.disk.inode(ino).body {
                Body::File(_) => ino,
                Body::Dir(_) => return Err(error(EISDIR)),
            },
            Err(missing) if missing.raw_os_error() == Some(ENOENT) => {
                turn.core.note_record_change(self.proc, path);
                turn.core.disk.create(path, mode, modified)?
            }
            Err(other) => return Err(other),
        };
        let (machine, proc, path) = (self.machine.clone(), self.proc, path.to_owned());
        let append = how == OpenWrite::Append;
        Ok(Box::new(SimFile { machine, proc, path, ino, position: 0, append }))
    }

    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        let turn = self.machine.enter(self.proc, Call::OpenWrite, path)?;
        let ino = turn.core.disk.lookup(path)?;
        turn.core.disk.bytes(ino)?;
        let (machine, path) = (self.machine.clone(), path.to_owned());
        let opened = turn.core.disk.mark(ino);
        Ok(Box::new(SimRandom::new(machine, self.proc, path, ino, write, opened)))
    }

    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        let mut turn = self.machine.enter(self.proc, Call::OpenWrite, path)?;
        let ino = turn.core.disk.lookup(path)?;
        if turn.core.disk.bytes(ino)?.len() < words.saturating_mul(8) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file of enough words"));
        }
        turn.core.disk.map(ino, words)?;
        Ok(Box::new(SimWords::new(self.machine.clone(), self.proc, ino)))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let turn = self.machine.enter(self.proc, Call::Stat, path)?;
        let ino = turn.core.disk.lookup(path)?;
        Ok(describe(&turn.core.disk, ino))
    }

    fn identity(&self, path: &Path) -> io::Result<Option<Identity>> {
        let turn = self.machine.enter(self.proc, Call::Stat, path)?;
        let ino = turn.core.disk.lookup(path)?;
        Ok(Some(identify(&turn.core.disk, ino)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        let turn = self.machine.enter(self.proc, Call::List, dir)?;
        let disk = &turn.core.disk;
        let names = disk.list(disk.lookup(dir)?)?;
        let describe = |(name, ino)| Name { name, kind: describe(disk, ino).kind };
        Ok(names.into_iter().map(describe).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut turn = self.machine.enter(self.proc, Call::Rename, to)?;
        turn.core.disk.rename(from, to)?;
        turn.core.note_record_change(self.proc, to);
        turn.late(Ok(()))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut turn = self.machine.enter(self.proc, Call::Unlink, path)?;
        turn.core.disk.unlink(path)?;
        turn.core.note_record_change(self.proc, path);
        turn.late(Ok(()))
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        let mut turn = self.machine.enter(self.proc, Call::Mkdir, path)?;
        let modified = turn.core.wall_seconds();
        turn.core.disk.mkdir(path, mode, modified)?;
        turn.late(Ok(()))
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        let mut turn = self.machine.enter(self.proc, Call::Rmdir, path)?;
        turn.core.disk.rmdir(path)?;
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let turn = self.machine.enter(self.proc, Call::SyncDir, dir)?;
        let ino = turn.core.disk.lookup(dir)?;
        if matches!(turn.core.disk.inode(ino).body, Body::File(_)) {
            return Err(error(ENOTDIR));
        }
        sync(turn, self.proc, ino)
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        let mut turn = self.machine.enter(self.proc, Call::OpenLock, path)?;
        let modified = turn.core.wall_seconds();
        let ino = match turn.core.disk.lookup(path) {
            Err(missing) if create && missing.raw_os_error() == Some(ENOENT) => {
                turn.core.disk.create(path, mode, modified)?
            }
            other => other?,
        };
        if matches!(turn.core.disk.inode(ino).body, Body::Dir(_)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let fd = turn.core.fd();
        let (machine, proc, path) = (self.machine.clone(), self.proc, path.to_owned());
        Ok(Box::new(SimLock { machine, proc, path, ino, fd }))
    }

    fn lock_in_child(&self, path: &Path, _patience: Duration) -> io::Result<ChildLock> {
        let turn = self.machine.enter(self.proc, Call::TryLock, path)?;
        Ok(match turn.core.disk.lookup(path) {
            Err(missing) => ChildLock::Failed(missing.raw_os_error().unwrap_or(ENOENT)),
            Ok(ino) if turn.core.is_locked(ino) => ChildLock::Excluded,
            Ok(_) => ChildLock::Admitted,
        })
    }

    fn mount_type(&self, _path: &Path) -> io::Result<String> {
        Ok("simulated".into())
    }
}

#[derive(Debug)]
struct SimFile {
    machine: Machine,
    proc: usize,
    path: PathBuf,
    ino: Ino,
    position: usize,
    append: bool,
}

impl SimFile {
    fn put(&self, bytes: &[u8], at: Option<usize>) -> io::Result<(usize, usize)> {
        let mut turn = self.machine.enter(self.proc, Call::Write, &self.path)?;
        let at = match at {
            Some(at) => at,
            None => turn.core.disk.bytes(self.ino)?.len(),
        };
        let len = turn.core.short_write(bytes.len());
        let change = DataChange::Write { at, bytes: bytes[..len].into() };
        let modified = turn.core.wall_seconds();
        turn.core.disk.change(self.ino, change, modified);
        if is_slot(&self.path) {
            let bytes = Arc::clone(turn.core.disk.bytes(self.ino)?);
            turn.core.watch.wrote(self.proc, self.ino, &bytes);
        }
        Ok((at, len))
    }
}

impl WriteFile for SimFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = (!self.append).then_some(self.position);
        let (at, len) = self.put(bytes, at)?;
        self.position = at + len;
        Ok(len)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        self.put(bytes, Some(at)).map(|(_, len)| len)
    }

    fn sync(&self) -> io::Result<()> {
        let turn = self.machine.enter(self.proc, Call::SyncFile, &self.path)?;
        sync(turn, self.proc, self.ino)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut turn = self.machine.enter(self.proc, Call::SetLen, &self.path)?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let modified = turn.core.wall_seconds();
        turn.core.disk.change(self.ino, DataChange::SetLen(len), modified);
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let turn = self.machine.enter(self.proc, Call::Stat, &self.path)?;
        Ok(describe(&turn.core.disk, self.ino))
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        let turn = self.machine.enter(self.proc, Call::Stat, &self.path)?;
        Ok(Some(identify(&turn.core.disk, self.ino)))
    }
}

/// One open description of a lock file. The kernel frees its lock when it is closed or its process
/// dies.
#[derive(Debug)]
struct SimLock {
    machine: Machine,
    proc: usize,
    path: PathBuf,
    ino: Ino,
    fd: u64,
}

impl LockFd for SimLock {
    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        let mut turn = self.machine.enter(self.proc, Call::TryLock, &self.path)?;
        let got = turn.core.try_lock(self.ino, self.fd, self.proc, mode);
        if is_slot(&self.path) {
            turn.core.watch.asked(self.proc, self.ino, self.fd, got);
        }
        Ok(got)
    }

    fn unlock(&self) -> io::Result<()> {
        let mut turn = self.machine.enter(self.proc, Call::Unlock, &self.path)?;
        turn.core.unlock(self.ino, self.fd);
        Ok(())
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        let turn = self.machine.enter(self.proc, Call::Stat, &self.path)?;
        let disk = &turn.core.disk;
        Ok(disk.lookup(&self.path).ok() != Some(self.ino) && disk.is_unlinked(self.ino))
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.machine.close_lock(self.proc, self.ino, self.fd);
    }
}

#[cfg(test)]
mod tests;
