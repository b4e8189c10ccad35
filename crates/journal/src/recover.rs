//! After a failed sync: what counts is decided once, and the journal goes on elsewhere.
//!
//! V1. A segment whose sync failed is marked with the last frame that is known to be durable. What is
//!     after it was acknowledged to nobody, and never will be.
//! V2. The decision is a checkpoint of the state at that frame, of the next epoch, in force durably
//!     before anybody is told that his frame was dropped. Until then nothing is appended at all.
//! V3. The new epoch goes on in a segment that was made ready for it. Fences stay above every fence
//!     that was ever written, dropped frames included.
//! V4. Doing it again is harmless: whoever finds the mark does what is missing.

use std::io;

use ringfence_engine::{Failure, StorageError};

use crate::checkpoint::{self, Head, Position};
use crate::codec::Malformed;
use crate::journal::{Held, Journal, Which};
use crate::replica::{ReadError, Records, Replica, Tail};
use crate::segment::FIRST_FRAME;

impl Journal {
    /// Begins a new epoch after the frame `durable`, unless somebody did. The append lock is held.
    pub(crate) fn recover(
        &self,
        replica: &mut Replica,
        durable: u64,
        _append: &Held<'_>,
    ) -> Result<(), StorageError> {
        let storage = |failure: Failure| match failure {
            Failure::Untouched(error) => error,
            other => {
                let why = io::Error::other(other.to_string());
                StorageError::new("lock", self.layout.root().display(), why)
            }
        };
        let _sync = self.lock(Which::Sync, self.long()).map_err(storage)?;
        let _maintain = self.lock(Which::Maintain, self.long()).map_err(storage)?;
        let read = |error| self.read_error(error);
        let root = self.layout.root();
        let fail = |source| StorageError::new("begin a new epoch of", root.display(), source);
        let state = self.load(durable).map_err(read)?;
        if state.epoch() != replica.epoch() {
            replica.replace(state);
            return Ok(());
        }
        // A checkpoint has made more durable than the mark knew.
        let durable = durable.max(state.checkpoint.head.base.sequence);
        if state.at.sequence != durable {
            let reason = Malformed("a frame that was acknowledged");
            let (segment, offset) = (state.at.segment, state.at.offset);
            return Err(read(ReadError::Damaged { segment, offset, reason }));
        }
        // V3. Frames that are about to be dropped have fences too.
        let (fs, layout) = (&*self.world.fs, &self.layout);
        let mut all = Replica::load(fs, layout, &self.segments, self.table).map_err(read)?;
        let _: Tail = all.follow(&self.segments, self.table, u64::MAX, false).map_err(read)?;
        let other = 1 - state.slot;
        let mut head = Head {
            base: state.at,
            fence: all.fence.max(state.fence).max(replica.fence),
            ..state.checkpoint.head.clone()
        };
        let ready = self.segments.header(other).map_err(fail)?;
        let next = ready.map_or(0, |header| header.segment).max(state.at.segment) + 1;
        // What the checkpoint goes on in is still needed until a newer one is in force.
        if state.checkpoint.head.base.segment != state.at.segment {
            self.write_checkpoint(&head, state.records())?;
        }
        self.segments.prepare(other, next, self.meta.segment_bytes).map_err(fail)?;
        head.ended.push((head.epoch, durable));
        let chain = self.world.entropy.nonce().map_err(fail)?;
        head.epoch += 1;
        head.base = Position {
            segment: next,
            offset: FIRST_FRAME,
            sequence: durable,
            chain: u64::try_from(chain & u128::from(u64::MAX)).unwrap_or(0),
        };
        self.write_checkpoint(&head, state.records())?;
        self.hints.set_named(head.epoch, durable);
        self.hints.set_durable(head.epoch, durable);
        let fresh = self.load(u64::MAX).map_err(read)?;
        replica.replace(fresh);
        Ok(())
    }

    /// Puts records in force under `head`.
    pub(crate) fn write_checkpoint(
        &self,
        head: &Head,
        records: Records,
    ) -> Result<(), StorageError> {
        let (fs, layout) = (&*self.world.fs, &self.layout);
        checkpoint::write(fs, layout, self.table, head, records)
            .map_err(|error| self.read_error(error.into()))
    }
}
