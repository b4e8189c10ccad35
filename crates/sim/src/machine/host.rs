//! What the host does by itself: time, turns, mishaps, locks.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::path::Path;
use std::time::Duration;

use ringfence_env::LockMode;

use super::{Core, Cut, EPOCH, Lock, Point, State};
use crate::coverage::Event;
use crate::disk::Ino;
use crate::faults::{Call, mutates};

impl Core {
    pub(super) fn mix(&mut self, what: &impl Hash) {
        let mut hasher = DefaultHasher::new();
        self.trace.hash(&mut hasher);
        self.now.hash(&mut hasher);
        what.hash(&mut hasher);
        self.trace = hasher.finish();
    }

    pub(crate) fn wall(&self) -> Duration {
        let true_wall = Duration::from_secs(EPOCH) + self.now + self.slept;
        let skew = Duration::from_millis(self.skew.unsigned_abs());
        if self.skew < 0 { true_wall.saturating_sub(skew) } else { true_wall + skew }
    }

    pub(crate) fn wall_seconds(&self) -> f64 {
        self.wall().as_secs_f64()
    }

    /// Calls take time; syncs take more of it.
    pub(super) fn tick(&mut self, call: Call) {
        let micros = match call {
            Call::SyncFile | Call::SyncDir => self.rng.between(100, 3000),
            _ => self.rng.between(1, 30),
        };
        self.now += Duration::from_micros(micros);
    }

    /// Who runs next. Moves time on when nobody can run now.
    pub(super) fn pick(&mut self, me: usize) -> usize {
        // Where two may meet, they should.
        let hunted = self.chaos.hunt_rate > 0 && self.watch.is_anybody_recovering();
        let rate = if hunted { 300_000 } else { self.chaos.switch_rate };
        if self.procs[me].state == State::Ready && !self.rng.chance(rate) {
            return me;
        }
        loop {
            let now = self.now;
            let able: Vec<usize> = (0..self.procs.len())
                .filter(|&proc| match self.procs[proc].state {
                    State::Ready => true,
                    State::Until(when) => when <= now,
                    State::Finished => false,
                })
                .collect();
            if !able.is_empty() {
                let next = able[self.rng.index(able.len())];
                self.procs[next].state = State::Ready;
                return next;
            }
            let wake = self.procs.iter().filter_map(|proc| match proc.state {
                State::Until(when) => Some(when),
                _ => None,
            });
            self.now = wake.min().expect("somebody sleeps, or all are finished");
        }
    }

    /// What may befall the host or the process that is about to call.
    pub(super) fn disturb(&mut self, proc: usize) {
        let chaos = self.chaos.clone();
        if self.rng.chance(chaos.stop_rate) {
            let until =
                self.now + Duration::from_millis(self.rng.between(1, chaos.longest_stop_ms));
            self.procs[proc].state = State::Until(until);
            self.mix(&"stop");
            self.watch.note(Event::Stop);
        }
        let hunt = chaos.hunt_rate;
        let kill_rate = chaos.kill_rate
            + match () {
                () if self.watch.is_recovering(proc) => hunt,
                () if self.watch.has_own_intent(proc) => hunt / 2,
                () => 0,
            };
        let cut_rate = chaos.cut_rate
            + match () {
                () if self.watch.is_anybody_recovering() => hunt / 4,
                () if self.watch.living() > 1 => hunt / 2,
                () if self.watch.has_orphan() || self.watch.living() > 0 => hunt / 16,
                () => 0,
            };
        if self.rng.chance(kill_rate) {
            self.watch.killed(proc);
            self.procs[proc].doomed = true;
            self.procs[proc].state = State::Ready;
            self.mix(&"kill");
        }
        if self.rng.chance(chaos.jump_rate) {
            self.skew = i64::try_from(self.rng.below(240_000)).unwrap_or(0) - 120_000;
            self.mix(&"jump");
            self.watch.note(Event::ClockJump);
        }
        if self.rng.chance(chaos.suspend_rate) {
            self.slept += Duration::from_millis(self.rng.between(1, 60_000));
            self.mix(&"suspend");
            self.watch.note(Event::Suspend);
        }
        if self.rng.chance(cut_rate) {
            self.cut();
        }
    }

    pub(super) fn cut(&mut self) {
        self.disk = self.disk.crash(&mut self.rng);
        self.watch.cut(&self.disk);
        self.locks.clear();
        for proc in &mut self.procs {
            if proc.state != State::Finished && !proc.dead {
                proc.doomed = true;
                proc.state = State::Ready;
            }
        }
        self.now += Duration::from_millis(self.rng.between(1, 30_000));
        self.boot += 1;
        self.booted = (self.now, self.now + self.slept);
        let (step, disk, boot, wall) = (self.steps, self.disk.clone(), self.boot, self.wall());
        self.cuts.push(Cut { step, disk, boot, wall });
        let digest = self.disk.tree().len();
        self.mix(&("cut", digest));
    }

    pub(super) fn record(&mut self, call: Call, path: &Path) {
        // The probe has a directory of its own, which nothing of the table is in.
        let probing =
            path.components().any(|part| part.as_os_str().to_string_lossy().starts_with(".probe-"));
        if let Some(points) = &mut self.recorder
            && mutates(call)
            && !probing
        {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let short: String = if name.len() > 40 {
                let tail = name.get(64..).unwrap_or("");
                let tail =
                    if path.extension().is_some_and(|end| end == "tmp") { ".tmp" } else { tail };
                format!("{}..{tail}", name.get(..6).unwrap_or(""))
            } else {
                name.into_owned()
            };
            let dir = path.parent().and_then(Path::file_name).unwrap_or_default();
            let label = format!("{call:?} {}/{short}", dir.to_string_lossy());
            let (disk, step) = (self.disk.clone(), self.steps);
            points.push(Point { label, step, disk });
        }
    }

    pub(crate) fn note_record_change(&mut self, proc: usize, path: &Path) {
        if path.extension().is_some_and(|end| end == "json") {
            self.procs[proc].record_changes += 1;
        }
    }

    pub(crate) fn fd(&mut self) -> u64 {
        self.fds += 1;
        self.fds
    }

    pub(crate) fn try_lock(&mut self, ino: Ino, fd: u64, proc: usize, mode: LockMode) -> bool {
        let holders = self.locks.entry(ino).or_default();
        let free = holders.iter().all(|held| {
            held.fd == fd || (held.mode == LockMode::Shared && mode == LockMode::Shared)
        });
        if free {
            holders.retain(|held| held.fd != fd);
            holders.push(Lock { fd, proc, mode });
        }
        let outcome = free;
        self.mix(&("lock", outcome));
        outcome
    }

    pub(crate) fn unlock(&mut self, ino: Ino, fd: u64) {
        self.watch.unlocked(ino, fd);
        if let Some(holders) = self.locks.get_mut(&ino) {
            holders.retain(|held| held.fd != fd);
            if holders.is_empty() {
                self.locks.remove(&ino);
            }
        }
    }

    pub(crate) fn is_locked(&self, ino: Ino) -> bool {
        self.locks.contains_key(&ino)
    }

    pub(super) fn free_locks(&mut self, proc: usize) {
        self.locks.retain(|_, holders| {
            holders.retain(|held| held.proc != proc);
            !holders.is_empty()
        });
    }

    pub(crate) fn is_dead(&self, proc: usize) -> bool {
        self.procs[proc].dead
    }

    pub(crate) fn short_write(&mut self, len: usize) -> usize {
        if len > 1 && self.chaos.is_short() {
            len - 1
        } else if len > 1 && self.scheduled && self.rng.chance(self.chaos.short_write_rate) {
            self.rng.index(len - 1) + 1
        } else {
            len
        }
    }
}

/// A path without what differs between two runs of one seed: the process's own id and count.
pub(super) fn plain(path: &Path) -> String {
    let text = path.to_string_lossy();
    if !text.ends_with(".tmp") && !text.contains("/.probe-") {
        return text.into_owned();
    }
    path.components()
        .map(|part| {
            let part = part.as_os_str().to_string_lossy().into_owned();
            if Path::new(&part).extension().is_some_and(|end| end == "tmp") {
                part.chars().take_while(|letter| *letter != '.').collect()
            } else {
                part
            }
        })
        .collect::<Vec<String>>()
        .join("/")
}
