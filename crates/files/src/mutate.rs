//! Phases B and C: mutation of one group of record files, and its undoing.
//!
//! M4. A record's bytes are durable before its name points at them: every temporary is written and
//!     synced before the first rename.
//! M6. Success is reported only after every touched directory was synced.
//! M7. A detected failure puts back the exact previous bytes, or absence, of every member.
//! M8. What was put back is made durable by a second flush; if any of that fails, the outcome is
//!     unknown and the members are named.
//!
//! ```text
//! Idle -[stage: write, sync all]-> Staged -[publish: rename, unlink]-> Applied -[flush]-> Done
//!   \________ Untouched __________/            \_______ undo _______/-> Restored | Unknown
//! ```
//! The caller holds every member's lock from before the snapshot until after the return.

use std::path::{Path, PathBuf};

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Read, World, WriteFile, steps};
use ringfence_model::Key;
use ringfence_model::record::MAX_RECORD_BYTES;

use crate::batch::{Barriers, DirectorySyncBatch};
use crate::intent::{Image, Member};
use crate::layout::{FILE_MODE, RecordPaths};
use crate::open::Tuning;
use crate::read::Before;

/// One member's change.
#[derive(Debug)]
pub struct Step<'a> {
    /// The record.
    pub key: Key,
    /// Its names.
    pub paths: &'a RecordPaths,
    /// Its exact state before.
    pub before: &'a Before,
    /// Its new content; `None` removes it.
    pub to: Option<Vec<u8>>,
    /// Where something that is no readable file is moved to, and from.
    pub aside: Option<PathBuf>,
    /// Whether it is moved back from there rather than removed.
    pub back: bool,
}

impl Step<'_> {
    /// Its two images, for an intent.
    pub fn images(&self) -> Member {
        let aside = || {
            let name = self.aside.as_deref().and_then(Path::file_name).unwrap_or_default();
            Image::Opaque(name.to_string_lossy().into_owned())
        };
        Member {
            key: self.key,
            before: match self.before {
                Before::Absent => Image::Absent,
                Before::Bytes(bytes) => Image::Bytes(bytes.clone()),
                Before::Opaque => aside(),
            },
            after: match &self.to {
                Some(bytes) => Image::Bytes(bytes.clone()),
                None => Image::Absent,
            },
        }
    }
}

/// Writes the new content of every step beside its record and syncs it. No record is changed.
///
/// On failure, and when the result is dropped, the temporaries are removed.
pub fn stage<'a>(
    world: &'a World,
    tuning: Tuning,
    steps: &'a [Step<'a>],
) -> Result<Staged<'a>, StorageError> {
    Ok(Staged { steps, temps: Temps::stage(world, tuning, steps)? })
}

/// Steps whose new content is durable beside their records.
#[must_use = "staged content that is dropped is removed again"]
pub struct Staged<'a> {
    steps: &'a [Step<'a>],
    temps: Temps<'a>,
}

impl<'a> Staged<'a> {
    /// Changes the names, one record after the other, until one fails.
    ///
    /// `applied` then knows which may have been changed. Nothing is durable before `batch` is
    /// flushed.
    pub fn publish(
        mut self,
        batch: &mut DirectorySyncBatch<'_>,
        applied: &mut Applied<'a>,
    ) -> Result<(), StorageError> {
        for (step, temp) in self.steps.iter().zip(&mut self.temps.paths) {
            if temp.is_none() && *step.before == Before::Absent && !step.back {
                continue;
            }
            // Counted as touched even if it fails: a call may fail after its effect.
            applied.touched.push(step);
            let record = &step.paths.record;
            match (&temp, &step.aside) {
                (Some(staged), _) => batch.replace(staged, record)?,
                (None, None) => batch.unlink(record)?,
                (None, Some(aside)) if step.back => {
                    move_name(self.temps.world, aside, record, batch, record)?;
                }
                (None, Some(aside)) => move_name(self.temps.world, record, aside, batch, record)?,
            }
            *temp = None;
        }
        Ok(())
    }
}

/// Removes a record that is not there, again: a sync of its directory that failed may have lost its
/// removal, and a later one that succeeds says nothing about that.
///
/// For the moment between it stands with `bytes`, which the intent over it explains.
pub fn remove_again(
    world: &World,
    record: &Path,
    bytes: &[u8],
    batch: &mut DirectorySyncBatch<'_>,
) -> Result<(), StorageError> {
    let temp = temp_beside(world, record)?;
    let fail = |source| StorageError::new("write", temp.display(), source);
    // M4: a power cut may keep the name and lose its removal.
    steps::stage_synced(&*world.fs, &temp, bytes, FILE_MODE).map_err(fail)?;
    batch.replace(&temp, record).inspect_err(|_| {
        let _ = world.fs.unlink(&temp);
    })?;
    batch.unlink(record)
}

/// Steps whose names were changed, or may have been.
#[must_use = "a change that is not flushed is not durable"]
#[derive(Debug)]
pub struct Applied<'a> {
    world: &'a World,
    touched: Vec<&'a Step<'a>>,
}

impl<'a> Applied<'a> {
    /// Nothing yet.
    pub fn none(world: &'a World) -> Self {
        Self { world, touched: Vec::new() }
    }

    /// Puts every touched member back and syncs again; says how that ended.
    pub fn undo(&self, source: StorageError) -> Failure {
        let mut batch = DirectorySyncBatch::new(&*self.world.fs, Barriers::Batched);
        let mut unknown = Vec::new();
        let mut failed = None;
        let mut restored = Vec::new();
        for step in self.touched.iter().rev() {
            match self.put_back(step, &mut batch) {
                Ok(()) => restored.push(step),
                Err(error) => {
                    unknown.push(name(step));
                    failed.get_or_insert(error);
                }
            }
        }
        if let Err(unsynced) = batch.flush_every() {
            let lost = restored.iter().filter(|step| unsynced.dirs.contains(&step.paths.dir));
            unknown.extend(lost.map(|step| name(step)));
            failed.get_or_insert(unsynced.error);
        }
        match failed {
            None => Failure::Restored(source),
            Some(restore) => Failure::Unknown { source, restore, members: unknown },
        }
    }

    fn put_back(
        &self,
        step: &Step<'_>,
        batch: &mut DirectorySyncBatch<'_>,
    ) -> Result<(), StorageError> {
        let record = &step.paths.record;
        let fs = &*self.world.fs;
        let now = match fs.read(record, MAX_RECORD_BYTES) {
            Ok(Read::Bytes(bytes)) => Before::Bytes(bytes),
            Ok(_) => Before::Opaque,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Before::Absent,
            Err(source) => return Err(StorageError::new("read", record.display(), source)),
        };
        if now == *step.before {
            // Not to be written again, but whatever made it so must be durable.
            return batch.note(record);
        }
        match (step.before, &step.aside) {
            (Before::Absent, _) => batch.unlink(record),
            (Before::Bytes(bytes), _) => {
                let temp = temp_beside(self.world, record)?;
                let fail = |source| StorageError::new("put back", record.display(), source);
                steps::stage_synced(fs, &temp, bytes, FILE_MODE).map_err(fail)?;
                batch.replace(&temp, record).inspect_err(|_| {
                    let _ = fs.unlink(&temp);
                })
            }
            (Before::Opaque, Some(aside)) => move_name(self.world, aside, record, batch, record),
            (Before::Opaque, None) => unreachable!("an opaque record is only ever moved aside"),
        }
    }
}

fn name(step: &Step<'_>) -> String {
    step.paths.record.display().to_string()
}

fn move_name(
    world: &World,
    from: &Path,
    to: &Path,
    batch: &mut DirectorySyncBatch<'_>,
    record: &Path,
) -> Result<(), StorageError> {
    let fail = |source| StorageError::new("move", record.display(), source);
    world.fs.rename(from, to).map_err(fail)?;
    batch.note(record)
}

/// A free name beside `record`. Only force-release moves, and it holds the record's lock.
pub fn free_aside(world: &World, record: &Path) -> Result<PathBuf, StorageError> {
    let name = record.file_name().unwrap_or_default().to_string_lossy();
    for number in 0..u32::MAX {
        let aside = record.with_file_name(format!("{name}.damaged-{number}"));
        match world.fs.stat(&aside) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(aside),
            Err(source) => return Err(StorageError::new("stat", aside.display(), source)),
        }
    }
    unreachable!("four billion damaged records under one name")
}

/// Temporaries, removed when dropped unless they were renamed away.
struct Temps<'a> {
    world: &'a World,
    paths: Vec<Option<PathBuf>>,
}

impl<'a> Temps<'a> {
    fn stage(world: &'a World, tuning: Tuning, steps: &[Step<'_>]) -> Result<Self, StorageError> {
        let mut temps = Self { world, paths: Vec::with_capacity(steps.len()) };
        let mut files: Vec<Box<dyn WriteFile>> = Vec::new();
        for step in steps {
            let Some(bytes) = &step.to else {
                temps.paths.push(None);
                continue;
            };
            let temp = temp_beside(world, &step.paths.record)?;
            let fail = |source| StorageError::new("write", temp.display(), source);
            files.push(steps::stage(&*world.fs, &temp, bytes, FILE_MODE).map_err(fail)?);
            temps.paths.push(Some(temp));
        }
        let staged: Vec<&PathBuf> = temps.paths.iter().flatten().collect();
        let answers = steps::sync_together(&files, tuning.sync_width);
        for (answer, temp) in answers.into_iter().zip(staged) {
            answer.map_err(|source| StorageError::new("sync", temp.display(), source))?;
        }
        Ok(temps)
    }
}

impl Drop for Temps<'_> {
    fn drop(&mut self) {
        for temp in self.paths.iter().flatten() {
            // A failure leaves a stale temporary, which repair removes.
            let _ = self.world.fs.unlink(temp);
        }
    }
}

fn temp_beside(world: &World, record: &Path) -> Result<PathBuf, StorageError> {
    let unique = world
        .unique()
        .map_err(|source| StorageError::new("name a temporary for", record.display(), source))?;
    let name = record.file_name().unwrap_or_default().to_string_lossy();
    Ok(record.with_file_name(format!("{name}.{unique}.tmp")))
}
