//! Small steps on files, each through the seam.

use std::io;
use std::path::{Path, PathBuf};

use ringfence_env::{Read, World, steps};

use crate::digest::Digest;
use crate::error::Error;

/// Permission bits of files that a campaign makes.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Permission bits of directories that a campaign makes.
pub(crate) const DIR_MODE: u32 = 0o700;
/// The largest file that is read whole.
const MAX_BYTES: usize = 64 << 20;

/// Reads a regular file; `None` if there is none.
pub(crate) fn read(world: &World, path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match world.fs.read(path, MAX_BYTES) {
        Ok(Read::Bytes(bytes)) => Ok(Some(bytes)),
        Ok(Read::NotRegular(kind)) => {
            Err(Error::io("read", path, io::Error::other(format!("it is {kind}"))))
        }
        Ok(Read::TooLarge(bytes)) => {
            Err(Error::io("read", path, io::Error::other(format!("it has {bytes} bytes"))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// Makes a directory unless it is there; its parent must be.
pub(crate) fn mkdir(world: &World, dir: &Path) -> Result<(), Error> {
    steps::durable_mkdir(&*world.fs, dir, DIR_MODE).map_err(|error| Error::io("make", dir, error))
}

/// The names in a directory, sorted; none if there is no such directory.
pub(crate) fn names(world: &World, dir: &Path) -> Result<Vec<String>, Error> {
    let listed = match world.fs.list(dir) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", dir, error)),
    };
    let mut names: Vec<String> =
        listed.into_iter().filter_map(|name| name.name.into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Makes `bytes` the durable content of `path`: after a crash it is the old file or the new one.
pub(crate) fn replace(world: &World, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temp = temp_beside(world, path)?;
    steps::durable_replace(&*world.fs, &temp, path, bytes, FILE_MODE)
        .map_err(|error| Error::io("write", path, error))
}

/// Keeps `bytes` under their digest in `dir`, complete or not at all; returns the digest.
///
/// The bytes are durable before the name shows them. The name itself is not made durable: after a
/// power cut the file may be missing, never torn.
pub(crate) fn keep(world: &World, dir: &Path, bytes: &[u8]) -> Result<Digest, Error> {
    let digest = Digest::of(bytes);
    let path = dir.join(digest.to_string());
    if exists(world, &path) {
        return Ok(digest);
    }
    let temp = temp_beside(world, &path)?;
    steps::stage_synced(&*world.fs, &temp, bytes, FILE_MODE)
        .and_then(|()| {
            world.fs.rename(&temp, &path).inspect_err(|_| {
                let _ = world.fs.unlink(&temp);
            })
        })
        .map_err(|error| Error::io("keep", &path, error))?;
    Ok(digest)
}

/// Whether the name is there.
pub(crate) fn exists(world: &World, path: &Path) -> bool {
    world.fs.stat(path).is_ok()
}

/// Removes a directory of plain files, as far as it goes. What stays is found by the next one.
pub(crate) fn remove_dir(world: &World, dir: &Path) {
    for name in names(world, dir).unwrap_or_default() {
        let _ = world.fs.unlink(&dir.join(name));
    }
    let _ = world.fs.rmdir(dir);
}

fn temp_beside(world: &World, path: &Path) -> Result<PathBuf, Error> {
    let name = world.unique().map_err(|error| Error::io("name", path, error))?;
    Ok(path.with_file_name(format!(".{name}.tmp")))
}
