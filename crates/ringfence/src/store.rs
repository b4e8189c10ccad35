//! One place where leases are kept.

use std::path::Path;
use std::sync::Arc;

use ringfence_engine::{Engine, EngineInfo};
use ringfence_env::World;
use ringfence_files::open::Tuning;
use ringfence_files::{
    CheckError, CheckReport, Durability, FilesEngine, InitError, InitOptions, OpenError, Repair,
};

use crate::target_table::TargetTable;
use crate::work_table::WorkTable;

/// An open store: its target table and its work table. Cheap to clone.
///
/// Any number of processes, threads and clones may use one store at once.
#[derive(Clone, Debug)]
pub struct Store {
    engine: FilesEngine,
    world: World,
}

impl Store {
    /// Makes a store in the directory `path`, durably, or opens the one that was made alike.
    ///
    /// The parent directory must exist. The directory is probed first: one that cannot carry the
    /// protocol is refused, see [`ringfence_files::probe`].
    pub fn init(path: impl AsRef<Path>, options: &InitOptions) -> Result<Self, InitError> {
        let world = World::system();
        let engine = FilesEngine::init(&world, path.as_ref(), options)?;
        Ok(Self { engine, world })
    }

    /// Opens a store for every operation.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_in(&World::system(), path.as_ref())
    }

    /// Opens a store for every operation, and refuses one of another durability: for a caller that
    /// relies on whole groups, or that shares the table with programs which know no intents.
    pub fn open_as(path: impl AsRef<Path>, durability: Durability) -> Result<Self, OpenError> {
        let world = World::system();
        let engine = FilesEngine::open_as(&world, path.as_ref(), Tuning::default(), durability)?;
        Ok(Self { engine, world })
    }

    /// Looks a store over and clears away what nobody uses, as [`Store::repair`] does, also one that
    /// [`Store::open`] refuses because something is missing; and one that was put back from a backup,
    /// if it is told how far to raise the fences.
    pub fn repair_at(path: impl AsRef<Path>, repair: Repair) -> Result<CheckReport, CheckError> {
        FilesEngine::open_to_repair(&World::system(), path.as_ref())?.repair_with(repair)
    }

    /// Opens a store for reading only: `list`, `show` and `status` write nothing and work on a
    /// read-only mount.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let world = World::system();
        let engine = FilesEngine::open_read_only(&world, path.as_ref())?;
        Ok(Self { engine, world })
    }

    /// Opens a store in a world of the caller's making: for tests and simulations.
    pub fn open_in(world: &World, path: &Path) -> Result<Self, OpenError> {
        let engine = FilesEngine::open(world, path, Tuning::default())?;
        Ok(Self { engine, world: world.clone() })
    }

    /// Leases on target groups.
    pub fn targets(&self) -> TargetTable {
        TargetTable::on(Arc::new(self.engine.clone()), self.world.clone())
    }

    /// The work fence.
    pub fn work(&self) -> WorkTable {
        WorkTable::on(Arc::new(self.engine.clone()), self.world.clone())
    }

    /// What the store is.
    pub fn info(&self) -> EngineInfo {
        self.engine.info()
    }

    /// What a crash in the middle of a call may leave of a group.
    pub fn durability(&self) -> Durability {
        self.engine.meta().durability
    }

    /// Looks at every name in the store. Writes nothing.
    pub fn check(&self) -> Result<CheckReport, CheckError> {
        self.engine.check()
    }

    /// The same, and removes stale temporaries and idle lock files.
    ///
    /// Only while no program other than Ringfence uses the table: see [`ringfence_files::check`].
    pub fn repair(&self) -> Result<CheckReport, CheckError> {
        self.engine.repair()
    }
}
