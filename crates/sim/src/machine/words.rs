//! Words of memory that processes share.

use std::sync::MutexGuard;
use std::time::Duration;

use super::{Core, Machine, Point, State};
use crate::disk::Ino;

/// What the label of a point before the setting of a word begins with.
pub(crate) const WORD: &str = "word";

/// The half of a word that a waiter compares.
const HALF: u64 = 0xffff_ffff;

impl Machine {
    /// Shared memory is about to be used: others may run first. `None` if the process is dead.
    pub(crate) fn touch(&self, proc: usize) -> Option<MutexGuard<'_, Core>> {
        let mut core = self.core();
        if core.procs[proc].dead {
            return None;
        }
        core.now += Duration::from_micros(1);
        if core.scheduled {
            core.disturb(proc);
            core = Self::die_if_doomed(proc, core);
            core = self.yield_turn(proc, core);
        }
        Some(core)
    }

    /// Before a word is set: whoever dies here leaves the others with what it was.
    pub(crate) fn record_word(&self, index: usize) {
        let mut core = self.core();
        if core.recorder.is_some() {
            let (disk, step) = (core.disk.clone(), core.steps);
            let point = Point { label: format!("{WORD} {index}"), step, disk };
            core.recorder.get_or_insert_default().push(point);
        }
    }

    pub(crate) fn wait_for_word(
        &self,
        proc: usize,
        ino: Ino,
        index: usize,
        seen: u64,
        patience: Duration,
    ) {
        let Some(mut core) = self.touch(proc) else { return };
        // The kernel compares half of the word, under its own lock.
        let same = core.disk.word(ino, index).is_some_and(|word| *word & HALF == seen & HALF);
        if !same {
            return;
        }
        let until = core.now + patience;
        if !core.scheduled {
            core.now = until;
            return;
        }
        core.procs[proc].state = State::Until(until);
        core.procs[proc].awaits = Some((ino, index));
        core = self.yield_turn(proc, core);
        core.procs[proc].awaits = None;
    }

    pub(crate) fn wake_word(&self, proc: usize, ino: Ino, index: usize, count: u32) {
        let Some(mut core) = self.touch(proc) else { return };
        let waiting = core.procs.iter_mut().filter(|proc| proc.awaits == Some((ino, index)));
        for proc in waiting.take(usize::try_from(count).unwrap_or(usize::MAX)) {
            proc.awaits = None;
            proc.state = State::Ready;
        }
    }
}
