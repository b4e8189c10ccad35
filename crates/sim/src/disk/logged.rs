//! What is durable, what is seen, and the changes in between.

use std::ffi::OsString;
use std::sync::Arc;

use super::{Ino, Names};

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A power cut may lose it; the next sync makes it durable.
    Pending,
    /// Its sync failed: a power cut may lose it for ever.
    Stuck,
    /// Survives a power cut; it is in the log because something before it may not.
    Durable,
}

/// One change of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataChange {
    /// Bytes written at an offset.
    Write {
        /// Where.
        at: usize,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// Cut or extended to this length.
    SetLen(usize),
}

/// One change of a directory's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// The name now stands for this.
    Set(OsString, Ino),
    /// The name is gone.
    Remove(OsString),
    /// The name moved within the directory, over whatever had the second name.
    Move(OsString, OsString, Ino),
}

/// What is durable, what is seen, and the changes in between.
#[derive(Clone, Debug)]
pub struct Logged<T, C> {
    /// Survives a power cut.
    pub base: Arc<T>,
    /// What programs see.
    pub now: Arc<T>,
    /// From the one to the other, in order.
    pub log: Vec<(C, Fate)>,
    /// How many changes have left the log.
    pub(super) settled: u64,
}

/// A change that can be applied to what it changes.
pub trait Change<T> {
    /// Applies it.
    fn apply(&self, to: &mut T);
}

impl Change<Vec<u8>> for DataChange {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => to.resize(*len, 0),
            Self::Write { at, bytes } => {
                if to.len() < at + bytes.len() {
                    to.resize(at + bytes.len(), 0);
                }
                to[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

impl Change<Names> for NameChange {
    fn apply(&self, to: &mut Names) {
        match self {
            Self::Set(name, ino) => {
                to.insert(name.clone(), *ino);
            }
            Self::Remove(name) => {
                to.remove(name);
            }
            Self::Move(from, name, ino) => {
                to.remove(from);
                to.insert(name.clone(), *ino);
            }
        }
    }
}

impl<T: Clone, C: Change<T>> Logged<T, C> {
    /// Durable as it stands.
    pub fn durable(content: T) -> Self {
        let base = Arc::new(content);
        Self { now: Arc::clone(&base), base, log: Vec::new(), settled: 0 }
    }

    pub(super) fn push(&mut self, change: C) {
        change.apply(Arc::make_mut(&mut self.now));
        self.log.push((change, Fate::Pending));
    }

    /// Names all changes so far, for a sync that begins now.
    pub(super) fn mark(&self) -> u64 {
        self.settled + self.log.len() as u64
    }

    /// A sync that began at `mark` succeeded, or failed. It covers nothing that came after.
    pub(super) fn sync(&mut self, mark: u64, succeeded: bool) {
        let covered = usize::try_from(mark.saturating_sub(self.settled)).unwrap_or(usize::MAX);
        for (_, fate) in self.log.iter_mut().take(covered) {
            if *fate == Fate::Pending {
                *fate = if succeeded { Fate::Durable } else { Fate::Stuck };
            }
        }
        // What is durable from the start of the log on belongs to the base.
        let settled = self.log.iter().take_while(|(_, fate)| *fate == Fate::Durable).count();
        self.settled += settled as u64;
        if settled == self.log.len() {
            self.base = Arc::clone(&self.now);
            self.log.clear();
        } else if settled > 0 {
            let base = Arc::make_mut(&mut self.base);
            for (change, _) in self.log.drain(..settled) {
                change.apply(base);
            }
        }
    }

    /// Which changes a power cut may lose, by number, and how.
    pub(super) fn risk(&self) -> Vec<(u64, bool)> {
        let numbered = (self.settled..).zip(&self.log);
        let at_risk = numbered.filter(|(_, (_, fate))| *fate != Fate::Durable);
        at_risk.map(|(number, (_, fate))| (number, *fate == Fate::Stuck)).collect()
    }

    /// How many changes a power cut may lose.
    pub fn at_risk(&self) -> usize {
        self.log.iter().filter(|(_, fate)| *fate != Fate::Durable).count()
    }
}
