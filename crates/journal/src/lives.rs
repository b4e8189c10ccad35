//! Proof that a holder's process is gone.
//!
//! K1. A life is a kernel lock on a file of its own, taken before the first lease names it and kept
//!     until the process ends, however it ends. A process that is stopped keeps it.
//!     Programs that it starts may keep the lock too: then the life lasts as long as any of them.
//! K2. Only winning that lock proves an end. A number of a process, its age, a file that is not there
//!     or one from another PID namespace proves nothing: such a lease lasts for its ttl.
//! K3. A life's name is used once.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_engine::StorageError;
use ringfence_env::{FileLock, LockMode, World};
use ringfence_model::{Entry, Key, Space};

use crate::journal::Journal;
use crate::layout::FILE_MODE;
use crate::replica::ReadError;

/// What a life lasts as long as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// As the process itself.
    DoNotCount,
    /// As the process or any program that it started while the life lasted, and theirs.
    Count,
}

/// This process's life, as long as the handle that keeps it.
#[derive(Debug)]
pub struct Life {
    /// Its name, as leases carry it.
    pub id: Arc<str>,
    journal: Arc<Journal>,
    /// Given up before anything else, so that an end is proven however the rest goes.
    lock: Mutex<Option<FileLock>>,
}

/// Lives that are known to have ended.
#[derive(Debug, Default)]
pub(crate) struct Ended(Mutex<BTreeSet<Arc<str>>>);

/// How long a life waits for its lock; nobody keeps it for longer than it takes to clear up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The PID namespace of this process; nothing where the system does not tell.
fn namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    (!digits.is_empty()).then_some(digits)
}

/// A name that no other life has.
pub(crate) fn new_name(world: &World) -> io::Result<String> {
    let namespace = namespace().ok_or(io::ErrorKind::Unsupported)?;
    Ok(format!("{namespace}-{:032x}", world.entropy.nonce()?))
}

/// The name of a life as three words, which [`name`] reads.
pub(crate) fn numbers(id: &str) -> Option<[u64; 3]> {
    let (namespace, nonce) = id.split_once('-')?;
    let nonce = u128::from_str_radix(nonce, 16).ok()?;
    let half = |part: u128| u64::try_from(part & u128::from(u64::MAX)).unwrap_or(0);
    Some([namespace.parse().ok()?, half(nonce >> 64), half(nonce)])
}

/// The name of a life; nothing if the words are of none.
pub(crate) fn name(words: [u64; 3]) -> Option<String> {
    let [namespace, high, low] = words;
    let nonce = u128::from(high) << 64 | u128::from(low);
    (namespace != 0).then(|| format!("{namespace}-{nonce:032x}"))
}

impl Life {
    /// Begins a life.
    pub(crate) fn begin(journal: &Arc<Journal>, with: Children) -> Result<Self, StorageError> {
        let dir = journal.layout.lives();
        let fail = |source| StorageError::new("begin a life in", dir.display(), source);
        let World { fs, clock, .. } = &journal.world;
        let id: Arc<str> = new_name(&journal.world).map_err(fail)?.into();
        let path = journal.layout.life(&id);
        // Others try the locks that they find, to clear up or to learn who is gone: for a moment each.
        let soon = clock.deadline(PATIENCE);
        let mode = LockMode::Exclusive;
        let lock = FileLock::acquire(&**fs, &**clock, &path, mode, Some(FILE_MODE), soon)
            .map_err(|error| fail(io::Error::other(error.to_string())))?;
        if with == Children::Count {
            lock.share_with_children().map_err(fail)?;
        }
        let life = Self { id, journal: Arc::clone(journal), lock: Mutex::new(Some(lock)) };
        // Whoever died left his file behind.
        let _ = journal.clear_lives();
        Ok(life)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let lock = self.lock.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ours = lock.take();
        if ours.is_some() && self.journal.named_lives().is_ok_and(|named| !named.contains(&self.id))
        {
            let _ = self.journal.world.fs.unlink(&self.journal.layout.life(&self.id));
        }
    }
}

impl Journal {
    /// The lives among the holders of `entries` that have ended.
    pub(crate) fn gone_among(&self, entries: &[(Key, Entry)], own: Option<&str>) -> Vec<Arc<str>> {
        let mut seen: Vec<&Arc<str>> = Vec::new();
        for (_, entry) in entries {
            if let Entry::Present(record) = entry
                && let Some(boot) = record.holder().writer.as_ref().and_then(|w| w.boot.as_ref())
                && let Some(life) = &boot.life
                && Some(&**life) != own
                && Some(&boot.boot) == self.world.host.boot.as_ref()
            {
                seen.push(life);
            }
        }
        // The members of a group come one after the other.
        seen.dedup();
        seen.into_iter().filter(|life| self.has_ended(life)).cloned().collect()
    }

    pub(crate) fn has_ended(&self, life: &Arc<str>) -> bool {
        let mut known = self.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(life) {
            return true;
        }
        let ended = is_ours(life) && self.won(&self.layout.life(life)).is_some();
        if ended {
            known.insert(Arc::clone(life));
        }
        ended
    }

    /// The lock of a life that has ended, if the file is there.
    fn won(&self, path: &Path) -> Option<FileLock> {
        let (fs, clock) = (&*self.world.fs, &*self.world.clock);
        let now = clock.deadline(Duration::ZERO);
        FileLock::acquire(fs, clock, path, LockMode::Shared, None, now).ok()
    }

    /// Removes the files of lives that have ended and that no record names.
    pub(crate) fn clear_lives(&self) -> Result<(), StorageError> {
        let dir = self.layout.lives();
        let fail = |source| StorageError::new("clear", dir.display(), source);
        // The locks are kept until the files are gone: a life that began between the two would lose its
        // file, and nobody could prove its end.
        let mut ended: Vec<(PathBuf, FileLock)> = Vec::new();
        for name in self.world.fs.list(&dir).map_err(fail)? {
            let path: PathBuf = dir.join(&name.name);
            if let Some(lock) = self.won(&path) {
                ended.push((path, lock));
            }
        }
        if ended.is_empty() {
            return Ok(());
        }
        let mut named = self.named_lives().map_err(|error| self.read_error(error))?;
        named.extend(self.waiting_lives());
        for (path, _lock) in ended {
            let id = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            if id.is_some_and(|id| !named.contains(&*id)) {
                let _ = self.world.fs.unlink(&path);
            }
        }
        Ok(())
    }

    /// Every life that a record names.
    fn named_lives(&self) -> Result<BTreeSet<Arc<str>>, ReadError> {
        let mut replica = self.replica();
        self.catch_up(&mut replica)?;
        let mut named = BTreeSet::new();
        for space in [Space::Targets, Space::Work] {
            for (_, record) in replica.space(space)? {
                let boot = record.holder().writer.as_ref().and_then(|w| w.boot.as_ref());
                named.extend(boot.and_then(|boot| boot.life.clone()));
            }
        }
        Ok(named)
    }
}

/// Whether a life is of this PID namespace.
fn is_ours(life: &str) -> bool {
    let named = life.split_once('-').map(|(namespace, _)| namespace);
    // It also is the name of a file.
    let plain = life.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    plain && named.is_some() && named == namespace().as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InitOptions, JournalEngine};

    /// Four coordinators that started at once cleared up what the others were just beginning.
    #[test]
    fn lives_that_begin_and_end_at_the_same_time_leave_each_other_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (world, root) = (World::system(), dir.path().join("store"));
        let options = InitOptions { segment_bytes: 64 * 1024, ..InitOptions::default() };
        drop(JournalEngine::init(&world, &root, &options).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let journal = JournalEngine::open(&world, &root).unwrap().journal;
                    for _ in 0..1000 {
                        let life = Life::begin(&journal, Children::DoNotCount).unwrap();
                        let path = journal.layout.life(&life.id);
                        assert!(world.fs.stat(&path).is_ok(), "its file is there: {path:?}");
                        assert!(!journal.has_ended(&life.id));
                        drop(life);
                    }
                });
            }
        });
        assert_eq!(world.fs.list(&root.join("lives")).unwrap().len(), 0);
    }
}
