//! Checkpoints, and making the next segment ready, outside of anybody's commit.
//!
//! T1. A checkpoint holds only what is durable in the journal: it is written after a sync.
//! T2. A segment is erased only after a checkpoint that goes on in a later one is in force.
//! T3. Never for an epoch that has ended: the head in force is looked at under the lock.

use std::io;
use std::sync::atomic::Ordering;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::Deadline;

use crate::checkpoint::{Checkpoint, Head};
use crate::commit::Ticket;
use crate::frame::SECTOR;
use crate::journal::{Journal, Which};
use crate::meta::MAX_SEGMENT_BYTES;
use crate::replica::{ReadError, Tail};

/// S6. The checkpoint's bytes by this are what a segment has more than the smallest one.
const SHARE: u64 = 4;
/// S6. By so many steps it becomes twice the smallest one.
const STEPS: u64 = 8;

impl Journal {
    /// Does what is due, if nobody else is at it. Failures matter only once there is no room left.
    pub(crate) fn maintain_if_due(&self) {
        let due = {
            let replica = self.replica();
            replica.at.offset > replica.segment_bytes() / 2
                && self.ready.load(Ordering::Relaxed) <= replica.at.segment
        };
        if due && let Ok(Some(held)) = self.try_lock(Which::Maintain) {
            // Nobody else is at it. The lock is not kept while a sync is waited for.
            drop(held);
            let _ = self.make_room(self.long());
        }
    }

    /// Makes the next segment ready, waiting for whoever is at it.
    pub(crate) fn make_room(&self, deadline: Deadline) -> Result<(), Failure> {
        let root = self.layout.root();
        let fail =
            |source| Failure::Untouched(StorageError::new("make room in", root.display(), source));
        let read = |error: ReadError| Failure::Untouched(self.read_error(error));
        let (head, records) = {
            let mut replica = self.replica();
            if self.catch_up(&mut replica).map_err(read)? != Tail::End {
                return Ok(());
            }
            let head =
                Head { base: replica.at, fence: replica.fence, ..replica.checkpoint.head.clone() };
            (head, replica.records())
        };
        // T1.
        let (epoch, sequence) = (head.epoch, head.base.sequence);
        let ticket = Ticket { epoch, sequence, stored: false, frees: false };
        self.wait_durable(&ticket)?;
        let held = self.lock(Which::Maintain, deadline)?;
        let now = Checkpoint::open(&*self.world.fs, &self.layout, self.table);
        let now = now.map_err(|error| read(error.into()))?.head;
        // T3, and somebody may have been faster.
        if now.epoch != head.epoch || now.base.segment > head.base.segment {
            return Ok(());
        }
        let Some((slot, header)) = self.segments.find(head.base.segment).map_err(fail)? else {
            return Ok(());
        };
        if header.failed_after.is_some() {
            return Ok(());
        }
        let next = self.segments.header(1 - slot).map_err(fail)?;
        if next.is_none_or(|header| header.segment <= head.base.segment) {
            // T2.
            if now.base.segment < head.base.segment {
                self.write_checkpoint(&head, records).map_err(Failure::Untouched)?;
            }
            self.put_in_force_again().map_err(Failure::Untouched)?;
            let number = head.base.segment + 1;
            self.prepare(1 - slot, number).map_err(fail)?;
            self.tell_ready(number)?;
        } else if self.hints.are_shared() && !self.hints.is_ready(head.base.segment + 1) {
            drop(held);
            return self.make_ready_again(head.base.segment + 1, deadline);
        }
        self.ready.store(head.base.segment + 1, Ordering::Relaxed);
        // Whoever holds the replica may be waiting for this lock.
        drop(held);
        // Begins with the checkpoint from now on, so that changes do not pile up.
        let mut replica = self.replica();
        if let Ok(fresh) = self.load(u64::MAX) {
            replica.replace(fresh);
        }
        Ok(())
    }

    /// S4. The segment has its number, but nobody knows whether that is durable. Nobody goes on in it
    /// while the append lock is held, and nobody has: that would have taken what is not known.
    fn make_ready_again(&self, number: u64, deadline: Deadline) -> Result<(), Failure> {
        let root = self.layout.root();
        let fail =
            |source| Failure::Untouched(StorageError::new("make room in", root.display(), source));
        let append = self.lock(Which::Append, deadline)?;
        let mut replica = self.replica();
        self.catch_up_for_writing(&mut replica, &append).map_err(Failure::Untouched)?;
        let _maintain = self.lock(Which::Maintain, deadline)?;
        if replica.at.segment + 1 != number || self.hints.is_ready(number) {
            return Ok(());
        }
        let slot = 1 - replica.slot;
        // What the checkpoint in force goes on in is needed still.
        if self.segments.header(slot).map_err(fail)?.is_some_and(|header| header.segment == number)
        {
            self.prepare(slot, number).map_err(fail)?;
            self.tell_ready(number)?;
        }
        Ok(())
    }

    fn tell_ready(&self, number: u64) -> Result<(), Failure> {
        let told = self.hints.set_ready(number);
        told.then_some(()).ok_or_else(|| Failure::Untouched(self.not_told("tell of a segment in")))
    }

    /// S6. Makes a file ready to be the segment `number`, as large as what the table holds asks for. The
    /// maintain lock is held, and the checkpoint in force is the one that is to be before it.
    pub(crate) fn prepare(&self, slot: usize, number: u64) -> io::Result<()> {
        let least = self.meta.segment_bytes;
        let live = self.world.fs.stat(&self.layout.checkpoint())?.len;
        let step = (least / STEPS).next_multiple_of(SECTOR as u64);
        let more = live / SHARE / step * step;
        let wanted = least.saturating_add(more).min(MAX_SEGMENT_BYTES).max(least);
        self.segments.prepare(slot, number, wanted, least)
    }
}
