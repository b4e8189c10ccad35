//! The kinds of tables that are tried, and one of either engine, open.

use std::path::Path;
use std::sync::Arc;

use ringfence::{
    CheckReport, Durability, JournalOptions, JournalPlace, ShardCount, Store, TargetTable, Ttl,
    WorkTable, World,
};
use ringfence_files::open::Tuning;
use ringfence_files::{FilesEngine, InitOptions};

use crate::table::{self, chain};

/// What a table is kept by, and what a crash may leave of a group in it.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// One record per file, with intents: groups are whole.
    Group,
    /// One record per file: records are whole.
    Record,
    /// One file that is appended to: groups are whole.
    Journal,
}

/// An engine by its name.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineName {
    /// One record per file
    Files,
    /// One file that is appended to
    Journal,
}

/// The smallest segment that there is, so that a recording goes through several.
const SEGMENT_BYTES: u64 = 64 * 1024;

impl Mode {
    /// Every kind.
    pub(crate) const ALL: [Self; 3] = [Self::Group, Self::Record, Self::Journal];

    /// What is promised.
    pub(crate) fn durability(self) -> Durability {
        match self {
            Self::Group | Self::Journal => Durability::Group,
            Self::Record => Durability::Record,
        }
    }

    /// What keeps it.
    pub(crate) fn engine(self) -> EngineName {
        match self {
            Self::Group | Self::Record => EngineName::Files,
            Self::Journal => EngineName::Journal,
        }
    }

    /// In one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Record => "record",
            Self::Journal => "journal",
        }
    }

    /// Bytes of the largest payload of a workload's claim: so many that a recording of few calls goes
    /// through several segments, and that frames have many sectors.
    pub(crate) fn payload(self) -> &'static str {
        match self {
            Self::Group | Self::Record => "0",
            Self::Journal => "16000",
        }
    }

    /// Makes a table of this kind.
    pub(crate) fn init(self, world: &World, root: &Path, ttl: f64) -> Result<(), String> {
        let count = |count| ShardCount::new(count).map_err(chain);
        let ttl = Ttl::from_seconds(ttl).map_err(chain)?;
        let shards = count(table::SHARDS)?;
        if self == Self::Journal {
            let options = JournalOptions { shards, ttl, segment_bytes: SEGMENT_BYTES };
            return Store::init(root, &options.into()).map(|_| ()).map_err(chain);
        }
        let work_shards = count(1)?;
        let options = InitOptions { shards, work_shards, ttl, durability: self.durability() };
        FilesEngine::init(world, root, &options).map(|_| ()).map_err(chain)
    }
}

/// An open table.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Files(FilesEngine, World),
    Journal(Store),
}

/// Whether the table at `root` is a journal.
pub(crate) fn is_journal(root: &Path) -> bool {
    let text = std::fs::read_to_string(root.join("table.json")).unwrap_or_default();
    let engine = serde_json::from_str::<serde_json::Value>(&text);
    engine.is_ok_and(|table| table["engine"] == "journal")
}

impl Opened {
    /// For every operation.
    pub(crate) fn open(world: &World, root: &Path, tuning: Tuning) -> Result<Self, String> {
        if is_journal(root) {
            return Store::open_in(world, root).map(Self::Journal).map_err(chain);
        }
        let engine = FilesEngine::open(world, root, tuning).map_err(chain)?;
        Ok(Self::Files(engine, world.clone()))
    }

    /// For readers.
    pub(crate) fn open_read_only(world: &World, root: &Path) -> Result<Self, String> {
        if is_journal(root) {
            return Store::open_read_only(root).map(Self::Journal).map_err(chain);
        }
        let engine = FilesEngine::open_read_only(world, root).map_err(chain)?;
        Ok(Self::Files(engine, world.clone()))
    }

    /// Its leases.
    pub(crate) fn targets(&self) -> TargetTable {
        match self {
            Self::Files(engine, world) => TargetTable::on(Arc::new(engine.clone()), world.clone()),
            Self::Journal(store) => store.targets(),
        }
    }

    /// Its work items.
    pub(crate) fn work(&self) -> WorkTable {
        match self {
            Self::Files(engine, world) => WorkTable::on(Arc::new(engine.clone()), world.clone()),
            Self::Journal(store) => store.work(),
        }
    }

    /// Looks it over.
    pub(crate) fn check(&self) -> Result<CheckReport, String> {
        match self {
            Self::Files(engine, _) => engine.check().map_err(chain),
            Self::Journal(store) => store.check().map_err(chain),
        }
    }

    /// The same, and removes what nobody uses.
    pub(crate) fn repair(&self) -> Result<CheckReport, String> {
        match self {
            Self::Files(engine, _) => engine.repair().map_err(chain),
            Self::Journal(store) => store.repair().map_err(chain),
        }
    }

    /// How far a journal is.
    pub(crate) fn place(&self) -> Result<Option<JournalPlace>, String> {
        match self {
            Self::Files(..) => Ok(None),
            Self::Journal(store) => store.journal().transpose().map_err(chain),
        }
    }
}
