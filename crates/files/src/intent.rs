//! Group intents: a group of record files changes as one, also across a crash.
//!
//! # Guarantee
//! After a crash or power cut at any point, and after recovery by whoever comes next, a group is
//! wholly old or wholly new; a call that was acknowledged is wholly new.
//!
//! # Invariants
//! I1. *Decision.* A valid, durable intent decides for the new state before the first record
//!     changes. From then on the group's true state is the new one, whatever the records show.
//! I2. *Monotone.* A decision turns once at most, to the old state, by an abort mark that is durable
//!     before the first record is put back. It never turns again.
//! I3. *Retired before return.* An intent is durably retired before the call returns, so it can never
//!     be replayed over newer records. While retiring fails, the intent stays valid and whoever
//!     meets one of its members finishes it first. A retirement that may not be durable yet stays in
//!     sight: whoever meets one of its members makes it durable before he goes on.
//! I4. *Images only.* Recovery changes a record only where its bytes equal one of the intent's two
//!     images, or are what a power cut brought back from before the intent (see the module `recover`:
//!     nothing, or a lease of ours under a fence that was issued before it); anything else is left alone
//!     and reported.
//! I7. *Durable before use.* Nobody acts on an intent that somebody else has written. Recovery writes it
//!     anew, into a slot of its own, before it changes a record: its writer may have died before its
//!     sync, or after one that failed, and then no later sync of the same bytes proves anything. For
//!     the same reason it makes every record as decided anew, also one that looks so, and nobody relies
//!     on the name of a slot that he found empty.
//! I5. *One finisher.* A slot's lock is held by its writer until the intent is retired, or by the one
//!     who recovers it. An intent is finished by others only under that lock, so never while its
//!     writer lives.
//! I6. Nothing empty, cut, zero-filled or half-written is valid: a digest covers the header, another
//!     one the body.
//!
//! # States of a slot
//! ```text
//! Free -[write, sync]-> Committed -[records new, durable]-> [retire, sync] -> Retired -[zeros]-> Free
//!                           \-[abort mark, sync]-> Aborting -[records old, durable]-> [retire] -^
//! ```
//! Whoever finishes a dead writer's intent commits its decision in a slot of his own, retires the dead
//! one's slot, and goes on as if the intent had been his. For a moment both stand, and decide the same.
//!
//! # Bytes of a slot
//! ```text
//!    0  header  magic "RFINTENT", body length, body digest, first 4 bytes of each member's id,
//!               digest of the header; "RFRETIRE" in place of the magic once it is retired
//!  512  abort   magic "RFABORT.", body digest, digest of the two; else zeros
//! 1024  body    table, nonce, kind, token, highest fence issued, and per member: table, id, image before, image after
//! ```
//! Header and abort mark are in sectors of their own: a torn retirement or abort mark cannot spoil
//! the other. Slots are reused in place, so an intent costs one data sync to write and one to retire,
//! and no name is made or removed.
//!
//! The head is written last. Where writing it fails and the slot does not show it, nothing was decided,
//! and nothing can be by what a power cut leaves: no head names the body.
//!
//! A group of one record needs no intent: one rename is atomic. Several records in one shard do need
//! one: their renames are separate entries of the directory, and a power cut keeps any subset.

mod codec;
mod overlay;
mod recover;
mod slot;

pub use codec::{Image, Intent, Kind, Member, Standing};
pub(crate) use overlay::Overlay;
pub(crate) use recover::recover;
pub use recover::{LeftAlone, Recovered};
pub(crate) use slot::{ActiveIntent, is_full, standing_intents};

#[cfg(test)]
mod tests;
