//! The files engine: one record per file, shared with the other programs of this line.
//!
//! # Guarantee
//! A group is claimed, renewed and released as one unit. A refused call changes nothing; a call
//! whose failure was detected puts back exactly what was there, or says that it could not. Done
//! means durable. A crash in the middle of a call leaves each record old or new, never torn, and
//! never a false success. In a table of durability `group` it also leaves the group wholly old or
//! wholly new, see [`intent`]; in one of durability `record` part of it may be new.
//!
//! # Invariants
//! | | | kept by | guarded by the test |
//! |---|---|---|---|
//! | M1 | overlapping groups cannot deadlock | [`locks`]: every lock in id order | `m1_..` |
//! | M2 | a refused release removes nothing | [`engine`]: decide before the first unlink | `m2_..` |
//! | M3 | a claim that cannot be serialised publishes nothing | [`engine`]: lines before [`mutate`] | `m3_..` |
//! | M4 | a record's bytes are durable before its name points at them | [`mutate`]: sync, then rename | `m4_..` |
//! | M5 | mutations in one shard share one directory sync | [`batch`]: ordered set of directories | `m5_..` |
//! | M6 | success is reported only after every touched directory was synced | [`mutate`] | `m6_..` |
//! | M7 | a detected failure puts back the exact previous bytes | [`mutate`]: snapshots kept under the locks | `m7_..` |
//! | M8 | what is put back is durable too | [`mutate`]: a second flush | `m8_..` |
//! | M9 | a batch never crosses directories | [`batch`]: refused before the rename | `m9_..` |
//!
//! # States of a transaction
//! ```text
//! Idle -[lock_all]-> Locked -[read, decide]-> Prepared -[stage, intend]-> Decided
//!        \ Busy          \ Refused                  \ Untouched
//! Decided -[publish]-> Applied -[flush]-> Durable -[retire]-> Done
//!             \---------- any failure: abort, undo, retire -> Restored | Unknown
//! ```
//!
//! # Layout
//! ```text
//! ROOT/table.json             what the table is; created once
//! ROOT/fence  fence.next      the fence counter: durable limit, volatile position;
//!      fence.mark             what tells the position from a copy
//! ROOT/intents/N.slot         intents of groups that are being changed (durability `group`)
//! ROOT/gate.lock              shared by every operation, exclusive for repair
//! ROOT/shards.making          names the directories that repair is making again
//! ROOT/moved                  where a closed table went; `shards.making` stands beside it
//! ROOT/audit.log              one line per force-release
//! ROOT/SSS/ID.json            a record;  ID.json.lock its stable lock file;  *.tmp temporaries
//! ROOT/work/SSS/ID.json       the same for work items
//! ```

pub mod audit;
pub mod batch;
pub mod binding;
pub mod check;
mod digest;
pub mod engine;
pub mod fence;
pub mod intent;
pub mod layout;
pub mod locks;
mod make;
pub mod meta;
pub mod moving;
pub mod mutate;
pub mod open;
pub mod probe;
pub mod read;
pub mod scan;

pub use binding::Restored;
pub use check::{CheckError, CheckReport, Finding, Repair};
pub use engine::FilesEngine;
pub use intent::{LeftAlone, Recovered};
pub use meta::{Durability, TableMeta};
pub use open::{InitError, InitOptions, OpenError, Tuning};
pub use probe::{Probe, ProbeError, ProbeStep, Verdict};
