//! Reading a whole table without excluding anybody.
//!
//! The table is read twice; if both readings are the same, byte for byte, everything stood like
//! that at one instant between them: a record's bytes hold its token and time and hardly ever recur.
//!
//! Two readings may also fall into one pause of one call, and then show part of a group. So where
//! some members of a group lack what the others have, their kernel locks are asked in between: while
//! one is held, a call is under way and the reading does not count. What is in part and under nobody's
//! lock is what it is, after a crash for example. Under constant change the last reading is returned
//! and marked as not consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use ringfence_engine::StorageError;
use ringfence_env::{Fs, LockMode, World};
use ringfence_model::{Entry, Key, Record, Space};

use crate::intent::Overlay;
use crate::layout::{Layout, NameKind};
use crate::read::{self, Before, Stored};

const READINGS: usize = 16;
const PAUSE: Duration = Duration::from_millis(2);

/// Every record and every damaged one, and whether all of it stood like this at one instant.
pub fn table(
    world: &World,
    layout: &Layout,
    space: Space,
) -> Result<(Vec<(Key, Entry)>, bool), StorageError> {
    let mut last = reading(world, layout, space)?;
    let mut consistent = false;
    for _ in 1..READINGS {
        let under_way = in_part(&last).into_iter().any(|key| is_locked(world, layout, key));
        if under_way {
            world.clock.sleep(PAUSE);
        }
        let next = reading(world, layout, space)?;
        consistent = !under_way && same(&last, &next);
        last = next;
        if consistent {
            break;
        }
    }
    Ok((last.into_iter().map(|(key, stored)| (key, stored.entry)).collect(), consistent))
}

/// Records whose group is not all under one token and time: one per group.
fn in_part(found: &BTreeMap<Key, Stored>) -> Vec<Key> {
    let mut tokens = BTreeSet::new();
    let mut keys = Vec::new();
    for (&key, stored) in found {
        let Entry::Present(Record::Target(record)) = &stored.entry else { continue };
        let whole = record.group.targets.iter().all(|&target| {
            matches!(
                found.get(&Key::target(target)).map(|other| &other.entry),
                Some(Entry::Present(Record::Target(other)))
                    if other.holder.token == record.holder.token
                        && other.holder.updated == record.holder.updated
            )
        });
        if !whole && tokens.insert(record.holder.token.clone()) {
            keys.push(key);
        }
    }
    keys
}

/// Whether some process holds the record's lock. Opens it for reading, makes nothing.
fn is_locked(world: &World, layout: &Layout, key: Key) -> bool {
    let Ok(lock) = world.fs.open_lock(&layout.record(key).lock, false, 0) else { return false };
    let free = lock.try_lock(LockMode::Shared).unwrap_or(false);
    if free {
        let _ = lock.unlock();
    }
    !free
}

fn same(one: &BTreeMap<Key, Stored>, two: &BTreeMap<Key, Stored>) -> bool {
    one.len() == two.len()
        && one.iter().zip(two).all(|((a, x), (b, y))| a == b && x.before == y.before)
}

fn reading(
    world: &World,
    layout: &Layout,
    space: Space,
) -> Result<BTreeMap<Key, Stored>, StorageError> {
    let fs = &*world.fs;
    let mut found = BTreeMap::new();
    let intents = Overlay::read(world, layout, None)?;
    for shard in layout.shard_count(space).shards() {
        let dir = layout.shard_dir(space, shard);
        for id in records_in(fs, &dir)? {
            let key = Key { space, id };
            if layout.shard(key) != shard {
                // No operation would look for it here; `check` reports it.
                continue;
            }
            let stored = read::stored(fs, key, &layout.record(key).record)?;
            if stored.before != Before::Absent {
                found.insert(key, stored);
            }
        }
    }
    intents.apply(|key, change| {
        if key.space == space {
            let now = found.get(&key).cloned().unwrap_or_else(Stored::absent);
            match change(&now) {
                Some(decided) if decided.before == Before::Absent => {
                    found.remove(&key);
                }
                Some(decided) => {
                    found.insert(key, decided);
                }
                None => {}
            }
        }
    });
    Ok(found)
}

fn records_in(fs: &dyn Fs, dir: &Path) -> Result<Vec<ringfence_model::RecordId>, StorageError> {
    match fs.list(dir) {
        Ok(names) => Ok(names
            .into_iter()
            .filter_map(|name| match NameKind::of(name.name.to_str()?) {
                NameKind::Record(id) => Some(id),
                _ => None,
            })
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(StorageError::new("list", dir.display(), source)),
    }
}
