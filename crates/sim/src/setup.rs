//! The table under test: how it is made and opened, and what is broken on purpose.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_env::World;
use ringfence_files::open::Tuning;
use ringfence_files::{Durability, FilesEngine, InitOptions};
use ringfence_model::{Key, Space, Target, Ttl};

use crate::disk::Disk;
use crate::history::State;
use crate::machine::Machine;
use crate::sabotage::{Sabotage, SabotagedFs};
use crate::verbs::WrongRule;

/// What a crash may leave of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each record is old or new; the group may be part old, part new (F325 as it stands).
    Record,
    /// The group is wholly old or wholly new once somebody has met it.
    Group,
}

impl Mode {
    fn durability(self) -> Durability {
        match self {
            Self::Record => Durability::Record,
            Self::Group => Durability::Group,
        }
    }
}

/// What is under test.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The property.
    pub mode: Mode,
    /// What is broken below the engine.
    pub sabotage: Option<Sabotage>,
    /// What is broken above it.
    pub wrong: Option<WrongRule>,
}

impl Setup {
    /// The engine as it is.
    pub fn honest(mode: Mode) -> Self {
        Self { mode, sabotage: None, wrong: None }
    }

    /// The same with its defects taken out, for looking at what the broken one left.
    #[must_use]
    pub fn mended(self) -> Self {
        Self::honest(self.mode)
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
                let fs = Arc::new(SabotagedFs::new(Arc::clone(&world.fs), kind, proc));
                world.with_fs(fs)
            }
        }
    }

    fn options(self) -> InitOptions {
        let valid = "constants in range";
        InitOptions {
            shards: ringfence_model::ShardCount::new(SHARDS).expect(valid),
            work_shards: ringfence_model::ShardCount::new(2).expect(valid),
            ttl: ttl(TTL_SECONDS),
            durability: self.mode.durability(),
        }
    }

    /// Makes the table, or opens it if it is there.
    pub fn init(self, world: &World) -> Result<FilesEngine, String> {
        FilesEngine::init(world, &root(), &self.options()).map_err(|error| error.to_string())?;
        open(world)
    }
}

/// Opens the table; file syncs one after the other, so that no thread escapes the scheduler.
pub fn open(world: &World) -> Result<FilesEngine, String> {
    let tuning = Tuning { sync_width: 1, ..Tuning::default() };
    FilesEngine::open(world, &root(), tuning).map_err(|error| error.to_string())
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

/// Where a target's record is.
pub fn record_path(key: Key) -> PathBuf {
    let shards = ringfence_model::ShardCount::new(SHARDS).expect("in range");
    root().join(key.id.shard(shards).to_string()).join(format!("{}.json", key.id))
}

/// Shards of the target table.
pub const SHARDS: u16 = 3;
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
