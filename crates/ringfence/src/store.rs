//! One place where leases are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Engine, EngineInfo, StorageError};
use ringfence_env::World;
use ringfence_files::open::Tuning;
use ringfence_files::{CheckError, CheckReport, Durability, FilesEngine, Finding, Repair};
use ringfence_journal::JournalEngine;
use ringfence_journal::check::Place;
use ringfence_journal::lives::Children;

use crate::init::engine_of;
use crate::job_table::JobTable;
use crate::migrate;
use crate::target_table::TargetTable;
use crate::work_table::WorkTable;

/// An open store: its target table, its work table, and both as one. Cheap to clone.
///
/// Any number of processes, threads and clones may use one store at once. A store is kept by one of
/// two engines, which is settled when it is made (see [`InitOptions`](crate::InitOptions)): `journal`,
/// one sync per call, for one host; or `files`, one record per file, for directories that other
/// programs or hosts share.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) engine: Kind,
    pub(crate) world: World,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Files(FilesEngine),
    Journal(JournalEngine),
}

/// How long a repair waits for whoever is at it.
const REPAIR_PATIENCE: Duration = Duration::from_secs(10);

impl Store {
    /// Opens a store for every operation.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_in(&World::system(), path.as_ref())
    }

    /// Opens a store for every operation, and refuses one of another durability: for a caller that
    /// relies on whole groups, or that shares the table with programs which know no intents.
    pub fn open_as(path: impl AsRef<Path>, durability: Durability) -> Result<Self, OpenError> {
        let (world, path) = (World::system(), path.as_ref());
        // A frame is whole or not there.
        if is_journal(&world, path) && durability == Durability::Group {
            return Self::open(path);
        }
        arrived(&world, path)?;
        let engine = FilesEngine::open_as(&world, path, Tuning::default(), durability)?;
        Ok(Self { engine: Kind::Files(engine), world })
    }

    /// Looks a store over and clears away what nobody uses, as [`Store::repair`] does, also one that
    /// [`Store::open`] refuses because something is missing; and one that was put back from a backup,
    /// if it is told how far to raise the fences.
    pub fn repair_at(path: impl AsRef<Path>, repair: Repair) -> Result<CheckReport, CheckError> {
        let (world, path) = (World::system(), path.as_ref());
        arrived(&world, path).map_err(|error| {
            let why = std::io::Error::new(std::io::ErrorKind::InvalidInput, error.to_string());
            CheckError::Storage(StorageError::new("repair", path.display(), why))
        })?;
        if is_journal(&world, path) {
            let unread = |error: ringfence_journal::OpenError| {
                if let ringfence_journal::OpenError::Restored { root, limit } = error {
                    let fence = root.join("table.json");
                    return CheckError::Restored(ringfence_files::Restored { fence, limit });
                }
                let why = std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string());
                CheckError::Storage(StorageError::new("open", path.display(), why))
            };
            let engine = match repair.bump_fence {
                None => JournalEngine::open(&world, path),
                Some(by) => JournalEngine::raise_fences(&world, path, by),
            };
            let engine = engine.map_err(unread)?;
            let limit = repair.bump_fence.and_then(|_| Some(engine.place().ok()?.fence));
            let report = Self { engine: Kind::Journal(engine), world }.repair()?;
            return Ok(CheckReport { fence_limit: limit, ..report });
        }
        FilesEngine::open_to_repair(&world, path)?.repair_with(repair)
    }

    /// Opens a store for reading only: `list`, `show` and `status` write nothing and work on a
    /// read-only mount.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let (world, path) = (World::system(), path.as_ref());
        here(&world, path)?;
        let engine = if is_journal(&world, path) {
            Kind::Journal(JournalEngine::open_read_only(&world, path)?)
        } else {
            Kind::Files(FilesEngine::open_read_only(&world, path)?)
        };
        Ok(Self { engine, world })
    }

    /// Opens a store in a world of the caller's making: for tests and simulations.
    pub fn open_in(world: &World, path: &Path) -> Result<Self, OpenError> {
        arrived(world, path)?;
        let engine = if is_journal(world, path) {
            Kind::Journal(JournalEngine::open(world, path)?)
        } else {
            Kind::Files(FilesEngine::open(world, path, Tuning::default())?)
        };
        Ok(Self { engine, world: world.clone() })
    }

    /// Refuses a place that a table was moved from, and one that a table is on its way to. Writes
    /// nothing. For whoever is about to make a table there, or to read its files without opening it.
    pub fn expect_no_move(path: impl AsRef<Path>) -> Result<(), OpenError> {
        here(&World::system(), path.as_ref())
    }

    /// A handle whose leases are tied to the life of this process, where the engine can prove its end
    /// (`journal`): once the process is gone, contenders on this boot of this host take over at once
    /// instead of after the ttl. Elsewhere the handle is like this one.
    ///
    /// A lease is tied by the handle that renewed it last. The tie lasts as long as any clone of the
    /// handle, or a table or lease of it.
    /// With [`Children::Count`] the leases last until every program is gone that this process started
    /// meanwhile, and theirs: for one whose children do the work.
    pub fn tied(&self, children: Children) -> Result<Self, StorageError> {
        let engine = match &self.engine {
            Kind::Files(engine) => Kind::Files(engine.clone()),
            Kind::Journal(engine) => Kind::Journal(engine.tied(children)?),
        };
        Ok(Self { engine, world: self.world.clone() })
    }

    /// Leases on target groups.
    pub fn targets(&self) -> TargetTable {
        TargetTable::on(self.shared(), self.world.clone())
    }

    /// The work fence.
    pub fn work(&self) -> WorkTable {
        WorkTable::on(self.shared(), self.world.clone())
    }

    /// A group and a work item as one.
    pub fn jobs(&self) -> JobTable {
        JobTable::on(self.shared(), self.world.clone())
    }

    pub(crate) fn shared(&self) -> Arc<dyn Engine> {
        match &self.engine {
            Kind::Files(engine) => Arc::new(engine.clone()),
            Kind::Journal(engine) => Arc::new(engine.clone()),
        }
    }

    /// What the store is.
    pub fn info(&self) -> EngineInfo {
        match &self.engine {
            Kind::Files(engine) => engine.info(),
            Kind::Journal(engine) => engine.info(),
        }
    }

    /// What a crash in the middle of a call may leave of a group.
    pub fn durability(&self) -> Durability {
        match &self.engine {
            Kind::Files(engine) => engine.meta().durability,
            Kind::Journal(_) => Durability::Group,
        }
    }

    /// Where the journal is, if the store is one. Writes nothing.
    pub fn journal(&self) -> Option<Result<Place, StorageError>> {
        match &self.engine {
            Kind::Files(_) => None,
            Kind::Journal(engine) => Some(engine.place()),
        }
    }

    /// Looks at every name in the store. Writes nothing.
    pub fn check(&self) -> Result<CheckReport, CheckError> {
        match &self.engine {
            Kind::Files(engine) => engine.check(),
            Kind::Journal(engine) => Ok(report(engine.check().map_err(CheckError::Storage)?)),
        }
    }

    /// The same, and removes stale temporaries and idle lock files.
    ///
    /// Only while no program other than Ringfence uses the table: see [`ringfence_files::check`].
    pub fn repair(&self) -> Result<CheckReport, CheckError> {
        match &self.engine {
            Kind::Files(engine) => engine.repair(),
            Kind::Journal(engine) => {
                let deadline = self.world.clock.deadline(REPAIR_PATIENCE);
                let check = engine.repair(deadline).map_err(CheckError::Gate)?;
                Ok(report(check))
            }
        }
    }
}

/// Whether the table's description names the journal.
fn is_journal(world: &World, root: &Path) -> bool {
    engine_of(world, root).is_some_and(|engine| *engine == *"journal")
}

/// Refuses a place that a table was moved from, and one that a table is on its way to.
fn here(world: &World, root: &Path) -> Result<(), OpenError> {
    if let Some(went) = migrate::gone(world, root)? {
        return Err(OpenError::Moved { root: root.to_owned(), to: went.to });
    }
    match arrival(world, root)? {
        Some(arrival) => Err(OpenError::Arriving { root: root.to_owned(), from: arrival.from }),
        None => Ok(()),
    }
}

/// The same for a caller that may write: finishes a move that is decided.
fn arrived(world: &World, root: &Path) -> Result<(), OpenError> {
    let refused = match here(world, root) {
        Err(refused @ OpenError::Arriving { .. }) => refused,
        other => return other,
    };
    if let Some(arrival) = arrival(world, root)? {
        match arrival.is_decided(world)? {
            Some(went) => arrival.finish(world, &went)?,
            None => return Err(refused),
        }
    }
    Ok(())
}

/// The move that is under way to a place where no table is.
fn arrival(world: &World, root: &Path) -> Result<Option<migrate::Arrival>, OpenError> {
    match world.fs.stat(&root.join("table.json")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(migrate::Arrival::to(world, root)?)
        }
        // What else is wrong with it the engine says.
        _ => Ok(None),
    }
}

fn report(check: ringfence_journal::check::Check) -> CheckReport {
    let mut findings: Vec<Finding> =
        check.temporaries.into_iter().map(Finding::Temporary).collect();
    findings.extend(check.strays.into_iter().map(Finding::Stray));
    let (records, removed) = (check.records, check.removed);
    CheckReport { records, findings, removed, ..CheckReport::default() }
}

/// Why a store was not opened; nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// As the engine `files` says. Also where there is no table at all.
    #[error(transparent)]
    Files(#[from] ringfence_files::OpenError),
    /// As the engine `journal` says.
    #[error(transparent)]
    Journal(#[from] ringfence_journal::OpenError),
    /// The table was moved.
    #[error("the table of {} was moved: it is {} now", root.display(), to.display())]
    Moved {
        /// The old place.
        root: PathBuf,
        /// The new place.
        to: PathBuf,
    },
    /// A table is on its way here. If its move is decided, whoever opens it for writing finishes that.
    #[error(
        "a move of the table of {} to {} was begun and is not finished: `ringfence migrate` with the \
         same two names finishes it",
        from.display(), root.display()
    )]
    Arriving {
        /// The new place.
        root: PathBuf,
        /// The old place.
        from: PathBuf,
    },
    /// It could not be told whether the table was moved.
    #[error(transparent)]
    Storage(#[from] StorageError),
}
