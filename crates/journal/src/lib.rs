//! The journal engine: one host, one file that is appended to, one sync for all who commit at once.
//!
//! # Guarantee
//! A call is one frame: after a crash or a power cut it is there whole or not at all, and if it was
//! acknowledged it is there. A refused call changes nothing. A call whose sync failed is dropped for
//! everybody, durably, before its caller is told so, or its outcome is called unknown.
//!
//! # Invariants
//! | | | kept by |
//! |---|---|---|
//! | J1 | nothing is acknowledged before a sync that began after its frame was whole | [`commit`] |
//! | J2 | whatever a decision rests on is durable when the decision is acknowledged | [`commit`]: one file, one order |
//! | J3 | the first frame of a segment comes after everything before it is durable | [`commit`] |
//! | J4 | a failed sync is final; what counts is decided once, by the next checkpoint's head | [`recover`] |
//! | J5 | no sync counts for bytes that were written before its file was opened | [`recover`]: the checkpoint that ends their epoch does |
//! | J6 | bytes that an acknowledged frame is in are never written again | [`frame`]: frames end on sectors |
//! | J7 | a checkpoint holds only what is durable or ends an epoch, and is in force durably before a segment it replaces is erased | [`maintain`] |
//! | J8 | hints decide nothing that the files do not, but that a sync has failed whose mark could not be written | [`hints`] |
//! | J9 | a torn tail is cut; what was acknowledged and does not read is damage, reported and left alone | [`replica`] |
//! | J10 | no fence is put into a token twice | [`commit`], [`hints`] |
//!
//! # States of a transaction
//! ```text
//! Idle -[look]-> Viewed -[decide]-> Decided -[append]-> Appended -[wait_durable]-> Done
//!   \ Untouched       \ Refused      |  \ Busy             \ failed sync -[recover]-> Restored
//!                       <-[stale]----+                                       \------> Unknown
//! ```
//! A rule decides without any lock. Under the append lock the keys it looked at are looked at again;
//! if one has changed the rule decides anew. So a rule that takes long, or a process that is stopped
//! while it decides, holds nobody up.
//!
//! # Layout
//! ```text
//! ROOT/table.json       what the table is; created once
//! ROOT/checkpoint       the state after some frame, sorted; replaced by rename
//! ROOT/journal.0 .1     the segments: frames after the checkpoint, in turn
//! ROOT/hints            memory shared by the processes of one boot; never synced
//! ROOT/*.lock           kernel locks: append, sync, maintain
//! ROOT/lives/ID.lock    kept by a process as long as it lives, if leases are tied to that
//! ROOT/audit.log        one line per force-release
//! ROOT/moved            where a closed table went; a sector over a segment's header says that it counts
//! ```

pub mod audit;
pub mod binding;
pub mod changed;
pub mod check;
pub mod checkpoint;
pub mod codec;
pub mod commit;
pub mod dump;
mod durable;
mod each;
pub mod engine;
pub mod frame;
pub mod hints;
pub mod journal;
pub mod layout;
pub mod lives;
mod look;
pub mod maintain;
pub mod meta;
pub mod moving;
pub mod open;
mod queue;
pub mod recover;
pub mod replica;
pub mod room;
pub mod segment;
mod sync;

pub use engine::JournalEngine;
pub use open::{InitError, InitOptions, OpenError};
