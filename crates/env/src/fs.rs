//! The file-system seam.
//!
//! Durability, in the weakest form that POSIX allows and that every caller must assume:
//! a file's bytes are durable after [`WriteFile::sync`]; a name is durable after
//! [`Fs::sync_dir`] on its directory; anything else survives a power cut in any subset.
//! After a failed sync nothing may be assumed of the bytes it covered: a second sync that succeeds
//! proves nothing, because the kernel may have dropped them.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::process::ChildLock;
use crate::shared::SharedWords;

/// All that the product asks of a file system.
///
/// Paths are used as they are; no call follows a symbolic link in the last component.
pub trait Fs: Send + Sync + fmt::Debug {
    /// Reads a whole regular file, at most `max` bytes; anything else is told apart, not opened.
    fn read(&self, path: &Path, max: usize) -> io::Result<Read>;

    /// Reads the first `len` bytes of a regular file, fewer if it is shorter. Not a snapshot while
    /// somebody writes.
    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read>;

    /// Opens a regular file for writing. New files get exactly the permission bits `mode`.
    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>>;

    /// Opens an existing regular file for reading, and for writing too if `write`, at any place.
    ///
    /// Where it is not offered it is [`io::ErrorKind::Unsupported`].
    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        let _ = (path, write);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the first `words` 64-bit words of a file into memory that is shared with every process
    /// which maps them. The file must be that long, its blocks must exist, and it must not shrink:
    /// [`steps::stage_words`](crate::steps::stage_words) makes one. A file system that has no room for
    /// a page that is changed says so to [`SharedWords::try_store`] and [`SharedWords::try_add`]; who
    /// changes it otherwise is killed by SIGBUS.
    ///
    /// Where it is not offered it is [`io::ErrorKind::Unsupported`].
    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        let _ = (path, words);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Describes a name without following it.
    fn stat(&self, path: &Path) -> io::Result<Stat>;

    /// What tells this file or directory from every other, a copy of it included; `None` where nothing
    /// does.
    fn identity(&self, path: &Path) -> io::Result<Option<Identity>> {
        let _ = path;
        Ok(None)
    }

    /// Lists a directory, in no particular order; not a snapshot while others write.
    fn list(&self, dir: &Path) -> io::Result<Vec<Name>>;

    /// Replaces `to` atomically. Durable only after [`Fs::sync_dir`] on both directories.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name that is no directory. Durable only after [`Fs::sync_dir`].
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory with permission bits `mode`. Durable only after [`Fs::sync_dir`] on its
    /// parent.
    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `dir` durable. A failure is final: nothing may be assumed durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a lock file; creates it with `mode` if `create`.
    ///
    /// A name that is no regular file is [`io::ErrorKind::InvalidInput`].
    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>>;

    /// Asks for the kernel lock on an existing file from a second process, without waiting, and
    /// returns what that process saw. It holds nothing afterwards.
    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock>;

    /// The type of the file system that `path` is on, as the mount table names it.
    fn mount_type(&self, path: &Path) -> io::Result<String>;
}

/// What was found under a name that was to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A regular file's whole content.
    Bytes(Vec<u8>),
    /// Not a regular file; it was not read.
    NotRegular(FileKind),
    /// A regular file of this many bytes, over the limit; it was not read.
    TooLarge(u64),
}

/// How a file is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenWrite {
    /// It must not exist.
    CreateNew,
    /// The same, and bytes that are written over stay where they are, also where the file system would
    /// put them elsewhere, if it lets itself be asked (btrfs).
    CreateInPlace,
    /// Created if missing; writes go to its end.
    Append,
    /// Created if missing; writes start at its beginning and keep what they do not reach.
    Overwrite,
}

impl OpenWrite {
    /// Whether the file must not exist.
    pub fn is_new(self) -> bool {
        matches!(self, Self::CreateNew | Self::CreateInPlace)
    }
}

/// A file open for writing. Dropping it closes it and makes nothing durable.
pub trait WriteFile: Send + Sync + fmt::Debug {
    /// Writes at the current position, possibly fewer bytes than given.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes at `offset`, possibly fewer bytes than given; the current position stays.
    ///
    /// Not for files opened with [`OpenWrite::Append`].
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes the file's bytes durable; its name is not covered. A failure is final.
    fn sync(&self) -> io::Result<()>;

    /// Makes the file's bytes, and its size if that changed, durable; times and permissions are not
    /// covered. Cheaper than [`WriteFile::sync`] where a file keeps its size. A failure is final.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Describes the open file.
    fn stat(&self) -> io::Result<Stat>;

    /// What tells the open file from every other; `None` where nothing does.
    fn identity(&self) -> io::Result<Option<Identity>> {
        Ok(None)
    }
}

/// A file open for reading, and perhaps writing, at any place. Dropping it closes it and makes
/// nothing durable.
pub trait RandomFile: Send + Sync + fmt::Debug {
    /// Reads at `offset`, possibly fewer bytes than asked for; none at the end. Not a snapshot while
    /// somebody writes.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at `offset`, possibly fewer bytes than given.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes the file's bytes durable that were written by whomever since this file was opened, and
    /// its size if that changed. Bytes written before that are covered only if nobody failed to
    /// write them back meanwhile. A failure is final.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file off or extends it with zeros, for everybody who has it open.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Describes the open file.
    fn stat(&self) -> io::Result<Stat>;
}

/// A file opened to be locked. Dropping it closes it, which releases the lock unless a forked child
/// still has it open: release it first.
pub trait LockFd: Send + Sync + fmt::Debug {
    /// Takes the lock if it is free; `false` if somebody holds it.
    fn try_lock(&self, mode: LockMode) -> io::Result<bool>;

    /// Gives the lock up, for every descriptor of this open file.
    fn unlock(&self) -> io::Result<()>;

    /// Lets programs that this process starts keep the file open, and with it the lock: it is free
    /// once this process and all of them are gone.
    fn share_with_children(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether the file was removed since it was opened: its lock then excludes nobody.
    fn is_unlinked(&self) -> io::Result<bool>;
}

/// Who a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Everybody.
    Exclusive,
    /// Those who want it exclusively.
    Shared,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket or a device.
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a regular file",
            Self::Dir => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a named pipe",
            Self::Other => "a socket or device",
        })
    }
}

/// A description of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Owner.
    pub uid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub len: u64,
    /// Last change of the content, Unix seconds by the store's clock.
    pub modified: f64,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub name: OsString,
    /// What it stands for.
    pub kind: FileKind,
}

/// What no program can give to a copy of a file, nor put back after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The device that it is on. Only for comparison within one boot.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// When it was made, in nanoseconds of Unix time by the store's clock, where the store keeps that.
    /// A number that was given to another file in between tells itself by this.
    pub born: Option<u64>,
    /// When anything about it was last changed, likewise.
    pub changed: u64,
}
