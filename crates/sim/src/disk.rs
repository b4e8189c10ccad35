//! A disk with the weakest durability that POSIX allows.
//!
//! Each file and each directory has what is *durable* (`base`) and a log of what happened since.
//! What programs see is the base with the whole log applied; what a power cut leaves is the base
//! with any part of the log applied ([`crate::crash`]). A sync makes the log's changes durable. A
//! *failed* sync leaves its changes stuck: programs still see them, a power cut may lose them, and
//! no later sync covers them, because the kernel has forgotten that they were never written.
//!
//! Bytes and directories are shared until they change, so a clone of a disk is cheap.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Names one file or directory; never used again.
pub type Ino = u64;

/// The names of one directory.
pub type Names = BTreeMap<OsString, Ino>;

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A power cut may lose it; the next sync makes it durable.
    Pending,
    /// Its sync failed: a power cut may lose it for ever.
    Stuck,
    /// Survives a power cut; it is in the log because something before it may not.
    Durable,
}

/// One change of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataChange {
    /// Bytes written at an offset.
    Write {
        /// Where.
        at: usize,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// Cut or extended to this length.
    SetLen(usize),
}

/// One change of a directory's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// The name now stands for this.
    Set(OsString, Ino),
    /// The name is gone.
    Remove(OsString),
    /// The name moved within the directory, over whatever had the second name.
    Move(OsString, OsString, Ino),
}

/// What is durable, what is seen, and the changes in between.
#[derive(Clone, Debug)]
pub struct Logged<T, C> {
    /// Survives a power cut.
    pub base: Arc<T>,
    /// What programs see.
    pub now: Arc<T>,
    /// From the one to the other, in order.
    pub log: Vec<(C, Fate)>,
}

/// A file or a directory.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Permission bits.
    pub mode: u32,
    /// Last change, by the machine's wall clock, in seconds.
    pub modified: f64,
    /// Its content.
    pub body: Body,
}

/// The content of an inode.
#[derive(Clone, Debug)]
pub enum Body {
    /// Bytes.
    File(Logged<Vec<u8>, DataChange>),
    /// Names.
    Dir(Logged<Names, NameChange>),
}

/// A change that can be applied to what it changes.
pub trait Change<T> {
    /// Applies it.
    fn apply(&self, to: &mut T);
}

impl Change<Vec<u8>> for DataChange {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => to.resize(*len, 0),
            Self::Write { at, bytes } => {
                if to.len() < at + bytes.len() {
                    to.resize(at + bytes.len(), 0);
                }
                to[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

impl Change<Names> for NameChange {
    fn apply(&self, to: &mut Names) {
        match self {
            Self::Set(name, ino) => {
                to.insert(name.clone(), *ino);
            }
            Self::Remove(name) => {
                to.remove(name);
            }
            Self::Move(from, name, ino) => {
                to.remove(from);
                to.insert(name.clone(), *ino);
            }
        }
    }
}

impl<T: Clone, C: Change<T>> Logged<T, C> {
    /// Durable as it stands.
    pub fn durable(content: T) -> Self {
        let base = Arc::new(content);
        Self { now: Arc::clone(&base), base, log: Vec::new() }
    }

    fn push(&mut self, change: C) {
        change.apply(Arc::make_mut(&mut self.now));
        self.log.push((change, Fate::Pending));
    }

    /// A sync that succeeded, or failed.
    fn sync(&mut self, succeeded: bool) {
        for (_, fate) in &mut self.log {
            if *fate == Fate::Pending {
                *fate = if succeeded { Fate::Durable } else { Fate::Stuck };
            }
        }
        // What is durable from the start of the log on belongs to the base.
        let settled = self.log.iter().take_while(|(_, fate)| *fate == Fate::Durable).count();
        if settled == self.log.len() {
            self.base = Arc::clone(&self.now);
            self.log.clear();
        } else if settled > 0 {
            let base = Arc::make_mut(&mut self.base);
            for (change, _) in self.log.drain(..settled) {
                change.apply(base);
            }
        }
    }

    /// How many changes a power cut may lose.
    pub fn at_risk(&self) -> usize {
        self.log.iter().filter(|(_, fate)| *fate != Fate::Durable).count()
    }
}

/// A whole disk. Not aware of processes, locks or time.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) inodes: BTreeMap<Ino, Arc<Inode>>,
    next: Ino,
}

/// The root directory.
pub const ROOT: Ino = 1;

fn errno<T>(number: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(number))
}

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOTEMPTY: i32 = 39;

impl Default for Disk {
    fn default() -> Self {
        let root =
            Inode { mode: 0o755, modified: 0.0, body: Body::Dir(Logged::durable(Names::new())) };
        Self { inodes: BTreeMap::from([(ROOT, Arc::new(root))]), next: ROOT + 1 }
    }
}

impl Disk {
    /// The inode of a number that was looked up before.
    pub fn inode(&self, ino: Ino) -> &Inode {
        &self.inodes[&ino]
    }

    fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&ino).expect("an inode that was looked up"))
    }

    fn names(&self, dir: Ino) -> io::Result<&Names> {
        match &self.inode(dir).body {
            Body::Dir(names) => Ok(&names.now),
            Body::File(_) => errno(ENOTDIR),
        }
    }

    /// Looks a path up; relative paths start at the root.
    pub fn lookup(&self, path: &Path) -> io::Result<Ino> {
        let mut at = ROOT;
        for part in path.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => match self.names(at)?.get(name) {
                    Some(&ino) => at = ino,
                    None => return errno(ENOENT),
                },
                _ => return errno(EINVAL),
            }
        }
        Ok(at)
    }

    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Ino, &'p OsStr)> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok((self.lookup(parent)?, name)),
            _ => errno(EINVAL),
        }
    }

    fn add(&mut self, mode: u32, modified: f64, body: Body) -> Ino {
        let ino = self.next;
        self.next += 1;
        self.inodes.insert(ino, Arc::new(Inode { mode, modified, body }));
        ino
    }

    fn change_names(&mut self, dir: Ino, change: NameChange) {
        if let Body::Dir(names) = &mut self.inode_mut(dir).body {
            names.push(change);
        }
    }

    /// The bytes of a file as programs see them.
    pub fn bytes(&self, ino: Ino) -> io::Result<&Arc<Vec<u8>>> {
        match &self.inode(ino).body {
            Body::File(data) => Ok(&data.now),
            Body::Dir(_) => errno(EISDIR),
        }
    }

    /// The bytes of the file at `path`, if there is one.
    pub fn file(&self, path: &Path) -> Option<Vec<u8>> {
        self.bytes(self.lookup(path).ok()?).ok().map(|bytes| (**bytes).clone())
    }

    /// Makes a new, empty file.
    pub fn create(&mut self, path: &Path, mode: u32, modified: f64) -> io::Result<Ino> {
        let (dir, name) = self.parent(path)?;
        if self.names(dir)?.contains_key(name) {
            return errno(EEXIST);
        }
        let ino = self.add(mode, modified, Body::File(Logged::durable(Vec::new())));
        self.change_names(dir, NameChange::Set(name.to_owned(), ino));
        Ok(ino)
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, path: &Path, mode: u32, modified: f64) -> io::Result<Ino> {
        let (dir, name) = self.parent(path)?;
        if self.names(dir)?.contains_key(name) {
            return errno(EEXIST);
        }
        let ino = self.add(mode, modified, Body::Dir(Logged::durable(Names::new())));
        self.change_names(dir, NameChange::Set(name.to_owned(), ino));
        Ok(ino)
    }

    /// Changes a file's bytes.
    pub fn change(&mut self, ino: Ino, change: DataChange, modified: f64) {
        let inode = self.inode_mut(ino);
        inode.modified = modified;
        if let Body::File(data) = &mut inode.body {
            data.push(change);
        }
    }

    /// Makes a file's bytes, or a directory's names, durable; or fails to, finally.
    pub fn sync(&mut self, ino: Ino, succeeded: bool) {
        match &mut self.inode_mut(ino).body {
            Body::File(data) => data.sync(succeeded),
            Body::Dir(names) => names.sync(succeeded),
        }
    }

    /// Renames a file. Across directories the two names survive a power cut each by itself.
    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let Some(&ino) = self.names(from_dir)?.get(from_name) else { return errno(ENOENT) };
        if let Some(&over) = self.names(to_dir)?.get(to_name) {
            if over == ino {
                return Ok(());
            }
            if matches!(self.inode(over).body, Body::Dir(_)) {
                return errno(EISDIR);
            }
        }
        let (from_name, to_name) = (from_name.to_owned(), to_name.to_owned());
        if from_dir == to_dir {
            self.change_names(from_dir, NameChange::Move(from_name, to_name, ino));
        } else {
            self.change_names(to_dir, NameChange::Set(to_name, ino));
            self.change_names(from_dir, NameChange::Remove(from_name));
        }
        Ok(())
    }

    /// Removes a name that is no directory.
    pub fn unlink(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let Some(&ino) = self.names(dir)?.get(name) else { return errno(ENOENT) };
        if matches!(self.inode(ino).body, Body::Dir(_)) {
            return errno(EISDIR);
        }
        self.change_names(dir, NameChange::Remove(name.to_owned()));
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let Some(&ino) = self.names(dir)?.get(name) else { return errno(ENOENT) };
        if !self.names(ino)?.is_empty() {
            return errno(ENOTEMPTY);
        }
        self.change_names(dir, NameChange::Remove(name.to_owned()));
        Ok(())
    }

    /// The names in a directory, in the order in which their files were made: the order that a
    /// program must not rely on is the same in every replay.
    pub fn list(&self, dir: Ino) -> io::Result<Vec<(OsString, Ino)>> {
        let mut names: Vec<_> =
            self.names(dir)?.iter().map(|(name, ino)| (name.clone(), *ino)).collect();
        names.sort_by_key(|(_, ino)| *ino);
        Ok(names)
    }

    /// Whether no name that programs see stands for this file.
    pub fn is_unlinked(&self, ino: Ino) -> bool {
        !self.inodes.values().any(|inode| match &inode.body {
            Body::Dir(names) => names.now.values().any(|&named| named == ino),
            Body::File(_) => false,
        })
    }

    /// Everything that programs see, path by path; directories end in `/`.
    pub fn tree(&self) -> BTreeMap<PathBuf, Arc<Vec<u8>>> {
        let mut out = BTreeMap::new();
        self.walk(ROOT, &PathBuf::from("/"), &mut |path, bytes| {
            out.insert(path, bytes);
        });
        out
    }

    fn walk(&self, dir: Ino, at: &Path, see: &mut dyn FnMut(PathBuf, Arc<Vec<u8>>)) {
        let Ok(names) = self.names(dir) else { return };
        for (name, ino) in names {
            let path = at.join(name);
            match &self.inode(*ino).body {
                Body::File(data) => see(path, Arc::clone(&data.now)),
                Body::Dir(_) => {
                    see(path.join(""), Arc::default());
                    self.walk(*ino, &path, see);
                }
            }
        }
    }

    /// A number for everything that programs see; equal disks have equal numbers.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.walk(ROOT, Path::new("/"), &mut |path, bytes| {
            path.hash(&mut hasher);
            bytes.hash(&mut hasher);
        });
        hasher.finish()
    }

    /// The same disk with everything that is seen made durable: as after a clean shutdown.
    #[must_use]
    pub fn settled(&self) -> Self {
        let mut disk = self.clone();
        for inode in disk.inodes.values_mut() {
            let at_risk = match &inode.body {
                Body::File(data) => !data.log.is_empty(),
                Body::Dir(names) => !names.log.is_empty(),
            };
            if at_risk {
                match &mut Arc::make_mut(inode).body {
                    Body::File(data) => *data = Logged::durable((*data.now).clone()),
                    Body::Dir(names) => *names = Logged::durable((*names.now).clone()),
                }
            }
        }
        disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize, text: &str) -> DataChange {
        DataChange::Write { at, bytes: text.as_bytes().into() }
    }

    #[test]
    fn programs_see_every_change_at_once_and_syncs_change_nothing_that_is_seen() {
        let mut disk = Disk::default();
        disk.mkdir(Path::new("/d"), 0o700, 0.0).unwrap();
        let file = disk.create(Path::new("/d/a"), 0o600, 0.0).unwrap();
        disk.change(file, write(2, "xy"), 1.0);
        assert_eq!(disk.file(Path::new("/d/a")).unwrap(), b"\0\0xy");
        disk.change(file, DataChange::SetLen(3), 1.0);
        let before = disk.digest();
        disk.sync(file, true);
        disk.sync(disk.lookup(Path::new("/d")).unwrap(), true);
        assert_eq!(disk.digest(), before);
        disk.rename(Path::new("/d/a"), Path::new("/d/b")).unwrap();
        assert!(disk.file(Path::new("/d/a")).is_none());
        assert_eq!(disk.file(Path::new("/d/b")).unwrap(), b"\0\0x");
        assert_eq!(disk.rmdir(Path::new("/d")).unwrap_err().raw_os_error(), Some(ENOTEMPTY));
        disk.unlink(Path::new("/d/b")).unwrap();
        assert!(disk.is_unlinked(file));
        disk.rmdir(Path::new("/d")).unwrap();
        assert_eq!(disk.tree().len(), 0);
    }

    #[test]
    fn a_failed_sync_is_final_for_what_it_covered() {
        let mut disk = Disk::default();
        let file = disk.create(Path::new("/a"), 0o600, 0.0).unwrap();
        disk.change(file, write(0, "lost"), 0.0);
        disk.sync(file, false);
        disk.change(file, write(4, "kept"), 0.0);
        disk.sync(file, true);
        let Body::File(data) = &disk.inode(file).body else { panic!("a file") };
        assert_eq!(
            data.log.iter().map(|(_, fate)| *fate).collect::<Vec<_>>(),
            [Fate::Stuck, Fate::Durable]
        );
        assert_eq!((data.base.len(), data.at_risk()), (0, 1));
    }
}
