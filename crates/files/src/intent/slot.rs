//! Writing intents into slots, and finding the ones that stand.

use std::io;
use std::path::{Path, PathBuf};

use ringfence_engine::StorageError;
use ringfence_env::{LockFd, LockMode, OpenWrite, Read, World, WriteFile, steps};
use ringfence_model::Key;

use super::codec::{ABORT_AT, HEAD_BYTES, Head, Intent, Standing, abort_mark};
use crate::layout::{FILE_MODE, Layout};

/// A slot whose lock this process holds.
#[derive(Debug)]
pub(crate) struct SlotFile {
    path: PathBuf,
    file: Box<dyn WriteFile>,
    lock: Box<dyn LockFd>,
}

impl Drop for SlotFile {
    fn drop(&mut self) {
        // Closing releases it too, unless a forked child still has it open.
        let _ = self.lock.unlock();
    }
}

impl SlotFile {
    /// Takes the lock of a slot that exists; `None` if somebody holds it.
    pub(crate) fn take(world: &World, path: &Path) -> Result<Option<Self>, StorageError> {
        let fail = |source| StorageError::new("lock", path.display(), source);
        let lock = world.fs.open_lock(path, true, FILE_MODE).map_err(fail)?;
        if !lock.try_lock(LockMode::Exclusive).map_err(fail)? {
            return Ok(None);
        }
        let fail = |source| StorageError::new("open", path.display(), source);
        let file = world.fs.open_write(path, OpenWrite::Overwrite, FILE_MODE).map_err(fail)?;
        Ok(Some(Self { path: path.to_owned(), file, lock }))
    }

    /// Takes a slot that holds no standing intent; makes one if all are in use. The caller knows that
    /// those below `from` are.
    fn take_free(world: &World, layout: &Layout, from: u16) -> Result<Self, StorageError> {
        for number in from..u16::MAX {
            let path = layout.intent(number);
            let Some(slot) = Self::take(world, &path)? else { continue };
            let fail = |source| StorageError::new("read", path.display(), source);
            if slot.file.stat().map_err(fail)?.len == 0 {
                // Perhaps just made: its name must be durable before it can hold a decision.
                let dir = layout.intents();
                world
                    .fs
                    .sync_dir(&dir)
                    .map_err(|source| StorageError::new("sync directory", dir.display(), source))?;
                return Ok(slot);
            }
            if read_slot(world, &path)?.is_none() {
                return Ok(slot);
            }
            // A dead writer's intent: whoever meets its members finishes it.
        }
        let full = io::Error::other("65,535 intents are under way");
        Err(StorageError::new("find a free slot in", layout.intents().display(), full))
    }

    /// Puts the whole slot, durably.
    fn put(&mut self, slot: &[u8]) -> io::Result<()> {
        steps::write_all_at(&mut *self.file, slot, 0)?;
        self.file.sync_data()
    }

    /// Makes what the slot shows durable.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        self.file
            .sync_data()
            .map_err(|source| StorageError::new("sync the intent in", self.path.display(), source))
    }

    /// Makes the slot's intent invalid, durably. On failure it stands again, as it did.
    pub(crate) fn retire(&mut self, head: &[u8]) -> Result<(), StorageError> {
        let retired = [0; HEAD_BYTES / 2];
        let done =
            steps::write_all_at(&mut *self.file, &retired, 0).and_then(|()| self.file.sync_data());
        done.map_err(|source| {
            // I3: it may still be valid on the medium, so it must not look retired to anybody.
            let again = head.get(..HEAD_BYTES / 2).unwrap_or(head);
            let _ = steps::write_all_at(&mut *self.file, again, 0);
            StorageError::new("retire the intent in", self.path.display(), source)
        })
    }
}

/// An intent of this process that stands.
#[must_use = "an intent that is dropped is finished by whoever meets its members"]
#[derive(Debug)]
pub(crate) struct ActiveIntent {
    slot: SlotFile,
    head: Vec<u8>,
}

impl ActiveIntent {
    /// Writes an intent durably: from its return on, the new state is decided.
    ///
    /// Slots below `from` are known to be in use. `Err(.., true)` says that nothing was decided, `false` that it may have been.
    pub(crate) fn write(
        world: &World,
        layout: &Layout,
        intent: &Intent,
        from: usize,
    ) -> Result<Self, (StorageError, bool)> {
        let from = u16::try_from(from).unwrap_or(0);
        let mut slot = SlotFile::take_free(world, layout, from).map_err(|error| (error, true))?;
        let bytes = intent.to_slot();
        let head = bytes.get(..HEAD_BYTES).unwrap_or_default().to_vec();
        match slot.put(&bytes) {
            Ok(()) => Ok(Self { slot, head }),
            Err(source) => {
                let error = StorageError::new("write an intent to", slot.path.display(), source);
                // It may have become durable all the same; no record has changed yet.
                let undecided = slot.retire(&head).is_ok();
                Err((error, undecided))
            }
        }
    }

    /// Turns the decision to the old state, durably.
    pub(crate) fn abort(&mut self) -> Result<(), StorageError> {
        let Some(head) = Head::decode(&self.head) else { unreachable!("a head of our own") };
        let mark = abort_mark(&head.digest);
        steps::write_all_at(&mut *self.slot.file, &mark, ABORT_AT)
            .and_then(|()| self.slot.file.sync_data())
            .map_err(|source| {
                StorageError::new("abort the intent in", self.slot.path.display(), source)
            })
    }

    /// Makes the intent invalid, durably: every record is durable in the decided state.
    pub(crate) fn retire(mut self) -> Result<(), StorageError> {
        self.slot.retire(&self.head)
    }
}

/// An intent found in a slot.
#[derive(Clone, Debug)]
pub(crate) struct StandingIntent {
    pub(crate) path: PathBuf,
    pub(crate) head: Vec<u8>,
    pub(crate) standing: Standing,
    pub(crate) intent: Intent,
}

impl StandingIntent {
    /// Whether it covers one of `keys`.
    pub(crate) fn covers(&self, keys: &[Key]) -> bool {
        self.intent.members.iter().any(|member| keys.contains(&member.key))
    }
}

/// Every intent that stands and may cover one of `keys` (all, if `None`). Takes no lock: an intent
/// whose writer is at work may be among them, and one that is just being written may not.
pub(crate) fn standing_intents(
    world: &World,
    layout: &Layout,
    keys: Option<&[Key]>,
) -> Result<Vec<StandingIntent>, StorageError> {
    let dir = layout.intents();
    let names = match world.fs.list(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|source| StorageError::new("list", dir.display(), source))?,
    };
    let mut found = Vec::new();
    for name in names {
        if name.name.to_str().is_none_or(|name| !Layout::is_intent(name)) {
            continue;
        }
        let path = dir.join(&name.name);
        let covers = |head: &Head| keys.is_none_or(|keys| head.may_cover(keys));
        if read_head(world, &path)?.is_some_and(|head| covers(&head))
            && let Some(standing) = read_slot(world, &path)?
        {
            found.push(standing);
        }
    }
    Ok(found)
}

/// The whole intent in a slot, if it stands.
pub(crate) fn read_slot(
    world: &World,
    path: &Path,
) -> Result<Option<StandingIntent>, StorageError> {
    let fail = |source| StorageError::new("read", path.display(), source);
    let Read::Bytes(bytes) = world.fs.read_head(path, usize::MAX).map_err(fail)? else {
        return Ok(None);
    };
    let Some(head) = Head::decode(&bytes) else { return Ok(None) };
    let Some(intent) = head.body(&bytes) else { return Ok(None) };
    let raw = bytes.get(..HEAD_BYTES).unwrap_or_default().to_vec();
    Ok(Some(StandingIntent { path: path.to_owned(), head: raw, standing: head.standing, intent }))
}

fn read_head(world: &World, path: &Path) -> Result<Option<Head>, StorageError> {
    let fail = |source| StorageError::new("read", path.display(), source);
    match world.fs.read_head(path, HEAD_BYTES).map_err(fail)? {
        Read::Bytes(bytes) => Ok(Head::decode(&bytes)),
        _ => Ok(None),
    }
}
