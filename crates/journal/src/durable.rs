//! From something appended to something durable: one sync for everybody who has appended.
//!
//! The invariants J1 to J10 are those of [`crate::commit`].

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, RandomFile};

use crate::commit::Ticket;
use crate::hints::{LONGEST_WAIT, SYNC};
use crate::journal::{Held, Journal, Which};
use crate::layout::Layout;
use crate::recover::into_storage;
use crate::replica::{Place, Replica};

/// A leader waits for others as long as half a sync takes, within these limits. The lower one is what
/// eight processes on two processors need to come round.
const GATHER: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(300)..=Duration::from_millis(5);

/// So often it is tried to tell what is durable, with pauses between.
const TELLS: u32 = 8;
const TELL_PAUSE: Duration = Duration::from_millis(2);

/// A wait for others, between two syncs.
struct Turn {
    /// What the one before made durable.
    after: u64,
    until: Deadline,
}

impl Journal {
    /// What is certainly durable.
    pub(crate) fn known_durable(&self, place: &Place) -> u64 {
        let hint = self.hints.durable_here(place.epoch).unwrap_or(0);
        // A hint from beyond the journal is none.
        let hint = if hint > place.at.sequence { 0 } else { hint };
        place.durable.max(hint)
    }

    /// Syncs the journal up to `place`, and tells. `false` if that failed.
    pub(crate) fn sync_all(&self, place: &Place, _sync: &Held<'_>) -> Result<bool, StorageError> {
        let known = self.known_durable(place);
        let before = place.before.map(|segment| (1 - place.slot, segment));
        for (slot, expected) in before.into_iter().chain([(place.slot, place.at.segment)]) {
            let fail =
                |source| StorageError::new("sync", self.layout.segment(slot).display(), source);
            let header = self.segments.header(slot).map_err(fail)?;
            let here = slot == place.slot;
            let header = match header {
                Some(header) if header.segment == expected => header,
                // The one before was made ready again, which took a checkpoint of all of it.
                _ if !here => continue,
                _ => return Ok(false),
            };
            if header.failed_after.is_some() || self.hints.failed(place.epoch).is_some() {
                return Ok(false);
            }
            let began = self.world.clock.monotonic();
            let synced = self.segments.file(slot).and_then(RandomFile::sync_data);
            self.hints.add_sync_time(self.world.clock.monotonic().saturating_sub(began));
            if synced.is_err() {
                // Where others could not have said what is durable, all that is there counts.
                let durable = match self.hints.durable(place.epoch) {
                    Some(hint) => place.durable.max(hint),
                    None => place.at.sequence,
                };
                self.hints.set_failed(place.epoch, durable);
                // V1. The one before first: what is in it is told apart by its mark alone.
                let here = Some((place.slot, place.at.segment));
                for (slot, segment) in before.into_iter().chain(here) {
                    self.segments.end(slot, segment, durable).map_err(fail)?;
                }
                return Ok(false);
            }
        }
        let there = self.hints.appended(place.epoch, place.at.segment).unwrap_or(0);
        let there = there.max(place.at.sequence);
        self.hints.set_expected(there.saturating_sub(known));
        self.tell_durable(place)?;
        Ok(true)
    }

    /// H5. What was just synced is told, or not acknowledged. The room that a frame took for a moment is
    /// given back about when it is on the medium.
    fn tell_durable(&self, place: &Place) -> Result<(), StorageError> {
        for _ in 0..TELLS {
            if self.hints.set_durable(place.epoch, place.at.sequence) {
                return Ok(());
            }
            self.world.clock.sleep(TELL_PAUSE);
        }
        Err(self.not_told("tell what is durable in"))
    }

    /// Returns once the frame is durable: by a sync of ours or of somebody else.
    pub(crate) fn wait_durable(&self, ticket: &Ticket) -> Result<(), Failure> {
        if !self.vouched.load(Ordering::SeqCst) {
            let held = self.lock(Which::Append, self.long())?;
            let mut replica = self.replica();
            self.catch_up_for_writing(&mut replica, &held).map_err(Failure::Untouched)?;
        }
        let place = self.replica().place();
        if place.epoch != ticket.epoch || place.at.sequence < ticket.sequence {
            return self.look_again(ticket);
        }
        let deadline = self.long();
        let mut turn = None;
        loop {
            let seen = self.hints.seen(SYNC);
            let durable = self.hints.durable_here(ticket.epoch);
            if durable.is_some_and(|to| to >= ticket.sequence) {
                return Ok(());
            }
            let left = self.world.clock.left(deadline);
            if let Some(gathers) = self.gather(&place, durable.unwrap_or(0), &mut turn) {
                self.hints.wait(SYNC, seen, gathers.min(left));
                continue;
            }
            let sync = self.try_lock(Which::Sync).map_err(|error| unknown(&self.layout, error))?;
            if let Some(sync) = sync {
                return self.lead(ticket, place, sync);
            }
            if left.is_zero() {
                let why = io::Error::from(io::ErrorKind::TimedOut);
                return Err(unknown(&self.layout, StorageError::new("sync", "the journal", why)));
            }
            self.hints.wait(SYNC, seen, left);
        }
    }

    /// Syncs for everybody who has appended.
    fn lead(&self, ticket: &Ticket, mut place: Place, sync: Held<'_>) -> Result<(), Failure> {
        let durable = self.hints.durable_here(ticket.epoch);
        if durable.is_some_and(|to| to >= ticket.sequence) {
            return Ok(());
        }
        // What others have appended to this segment is covered too. H2: it was whole before they told,
        // and to read all of it first would keep everybody waiting.
        if let Some(there) = self.hints.appended(place.epoch, place.at.segment) {
            place.at.sequence = place.at.sequence.max(there);
        }
        match self.sync_all(&place, &sync) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(unknown(&self.layout, error)),
        }
        drop(sync);
        self.look_again(ticket)
    }

    /// The sync failed, for us or for somebody before us: what counts is decided, once, for all.
    fn look_again(&self, ticket: &Ticket) -> Result<(), Failure> {
        let held = match self.lock(Which::Append, self.long()) {
            Ok(held) => held,
            Err(failure) => return Err(unknown(&self.layout, into_storage(failure))),
        };
        let mut replica = self.replica();
        match self.catch_up_for_writing(&mut replica, &held) {
            Ok(_) => self.fate(&replica, ticket),
            Err(error) => Err(unknown(&self.layout, error)),
        }
    }

    /// How long to wait for everybody who was at it lately: those whose frames the last sync covered come
    /// back with their next ones, and to sync without them would mean two syncs in turn for two halves.
    /// Not at all when alone, or once all are there: whoever came last syncs, and nobody is woken for it.
    fn gather(&self, place: &Place, durable: u64, turn: &mut Option<Turn>) -> Option<Duration> {
        let expected = self.hints.expected();
        let there = || self.hints.appended(place.epoch, place.at.segment).unwrap_or(0);
        if expected < 2 || there() >= durable.saturating_add(expected) {
            return None;
        }
        let until = match turn {
            Some(turn) if turn.after == durable => turn.until,
            _ => {
                let sync = self.hints.sync_time();
                let longest = (sync / 2).clamp(*GATHER.start(), *GATHER.end());
                // One is enough to see that somebody does not come; the others see whether that one is gone.
                let goes_first = !self.hints.gathers(durable);
                let longest = if goes_first { longest } else { LONGEST_WAIT + longest * 2 };
                let until = self.world.clock.deadline(longest);
                turn.insert(Turn { after: durable, until }).until
            }
        };
        Some(self.world.clock.left(until)).filter(|left| !left.is_zero())
    }

    /// What became of a frame of an earlier epoch.
    fn fate(&self, replica: &Replica, ticket: &Ticket) -> Result<(), Failure> {
        let ended = &replica.checkpoint.head.ended;
        let end = ended.iter().find(|(epoch, _)| *epoch == ticket.epoch).map(|(_, end)| *end);
        let dropped = || {
            let why =
                io::Error::other("a sync failed, and what it should have covered was dropped");
            StorageError::new("sync", self.layout.root().display(), why)
        };
        match end {
            Some(end) if ticket.sequence <= end => Ok(()),
            Some(_) => Err(Failure::Restored(dropped())),
            // Its segment was made ready for another number, which took a checkpoint of it.
            None if replica.epoch() == ticket.epoch
                && replica.checkpoint.head.base.sequence >= ticket.sequence =>
            {
                Ok(())
            }
            None => Err(unknown(&self.layout, dropped())),
        }
    }
}

/// A failure after which nobody can say what counts.
fn unknown(layout: &Layout, source: StorageError) -> Failure {
    let why = io::Error::other("nothing could be put back");
    let restore = StorageError::new("decide", "what counts", why);
    Failure::Unknown { source, restore, members: vec![layout.root().display().to_string()] }
}

#[cfg(test)]
mod tests;
