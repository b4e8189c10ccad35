//! The table under test: how it is made and opened, and what is broken on purpose.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_env::World;
use ringfence_model::{Key, Space, Target, Ttl};

use crate::disk::Disk;
use crate::history::State;
use crate::machine::Machine;
use crate::sabotage::{Sabotage, SabotagedFs};
pub use crate::subject::Mode;
use crate::subject::{FILES_GROUP, FILES_RECORD, JOURNAL, Subject, Table};
use crate::verbs::WrongRule;

/// What is under test.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The engine.
    pub subject: &'static dyn Subject,
    /// What is broken below the engine.
    pub sabotage: Option<Sabotage>,
    /// What is broken above it.
    pub wrong: Option<WrongRule>,
}

/// How the table is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// By the engine `files`, record by record.
    Record,
    /// By the engine `files`, groups whole.
    Group,
    /// By the engine `journal`.
    Journal,
}

impl Kept {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Record, Self::Group, Self::Journal];

    /// That engine as it is.
    pub fn setup(self) -> Setup {
        match self {
            Self::Record => Setup::honest(Mode::Record),
            Self::Group => Setup::honest(Mode::Group),
            Self::Journal => Setup { subject: JOURNAL, ..Setup::honest(Mode::Group) },
        }
    }
}

impl Setup {
    /// The files engine as it is.
    pub fn honest(mode: Mode) -> Self {
        let subject = match mode {
            Mode::Record => FILES_RECORD,
            Mode::Group => FILES_GROUP,
        };
        Self { subject, sabotage: None, wrong: None }
    }

    /// The same with its defects taken out, for looking at what the broken one left.
    #[must_use]
    pub fn mended(self) -> Self {
        Self { sabotage: None, wrong: None, ..self }
    }

    /// The world of one process, with what is broken in it.
    pub fn world(self, machine: &Machine, proc: usize) -> World {
        self.spoil(machine.world(proc), proc)
    }

    /// Breaks the file system of a world, if this setup asks for it.
    pub fn spoil(self, world: World, proc: usize) -> World {
        match self.sabotage {
            None => world,
            Some(kind) => {
                let fs = Arc::new(SabotagedFs::new(&world, kind, proc));
                world.with_fs(fs)
            }
        }
    }

    /// What a crash may leave of a group.
    pub fn mode(self) -> Mode {
        self.subject.mode()
    }

    /// Makes the table, or opens it if it is there.
    pub fn init(self, world: &World) -> Result<Box<dyn Table>, String> {
        self.subject.init(world)
    }

    /// Opens the table.
    pub fn open(self, world: &World) -> Result<Box<dyn Table>, String> {
        self.subject.open(world)
    }
}

/// An empty disk on which a table can be made.
pub fn blank() -> Disk {
    let mut disk = Disk::default();
    disk.mkdir(Path::new("/t"), 0o700, 0.0).expect("an empty disk");
    disk.settled()
}

/// Where the table is.
pub fn root() -> PathBuf {
    PathBuf::from("/t/table")
}

/// Shards of the target table.
pub const SHARDS: u16 = 3;
/// Shards of the work table.
pub const WORK_SHARDS: u16 = 2;
/// The table's ttl.
pub const TTL_SECONDS: f64 = 10.0;
/// Longer than any ttl in use.
pub const LONG: Duration = Duration::from_hours(1);

/// A ttl of this many seconds.
pub fn ttl(seconds: f64) -> Ttl {
    Ttl::from_seconds(seconds).expect("in range")
}

/// A target.
pub fn target(number: u64) -> Target {
    Target::new(number).expect("positive")
}

/// Every record of the table, as a reader sees it.
pub fn read_all(engine: &dyn Engine) -> Result<Vec<(Key, State)>, String> {
    let mut found = Vec::new();
    for space in [Space::Targets, Space::Work] {
        let scan = engine.scan(space, None).map_err(|error| error.to_string())?;
        found.extend(scan.entries.iter().map(|(key, entry)| (*key, State::seen(entry))));
    }
    Ok(found)
}
