//! What the host can see of intents: which stand, whose they are, who finishes them.
//!
//! It knows the files engine only by the names and first bytes of its slots. A process that writes an
//! intent while it holds the lock of another slot, in which one stands that it has not written, is
//! finishing that one: it has written it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::coverage::{Coverage, Event};
use crate::disk::{Body, Disk, Ino};

/// An intent that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    writer: Writer,
    aborted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Alive(usize),
    Killed,
    /// From before a power cut.
    Gone,
}

/// Who holds a slot's lock, and whether it has written into the slot since.
#[derive(Clone, Copy, Debug)]
struct Held {
    proc: usize,
    fd: u64,
    wrote: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    standing: BTreeMap<Ino, Standing>,
    held: BTreeMap<Ino, Held>,
    recovering: BTreeMap<Ino, usize>,
    readers: BTreeSet<usize>,
    pub(crate) coverage: Coverage,
}

const MAGIC: &[u8] = b"RFINTENT";
const ABORT_AT: usize = 512;
const ABORT_MAGIC: &[u8] = b"RFABORT.";

/// Whether an intent stands on a disk over the record whose id begins with these bytes.
pub(crate) fn has_intent(disk: &Disk, id: [u8; 4]) -> bool {
    let covers = |bytes: &[u8]| {
        let count = bytes.get(48..52).map_or(0, |count| usize::from(count[0]));
        bytes.get(52..52 + 4 * count).is_some_and(|ids| ids.chunks(4).any(|named| named == id))
    };
    let stands = |path: &Path, bytes: &[u8]| is_slot(path) && bytes.starts_with(MAGIC);
    disk.tree().iter().any(|(path, bytes)| stands(path, bytes) && covers(bytes))
}

/// Whether a path is that of a slot.
pub(crate) fn is_slot(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|dir| dir == "intents")
}

fn aborted(bytes: &[u8]) -> bool {
    bytes.get(ABORT_AT..).is_some_and(|mark| mark.starts_with(ABORT_MAGIC))
}

impl Watch {
    pub(crate) fn note(&mut self, event: Event) {
        self.coverage.note(event);
    }

    /// Whether a process that was killed left an intent that nobody has finished yet.
    pub(crate) fn has_orphan(&self) -> bool {
        self.standing.values().any(|standing| standing.writer == Writer::Killed)
    }

    /// Intents whose processes live.
    pub(crate) fn living(&self) -> u32 {
        let alive =
            self.standing.values().filter(|standing| matches!(standing.writer, Writer::Alive(_)));
        u32::try_from(alive.count()).unwrap_or(u32::MAX)
    }

    /// Whether an intent waits to be finished by others, or is being finished.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.standing.values().any(|standing| !matches!(standing.writer, Writer::Alive(_)))
    }

    pub(crate) fn is_recovering(&self, proc: usize) -> bool {
        self.recovering.values().any(|other| *other == proc)
    }

    pub(crate) fn is_anybody_recovering(&self) -> bool {
        !self.recovering.is_empty()
    }

    pub(crate) fn has_own_intent(&self, proc: usize) -> bool {
        self.standing.values().any(|standing| standing.writer == Writer::Alive(proc))
    }

    pub(crate) fn set_reading(&mut self, proc: usize, reading: bool) {
        if reading {
            self.readers.insert(proc);
        } else {
            self.readers.remove(&proc);
        }
    }

    /// A slot's bytes were changed.
    pub(crate) fn wrote(&mut self, proc: usize, ino: Ino, bytes: &[u8]) {
        if let Some(held) = self.held.get_mut(&ino).filter(|held| held.proc == proc) {
            held.wrote = true;
        }
        if !bytes.starts_with(MAGIC) {
            self.standing.remove(&ino);
            return;
        }
        if !self.standing.contains_key(&ino) {
            self.begins(proc);
        }
        let known = self.standing.get(&ino).copied();
        let aborted = aborted(bytes);
        if known.is_some_and(|known| !known.aborted) && aborted {
            self.note(Event::Abort);
        }
        let writer = known.map_or(Writer::Alive(proc), |known| known.writer);
        self.standing.insert(ino, Standing { writer, aborted });
    }

    /// A slot was read, whole.
    pub(crate) fn read(&mut self, proc: usize, ino: Ino) {
        if self.readers.contains(&proc) && self.standing.contains_key(&ino) {
            self.note(Event::ReaderMeetsIntent);
            if self.recovering.contains_key(&ino) {
                self.note(Event::ReaderMeetsRecovery);
            }
        }
    }

    /// A slot's lock was asked for.
    pub(crate) fn asked(&mut self, proc: usize, ino: Ino, fd: u64, got: bool) {
        if got {
            self.held.insert(ino, Held { proc, fd, wrote: false });
        } else if self.recovering.get(&ino).is_some_and(|other| *other != proc) {
            self.note(Event::RecoverersMeet);
        }
    }

    /// A slot's lock was given up.
    pub(crate) fn unlocked(&mut self, ino: Ino, fd: u64) {
        if self.held.get(&ino).is_some_and(|held| held.fd == fd) {
            self.held.remove(&ino);
            self.recovering.remove(&ino);
        }
    }

    /// A process writes an intent; perhaps that of another one, anew.
    fn begins(&mut self, proc: usize) {
        let found = self.held.iter().find_map(|(ino, held)| {
            let standing = self.standing.get(ino).filter(|_| held.proc == proc && !held.wrote)?;
            Some((*ino, *standing))
        });
        let Some((ino, standing)) = found else { return };
        self.note(Event::Recovery);
        if standing.aborted {
            self.note(Event::RecoveryOfAbort);
        }
        if self.recovering.values().any(|other| *other != proc) {
            self.note(Event::RecoverersTogether);
        }
        self.recovering.insert(ino, proc);
    }

    /// A process dies.
    pub(crate) fn killed(&mut self, proc: usize) {
        self.note(Event::Kill);
        if self.has_own_intent(proc) {
            self.note(Event::KillWithIntent);
        }
        if self.is_recovering(proc) {
            self.note(Event::KillInRecovery);
        }
        for standing in self.standing.values_mut() {
            if standing.writer == Writer::Alive(proc) {
                standing.writer = Writer::Killed;
            }
        }
        self.held.retain(|_, held| held.proc != proc);
        self.recovering.retain(|_, other| *other != proc);
        self.readers.remove(&proc);
    }

    /// The power was cut; this is what is left.
    pub(crate) fn cut(&mut self, left: &Disk) {
        self.note(Event::Cut);
        if self.living() > 0 {
            self.note(Event::CutWithIntent);
        }
        if self.has_orphan() {
            self.note(Event::KillThenCut);
        }
        if self.is_anybody_recovering() {
            self.note(Event::CutInRecovery);
        }
        let coverage = std::mem::take(&mut self.coverage);
        *self = Self { coverage, ..Self::default() };
        for (ino, inode) in &left.inodes {
            if let Body::File(data) = &inode.body
                && data.now.starts_with(MAGIC)
            {
                let aborted = aborted(&data.now);
                self.standing.insert(*ino, Standing { writer: Writer::Gone, aborted });
            }
        }
    }
}
