//! Files that several processes read and write at any place, and words of memory that they share.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ringfence_env::{RandomFile, SharedWords, Stat};

use super::{describe, error, sync};
use crate::coverage::Event;
use crate::disk::{DataChange, Disk, EIO, Ino};
use crate::faults::Call;
use crate::machine::Machine;
use crate::subject::SEGMENT_BYTES;

/// One open description of a file.
#[derive(Debug)]
pub(super) struct SimRandom {
    machine: Machine,
    proc: usize,
    path: PathBuf,
    ino: Ino,
    writable: bool,
    /// Failures before this change were told here, or came before the file was opened.
    told: Mutex<u64>,
}

const EBADF: i32 = 9;

impl SimRandom {
    pub(super) fn new(
        machine: Machine,
        proc: usize,
        path: PathBuf,
        ino: Ino,
        writable: bool,
        opened: u64,
    ) -> Self {
        Self { machine, proc, path, ino, writable, told: Mutex::new(opened) }
    }
}

impl RandomFile for SimRandom {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let turn = self.machine.enter(self.proc, Call::Read, &self.path)?;
        let bytes = turn.core.disk.bytes(self.ino)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = into.len().min(bytes.len() - from);
        into[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if !self.writable {
            return Err(error(EBADF));
        }
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let mut turn = self.machine.enter(self.proc, Call::Write, &self.path)?;
        let len = turn.core.short_write(bytes.len());
        let was = turn.core.disk.bytes(self.ino)?.len();
        if was as u64 >= SEGMENT_BYTES && at + len > was {
            turn.core.watch.note(Event::SegmentGrown);
        }
        let change = DataChange::Write { at, bytes: bytes[..len].into() };
        let modified = turn.core.wall_seconds();
        turn.core.disk.change(self.ino, change, modified);
        Ok(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let turn = self.machine.enter(self.proc, Call::SyncFile, &self.path)?;
        // Whoever had the file open when a sync failed is told once, be it his own or somebody else's.
        let is_news = |disk: &Disk| {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let newest = disk.stuck_since(self.ino, *told);
            *told = newest.map_or(*told, |newest| newest + 1);
            newest.is_some()
        };
        if is_news(&turn.core.disk) {
            return Err(error(EIO));
        }
        let synced = sync(turn, self.proc, self.ino);
        if synced.is_err() {
            is_news(&self.machine.disk());
        }
        synced
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(error(EBADF));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut turn = self.machine.enter(self.proc, Call::SetLen, &self.path)?;
        if len < turn.core.disk.bytes(self.ino)?.len() {
            turn.core.watch.note(Event::SegmentCut);
        }
        let modified = turn.core.wall_seconds();
        turn.core.disk.change(self.ino, DataChange::SetLen(len), modified);
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let turn = self.machine.enter(self.proc, Call::Stat, &self.path)?;
        Ok(describe(&turn.core.disk, self.ino))
    }
}

/// A mapping of a file's words. They are gone with the power; what the file then holds is anything.
#[derive(Debug)]
pub(super) struct SimWords {
    machine: Machine,
    proc: usize,
    ino: Ino,
}

impl SimWords {
    pub(super) fn new(machine: Machine, proc: usize, ino: Ino) -> Self {
        Self { machine, proc, ino }
    }

    fn change(&self, index: usize, to: impl FnOnce(u64) -> u64) -> u64 {
        let Some(mut core) = self.machine.touch(self.proc) else { return 0 };
        let Some(was) = core.disk.word_at(self.ino, index) else { return 0 };
        let now = to(was);
        // Words that nobody changes are shared between the copies of a disk.
        if now != was
            && let Some(word) = core.disk.word(self.ino, index)
        {
            *word = now;
        }
        was
    }
}

impl SharedWords for SimWords {
    fn load(&self, index: usize) -> u64 {
        self.change(index, |value| value)
    }

    fn store(&self, index: usize, value: u64) {
        // What is as it was is no other state for those who go on.
        if self.load(index) != value {
            self.machine.record_word(index);
        }
        self.change(index, |_| value);
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.change(index, |was| was.wrapping_add(value))
    }

    fn wait(&self, index: usize, seen: u64, patience: Duration) {
        self.machine.wait_for_word(self.proc, self.ino, index, seen, patience);
    }

    fn wake(&self, index: usize, count: u32) {
        self.machine.wake_word(self.proc, self.ino, index, count);
    }
}
