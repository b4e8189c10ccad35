//! A directory that is gone afterwards, whatever happens short of a kill.

use std::io;
use std::path::{Path, PathBuf};

use ringfence::World;
use ringfence_env::{FileKind, Fs};

/// A new directory, removed with all that is in it when dropped.
#[must_use = "it is removed when dropped"]
#[derive(Debug)]
pub(crate) struct Scratch {
    world: World,
    path: PathBuf,
}

impl Scratch {
    /// Makes one in `parent`; without one in `$TMPDIR`, else in the current directory.
    pub(crate) fn new(world: &World, parent: Option<&Path>, purpose: &str) -> io::Result<Self> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => match std::env::var_os("TMPDIR") {
                Some(tmp) if !tmp.is_empty() => PathBuf::from(tmp),
                _ => std::env::current_dir()?,
            },
        };
        let path = parent.join(format!(".ringfence-{purpose}-{}", world.unique()?));
        world.fs.mkdir(&path, 0o700)?;
        Ok(Self { world: world.clone(), path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&*self.world.fs, &self.path) {
            crate::output::note(&format!("cannot remove {}: {error}", self.path.display()));
        }
    }
}

/// Removes a directory and everything in it; links are removed, not followed.
pub(crate) fn remove(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    for name in fs.list(dir)? {
        let path = dir.join(&name.name);
        if name.kind == FileKind::Dir { remove(fs, &path)? } else { fs.unlink(&path)? }
    }
    fs.rmdir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_with_its_content_and_without_what_it_links_to() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        let world = World::system();
        world.fs.mkdir(&outside, 0o700).unwrap();
        let scratch = Scratch::new(&world, Some(dir.path()), "test").unwrap();
        let path = scratch.path().to_owned();
        world.fs.mkdir(&path.join("deep"), 0o700).unwrap();
        std::os::unix::fs::symlink(&outside, path.join("deep/link")).unwrap();
        drop(scratch);
        assert!(!path.exists() && outside.exists());
    }
}
