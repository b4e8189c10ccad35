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
//! stage -[sync all]-> Staged -[rename, unlink]-> Applied -[flush]-> Done
//!   \______ Untouched ___/            \___ undo ____/-> Restored | Unknown
//! ```
//! The caller holds every member's lock from before the snapshot until after the return.

use std::path::{Path, PathBuf};

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Read, World, WriteFile, steps};
use ringfence_model::record::MAX_RECORD_BYTES;

use crate::batch::DirectorySyncBatch;
use crate::layout::{FILE_MODE, RecordPaths};
use crate::open::Tuning;
use crate::read::Before;

/// One member's change.
#[derive(Debug)]
pub struct Step<'a> {
    /// Its names.
    pub paths: &'a RecordPaths,
    /// Its exact state before.
    pub before: &'a Before,
    /// Its new content; `None` removes it.
    pub to: Option<String>,
}

/// Applies every step, durably if `flush` follows, or puts everything back.
///
/// On success nothing is durable yet: the caller flushes `batch`, and undoes with [`Applied::undo`]
/// if that fails.
pub fn apply<'a>(
    world: &'a World,
    tuning: Tuning,
    steps: &'a [Step<'a>],
    batch: &mut DirectorySyncBatch<'_>,
) -> Result<Applied<'a>, Failure> {
    let mut applied = Applied { world, touched: Vec::new() };
    let mut temps = Temps::stage(world, tuning, steps).map_err(Failure::Untouched)?;
    for (step, temp) in steps.iter().zip(&mut temps.paths) {
        if temp.is_none() && *step.before == Before::Absent {
            continue;
        }
        // Counted as touched even if it fails: a call may fail after its effect.
        let aside = match (&temp, step.before) {
            (None, Before::Opaque) => match free_aside(world, &step.paths.record) {
                Ok(aside) => Some(aside),
                Err(error) => return Err(applied.undo(error)),
            },
            _ => None,
        };
        applied.touched.push(Touched { step, aside: aside.clone() });
        let record = &step.paths.record;
        let mutated = match (&temp, aside) {
            (Some(staged), _) => batch.replace(staged, record),
            (None, None) => batch.unlink(record),
            (None, Some(aside)) => move_name(world, record, &aside, batch, record),
        };
        match mutated {
            Ok(()) => *temp = None,
            Err(error) => return Err(applied.undo(error)),
        }
    }
    Ok(applied)
}

/// Steps whose names were changed.
#[must_use = "a change that is not flushed is not durable"]
#[derive(Debug)]
pub struct Applied<'a> {
    world: &'a World,
    touched: Vec<Touched<'a>>,
}

#[derive(Debug)]
struct Touched<'a> {
    step: &'a Step<'a>,
    /// Where an opaque thing was moved to.
    aside: Option<PathBuf>,
}

impl Applied<'_> {
    /// The records that were changed, for reports.
    pub fn members(&self) -> Vec<String> {
        self.touched.iter().map(Touched::name).collect()
    }

    /// Puts every touched member back and syncs again; says how that ended.
    pub fn undo(&self, source: StorageError) -> Failure {
        let mut batch = DirectorySyncBatch::new(&*self.world.fs, crate::batch::Barriers::Batched);
        let mut unknown = Vec::new();
        let mut failed = None;
        let mut restored = Vec::new();
        for touched in self.touched.iter().rev() {
            match self.put_back(touched, &mut batch) {
                Ok(()) => restored.push(touched.name()),
                Err(error) => {
                    unknown.push(touched.name());
                    failed.get_or_insert(error);
                }
            }
        }
        if let Err(error) = batch.flush() {
            unknown.append(&mut restored);
            failed.get_or_insert(error);
        }
        match failed {
            None => Failure::Restored(source),
            Some(restore) => Failure::Unknown { source, restore, members: unknown },
        }
    }

    fn put_back(
        &self,
        touched: &Touched<'_>,
        batch: &mut DirectorySyncBatch<'_>,
    ) -> Result<(), StorageError> {
        let record = &touched.step.paths.record;
        let before = touched.step.before;
        let fs = &*self.world.fs;
        let now = match fs.read(record, MAX_RECORD_BYTES) {
            Ok(Read::Bytes(bytes)) => Before::Bytes(bytes),
            Ok(_) => Before::Opaque,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Before::Absent,
            Err(source) => return Err(StorageError::new("read", record.display(), source)),
        };
        if now == *before {
            // Not to be written again, but whatever made it so must be durable.
            return batch.note(record);
        }
        match (before, &touched.aside) {
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

impl Touched<'_> {
    fn name(&self) -> String {
        self.step.paths.record.display().to_string()
    }
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
fn free_aside(world: &World, record: &Path) -> Result<PathBuf, StorageError> {
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
    /// Writes the new content of every step beside its record and syncs it.
    fn stage(world: &'a World, tuning: Tuning, steps: &[Step<'_>]) -> Result<Self, StorageError> {
        let mut temps = Self { world, paths: Vec::with_capacity(steps.len()) };
        let mut files: Vec<Box<dyn WriteFile>> = Vec::new();
        for step in steps {
            let Some(line) = &step.to else {
                temps.paths.push(None);
                continue;
            };
            let temp = temp_beside(world, &step.paths.record)?;
            let fail = |source| StorageError::new("write", temp.display(), source);
            files.push(steps::stage(&*world.fs, &temp, line.as_bytes(), FILE_MODE).map_err(fail)?);
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
            // Most were renamed away; a failure leaves a stale temporary, which repair removes.
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
