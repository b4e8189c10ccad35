//! A block device that writes down every write and flush, and that can be made to fail.
//!
//! A file on a FUSE file system, with a loop device on it. A flush of the device arrives as a sync of
//! the file: a server that did not implement it would lose every epoch without a word.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

/// One operation on the device.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Bytes were written.
    Write { at: usize, bytes: Arc<[u8]> },
    /// A range became zeros.
    Zero { at: usize, len: usize },
    /// What was written before is durable.
    Flush,
    /// The workload said something.
    Mark(Vec<u8>),
}

/// When the device fails, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The N-th write from now, counted from 1.
    Write(u64),
    /// The N-th flush from now.
    Flush(u64),
    /// Every write and flush after so many operations.
    Everything(u64),
}

const DISK: u64 = 2;
const CONTROL: u64 = 3;
const TTL: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
struct State {
    image: Vec<u8>,
    log: Vec<Op>,
    recording: bool,
    fault: Option<Fault>,
    writes: u64,
    flushes: u64,
    fired: u64,
}

/// A mounted one.
#[derive(Debug)]
pub(crate) struct BlockDevice {
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
    dir: PathBuf,
}

impl BlockDevice {
    /// Mounts one with a disk of so many bytes at `dir`.
    pub(crate) fn mount(dir: &Path, bytes: usize) -> std::io::Result<Self> {
        let state = Arc::new(Mutex::new(State { image: vec![0; bytes], ..State::default() }));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("ringfence-blockdev".to_owned())];
        let session = fuser::spawn_mount(Server(Arc::clone(&state)), dir, &config)?;
        Ok(Self { state, session: Some(session), dir: dir.to_owned() })
    }

    /// The file that is the disk.
    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// The control file.
    pub(crate) fn control(&self) -> PathBuf {
        self.dir.join("control")
    }

    /// Starts the log; what the disk holds now is its base, and is returned.
    pub(crate) fn start(&self) -> Vec<u8> {
        let mut state = lock(&self.state);
        state.recording = true;
        state.log.clear();
        state.image.clone()
    }

    /// Ends the log and returns it.
    pub(crate) fn stop(&self) -> Vec<Op> {
        let mut state = lock(&self.state);
        state.recording = false;
        std::mem::take(&mut state.log)
    }

    /// Arms a fault, or none.
    pub(crate) fn arm(&self, fault: Option<Fault>) {
        let mut state = lock(&self.state);
        (state.writes, state.flushes, state.fired) = (0, 0, 0);
        state.fault = fault;
    }

    /// How often it failed since it was armed, and how many writes and flushes there were.
    pub(crate) fn fired(&self) -> (u64, u64, u64) {
        let state = lock(&self.state);
        (state.fired, state.writes, state.flushes)
    }

    /// What the disk holds.
    pub(crate) fn image(&self) -> Vec<u8> {
        lock(&self.state).image.clone()
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Server(Arc<Mutex<State>>);

impl State {
    fn fails(&mut self, is_write: bool) -> bool {
        if is_write {
            self.writes += 1;
        } else {
            self.flushes += 1;
        }
        let fails = match self.fault {
            Some(Fault::Write(number)) => is_write && self.writes == number,
            Some(Fault::Flush(number)) => !is_write && self.flushes == number,
            Some(Fault::Everything(after)) => self.writes + self.flushes > after,
            None => false,
        };
        self.fired += u64::from(fails);
        fails
    }

    fn log(&mut self, op: Op) {
        if self.recording {
            self.log.push(op);
        }
    }
}

fn attr(ino: u64, len: u64) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    let is_dir = ino == INodeNo::ROOT.0;
    FileAttr {
        ino: INodeNo(ino),
        size: len,
        blocks: len.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: if is_dir { FileType::Directory } else { FileType::RegularFile },
        perm: if is_dir { 0o700 } else { 0o600 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Server {
    fn attr(&self, ino: u64) -> Option<FileAttr> {
        match ino {
            1 => Some(attr(ino, 4096)),
            DISK => Some(attr(ino, lock(&self.0).image.len() as u64)),
            CONTROL => Some(attr(ino, 0)),
            _ => None,
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match name.to_str() {
            Some("disk") => DISK,
            Some("control") => CONTROL,
            _ => 0,
        };
        match self.attr(ino) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = lock(&self.0);
        let len = state.image.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(len);
        reply.data(&state.image[start..start.saturating_add(size as usize).min(len)]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = lock(&self.0);
        let len = u32::try_from(data.len()).unwrap_or(0);
        if ino.0 == CONTROL {
            state.log(Op::Mark(data.to_vec()));
            return reply.written(len);
        }
        if state.fails(true) {
            return reply.error(Errno::EIO);
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        match state.image.get_mut(at..at.saturating_add(data.len())) {
            Some(range) => range.copy_from_slice(data),
            None => return reply.error(Errno::ENOSPC),
        }
        state.log(Op::Write { at, bytes: data.into() });
        reply.written(len);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        let mut state = lock(&self.0);
        if state.fails(true) {
            return reply.error(Errno::EIO);
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let len = usize::try_from(length).unwrap_or(0);
        if let Some(range) = state.image.get_mut(at..at.saturating_add(len)) {
            range.fill(0);
            state.log(Op::Zero { at, len });
        }
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if ino.0 == CONTROL {
            return reply.ok();
        }
        let mut state = lock(&self.0);
        if state.fails(false) {
            return reply.error(Errno::EIO);
        }
        state.log(Op::Flush);
        reply.ok();
    }
}
