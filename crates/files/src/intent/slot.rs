//! Writing intents into slots, and finding the ones that stand.

use std::io;
use std::path::{Path, PathBuf};

use ringfence_engine::StorageError;
use ringfence_env::{LockFd, LockMode, OpenWrite, Read, World, WriteFile, steps};
use ringfence_model::Key;

use super::codec::{
    ABORT_AT, BODY_AT, HEAD_BYTES, Head, Intent, Standing, Unknown, abort_mark, retired,
};
use crate::layout::{FILE_MODE, Layout};
use crate::probe;

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
    /// Takes the lock of a slot, which is made if it is not there; `None` if somebody holds it, or has
    /// just put another file in its place.
    pub(crate) fn take(world: &World, path: &Path) -> Result<Option<Self>, StorageError> {
        let fail = |source| StorageError::new("lock", path.display(), source);
        let lock = world.fs.open_lock(path, true, FILE_MODE).map_err(fail)?;
        if !lock.try_lock(LockMode::Exclusive).map_err(fail)? || lock.is_unlinked().map_err(fail)? {
            return Ok(None);
        }
        let fail = |source| StorageError::new("open", path.display(), source);
        let file = world.fs.open_write(path, OpenWrite::Overwrite, FILE_MODE).map_err(fail)?;
        Ok(Some(Self { path: path.to_owned(), file, lock }))
    }

    /// Takes a slot that holds no standing intent; `None` if it holds one, or is somebody's.
    fn take_if_free(
        world: &World,
        layout: &Layout,
        path: &Path,
    ) -> Result<Option<Self>, StorageError> {
        let Some(slot) = Self::take(world, path)? else { return Ok(None) };
        let fail = |source| StorageError::new("read", path.display(), source);
        if slot.file.stat().map_err(fail)?.len == 0 {
            return slot.named_durably(world, layout).map(Some);
        }
        let mut slot = slot;
        let found = match read_slot(world, path) {
            // Another version of this program decided something: not free, and nothing to others.
            Err(error) if is_unknown(&error) => return Ok(None),
            found => found?,
        };
        match found {
            None => Ok(Some(slot)),
            // Nothing is left to do, but that must be durable before the slot is used again.
            Some(found) if found.standing == Standing::Retired => {
                slot.retire(&found.head)?;
                Ok(Some(slot))
            }
            // A dead writer's intent: whoever meets its members finishes it.
            Some(_) => Ok(None),
        }
    }

    /// Puts a new file in the place of a slot that never held anything, under a name that is durable.
    ///
    /// Nobody can tell of an empty slot whether it was just made, or whether the sync of its name has
    /// failed for somebody else; then one more sync of the same name would prove nothing.
    fn named_durably(self, world: &World, layout: &Layout) -> Result<Self, StorageError> {
        let fail = |source| StorageError::new("make", self.path.display(), source);
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let temp =
            self.path.with_file_name(format!("{name}.{}.tmp", world.unique().map_err(fail)?));
        // Locked before anybody can see it under the name that counts.
        // It may be there although it was refused: what was opened is looked at too.
        let lock = world.fs.open_lock(&temp, true, FILE_MODE).map_err(|source| {
            let _ = world.fs.unlink(&temp);
            fail(source)
        })?;
        let taken = lock.try_lock(LockMode::Exclusive).and_then(|taken| {
            if !taken {
                return Err(io::Error::other("a new file is locked by somebody else"));
            }
            world.fs.rename(&temp, &self.path)?;
            world.fs.open_write(&self.path, OpenWrite::Overwrite, FILE_MODE)
        });
        let file = taken.map_err(|source| {
            let _ = world.fs.unlink(&temp);
            fail(source)
        })?;
        let made = Self { path: self.path.clone(), file, lock };
        let dir = layout.intents();
        world
            .fs
            .sync_dir(&dir)
            .map_err(|source| StorageError::new("sync directory", dir.display(), source))?;
        Ok(made)
    }

    /// Takes the first slot that is free; makes one if all are in use. The caller knows that those
    /// below `from` are.
    fn take_free(world: &World, layout: &Layout, from: u16) -> Result<Self, StorageError> {
        for number in from..u16::MAX {
            if let Some(slot) = Self::take_if_free(world, layout, &layout.intent(number))? {
                return Ok(slot);
            }
        }
        let full = io::Error::other("65,535 intents are under way");
        Err(StorageError::new("find a free slot in", layout.intents().display(), full))
    }

    /// Writes an intent durably, its head last: until all of that is there nothing is decided.
    fn put(&mut self, world: &World, slot: &[u8]) -> Result<(), Unwritten> {
        let (head, body) = slot.split_at_checked(HEAD_BYTES).unwrap_or_default();
        // A body that no head names decides nothing, whatever of it becomes durable.
        steps::write_all_at(&mut *self.file, body, BODY_AT).map_err(Unwritten::Nothing)?;
        match steps::write_all_at(&mut *self.file, head, 0) {
            // Part of a head is none, and what was not written cannot become durable.
            Err(error) if !self.may_show(world, head) => Err(Unwritten::Nothing(error)),
            written => written.and_then(|()| self.file.sync_data()).map_err(Unwritten::Perhaps),
        }
    }

    /// Whether the slot shows this head; unless it certainly does not, it may.
    fn may_show(&self, world: &World, head: &[u8]) -> bool {
        let ours = Head::decode(head).map(|head| head.digest);
        let shown = read_head(world, &self.path);
        shown.is_err() || shown.is_ok_and(|head| head.map(|head| head.digest) == ours)
    }

    /// Retires the slot's intent, durably, and frees the slot. On failure it stands again, as it did.
    pub(crate) fn retire(&mut self, head: &[u8]) -> Result<(), StorageError> {
        self.retire_for_good(head).inspect_err(|_| {
            // I3: it may still be valid on the medium, so it must not look retired to anybody.
            let again = head.get(..HEAD_BYTES / 2).unwrap_or(head);
            let _ = steps::write_all_at(&mut *self.file, again, 0);
        })
    }

    /// The same; on failure it says all the same that it is retired.
    ///
    /// In two steps. Were the slot free from the first write on, a writer that died before its sync
    /// would leave a retirement that everybody sees and a power cut takes back, over whatever was
    /// acknowledged since. So it says that it is retired, and over which records, until that is
    /// durable; whoever meets one of them before sees to it first (I3).
    fn retire_for_good(&mut self, head: &[u8]) -> Result<(), StorageError> {
        let done = steps::write_all_at(&mut *self.file, &retired(head), 0)
            .and_then(|()| self.file.sync_data());
        if done.is_ok() {
            // Free, for everybody who looks. Not synced: after a power cut it is found retired.
            let _ = steps::write_all_at(&mut *self.file, &[0; HEAD_BYTES / 2], 0);
        }
        done.map_err(|source| {
            StorageError::new("retire the intent in", self.path.display(), source)
        })
    }
}

/// Why an intent was not written.
enum Unwritten {
    /// It is not there and cannot come to be.
    Nothing(io::Error),
    /// It may be there, or come to be after a power cut.
    Perhaps(io::Error),
}

/// Why a slot does not hold an intent.
enum NotWritten {
    /// It was refused at once: another slot may do.
    Refused(StorageError),
    /// A sync failed, which is final, also where it says that there is no room. Whether nothing was
    /// decided.
    Failed(StorageError, bool),
}

impl NotWritten {
    /// With whether nothing was decided.
    fn told(self) -> (StorageError, bool) {
        match self {
            Self::Refused(error) => (error, true),
            Self::Failed(error, undecided) => (error, undecided),
        }
    }
}

/// How an intent is taken back that may have been written: by its head.
type Undo = fn(&mut SlotFile, &[u8]) -> Result<(), StorageError>;

/// Whether it is an intent that another version of this program must finish.
fn is_unknown(error: &StorageError) -> bool {
    error.source.get_ref().and_then(|source| source.downcast_ref::<Unknown>()).is_some()
}

/// Whether there was no room.
pub(crate) fn is_full(error: &StorageError) -> bool {
    probe::is_full(&error.source)
}

/// Every slot but one. The longest is the one that need grow least.
fn others_longest_first(world: &World, layout: &Layout, but: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = layout.intents();
    let mut others = Vec::new();
    for name in world.fs.list(&dir)? {
        let path = dir.join(&name.name);
        if name.name.to_str().is_some_and(Layout::is_intent) && path != but {
            others.push((world.fs.stat(&path)?.len, path));
        }
    }
    others.sort_unstable_by(|a, b| b.cmp(a));
    Ok(others.into_iter().map(|(_, path)| path).collect())
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
    ///
    /// On a full disk any slot that is free and long enough will do: it is written over in place.
    pub(crate) fn write(
        world: &World,
        layout: &Layout,
        intent: &Intent,
        from: usize,
    ) -> Result<Self, (StorageError, bool)> {
        let from = u16::try_from(from).unwrap_or(0);
        Self::write_bytes(world, layout, &intent.to_slot(), from, SlotFile::retire)
    }

    /// Writes the intent of a dead writer anew, durably: what was found is in the cache, and whether
    /// its bytes have reached the medium was told to the dead writer alone.
    ///
    /// The caller holds the slot in which it was found, and it stands there. So on failure nothing is
    /// changed, and the copy is not one that others would finish.
    pub(crate) fn write_again(
        world: &World,
        layout: &Layout,
        found: &StandingIntent,
    ) -> Result<Self, StorageError> {
        let intent = match found.standing {
            Standing::Aborting => found.intent.turned(),
            Standing::Committed | Standing::Retired => found.intent.clone(),
        };
        let bytes = intent.to_slot();
        Self::write_bytes(world, layout, &bytes, 0, SlotFile::retire_for_good)
            .map_err(|(error, _)| error)
    }

    fn write_bytes(
        world: &World,
        layout: &Layout,
        bytes: &[u8],
        from: u16,
        undo: Undo,
    ) -> Result<Self, (StorageError, bool)> {
        let slot = SlotFile::take_free(world, layout, from).map_err(|error| (error, true))?;
        let tried = slot.path.clone();
        let mut failed = match Self::write_in(slot, world, bytes, undo) {
            Err(NotWritten::Refused(error)) if is_full(&error) => error,
            ended => return ended.map_err(NotWritten::told),
        };
        for path in others_longest_first(world, layout, &tried).unwrap_or_default() {
            let slot = SlotFile::take_if_free(world, layout, &path);
            let Some(slot) = slot.map_err(|error| (error, true))? else { continue };
            match Self::write_in(slot, world, bytes, undo) {
                Err(NotWritten::Refused(error)) if is_full(&error) => failed = error,
                ended => return ended.map_err(NotWritten::told),
            }
        }
        Err((failed, true))
    }

    fn write_in(
        mut slot: SlotFile,
        world: &World,
        bytes: &[u8],
        undo: Undo,
    ) -> Result<Self, NotWritten> {
        let head = bytes.get(..HEAD_BYTES).unwrap_or_default().to_vec();
        let ended = slot.put(world, bytes);
        let fail = |source| StorageError::new("write an intent to", slot.path.display(), source);
        match ended {
            Ok(()) => Ok(Self { slot, head }),
            Err(Unwritten::Nothing(source)) => Err(NotWritten::Refused(fail(source))),
            Err(Unwritten::Perhaps(source)) => {
                let error = fail(source);
                // It may have become durable all the same; no record has changed yet.
                let undecided = undo(&mut slot, &head).is_ok();
                Err(NotWritten::Failed(error, undecided))
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
    let known = |error| fail(io::Error::new(io::ErrorKind::InvalidData, error));
    let Some(intent) = head.body(&bytes).map_err(known)? else { return Ok(None) };
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
