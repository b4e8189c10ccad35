//! Linux.
//!
//! Calls go through the C library, so that a preloaded shim can stand in for a broken file system.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, IFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::fs::{
    FileKind, Fs, Identity, LockFd, LockMode, Name, OpenWrite, RandomFile, Read, Stat, WriteFile,
};
use crate::mount;
use crate::process::{self, ChildLock};
use crate::shared::{MappedWords, SharedWords};

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

const ALWAYS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// Retries what a signal interrupted; only for calls that are safe to repeat.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

fn open(path: &Path, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    retry(|| rustix::fs::open(path, flags | ALWAYS, Mode::from_raw_mode(mode)))
}

/// Creates a file that must not exist; leaves none behind if that fails half way.
fn create(path: &Path, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let fd = open(path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    match enforce_mode(&fd, mode) {
        Ok(()) => Ok(fd),
        Err(error) => {
            let _ = rustix::fs::unlink(path);
            Err(error)
        }
    }
}

/// Asks the file system to write over this file's bytes where they are, which it takes while the file is
/// empty. Most do so anyhow, and cannot be asked.
fn keep_in_place(fd: &OwnedFd) {
    let flags = rustix::fs::ioctl_getflags(fd);
    let _ = flags.and_then(|flags| rustix::fs::ioctl_setflags(fd, flags | IFlags::NOCOW));
}

/// Whether a page of a mapped file whose blocks are there may want room when it is changed. It does where
/// blocks can be shared with a copy, or are written elsewhere, or where that is not known.
fn may_want_room(fd: &OwnedFd) -> bool {
    const EXT: i64 = 0xef53;
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    #[expect(clippy::allow_attributes, reason = "the C library's field types differ by platform")]
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    let kind = rustix::fs::fstatfs(fd).map(|stat| stat.f_type as i64);
    !kind.is_ok_and(|kind| [EXT, TMPFS, RAMFS].contains(&kind))
}

/// Opens a file, or creates it with exactly `mode`.
fn open_or_create(path: &Path, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    loop {
        match open(path, flags, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        match create(path, flags, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
}

fn kind_of(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Unknown => return None,
        _ => FileKind::Other,
    })
}

/// A new file gets exactly `mode`, whatever the process's umask takes away.
fn enforce_mode(fd: &OwnedFd, mode: u32) -> io::Result<()> {
    let has = rustix::fs::fstat(fd)?.st_mode & 0o7777;
    if has == mode { Ok(()) } else { Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?) }
}

fn describe(stat: &rustix::fs::Stat) -> Stat {
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::Other);
    #[expect(clippy::allow_attributes, reason = "the C library's field types differ by platform")]
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, clippy::cast_lossless)]
    Stat {
        kind,
        uid: stat.st_uid,
        mode: stat.st_mode & 0o7777,
        len: stat.st_size as u64,
        modified: stat.st_mtime as f64 + stat.st_mtime_nsec as f64 / 1e9,
    }
}

/// Asks for what no copy has. Where the kernel does not answer, the number and the last change are
/// still known.
fn identify(dir: impl AsFd, path: &Path, flags: AtFlags) -> io::Result<Identity> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let nanos = |seconds: i64, nanos: u64| {
        u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos)
    };
    match rustix::fs::statx(&dir, path, flags, wanted) {
        Ok(stat) => {
            let (born, changed) = (stat.stx_btime, stat.stx_ctime);
            let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
            Ok(Identity {
                device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
                inode: stat.stx_ino,
                born: known.then(|| nanos(born.tv_sec, born.tv_nsec.into())),
                changed: nanos(changed.tv_sec, changed.tv_nsec.into()),
            })
        }
        Err(Errno::NOSYS | Errno::PERM) => {
            let stat = retry(|| rustix::fs::statat(&dir, path, flags))?;
            #[expect(clippy::allow_attributes, reason = "the field types differ by platform")]
            #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, clippy::cast_lossless)]
            Ok(Identity {
                device: stat.st_dev as u64,
                inode: stat.st_ino as u64,
                born: None,
                changed: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as u64),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens a regular file for reading and tells its size, or tells what else is there.
fn open_regular(path: &Path) -> io::Result<Result<(File, u64), FileKind>> {
    // Without NONBLOCK, opening a named pipe would wait for a writer.
    let fd = match open(path, OFlags::RDONLY | OFlags::NONBLOCK, 0) {
        Ok(fd) => fd,
        Err(error) => {
            let odd = [Errno::LOOP, Errno::NXIO].map(|errno| Some(errno.raw_os_error()));
            if odd.contains(&error.raw_os_error()) {
                return Ok(Err(RealFs.stat(path)?.kind));
            }
            return Err(error);
        }
    };
    let stat = describe(&rustix::fs::fstat(&fd)?);
    let regular = stat.kind == FileKind::File;
    Ok(if regular { Ok((File::from(fd), stat.len)) } else { Err(stat.kind) })
}

/// Syncs the names in an open directory.
///
/// XFS answers the sync of a directory with success also when it has shut itself down, because its log
/// could not be written, and the names are lost. It says so to whoever asks about the directory: the
/// shutdown is set before those who wait for the log are woken.
fn sync_open_dir(dir: &impl std::os::fd::AsFd) -> io::Result<()> {
    // Not retried: a sync that did not succeed is final.
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    rustix::fs::fsync(dir)?;
    rustix::fs::fstat(dir)?;
    Ok(())
}

impl Fs for RealFs {
    fn read(&self, path: &Path, max: usize) -> io::Result<Read> {
        let limit = u64::try_from(max).unwrap_or(u64::MAX);
        match open_regular(path)? {
            Err(kind) => Ok(Read::NotRegular(kind)),
            Ok((_, len)) if len > limit => Ok(Read::TooLarge(len)),
            Ok((file, len)) => {
                let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
                // It may grow while it is read.
                file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
                if bytes.len() > max {
                    return Ok(Read::TooLarge(bytes.len() as u64));
                }
                Ok(Read::Bytes(bytes))
            }
        }
    }

    fn read_head(&self, path: &Path, len: usize) -> io::Result<Read> {
        match open_regular(path)? {
            Err(kind) => Ok(Read::NotRegular(kind)),
            Ok((file, size)) => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                let mut bytes = Vec::with_capacity(size.min(len));
                file.take(u64::try_from(len).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
                Ok(Read::Bytes(bytes))
            }
        }
    }

    fn open_write(&self, path: &Path, how: OpenWrite, mode: u32) -> io::Result<Box<dyn WriteFile>> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let fd = match how {
            // What was just made is a regular file: a second look could only fail, and leave it behind.
            OpenWrite::CreateNew => {
                return Ok(Box::new(RealFile(File::from(create(path, flags, mode)?))));
            }
            OpenWrite::CreateInPlace => {
                let fd = create(path, flags, mode)?;
                keep_in_place(&fd);
                return Ok(Box::new(RealFile(File::from(fd))));
            }
            OpenWrite::Append => open_or_create(path, flags | OFlags::APPEND, mode)?,
            OpenWrite::Overwrite => open_or_create(path, flags, mode)?,
        };
        if describe(&rustix::fs::fstat(&fd)?).kind != FileKind::File {
            return Err(not_regular());
        }
        Ok(Box::new(RealFile(File::from(fd))))
    }

    fn open_random(&self, path: &Path, write: bool) -> io::Result<Box<dyn RandomFile>> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = open(path, access | OFlags::NONBLOCK, 0)?;
        if describe(&rustix::fs::fstat(&fd)?).kind != FileKind::File {
            return Err(not_regular());
        }
        Ok(Box::new(RealFile(File::from(fd))))
    }

    fn map_shared(&self, path: &Path, words: usize) -> io::Result<Box<dyn SharedWords>> {
        let fd = open(path, OFlags::RDWR | OFlags::NONBLOCK, 0)?;
        let stat = describe(&rustix::fs::fstat(&fd)?);
        let needed = words.saturating_mul(8) as u64;
        if stat.kind != FileKind::File || stat.len < needed {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file of enough words"));
        }
        let carefully = may_want_room(&fd);
        Ok(Box::new(MappedWords::map(&File::from(fd), words, carefully)?))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(describe(&retry(|| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW))?))
    }

    fn identity(&self, path: &Path) -> io::Result<Option<Identity>> {
        identify(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(Some)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Name>> {
        // Opened here, because `read_dir` would follow a link.
        let fd = open(dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match kind_of(entry.file_type()) {
                Some(kind) => kind,
                // Not every file system says; the name may be gone by now.
                None => match self.stat(&dir.join(name)) {
                    Ok(stat) => stat.kind,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            names.push(Name { name: name.to_owned(), kind });
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        retry(|| rustix::fs::rename(from, to))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        retry(|| rustix::fs::unlink(path))
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        retry(|| rustix::fs::mkdir(path, Mode::from_raw_mode(mode)))?;
        // A new directory gets exactly `mode`, whatever the process's mask takes away.
        let exact = self.stat(path).and_then(|stat| {
            if stat.mode == mode {
                return Ok(());
            }
            retry(|| rustix::fs::chmod(path, Mode::from_raw_mode(mode)))
        });
        exact.inspect_err(|_| {
            let _ = rustix::fs::rmdir(path);
        })
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        retry(|| rustix::fs::rmdir(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_open_dir(&open(dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)
    }

    fn open_lock(&self, path: &Path, create: bool, mode: u32) -> io::Result<Box<dyn LockFd>> {
        let opened = if create {
            open_or_create(path, OFlags::RDWR | OFlags::NONBLOCK, mode)
        } else {
            open(path, OFlags::RDONLY | OFlags::NONBLOCK, 0)
        };
        let fd = match opened {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return Err(not_regular());
            }
            other => other?,
        };
        if describe(&rustix::fs::fstat(&fd)?).kind != FileKind::File {
            return Err(not_regular());
        }
        Ok(Box::new(RealLock(fd)))
    }

    fn lock_in_child(&self, path: &Path, patience: Duration) -> io::Result<ChildLock> {
        process::lock_in_child(path, patience)
    }

    fn mount_type(&self, path: &Path) -> io::Result<String> {
        mount::type_of(path)
    }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

#[derive(Debug)]
struct RealFile(File);

impl WriteFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        // `File::sync_all` would retry after EINTR; a sync that did not succeed is final.
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        Ok(rustix::fs::fsync(&self.0)?)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        retry(|| rustix::io::pwrite(&self.0, bytes, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        retry(|| rustix::fs::ftruncate(&self.0, len))
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(describe(&rustix::fs::fstat(&self.0)?))
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        identify(&self.0, Path::new(""), AtFlags::EMPTY_PATH).map(Some)
    }
}

impl RandomFile for RealFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        retry(|| rustix::io::pread(&self.0, &mut *into, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        retry(|| rustix::io::pwrite(&self.0, bytes, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        WriteFile::sync_data(self)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        WriteFile::set_len(self, len)
    }

    fn stat(&self) -> io::Result<Stat> {
        WriteFile::stat(self)
    }
}

#[derive(Debug)]
struct RealLock(OwnedFd);

impl LockFd for RealLock {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        let operation = match mode {
            LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
            LockMode::Shared => FlockOperation::NonBlockingLockShared,
        };
        match rustix::fs::flock(&self.0, operation) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn unlock(&self) -> io::Result<()> {
        retry(|| rustix::fs::flock(&self.0, FlockOperation::Unlock))
    }

    fn share_with_children(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, rustix::io::FdFlags::empty())?)
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.0)?.st_nlink == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(program: &str, args: &[&std::ffi::OsStr]) -> bool {
        Command::new(program).args(args).output().is_ok_and(|done| done.status.success())
    }

    struct Mounted<'p>(&'p Path);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            run("umount", &["-l".as_ref(), self.0.as_os_str()]);
        }
    }

    /// The call was acknowledged, and after the restart the name that it had removed was there again.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "it is about these very calls")]
    fn xfs_that_has_shut_itself_down_loses_a_name_and_the_sync_of_its_directory_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let mkfs = ["-q".as_ref(), "--unsupported".as_ref(), image.as_os_str()];
        let mount =
            || run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        if !run("mkfs.xfs", &mkfs) || !mount() {
            eprintln!("not tried: it needs root, mkfs.xfs and a loop device");
            return;
        }
        let mounted = Mounted(&at);
        let (place, name) = (at.join("place"), at.join("place/name"));
        std::fs::create_dir(&place).unwrap();
        std::fs::write(&name, "x").unwrap();
        assert!(run("sync", &["-f".as_ref(), at.as_os_str()]));
        let open = std::fs::File::open(&place).unwrap();
        std::fs::remove_file(&name).unwrap();
        let shutdown = ["-x".as_ref(), "-c".as_ref(), "shutdown".as_ref(), at.as_os_str()];
        assert!(run("xfs_io", &shutdown));
        // If this begins to fail by itself, the second look is no longer needed.
        println!("the kernel's own answer: {:?}", rustix::fs::fsync(&open));
        sync_open_dir(&open).unwrap_err();
        drop((open, mounted));
        assert!(mount());
        let _mounted = Mounted(&at);
        assert!(name.exists(), "the removal was lost");
    }
}
