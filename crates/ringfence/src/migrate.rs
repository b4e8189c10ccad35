//! Moving a quiet table to another place, on the same engine or the other.
//!
//! G1. Until the decision the table at the old place is as it was, and there is none at the new one.
//! G2. The decision is one step at the old place: it is closed, with a line that names the new table.
//!     It comes after everything in the new one is durable and was read back and compared.
//! G3. From the decision on the old place is refused by everybody, by those that had it open too, and
//!     says where the table went.
//! G4. Whoever opens the new place for writing after the decision finishes what is left, if the one
//!     who moved it did not: so does the same move made again.
//! G5. From before the table is read until after the decision nobody changes it.
//! G6. The new table hands out no fence that the old one may have handed out, and none below a fence in
//!     a record. Records are carried over with their tokens, times, owners, payloads and counts.
//! G7. What is no valid record is not carried over and not dropped either: such a table is not moved.
//!
//! The new table is made under a name of its own beside its place:
//!
//! ```text
//! PARENT/.NAME.arriving/arriving.json      from where, and of which table
//! PARENT/.NAME.arriving/table/             the new table
//! PARENT/.NAME.arriving.TABLE/             the first of these before it has its name
//! ```
//!
//! | a crash after | the old place | the new place | then |
//! |---|---|---|---|
//! | any step up to the last record | in use | nothing | the same move begins again |
//! | the decision | closed | nothing, until the next open | G4 |
//! | the old description was replaced | closed | nothing, until the next open | G4 |
//! | the new table was renamed | closed | in use | the same move clears the rest away |
//!
//! ```text
//! Open -[hold still]-> Still -[make, fill, compare]-> Ready -[close]-> Decided -[mark, rename]-> Moved
//!   \ Refused              \ Refused                     \ failed: cleared away, in use again
//! ```

mod arrival;
mod error;
mod fill;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_env::{Deadline, World};
use ringfence_files::{CheckReport, FilesEngine, Finding, InitOptions};
use ringfence_journal::{InitOptions as JournalOptions, JournalEngine};
use ringfence_model::{Entry, Fence, Key, Record, Space, Ttl};

pub(crate) use arrival::{Arrival, gone};
pub use error::MigrateError;

use crate::store::{Kind, Store};

/// What keeps the table at its new place. Its ttl is that of the old one, whatever the options say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Destination {
    /// The engine `files`.
    Files(InitOptions),
    /// The engine `journal`.
    Journal(JournalOptions),
}

/// A table that was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The old place.
    pub from: PathBuf,
    /// The new place.
    pub to: PathBuf,
    /// Leases, and work items.
    pub records: (usize, usize),
    /// Every fence that the new table hands out is above this.
    pub fence: Fence,
    /// Names at the old place that are no part of the table, or leftovers; they stay there.
    pub left: Vec<PathBuf>,
}

/// How long the table may take to become quiet.
const PATIENCE: Duration = Duration::from_secs(10);

impl Store {
    /// Moves the table at `from` to `to`, where nothing may be, and closes the old place for good.
    ///
    /// No operation on the table may be under way for long; those that begin meanwhile wait for the end
    /// and are then refused. Programs other than Ringfence must be stopped first.
    ///
    /// *Durability:* what is returned survives a power cut. *Failure:* before the decision (see the
    /// [module](self)) the old place stays in use; after it, which
    /// [`MigrateError::Unfinished`] says, the same call finishes what is left.
    pub fn migrate(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        into: &Destination,
    ) -> Result<Migrated, MigrateError> {
        Self::migrate_in(&World::system(), from.as_ref(), to.as_ref(), into)
    }

    /// The same in a world of the caller's making: for tests.
    pub fn migrate_in(
        world: &World,
        from: &Path,
        to: &Path,
        into: &Destination,
    ) -> Result<Migrated, MigrateError> {
        let arrival = Arrival::of(from, to)?;
        if let Some(went) = gone(world, &arrival.from)? {
            return arrival.finish_earlier(world, &went);
        }
        arrival.expect_free(world)?;
        let old = Self::open_in(world, &arrival.from)?;
        let deadline = world.clock.deadline(PATIENCE);
        let still = match Still::of(&old.engine, deadline) {
            Ok(still) => still,
            // Somebody else may have moved it meanwhile.
            Err(error) => match gone(world, &arrival.from)? {
                Some(went) => return arrival.finish_earlier(world, &went),
                None => return Err(error),
            },
        };
        let left = sound(&old)?;
        let contents = Contents::of(&old, still.fence())?;
        arrival.begin(world, &old.info().table)?;
        // Another move may have ended here since it was looked. From now on none can.
        let built =
            arrival.expect_free(world).and_then(|()| fill::build(world, &arrival, into, &contents));
        let table = match built {
            Ok(table) => table,
            Err(error) => {
                // What cannot be removed now is removed by the next try.
                let _ = arrival.clear(world);
                return Err(error);
            }
        };
        let (records, fence) = (contents.counts(), contents.fence);
        let line = arrival.line(&table, records, fence);
        if let Err(error) = still.close(&line) {
            return Err(match gone(world, &arrival.from) {
                Ok(None) => {
                    let _ = arrival.clear(world);
                    error.into()
                }
                _ => MigrateError::Unfinished(error),
            });
        }
        drop(old);
        arrival::settle(world, &arrival.from, &line).map_err(MigrateError::Unfinished)?;
        arrival.publish(world).map_err(MigrateError::Unfinished)?;
        Ok(Migrated { from: arrival.from, to: arrival.to, records, fence, left })
    }
}

/// A table that is held still, of either engine.
enum Still<'s> {
    Files(ringfence_files::moving::Still<'s>),
    Journal(ringfence_journal::moving::Still<'s>),
}

impl<'s> Still<'s> {
    fn of(engine: &'s Kind, deadline: Deadline) -> Result<Self, MigrateError> {
        let still = match engine {
            Kind::Files(engine) => engine.hold_still(deadline).map(Self::Files),
            Kind::Journal(engine) => engine.hold_still(deadline).map(Self::Journal),
        };
        still.map_err(MigrateError::NotStill)
    }

    fn fence(&self) -> Fence {
        match self {
            Self::Files(still) => still.fence,
            Self::Journal(still) => still.fence,
        }
    }

    fn close(self, line: &str) -> Result<(), ringfence_engine::StorageError> {
        match self {
            Self::Files(still) => still.close(line),
            Self::Journal(still) => still.close(line),
        }
    }
}

/// What is carried over.
struct Contents {
    /// In key order.
    records: Vec<(Key, Record)>,
    fence: Fence,
    ttl: Ttl,
}

impl Contents {
    fn of(store: &Store, issued: Fence) -> Result<Self, MigrateError> {
        let engine = store.shared();
        let info = engine.info();
        let mut records = Vec::new();
        let mut damaged = Vec::new();
        for space in [Space::Targets, Space::Work] {
            let scan = engine.scan(space, None)?;
            if !scan.consistent {
                return Err(MigrateError::Changing { root: info.location.into() });
            }
            for (key, entry) in scan.entries {
                match entry {
                    Entry::Present(record) => records.push((key, record)),
                    Entry::Damaged(damage) => damaged.push(damage.to_string()),
                    Entry::Vacant => {}
                }
            }
        }
        if !damaged.is_empty() {
            return Err(MigrateError::NotSound { findings: damaged });
        }
        let in_records = records.iter().filter_map(|(_, record)| record.holder().token.fence());
        let fence = in_records.max().unwrap_or(Fence(0)).max(issued);
        Ok(Self { records, fence, ttl: info.default_ttl })
    }

    fn counts(&self) -> (usize, usize) {
        let targets = self.records.partition_point(|(key, _)| key.space == Space::Targets);
        (targets, self.records.len() - targets)
    }
}

/// G7. Refuses what is not sound; returns what is merely left over.
fn sound(store: &Store) -> Result<Vec<PathBuf>, MigrateError> {
    let report: CheckReport = store.check()?;
    let (mut left, mut findings) = (Vec::new(), Vec::new());
    for finding in report.findings {
        match finding {
            Finding::Temporary(path) | Finding::Stray(path) => left.push(path),
            Finding::Damaged { path, reason, .. } => {
                findings.push(format!("{}: {reason}", path.display()));
            }
            Finding::Misplaced(path) => {
                findings.push(format!("{}: in a shard where nobody looks", path.display()));
            }
            Finding::Incomplete(path) => findings.push(format!("{}: missing", path.display())),
            Finding::Contradiction(path) => {
                findings.push(format!("{}: contradicts the description", path.display()));
            }
            Finding::FenceCounter(reason) => findings.push(reason),
            Finding::Restored(restored) => findings.push(restored.to_string()),
            Finding::Intent { path, .. } => {
                findings.push(format!("{}: an intent stands", path.display()));
            }
            other => findings.push(format!("{other:?}")),
        }
    }
    if findings.is_empty() { Ok(left) } else { Err(MigrateError::NotSound { findings }) }
}

/// Makes an empty table, of either engine.
fn make(world: &World, root: &Path, into: &Destination) -> Result<Kind, MigrateError> {
    Ok(match into {
        Destination::Files(options) => Kind::Files(FilesEngine::init(world, root, options)?),
        Destination::Journal(options) => Kind::Journal(JournalEngine::init(world, root, options)?),
    })
}
