//! Looking a table over, and clearing away what nobody uses. The frames themselves are looked at
//! whenever a table is opened.

use std::path::{Path, PathBuf};

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, FileKind, steps};

use crate::engine::JournalEngine;
use crate::hints::WORDS;
use crate::journal::Which;
use crate::layout::{FILE_MODE, Layout};
use crate::open::remove;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Records that are held.
    pub records: usize,
    /// A checkpoint, an audit log, a description or a probe that was not finished.
    pub temporaries: Vec<PathBuf>,
    /// Names that are not ours.
    pub strays: Vec<PathBuf>,
    /// Removed by repair.
    pub removed: Vec<PathBuf>,
}

/// Where a journal is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Rises when a sync has failed.
    pub epoch: u64,
    /// The segment that is written.
    pub segment: u64,
    /// The last frame.
    pub sequence: u64,
    /// The frame that the checkpoint in force is the state after.
    pub checkpoint: u64,
    /// The highest fence issued.
    pub fence: u64,
}

const OURS: [&str; 10] = [
    "append.lock",
    "audit.log",
    "checkpoint",
    "hints",
    "journal.0",
    "journal.1",
    "lives",
    "maintain.lock",
    "sync.lock",
    "table.json",
];
const AUDIT_TEMPORARY: &str = "audit.tmp";
const MAINTENANCE_TEMPORARIES: [&str; 2] = ["checkpoint.tmp", "table.tmp"];

fn untouched(operation: &'static str, path: &Path, source: std::io::Error) -> Failure {
    Failure::Untouched(StorageError::new(operation, path.display(), source))
}

impl JournalEngine {
    /// Looks at every name in the table. Writes nothing.
    pub fn check(&self) -> Result<Check, StorageError> {
        let journal = &self.journal;
        let root = journal.layout.root();
        let mut check = Check::default();
        let fail = |source| StorageError::new("list", root.display(), source);
        for name in journal.world.fs.list(root).map_err(fail)? {
            let text = name.name.to_string_lossy();
            let path = root.join(&name.name);
            let unfinished = MAINTENANCE_TEMPORARIES.contains(&&*text) || Layout::is_probe(&text);
            if text == AUDIT_TEMPORARY || unfinished {
                check.temporaries.push(path);
            } else if !OURS.contains(&&*text) && text != "lost+found" {
                check.strays.push(path);
            }
        }
        check.temporaries.sort();
        check.strays.sort();
        let mut replica = journal.replica();
        journal.catch_up(&mut replica).map_err(|error| journal.read_error(error))?;
        for record in replica.records() {
            let (_, stored) = record.map_err(|error| journal.read_error(error.into()))?;
            let there = stored.record().map_err(|why| {
                let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_string());
                StorageError::new("read a record of", root.display(), why)
            })?;
            check.records += usize::from(there.is_some());
        }
        Ok(check)
    }

    /// The same, and removes what a maker that died left unfinished, and the files of processes that
    /// are gone.
    pub fn repair(&self, deadline: Deadline) -> Result<Check, Failure> {
        let journal = &self.journal;
        let mut removed = Vec::new();
        // Whoever appends writes its audit log as well.
        let append = journal.lock(Which::Append, deadline)?;
        self.clear(AUDIT_TEMPORARY, &mut removed)?;
        drop(append);
        let held = journal.lock(Which::Maintain, deadline)?;
        for name in &MAINTENANCE_TEMPORARIES {
            self.clear(name, &mut removed)?;
        }
        self.clear_probes(&mut removed)?;
        // Without them every process that opens the table ends an epoch.
        let hints = journal.layout.hints();
        let words = (WORDS * 8) as u64;
        let there = journal.world.fs.stat(&hints).is_ok_and(|stat| stat.len >= words);
        if !there {
            let fail =
                |source| Failure::Untouched(StorageError::new("make", hints.display(), source));
            remove(&journal.world, &hints).map_err(fail)?;
            steps::stage_words(&*journal.world.fs, &hints, WORDS, FILE_MODE).map_err(fail)?;
        }
        drop(held);
        journal.clear_lives().map_err(Failure::Untouched)?;
        Ok(Check { removed, ..self.check().map_err(Failure::Untouched)? })
    }

    fn clear(&self, name: &str, removed: &mut Vec<PathBuf>) -> Result<(), Failure> {
        let path = self.journal.layout.root().join(name);
        match self.journal.world.fs.unlink(&path) {
            Ok(()) => removed.push(path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                let error = StorageError::new("remove", path.display(), source);
                return Err(Failure::Untouched(error));
            }
        }
        Ok(())
    }

    /// What a maker left who died while he tried the place.
    fn clear_probes(&self, removed: &mut Vec<PathBuf>) -> Result<(), Failure> {
        let (fs, root) = (&*self.journal.world.fs, self.journal.layout.root());
        for name in fs.list(root).map_err(|source| untouched("list", root, source))? {
            let place = root.join(&name.name);
            let is_dir = fs.stat(&place).is_ok_and(|stat| stat.kind == FileKind::Dir);
            if !is_dir || !Layout::is_probe(&name.name.to_string_lossy()) {
                continue;
            }
            let files = fs.list(&place).map_err(|source| untouched("list", &place, source))?;
            for file in files {
                let path = place.join(&file.name);
                fs.unlink(&path).map_err(|source| untouched("remove", &path, source))?;
            }
            fs.rmdir(&place).map_err(|source| untouched("remove", &place, source))?;
            removed.push(place);
        }
        Ok(())
    }

    /// A deadline this far from now, for [`Self::repair`].
    pub fn deadline(&self, patience: std::time::Duration) -> Deadline {
        self.journal.world.clock.deadline(patience)
    }

    /// Where the journal is now. Writes nothing.
    pub fn place(&self) -> Result<Place, StorageError> {
        let mut replica = self.journal.replica();
        self.journal.catch_up(&mut replica).map_err(|error| self.journal.read_error(error))?;
        Ok(Place {
            epoch: replica.epoch(),
            segment: replica.at.segment,
            sequence: replica.at.sequence,
            checkpoint: replica.checkpoint.head.base.sequence,
            fence: replica.fence,
        })
    }
}
