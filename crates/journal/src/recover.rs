//! Ending an epoch: what counts is decided once, and the journal goes on elsewhere.
//!
//! An epoch ends when a sync has failed, or when there are frames of which nobody can say any more
//! whether they are durable: those of writers that died, and all there is after a boot.
//!
//! V1. A segment that frames of a failed sync are in is marked with the last frame that counts. What is
//!     after it was acknowledged to nobody, and never will be: whoever leads a sync looks for the mark.
//!     Shared memory says the same, for the case that the mark cannot be written either.
//! V2. The decision is one checkpoint of the state at that frame, in force durably before anybody is
//!     told what became of his frame. It is *closed*: it goes on in no segment, so nothing that the
//!     segments hold or lose matters any more. Until the journal is reopened nothing is appended.
//! V3. It is reopened by a second checkpoint, of the same state, that goes on in a segment which was
//!     made ready for it, under a number that was never used.
//! V4. Fences stay above every fence that was ever written, dropped frames included, and above every
//!     one that may have been put into a token and lost.
//! V5. Doing it again is harmless: whoever finds a mark or a closed checkpoint does what is missing.

use std::io;
use std::sync::atomic::Ordering;

use ringfence_engine::{Failure, StorageError};

use crate::checkpoint::{self, Position};
use crate::codec::Malformed;
use crate::frame::SECTOR;
use crate::hints::FREED;
use crate::journal::{Held, Journal, Which};
use crate::layout::SLOTS;
use crate::replica::{Follow, ReadError, Records, Replica, Tail};
use crate::segment::FIRST_FRAME;

/// What of an epoch counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counts {
    /// Frames up to this one: a sync of later ones failed.
    UpTo(u64),
    /// Every frame that is there.
    All,
}

impl Journal {
    /// V1, V2: ends the epoch of the replica, unless somebody did. The append lock is held.
    pub(crate) fn close(
        &self,
        replica: &mut Replica,
        counts: Counts,
        _append: &Held<'_>,
    ) -> Result<(), StorageError> {
        let _sync = self.lock(Which::Sync, self.long()).map_err(into_storage)?;
        let _maintain = self.lock(Which::Maintain, self.long()).map_err(into_storage)?;
        let read = |error| self.read_error(error);
        let root = self.layout.root();
        let fail = |source| StorageError::new("end an epoch of", root.display(), source);
        let until = match counts {
            Counts::UpTo(durable) => durable,
            Counts::All => u64::MAX,
        };
        let state = self.load(until).map_err(read)?;
        if state.epoch() != replica.epoch() {
            replica.replace(state);
            return Ok(());
        }
        let last = match counts {
            // A checkpoint has made more durable than the mark knew.
            Counts::UpTo(durable) => durable.max(state.checkpoint.head.base.sequence),
            Counts::All => state.at.sequence,
        };
        // Without the name of the boot, a mark may be from before a power cut.
        let last = if self.hints.are_shared() { last } else { state.at.sequence };
        if state.at.sequence != last {
            let reason = Malformed("a frame that was acknowledged");
            let (segment, offset) = (state.at.segment, state.at.offset);
            return Err(read(ReadError::Damaged { segment, offset, reason }));
        }
        if let Counts::All = counts {
            self.segments.end(state.slot, state.at.segment, last).map_err(fail)?;
        }
        // V4. Frames that are about to be dropped have fences too.
        let (fs, layout) = (&*self.world.fs, &self.layout);
        let mut all = Replica::load(fs, layout, &self.segments, self.table).map_err(read)?;
        let _: Tail = all.follow(&self.segments, self.table, Follow::default()).map_err(read)?;
        let fence = all.fence.max(state.fence).max(replica.fence);
        // What was never durable is in one segment at most, and each fence had a frame of its own.
        let lost = self.segments.longest().map_err(fail)? / SECTOR as u64;
        let fence = fence.max(self.hints.issued().unwrap_or(fence.saturating_add(lost)));
        let mut head = state.checkpoint.head.clone();
        head.ended.push((head.epoch, last));
        head.epoch += 1;
        head.fence = fence;
        let segment = self.newest_segment().map_err(fail)?.max(state.at.segment);
        head.base = Position { segment, offset: 0, sequence: last, chain: 0 };
        self.write_checkpoint(&head, state.records())?;
        // The checkpoint holds it too.
        let _: bool = self.hints.set_issued(fence);
        // A grant may have been dropped.
        self.hints.tell(FREED, true);
        replica.replace(self.load(u64::MAX).map_err(read)?);
        replica.suspect = 0;
        Ok(())
    }

    /// V3: goes on after a closed checkpoint, unless somebody did. The append lock is held.
    pub(crate) fn reopen(
        &self,
        replica: &mut Replica,
        _append: &Held<'_>,
    ) -> Result<(), StorageError> {
        let _sync = self.lock(Which::Sync, self.long()).map_err(into_storage)?;
        let _maintain = self.lock(Which::Maintain, self.long()).map_err(into_storage)?;
        let read = |error| self.read_error(error);
        let root = self.layout.root();
        let fail = |source| StorageError::new("begin a new epoch of", root.display(), source);
        let state = self.load(u64::MAX).map_err(read)?;
        if state.is_closed() {
            self.put_in_force_again()?;
            let mut head = state.checkpoint.head.clone();
            let number = self.newest_segment().map_err(fail)?.max(head.base.segment) + 1;
            let slot = usize::try_from(number).unwrap_or(0) % SLOTS;
            self.prepare(slot, number).map_err(fail)?;
            let chain = self.world.entropy.nonce().map_err(fail)?;
            let chain = u64::try_from(chain & u128::from(u64::MAX)).unwrap_or(0);
            head.base = Position { segment: number, offset: FIRST_FRAME, chain, ..head.base };
            self.write_checkpoint(&head, state.records())?;
            // The checkpoint says so too.
            let _: bool = self.hints.set_durable(head.epoch, head.base.sequence);
        }
        replica.replace(self.load(u64::MAX).map_err(read)?);
        replica.suspect = 0;
        self.vouched.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The highest number that a segment has.
    fn newest_segment(&self) -> io::Result<u64> {
        let numbers = (0..SLOTS).map(|slot| self.segments.header(slot));
        let numbers = numbers.map(|header| Ok(header?.map_or(0, |header| header.segment)));
        let numbers = numbers.collect::<io::Result<Vec<u64>>>()?;
        Ok(numbers.into_iter().max().unwrap_or(0))
    }

    /// Makes sure that the checkpoint which decides what counts is in force after a power cut. Whoever
    /// renamed it may have died before he synced the directory; or that sync failed, and then no later
    /// one counts for the same name. So it is written anew. The maintain lock is held.
    pub(crate) fn put_in_force_again(&self) -> Result<(), StorageError> {
        let (fs, layout) = (&*self.world.fs, &self.layout);
        let state = Replica::load(fs, layout, &self.segments, self.table);
        let state = state.map_err(|error| self.read_error(error))?;
        let head = &state.checkpoint.head;
        if self.hints.is_named(head) {
            return Ok(());
        }
        self.write_checkpoint(head, state.records())
    }

    /// Puts records in force under `head`, durably. The maintain lock is held.
    pub(crate) fn write_checkpoint(
        &self,
        head: &checkpoint::Head,
        records: Records,
    ) -> Result<(), StorageError> {
        let (fs, layout) = (&*self.world.fs, &self.layout);
        checkpoint::write(fs, layout, self.table, head, records)
            .map_err(|error| self.not_written(error))?;
        self.hints.set_named(head);
        Ok(())
    }
}

/// The storage error within a failure.
pub(crate) fn into_storage(failure: Failure) -> StorageError {
    match failure {
        Failure::Untouched(error) | Failure::Restored(error) => error,
        Failure::Unknown { source, .. } => source,
        other => StorageError::new("lock", "the journal", io::Error::other(other.to_string())),
    }
}
