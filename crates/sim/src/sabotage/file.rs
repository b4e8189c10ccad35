//! Files that break their promises.

use std::io;
use std::path::PathBuf;

use ringfence_env::{Identity, OpenWrite, Stat, WriteFile};

use super::{Sabotage, SabotagedFs, is_intent, is_record_temp, starts};

/// A file open for writing, with its promises.
#[derive(Debug)]
pub(super) struct SabotagedFile {
    inner: Box<dyn WriteFile>,
    fs: SabotagedFs,
    path: PathBuf,
    last: Mark,
    /// Nothing was written through it yet.
    fresh: bool,
    /// What is written here goes to the slot in which it was found.
    instead: Option<Box<dyn WriteFile>>,
}

impl Drop for SabotagedFile {
    fn drop(&mut self) {
        if is_intent(&self.path) {
            self.fs.with(|memory| {
                memory.recovering = false;
                memory.found.retain(|found| *found != self.path);
            });
        }
    }
}

/// What was written into a slot of an intent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Intent,
    Abort,
    Retirement,
    Freed,
}

impl SabotagedFile {
    pub(super) fn new(inner: Box<dyn WriteFile>, fs: SabotagedFs, path: PathBuf) -> Self {
        if is_intent(&path) {
            fs.with(|memory| memory.found.push(path.clone()));
        }
        Self { inner, fs, path, last: Mark::Intent, fresh: true, instead: None }
    }

    /// Notes that an intent is written while another slot was only looked at: it is the one that stands
    /// there, and is being finished.
    fn begins(&mut self) -> io::Result<()> {
        let found = self.fs.with(|memory| {
            memory.found.retain(|found| *found != self.path);
            memory.recovering |= !memory.found.is_empty();
            memory.found.last().cloned()
        });
        if let Some(found) = found.filter(|_| self.fs.kind == Sabotage::FoundIntentBelieved) {
            self.instead = Some(self.fs.inner.open_write(&found, OpenWrite::Overwrite, 0o600)?);
        }
        Ok(())
    }

    fn drops_sync(&self) -> bool {
        match self.fs.kind {
            Sabotage::RecordFileSync => is_record_temp(&self.path),
            Sabotage::FenceFileSync => starts(&self.path, "fence."),
            Sabotage::CheckpointSync => starts(&self.path, "checkpoint"),
            Sabotage::MetaFileSync => starts(&self.path, "table.json"),
            Sabotage::AuditSync => starts(&self.path, "audit"),
            Sabotage::RestoreSync => self.fs.has_failed(),
            Sabotage::IntentFileSync => {
                is_intent(&self.path) && self.last == Mark::Intent && !self.fresh
            }
            Sabotage::FoundIntentSync => {
                is_intent(&self.path) && self.last == Mark::Intent && self.fs.is_recovering()
            }
            Sabotage::RecoverySync => !is_intent(&self.path) && self.fs.is_recovering(),
            Sabotage::RetirementSync => self.last == Mark::Retirement,
            Sabotage::AbortSync => self.last == Mark::Abort,
            _ => false,
        }
    }
}

impl WriteFile for SabotagedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.inner.write(bytes);
        self.fs.watch(done)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.last = match offset {
            0 if bytes.starts_with(b"RFRETIRE") => Mark::Retirement,
            // The slot is free for whoever looks; what counts was said before.
            0 if bytes.iter().all(|byte| *byte == 0) => Mark::Freed,
            512 => Mark::Abort,
            _ => Mark::Intent,
        };
        if std::mem::take(&mut self.fresh) && is_intent(&self.path) {
            match self.last {
                Mark::Intent => self.begins()?,
                _ => self.fs.with(|memory| memory.found.retain(|found| *found != self.path)),
            }
        }
        if let Some(found) = &mut self.instead {
            // It stands there already; only what comes after it is new.
            return if self.last == Mark::Intent {
                Ok(bytes.len())
            } else {
                found.write_at(bytes, offset)
            };
        }
        let early = matches!(self.last, Mark::Retirement | Mark::Freed)
            && self.fs.kind == Sabotage::FoundIntentBelieved
            && self.fs.is_recovering();
        if early && is_intent(&self.path) {
            return Ok(bytes.len());
        }
        if self.fs.kind == Sabotage::IntentAfterRename
            && is_intent(&self.path)
            && self.last == Mark::Intent
            && offset == 0
        {
            let late = (self.path.clone(), bytes.to_vec());
            self.fs.with(|memory| memory.late_intent = Some(late));
            return Ok(bytes.len());
        }
        let forgotten = match self.fs.kind {
            Sabotage::RetirementForgotten => {
                matches!(self.last, Mark::Retirement | Mark::Freed)
            }
            Sabotage::AbortForgotten => self.last == Mark::Abort,
            _ => false,
        };
        if forgotten {
            return Ok(bytes.len());
        }
        let done = self.inner.write_at(bytes, offset);
        self.fs.watch(done)
    }

    fn sync(&self) -> io::Result<()> {
        if is_intent(&self.path) {
            let intends = !self.fresh && self.last == Mark::Intent;
            self.fs.with(|memory| memory.intends |= intends);
        }
        if let Some(found) = &self.instead {
            return found.sync();
        }
        if self.drops_sync() {
            return Ok(());
        }
        if self.last == Mark::Retirement && is_intent(&self.path) {
            self.inner.sync()?;
            return self.fs.sync_deferred();
        }
        match self.fs.watch(self.inner.sync()) {
            Err(_) if self.fs.kind == Sabotage::SyncRetried => self.inner.sync(),
            other => other,
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.inner.stat()
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        self.inner.identity()
    }
}
