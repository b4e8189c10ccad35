//! An in-memory file system that writes down every operation.
//!
//! It answers like any other one, so what it serves is the volatile state. What a power cut may leave
//! of it is computed from the log afterwards, see [`crate::states`]. Kernel locks stay in the kernel.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::states::Tree;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

/// One operation. Inodes are never used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A name was set to a new file or directory.
    Make { dir: u64, name: String, ino: u64, is_dir: bool, mode: u32 },
    /// A name was removed.
    Remove { dir: u64, name: String },
    /// A name was moved, over another one if that was there.
    Rename { from: u64, name: String, to: u64, new: String, ino: u64 },
    /// Bytes were written.
    Write { ino: u64, at: usize, bytes: Arc<[u8]> },
    /// Bytes of a file that processes map came to it from memory: by then, or long before.
    Memory { ino: u64, at: usize, bytes: Arc<[u8]> },
    /// A file was cut or extended.
    Truncate { ino: u64, len: usize },
    /// A file's bytes were synced.
    SyncFile { ino: u64 },
    /// A directory's names were synced.
    SyncDir { ino: u64 },
    /// Everything is durable: the base that a recording starts from.
    Settle,
    /// The workload said something.
    Mark(Vec<u8>),
}

/// The root directory.
pub(crate) const ROOT: u64 = 1;
const CONTROL: u64 = 2;
const CONTROL_NAME: &str = ".control";
const TTL: Duration = Duration::from_hours(1);
/// The kernel alone changes files here, so what it has cached is right. Through its cache memory can be
/// shared by mapping a file, as on any file system of a machine; with direct I/O it could not.
const KEEP: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE;

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Dir(BTreeMap<String, u64>),
}

#[derive(Debug)]
struct Inode {
    node: Node,
    mode: u32,
    modified: SystemTime,
    links: u32,
}

#[derive(Debug)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    log: Vec<Event>,
}

/// A mounted one.
#[derive(Debug)]
pub(crate) struct WeakFs {
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
}

impl WeakFs {
    /// Mounts one at `dir` with these files, all of it durable.
    pub(crate) fn mount(dir: &Path, tree: &Tree) -> std::io::Result<Self> {
        let root = Inode {
            node: Node::Dir(BTreeMap::new()),
            mode: 0o755,
            modified: SystemTime::now(),
            links: 2,
        };
        let mut state =
            State { inodes: BTreeMap::from([(ROOT, root)]), next: CONTROL + 1, log: Vec::new() };
        state.load(tree);
        let state = Arc::new(Mutex::new(state));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("ringfence-weakfs".to_owned())];
        let session = fuser::spawn_mount(Server(Arc::clone(&state)), dir, &config)?;
        Ok(Self { state, session: Some(session) })
    }

    /// Says that everything so far is durable.
    pub(crate) fn settle(&self) {
        lock(&self.state).log.push(Event::Settle);
    }

    /// The log so far.
    pub(crate) fn log(&self) -> Vec<Event> {
        lock(&self.state).log.clone()
    }

    /// The control file, in `dir` where it is mounted.
    pub(crate) fn control(dir: &Path) -> std::path::PathBuf {
        dir.join(CONTROL_NAME)
    }
}

impl Drop for WeakFs {
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
    fn load(&mut self, tree: &Tree) {
        let mut dirs = BTreeMap::from([(String::new(), ROOT)]);
        for (path, entry) in &tree.entries {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let (is_dir, mode) = (entry.bytes.is_none(), entry.mode);
            let made = self.make(dirs[parent], OsStr::new(name), is_dir, mode);
            let ino = made.map_or(0, |attr| attr.ino.0);
            match &entry.bytes {
                None => {
                    dirs.insert(path.clone(), ino);
                }
                Some(bytes) if bytes.is_empty() => {}
                Some(bytes) => {
                    let _ = self.write(ino, 0, bytes, false);
                }
            }
        }
        self.log.push(Event::Settle);
    }

    fn attr(&self, ino: u64) -> Result<FileAttr, Errno> {
        if ino == CONTROL {
            return Ok(attr(ino, FileType::RegularFile, 0, 0o600, SystemTime::UNIX_EPOCH, 1));
        }
        let inode = self.inodes.get(&ino).ok_or(Errno::ENOENT)?;
        let (kind, len) = match &inode.node {
            Node::File(bytes) => (FileType::RegularFile, bytes.len() as u64),
            Node::Dir(_) => (FileType::Directory, 4096),
        };
        Ok(attr(ino, kind, len, inode.mode, inode.modified, inode.links))
    }

    fn names(&mut self, dir: u64) -> Result<&mut BTreeMap<String, u64>, Errno> {
        match self.inodes.get_mut(&dir).map(|inode| &mut inode.node) {
            Some(Node::Dir(names)) => Ok(names),
            Some(Node::File(_)) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn bytes(&mut self, ino: u64) -> Result<&mut Vec<u8>, Errno> {
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::ENOENT)?;
        inode.modified = SystemTime::now();
        match &mut inode.node {
            Node::File(bytes) => Ok(bytes),
            Node::Dir(_) => Err(Errno::EISDIR),
        }
    }

    fn find(&mut self, dir: u64, name: &OsStr) -> Result<u64, Errno> {
        let name = name.to_str().ok_or(Errno::EINVAL)?;
        if dir == ROOT && name == CONTROL_NAME {
            return Ok(CONTROL);
        }
        self.names(dir)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, dir: u64, name: &OsStr, is_dir: bool, mode: u32) -> Result<FileAttr, Errno> {
        let text = name.to_str().ok_or(Errno::EINVAL)?.to_owned();
        if self.names(dir)?.contains_key(&text) {
            return Err(Errno::EEXIST);
        }
        let ino = self.next;
        self.next += 1;
        let node = if is_dir { Node::Dir(BTreeMap::new()) } else { Node::File(Vec::new()) };
        let links = if is_dir { 2 } else { 1 };
        let inode = Inode { node, mode: mode & 0o7777, modified: SystemTime::now(), links };
        self.inodes.insert(ino, inode);
        self.names(dir)?.insert(text.clone(), ino);
        self.log.push(Event::Make { dir, name: text, ino, is_dir, mode: mode & 0o7777 });
        self.attr(ino)
    }

    fn remove(&mut self, dir: u64, name: &OsStr, is_dir: bool) -> Result<(), Errno> {
        let ino = self.find(dir, name)?;
        match &self.inodes.get(&ino).ok_or(Errno::ENOENT)?.node {
            Node::Dir(_) if !is_dir => return Err(Errno::EISDIR),
            Node::File(_) if is_dir => return Err(Errno::ENOTDIR),
            Node::Dir(names) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let text = name.to_str().ok_or(Errno::EINVAL)?.to_owned();
        self.names(dir)?.remove(&text);
        self.unlink(ino);
        self.log.push(Event::Remove { dir, name: text });
        Ok(())
    }

    /// An inode stays for those who have it open, and for states in which its name was not removed.
    fn unlink(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.links = 0;
        }
    }

    fn rename(&mut self, from: u64, name: &OsStr, to: u64, new: &OsStr) -> Result<(), Errno> {
        let ino = self.find(from, name)?;
        let old = name.to_str().ok_or(Errno::EINVAL)?.to_owned();
        let new = new.to_str().ok_or(Errno::EINVAL)?.to_owned();
        if self.names(to)?.get(&new) == Some(&ino) {
            return Ok(());
        }
        self.names(from)?.remove(&old);
        if let Some(replaced) = self.names(to)?.insert(new.clone(), ino) {
            self.unlink(replaced);
        }
        self.log.push(Event::Rename { from, name: old, to, new, ino });
        Ok(())
    }

    fn write(&mut self, ino: u64, at: u64, data: &[u8], mapped: bool) -> Result<(), Errno> {
        if ino == CONTROL {
            self.log.push(Event::Mark(data.to_vec()));
            return Ok(());
        }
        let at = usize::try_from(at).map_err(|_| Errno::EFBIG)?;
        let bytes = self.bytes(ino)?;
        put(bytes, at, data);
        let bytes = data.into();
        self.log.push(if mapped {
            Event::Memory { ino, at, bytes }
        } else {
            Event::Write { ino, at, bytes }
        });
        Ok(())
    }
}

/// Overwrites or extends; what is skipped is zeros.
pub(crate) fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    let end = at + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(data);
}

fn attr(
    ino: u64,
    kind: FileType,
    size: u64,
    mode: u32,
    modified: SystemTime,
    nlink: u32,
) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(512),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind,
        perm: u16::try_from(mode & 0o7777).unwrap_or(0),
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = lock(&self.0);
        match state.find(parent.0, name).and_then(|ino| state.attr(ino)) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match lock(&self.0).attr(ino.0) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
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
        let mut state = lock(&self.0);
        if let Some(size) = size.filter(|_| ino.0 != CONTROL) {
            let Ok(len) = usize::try_from(size) else { return reply.error(Errno::EFBIG) };
            match state.bytes(ino.0) {
                Ok(bytes) => bytes.resize(len, 0),
                Err(error) => return reply.error(error),
            }
            state.log.push(Event::Truncate { ino: ino.0, len });
        }
        if let (Some(mode), Some(inode)) = (mode, state.inodes.get_mut(&ino.0)) {
            inode.mode = mode & 0o7777;
        }
        match state.attr(ino.0) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        match lock(&self.0).make(parent.0, name, true, mode & !umask) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(lock(&self.0).remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(lock(&self.0).remove(parent.0, name, true), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        answer(lock(&self.0).rename(parent.0, name, newparent.0, newname), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(
            FileHandle(0),
            if ino.0 == CONTROL { FopenFlags::FOPEN_DIRECT_IO } else { KEEP },
        );
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = lock(&self.0);
        match state.inodes.get(&ino.0).map(|inode| &inode.node) {
            Some(Node::File(bytes)) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(size as usize).min(bytes.len());
                reply.data(&bytes[start..end]);
            }
            _ => reply.error(Errno::EISDIR),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Without a write-back cache only mappings come from the page cache.
        let mapped = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        match lock(&self.0).write(ino.0, offset, data, mapped) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        lock(&self.0).log.push(Event::SyncFile { ino: ino.0 });
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        lock(&self.0).log.push(Event::SyncDir { ino: ino.0 });
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut state = lock(&self.0);
        let names = match state.names(ino.0) {
            Ok(names) => names.clone(),
            Err(error) => return reply.error(error),
        };
        let dots = [(".".to_owned(), ino.0), ("..".to_owned(), ROOT)];
        let entries = dots.into_iter().chain(names);
        for (index, (name, child)) in
            (1_u64..).zip(entries).skip(usize::try_from(offset).unwrap_or(0))
        {
            let kind = match state.inodes.get(&child).map(|inode| &inode.node) {
                Some(Node::File(_)) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if reply.add(INodeNo(child), index, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match lock(&self.0).make(parent.0, name, false, mode & !umask) {
            Ok(attr) => {
                reply.created(&TTL, &attr, Generation(0), FileHandle(0), KEEP);
            }
            Err(error) => reply.error(error),
        }
    }

    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn answer(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
