//! A disk with the weakest durability that POSIX allows.
//!
//! Each file and each directory has what is *durable* (`base`) and a log of what happened since.
//! What programs see is the base with the whole log applied; what a power cut leaves is the base
//! with any part of the log applied ([`crate::crash`]). A sync makes the log's changes durable. A
//! *failed* sync leaves its changes stuck: programs still see them, a power cut may lose them, and
//! no later sync covers them, because the kernel has forgotten that they were never written.
//!
//! Bytes and directories are shared until they change, so a clone of a disk is cheap.

mod logged;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub use logged::{Change, DataChange, Fate, Logged, NameChange};

/// Names one file or directory; never used again.
pub type Ino = u64;

/// The names of one directory.
pub type Names = BTreeMap<OsString, Ino>;

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

/// A whole disk. Not aware of processes, locks or time.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) inodes: BTreeMap<Ino, Arc<Inode>>,
    next: Ino,
    /// Memory that is mapped to files: the host's, gone with the power.
    pub(crate) words: BTreeMap<Ino, Arc<Vec<u64>>>,
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
        Self {
            inodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            next: ROOT + 1,
            words: BTreeMap::new(),
        }
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
        self.sync_from(ino, self.mark(ino), succeeded);
    }

    /// Names the changes so far of a file or directory: a sync that begins now covers these.
    pub fn mark(&self, ino: Ino) -> u64 {
        match &self.inode(ino).body {
            Body::File(data) => data.mark(),
            Body::Dir(names) => names.mark(),
        }
    }

    /// The same as [`Disk::sync`] for a sync that began at `mark`, and is over now.
    pub fn sync_from(&mut self, ino: Ino, mark: u64, succeeded: bool) {
        match &mut self.inode_mut(ino).body {
            Body::File(data) => data.sync(mark, succeeded),
            Body::Dir(names) => names.sync(mark, succeeded),
        }
    }

    /// The newest change of a file's bytes, at or after `mark`, that a failed sync has lost hold of.
    pub fn stuck_since(&self, ino: Ino, mark: u64) -> Option<u64> {
        let Body::File(data) = &self.inode(ino).body else { return None };
        let newest = data.log.iter().rposition(|(_, fate)| *fate == Fate::Stuck)?;
        Some(data.settled + newest as u64).filter(|at| *at >= mark)
    }

    /// Whether a failed sync has lost hold of some change of a file or directory.
    pub fn is_stuck(&self, ino: Ino) -> bool {
        match &self.inode(ino).body {
            Body::File(data) => data.log.iter().any(|(_, fate)| *fate == Fate::Stuck),
            Body::Dir(names) => names.log.iter().any(|(_, fate)| *fate == Fate::Stuck),
        }
    }

    /// Maps the first words of a file; they begin as the file's bytes.
    pub fn map(&mut self, ino: Ino, words: usize) -> io::Result<()> {
        let bytes = Arc::clone(self.bytes(ino)?);
        let mapped = Arc::make_mut(self.words.entry(ino).or_default());
        for chunk in bytes.chunks_exact(8).take(words).skip(mapped.len()) {
            mapped.push(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
        }
        Ok(())
    }

    /// A word that is mapped.
    pub fn word_at(&self, ino: Ino, index: usize) -> Option<u64> {
        self.words.get(&ino)?.get(index).copied()
    }

    /// The same, to be changed.
    pub fn word(&mut self, ino: Ino, index: usize) -> Option<&mut u64> {
        Arc::make_mut(self.words.get_mut(&ino)?).get_mut(index)
    }

    /// Renames a file, or a directory over an empty one. Across directories the two names survive a power cut each by itself.
    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let Some(&ino) = self.names(from_dir)?.get(from_name) else { return errno(ENOENT) };
        if let Some(&over) = self.names(to_dir)?.get(to_name) {
            if over == ino {
                return Ok(());
            }
            match (&self.inode(ino).body, &self.inode(over).body) {
                (Body::Dir(_), Body::Dir(names)) if names.now.is_empty() => {}
                (Body::Dir(_), Body::Dir(_)) => return errno(ENOTEMPTY),
                (_, Body::Dir(_)) => return errno(EISDIR),
                (Body::Dir(_), Body::File(_)) => return errno(ENOTDIR),
                (Body::File(_), Body::File(_)) => {}
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

    /// A number for everything that programs see, mapped memory included; equal disks have equal
    /// numbers.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for words in &self.words {
            words.hash(&mut hasher);
        }
        self.walk(ROOT, Path::new("/"), &mut |path, bytes| {
            path.hash(&mut hasher);
            bytes.hash(&mut hasher);
        });
        hasher.finish()
    }

    /// A number for what a power cut may lose.
    pub fn risk(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (ino, inode) in &self.inodes {
            match &inode.body {
                Body::File(data) => (ino, data.risk()).hash(&mut hasher),
                Body::Dir(names) => (ino, names.risk()).hash(&mut hasher),
            }
        }
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
mod tests;
