//! Finishing what a dead writer left.
//!
//! A recoverer holds the slot's lock, then the locks of all members in key order. Writers take member
//! locks first and slots only without waiting, so the two orders cannot close a circle. A recoverer
//! that dies leaves the intent standing for the next one; every step is one that may be repeated.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, World};
use ringfence_model::{Audit, Entry, Fence, Key, Record, Timestamp, json};

use super::codec::{Image, Member, Standing};
use super::slot::{ActiveIntent, SlotFile, StandingIntent, read_slot, standing_intents};
use crate::batch::{Barriers, DirectorySyncBatch};
use crate::layout::{Layout, RecordPaths};
use crate::locks;
use crate::mutate::{self, Applied, Step};
use crate::open::Tuning;
use crate::read::{self, Before, Stored};

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Intents whose new state was completed.
    pub redone: usize,
    /// Intents whose old state was put back.
    pub undone: usize,
    /// Records that were neither of their intent's two images.
    pub left_alone: Vec<LeftAlone>,
}

/// A record that recovery did not touch, because somebody else had changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// The record.
    pub path: PathBuf,
    /// The state that its intent had decided on.
    pub standing: Standing,
}

impl LeftAlone {
    /// The line that tells an operator.
    pub(crate) fn audit(&self, at: Timestamp) -> Audit {
        let decided = match self.standing {
            Standing::Committed => "new",
            Standing::Aborting => "old",
            Standing::Retired => "final",
        };
        let fields = [
            ("at", json::float(at.seconds())),
            ("decided", json::quoted(decided)),
            ("event", json::quoted("left-alone")),
            ("path", json::quoted(&self.path.to_string_lossy())),
        ];
        Audit(json::object_line(&fields.into_iter().collect()).trim_end().to_owned())
    }
}

const PAUSE: Duration = Duration::from_millis(1);

/// Finishes every standing intent over one of `keys` (over any record, if `None`) whose writer is
/// gone. The caller holds no lock of a record.
pub(crate) fn recover(
    world: &World,
    layout: &Layout,
    table: &str,
    keys: Option<&[Key]>,
    deadline: Deadline,
) -> Result<Recovered, Failure> {
    let mut recovered = Recovered::default();
    let found = standing_intents(world, layout, keys).map_err(Failure::Untouched)?;
    for standing in found {
        if !keys.is_none_or(|keys| standing.covers(keys)) {
            continue;
        }
        let path = &standing.path;
        match SlotFile::take(world, path).map_err(Failure::Untouched)? {
            Some(slot) => {
                finish(world, layout, table, slot, path, deadline, &mut recovered)?;
            }
            // Its writer lives, or somebody else is finishing it.
            None => world.clock.sleep(PAUSE.min(world.clock.left(deadline))),
        }
    }
    Ok(recovered)
}

fn finish(
    world: &World,
    layout: &Layout,
    table: &str,
    mut slot: SlotFile,
    path: &Path,
    deadline: Deadline,
    recovered: &mut Recovered,
) -> Result<(), Failure> {
    // It may have been finished, and the slot reused, since it was found.
    let Some(found) = read_slot(world, path).map_err(Failure::Untouched)? else { return Ok(()) };
    if found.intent.table != table {
        let why = io::Error::new(io::ErrorKind::InvalidData, "it belongs to another table");
        let error = StorageError::new("finish the intent in", path.display(), why);
        return Err(Failure::Untouched(error));
    }
    if found.standing == Standing::Retired {
        // Written once more, so that no failure to write it back goes unnoticed.
        return slot.retire(&found.head).map_err(Failure::Untouched);
    }
    let paths: Vec<RecordPaths> =
        found.intent.members.iter().map(|member| layout.record(member.key)).collect();
    let _locks = locks::lock_all(world, layout, &paths, deadline)?;
    // I7. Its writer may have died before its sync, or of a sync that failed. What is done now must not
    // be undone by a power cut that takes the decision away.
    let again = ActiveIntent::write_again(world, layout, &found).map_err(Failure::Untouched)?;
    // From here on the decision is the copy's. Were the first one retired last, each try that fails to
    // settle would leave one more of them.
    let retired = slot.retire(&found.head);
    let left = settle(world, &found, &paths).map_err(Failure::Untouched)?;
    again.retire().and(retired).map_err(Failure::Untouched)?;
    match found.standing {
        Standing::Committed => recovered.redone += 1,
        Standing::Aborting => recovered.undone += 1,
        Standing::Retired => {}
    }
    let standing = found.standing;
    recovered.left_alone.extend(left.into_iter().map(|path| LeftAlone { path, standing }));
    Ok(())
}

/// Brings every member into the decided state, durably; returns the ones that were left alone.
fn settle(
    world: &World,
    found: &StandingIntent,
    paths: &[RecordPaths],
) -> Result<Vec<PathBuf>, StorageError> {
    let mut left = Vec::new();
    let mut now = Vec::with_capacity(paths.len());
    for (member, paths) in found.intent.members.iter().zip(paths) {
        now.push(read::stored(&*world.fs, member.key, &paths.record)?);
    }
    let mut steps = Vec::new();
    let mut settled = Vec::new();
    for ((member, paths), now) in found.intent.members.iter().zip(paths).zip(&now) {
        let (decided, other) = match found.standing {
            Standing::Committed => (&member.after, &member.before),
            Standing::Aborting => (&member.before, &member.after),
            Standing::Retired => break,
        };
        let aside = match (&member.before, &member.after) {
            (Image::Opaque(name), _) | (_, Image::Opaque(name)) => {
                Some(paths.record.with_file_name(name))
            }
            _ => None,
        };
        // What looks as decided is made so again. Whatever made it so may not have lived to sync it; or
        // its sync failed, and then one that succeeds now says nothing about it.
        let again = same(&now.before, decided);
        if again && !matches!(decided, Image::Bytes(_)) {
            settled.push((paths, other));
        } else if !again && !gives_way(now, member, other, found.intent.issued) {
            left.push(paths.record.clone());
        } else {
            let to = match decided {
                Image::Bytes(bytes) => Some(bytes.clone()),
                Image::Absent | Image::Opaque(_) => None,
            };
            let back = matches!(decided, Image::Opaque(_));
            steps.push(Step { key: member.key, paths, before: &now.before, to, aside, back });
        }
    }
    // One file sync at a time: recovery is rare, and simple.
    let tuning = Tuning { sync_width: 1, barriers: Barriers::Batched };
    let mut batch = DirectorySyncBatch::new(&*world.fs, Barriers::Batched);
    let mut applied = Applied::none(world);
    mutate::stage(world, tuning, &steps)?.publish(&mut batch, &mut applied)?;
    for (paths, other) in settled {
        match other {
            Image::Bytes(bytes) => mutate::remove_again(world, &paths.record, bytes, &mut batch)?,
            _ => batch.note(&paths.record)?,
        }
    }
    batch.flush()?;
    Ok(left)
}

/// Whether a member that is not in the decided state may be brought into it.
///
/// It is in the other one; or a power cut took the image before away, because a call on that one
/// record died before its directory was synced, and left what stood there earlier: nothing, or a
/// lease of ours. That is one under a fence issued before the intent was written, though perhaps not
/// before its images were: a take-over of this record may have failed and been put back in between. No
/// later call can have made that: it would have finished the intent first.
pub(super) fn gives_way(now: &Stored, member: &Member, other: &Image, issued: Fence) -> bool {
    if same(&now.before, other) {
        return true;
    }
    match &now.entry {
        Entry::Vacant => member.before != Image::Absent,
        Entry::Present(record) => {
            let fence = record.holder().token.fence();
            fence.is_some() && fence <= fence_of(member).max(Some(issued))
        }
        Entry::Damaged(_) => false,
    }
}

/// The highest fence in a member's images.
fn fence_of(member: &Member) -> Option<Fence> {
    let fence = |image: &Image| match image {
        Image::Bytes(bytes) => {
            let record = Record::parse(member.key.space, member.key.id, bytes).ok()?;
            record.holder().token.fence()
        }
        Image::Absent | Image::Opaque(_) => None,
    };
    fence(&member.before).max(fence(&member.after))
}

pub(super) fn same(now: &Before, image: &Image) -> bool {
    match (now, image) {
        (Before::Absent, Image::Absent) | (Before::Opaque, Image::Opaque(_)) => true,
        (Before::Bytes(now), Image::Bytes(then)) => now == then,
        _ => false,
    }
}
