//! Named durable steps. In each the order of calls is the content.
//!
//! D1. A name never points at bytes that are not durable.
//! D2. A step that returned success survives a power cut; one that failed left the old file or the
//!     new one, never a mixture, and no temporary unless removing it failed as well.
//! D3. A failed sync is final: no step syncs the same bytes again and reports success.

use std::io;
use std::path::Path;

use crate::fs::{Fs, OpenWrite, Read, WriteFile};

/// Writes all of `bytes`, however short the single writes are.
pub fn write_all(file: &mut dyn WriteFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write(bytes)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`, however short the single writes are.
pub fn write_all_at(file: &mut dyn WriteFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

/// Creates the new file `path` with `bytes`, not yet durable. Removes it again on failure.
pub fn stage(fs: &dyn Fs, path: &Path, bytes: &[u8], mode: u32) -> io::Result<Box<dyn WriteFile>> {
    stage_as(fs, path, OpenWrite::CreateNew, bytes, mode)
}

fn stage_as(
    fs: &dyn Fs,
    path: &Path,
    how: OpenWrite,
    bytes: &[u8],
    mode: u32,
) -> io::Result<Box<dyn WriteFile>> {
    let mut file = fs.open_write(path, how, mode)?;
    match write_all(&mut *file, bytes) {
        Ok(()) => Ok(file),
        Err(error) => {
            let _ = fs.unlink(path);
            Err(error)
        }
    }
}

/// Creates the new file `path` with durable bytes; its name is not yet durable.
pub fn stage_synced(fs: &dyn Fs, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    synced(fs, path, &*stage(fs, path, bytes, mode)?)
}

/// Creates the file that [`Fs::map_shared`] maps: zeros that have their blocks, and keep them, so that
/// changing a word in memory needs no room if that can be helped.
pub fn stage_words(fs: &dyn Fs, path: &Path, words: usize, mode: u32) -> io::Result<()> {
    let zeros = vec![0; words.saturating_mul(8)];
    synced(fs, path, &*stage_as(fs, path, OpenWrite::CreateInPlace, &zeros, mode)?)
}

/// Creates a new empty file that is not to need room for bytes that are written over, not yet durable.
pub fn stage_in_place(fs: &dyn Fs, path: &Path, mode: u32) -> io::Result<()> {
    stage_as(fs, path, OpenWrite::CreateInPlace, &[], mode).map(|_| ())
}

fn synced(fs: &dyn Fs, path: &Path, file: &dyn WriteFile) -> io::Result<()> {
    file.sync().inspect_err(|_| {
        let _ = fs.unlink(path);
    })
}

/// Makes `bytes` the durable content of `path`: after a crash it is the old file or the new one.
///
/// `temp` is a new name in the same directory.
///
/// # Panics
/// If `temp` is in another directory: that order of syncs would promise nothing.
pub fn durable_replace(
    fs: &dyn Fs,
    temp: &Path,
    path: &Path,
    bytes: &[u8],
    mode: u32,
) -> io::Result<()> {
    durable_replace_by(fs, temp, path, |_| Ok(bytes.to_vec()), mode)
}

/// The same, with content that may tell of the very file it is in: `bytes` is asked once that is open.
///
/// # Panics
/// As [`durable_replace`].
pub fn durable_replace_by(
    fs: &dyn Fs,
    temp: &Path,
    path: &Path,
    bytes: impl FnOnce(&dyn WriteFile) -> io::Result<Vec<u8>>,
    mode: u32,
) -> io::Result<()> {
    assert_eq!(temp.parent(), path.parent(), "a replacement stays in its directory");
    let mut file = fs.open_write(temp, OpenWrite::CreateNew, mode)?;
    bytes(&*file)
        .and_then(|bytes| write_all(&mut *file, &bytes))
        .and_then(|()| file.sync()) // the content,
        .and_then(|()| fs.rename(temp, path))
        .inspect_err(|_| {
            let _ = fs.unlink(temp);
        })?; // the name,
    fs.sync_dir(parent(path)?) // the directory entry.
}

/// Adds a line to a log of lines, durably; a log that is not there is begun. Returns how long it was.
///
/// The log is written anew as a whole. A line put behind bytes that another writer's failed sync has lost
/// would begin in the zeros that a power cut leaves there, and the log's name may be lost like that too.
///
/// The caller excludes every other writer, and `temp` is a new name in the same directory.
///
/// # Panics
/// As [`durable_replace`].
pub fn durable_line(
    fs: &dyn Fs,
    temp: &Path,
    path: &Path,
    line: &str,
    mode: u32,
) -> io::Result<u64> {
    let mut log = match fs.read(path, usize::MAX) {
        Ok(Read::Bytes(bytes)) => bytes,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let before = log.len() as u64;
    // A line that was cut short stays as it is; the next one does not continue it.
    if log.last().is_some_and(|last| *last != b'\n') {
        log.push(b'\n');
    }
    log.extend_from_slice(line.as_bytes());
    log.push(b'\n');
    durable_replace(fs, temp, path, &log, mode)?;
    Ok(before)
}

/// Removes `path` durably.
pub fn durable_unlink(fs: &dyn Fs, path: &Path) -> io::Result<()> {
    fs.unlink(path)?;
    fs.sync_dir(parent(path)?)
}

/// Makes the directory `path` durably; one that exists already is synced all the same, because
/// whoever made it may not have lived to do so.
pub fn durable_mkdir(fs: &dyn Fs, path: &Path, mode: u32) -> io::Result<()> {
    match fs.mkdir(path, mode) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs.sync_dir(parent(path)?)
}

/// Puts a new directory in the place of an empty one, so that a sync of its parent that succeeds from now
/// on covers its name, whatever an earlier one failed on. Nobody who comes by the name misses it.
///
/// One that holds something stays as it is, and so does one that this process may not replace, or that
/// a file system is mounted on; the answer is then `false`. `temp` is a new name beside it.
pub fn renew_empty_dir(fs: &dyn Fs, temp: &Path, dir: &Path, mode: u32) -> io::Result<bool> {
    use io::ErrorKind as K;
    let renewed = fs.mkdir(temp, mode).and_then(|()| {
        fs.rename(temp, dir).inspect_err(|_| {
            let _ = fs.rmdir(temp);
        })
    });
    match renewed {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            K::DirectoryNotEmpty | K::AlreadyExists | K::ResourceBusy | K::PermissionDenied => {
                Ok(false)
            }
            _ => Err(error),
        },
    }
}

/// Makes something where others may be making the same: once more while it fails for want of a name, since
/// they put new directories in the place of empty ones, and take away what they could not finish.
pub fn among_makers<T, E: std::error::Error + 'static>(
    mut make: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 0..MAKERS {
        match make() {
            Err(error) if was_missing(&error) => {}
            done => return done,
        }
    }
    make()
}

/// So often something is made again.
const MAKERS: usize = 16;

fn was_missing(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let error = error.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    })
}

/// Moves a durable file into a public directory, public first: the new name is durable before the
/// old one may be forgotten, so a crash can show the file twice but never not at all.
pub fn publish(fs: &dyn Fs, staged: &Path, public: &Path) -> io::Result<()> {
    fs.rename(staged, public)?;
    fs.sync_dir(parent(public)?)?;
    fs.sync_dir(parent(staged)?)
}

/// Syncs several files, up to `width` at a time; each is synced once, and every answer is given in
/// the order of the files.
pub fn sync_together(files: &[Box<dyn WriteFile>], width: usize) -> Vec<io::Result<()>> {
    if width <= 1 || files.len() <= 1 {
        return files.iter().map(|file| file.sync()).collect();
    }
    let share = files.len().div_ceil(width);
    std::thread::scope(|scope| {
        let mut shares = files.chunks(share);
        let own = shares.next().unwrap_or_default();
        let others: Vec<_> = shares
            .map(|files| {
                let sync = || files.iter().map(|file| file.sync()).collect::<Vec<_>>();
                // Without a thread to spare, this one does the work.
                (files, std::thread::Builder::new().spawn_scoped(scope, sync))
            })
            .collect();
        let mut answers: Vec<_> = own.iter().map(|file| file.sync()).collect();
        for (files, other) in others {
            match other {
                Ok(thread) => match thread.join() {
                    Ok(done) => answers.extend(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                Err(_) => answers.extend(files.iter().map(|file| file.sync())),
            }
        }
        answers
    })
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no parent directory"))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what the steps find is made without them")]
mod tests {
    use super::*;
    use crate::RealFs;
    use crate::fault::{Call, Effect, FaultFs, When};
    use std::sync::Arc;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_line_is_added_by_replacing_the_log_and_continues_nothing_that_was_cut_short() {
        let dir = tempfile::tempdir().unwrap();
        let (log, temp) = (dir.path().join("log"), dir.path().join("log.tmp"));
        let add = |line: &str| durable_line(&RealFs, &temp, &log, line, 0o600);
        assert_eq!(add("one").unwrap(), 0);
        std::fs::write(&log, "one\ntw").unwrap();
        assert_eq!(add("three").unwrap(), 6);
        assert_eq!(add("four").unwrap(), 13);
        assert_eq!(text(&log), "one\ntw\nthree\nfour\n");
        let fs = FaultFs::new(Arc::new(RealFs));
        for (nth, stays) in [(Call::Write, false), (Call::SyncFile, false), (Call::SyncDir, true)] {
            let before = text(&log);
            fs.arm(When::NthOf(nth, 1), Effect::Errno(5));
            durable_line(&fs, &temp, &log, "five", 0o600).unwrap_err();
            fs.disarm();
            assert_eq!(text(&log) != before, stays, "{nth:?}");
            assert!(!temp.exists());
        }
    }

    #[test]
    fn an_empty_directory_gets_a_new_name_and_one_that_holds_something_stays() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (place, temp) = (dir.path().join("place"), dir.path().join("place.tmp"));
        std::fs::create_dir(&place).unwrap();
        // Keeps its number from being given to the new one.
        let old = std::fs::File::open(&place).unwrap().metadata().unwrap().ino();
        assert!(renew_empty_dir(&RealFs, &temp, &place, 0o700).unwrap());
        let new = std::fs::metadata(&place).unwrap().ino();
        assert_ne!(new, old);
        std::fs::write(place.join("x"), "x").unwrap();
        assert!(!renew_empty_dir(&RealFs, &temp, &place, 0o700).unwrap());
        assert_eq!(std::fs::metadata(&place).unwrap().ino(), new);
        let fs = FaultFs::new(Arc::new(RealFs));
        fs.arm(When::NthOf(Call::Rename, 1), Effect::Errno(5));
        renew_empty_dir(&fs, &temp, &place, 0o700).unwrap_err();
        assert!(!temp.exists() && place.join("x").exists());
    }
}
