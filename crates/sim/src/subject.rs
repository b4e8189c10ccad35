//! What is under test, as far as the crash points and the random runs need to know it.
//!
//! Everything else goes through [`Engine`]. An engine of another kind is one more [`Subject`]; the
//! canaries of [`crate::sabotage`] and what [`crate::machine`] sees of intents are the files engine's.

mod files;
mod journal;

use std::fmt;
use std::path::PathBuf;

use ringfence_engine::Engine;
use ringfence_env::World;
use ringfence_model::Key;

use crate::case::Act;
use crate::disk::Disk;
use crate::machine::Machine;
pub use files::{FILES_GROUP, FILES_RECORD, audit_path, record_path};
pub use journal::JOURNAL;
pub(crate) use journal::{SEGMENT_BYTES, large};

/// What a crash may leave of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each record is old or new; the group may be part old, part new (F325 as it stands).
    Record,
    /// The group is wholly old or wholly new once somebody has met it.
    Group,
}

/// A way to keep a table.
pub trait Subject: Sync + fmt::Debug {
    /// What a crash may leave.
    fn mode(&self) -> Mode;

    /// Whether nobody else changes what a call has read before the call ends. If not, what a call
    /// read that failed in the end means nothing: it may have been undone with the call.
    fn reads_under_lock(&self) -> bool;

    /// Makes the table, or opens it if it is there.
    fn init(&self, world: &World) -> Result<Box<dyn Table>, String>;

    /// Opens the table as one process does. Nothing that it does may leave the process's thread.
    fn open(&self, world: &World) -> Result<Box<dyn Table>, String>;

    /// The acts whose crash points are tried.
    fn acts(&self) -> &'static [Act];

    /// The audit lines on a disk.
    fn audit(&self, disk: &Disk) -> Vec<u8>;

    /// Whether processes share memory, and remember what was there when they opened the table. Then
    /// whoever opens it after a crash is another kind of process than whoever had it open, and what was
    /// left is brought in order by the next call that stores something, not by one that is refused.
    fn has_memory(&self) -> bool {
        false
    }

    /// The call that makes one record durable, as crash points name it.
    fn commits_by(&self) -> &'static str;

    /// Brings a table to where `act` begins, where that takes more than calls on its records.
    fn stage(&self, _act: Act, _machine: &Machine) {}

    /// The disk with one thing damaged that was acknowledged, and which something later tells of, in
    /// every way.
    fn damages(&self, _machine: &Machine) -> Vec<(String, Disk)> {
        Vec::new()
    }

    /// The bytes that stand for a record, whatever was decided about it; `None` if the engine has no
    /// such thing as a record by itself. Empty if it is absent.
    fn stored(&self, disk: &Disk, key: Key) -> Option<Vec<u8>>;
}

/// An open table.
pub trait Table: Engine {
    /// What a check finds.
    fn oddities(&self) -> Result<Vec<Oddity>, String>;

    /// Removes what a killed process left.
    fn tidy(&self) -> Result<(), String>;
}

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// A temporary that nobody needs.
    Temporary(PathBuf),
    /// A group that waits to be finished.
    Unfinished,
    /// Anything else; nothing else may be there.
    Other(String),
}

impl Oddity {
    /// Whether it may stay after a repair: a probe that was killed leaves its directory.
    pub fn may_stay(&self) -> bool {
        matches!(self, Self::Temporary(path) if path.to_string_lossy().contains(".probe-"))
    }
}
