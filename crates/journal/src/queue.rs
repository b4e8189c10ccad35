//! The queue of those who wait for a group, in the memory that the processes of one boot share.
//!
//! Q1. Who came first is served first, for every key by itself: whoever wants a key that somebody
//!     before him waits for lets him go first, also while that key is free. So a waiter for 64 targets
//!     is not starved by claims of single ones; he holds nothing while he waits.
//! Q2. A place holds nobody up when its owner is gone: it names a life ([`crate::lives`]) that ends with
//!     the process, and where that cannot be judged it ends a ttl after its owner last looked at it.
//! Q3. The queue decides nothing but who waits. Whatever is in these words, a claim is granted or
//!     refused by the frames; with the words gone or full a waiter looks now and then.
//! Q4. Who waits sleeps on a word that every call which frees something raises once it is durable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Failure, Place, StorageError};
use ringfence_env::{FileLock, LockMode};
use ringfence_model::{Key, Space};

use crate::hints::{FREED, Seat};
use crate::journal::{Journal, Which};
use crate::layout::FILE_MODE;
use crate::lives;

/// Who cannot take a place within this time waits without one.
const LONGEST_JOINING: Duration = Duration::from_millis(100);

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    journal: Arc<Journal>,
    /// None where there was no room: then everybody goes first, and luck decides.
    seat: Option<(usize, Seat)>,
    /// Kept as long as the place.
    _life: Option<FileLock>,
    life: Option<String>,
}

impl Journal {
    /// Takes a place behind everybody who waits by now.
    pub(crate) fn queue(self: &Arc<Self>, keys: &[Key]) -> Result<Waiting, StorageError> {
        let (life, lock) = match self.begin_waiting() {
            Ok((life, lock)) => (Some(life), Some(lock)),
            // The ttl judges then.
            Err(_) => (None, None),
        };
        let mut waiting =
            Waiting { journal: Arc::clone(self), seat: None, _life: lock, life: life.clone() };
        // Whoever stopped while he held it may not take the patience of those who only wait.
        let soon = self.world.clock.deadline(LONGEST_JOINING);
        let held = match self.lock(Which::Append, soon) {
            Ok(held) => held,
            Err(Failure::Busy { .. }) => return Ok(waiting),
            Err(failure) => return Err(crate::recover::into_storage(failure)),
        };
        for at in 0..self.hints.seats() {
            if let Some(gone) = self.hints.seat(at).filter(|other| !self.is_waiting(other)) {
                self.hints.clear_seat(at, &gone);
            }
        }
        // Where there is no memory for a place, as where none is free.
        let Some(ticket) = self.hints.next_ticket() else { return Ok(waiting) };
        let seat = Seat {
            ticket,
            stamp: self.milliseconds(),
            life: life.as_deref().and_then(lives::numbers).unwrap_or_default(),
            keys: keys.iter().map(word).collect(),
        };
        let free = (0..self.hints.seats()).find(|&at| self.hints.seat(at).is_none());
        if let Some(at) = free.filter(|_| seat.fits())
            && self.hints.set_seat(at, &seat)
        {
            waiting.seat = Some((at, seat));
        }
        drop(held);
        // Whoever died while he waited left his file behind.
        let _ = self.clear_lives();
        Ok(waiting)
    }

    /// How many wait for one of `keys`, of those who came before `ticket`.
    pub(crate) fn waiting_before(&self, keys: &[u64], ticket: u64) -> usize {
        if !self.hints.has_queued() {
            return 0;
        }
        let seats = (0..self.hints.seats()).filter_map(|at| self.hints.seat(at));
        seats
            .filter(|other| other.ticket < ticket)
            .filter(|other| other.keys.iter().any(|key| keys.contains(key)))
            .filter(|other| self.is_waiting(other))
            .count()
    }

    /// Lives that places in the queue name: their ends must stay provable.
    pub(crate) fn waiting_lives(&self) -> BTreeSet<Arc<str>> {
        let seats = (0..self.hints.seats()).filter_map(|at| self.hints.seat(at));
        seats.filter_map(|seat| lives::name(seat.life)).map(Arc::from).collect()
    }

    /// Q2.
    fn is_waiting(&self, seat: &Seat) -> bool {
        let age = self.milliseconds().checked_sub(seat.stamp);
        let fresh = age.is_some_and(|age| u128::from(age) <= self.meta.ttl.duration().as_millis());
        fresh && !lives::name(seat.life).is_some_and(|life| self.has_ended(&life.into()))
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.world.clock.boottime().as_millis()).unwrap_or(u64::MAX)
    }

    /// A life of this place alone, so that it ends with it.
    fn begin_waiting(&self) -> Result<(String, FileLock), StorageError> {
        let dir = self.layout.lives();
        let fail = |source| StorageError::new("wait in", dir.display(), source);
        let id = lives::new_name(&self.world).map_err(fail)?;
        let (fs, clock) = (&*self.world.fs, &*self.world.clock);
        let now = clock.deadline(Duration::ZERO);
        let path = self.layout.life(&id);
        let lock = FileLock::acquire(fs, clock, &path, LockMode::Exclusive, Some(FILE_MODE), now)
            .map_err(|error| fail(std::io::Error::other(error.to_string())))?;
        Ok((id, lock))
    }
}

/// What stands for a key: two keys with one word only wait for each other once in a while.
pub(crate) fn word(key: &Key) -> u64 {
    let bytes = key.id.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(bytes) ^ u64::from(key.space == Space::Work)
}

impl Place for Waiting {
    fn seen(&self) -> u64 {
        self.journal.hints.seen(FREED)
    }

    fn is_first(&self) -> bool {
        let Some((at, seat)) = &self.seat else { return true };
        self.journal.hints.set_stamp(*at, self.journal.milliseconds());
        self.journal.waiting_before(&seat.keys, seat.ticket) == 0
    }

    fn wait(&self, seen: u64, longest: Duration) {
        self.journal.hints.wait_long(FREED, seen, longest);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((at, seat)) = &self.seat {
            self.journal.hints.clear_seat(*at, seat);
            self.journal.hints.tell(FREED, true);
        }
        if let Some(life) = &self.life {
            let _ = self.journal.world.fs.unlink(&self.journal.layout.life(life));
        }
    }
}
