//! Telling a table from a copy of it.
//!
//! A table that is put back from a backup would put numbers into tokens a second time, and all that it
//! knows is in the backup too. What no backup holds is which file on the disk its bytes were in.
//!
//! B1. The description names the very file that it stands in, by number and birth, and the directory of
//!     the table. In a copy, whatever made it, that is another file or another directory: it is refused,
//!     but by readers, until somebody has raised its fences.
//! B2. Raising is durable before the description names its file anew.
//!
//! Only where files keep their numbers over remounts and restarts; elsewhere nothing is bound. Older
//! bytes that are written over the files where they stand are not noticed, nor is what puts a whole file
//! system back, numbers and all.

use std::io;
use std::num::NonZeroU64;
use std::path::Path;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Binding, World, WriteFile, steps};
use ringfence_model::{Audit, Timestamp, json};

use crate::audit;
use crate::engine::JournalEngine;
use crate::journal::Which;
use crate::layout::{FILE_MODE, Layout};
use crate::meta::TableMeta;
use crate::open::{OpenError, Purpose, remove};
use crate::recover::Counts;

/// Puts a description in force that names its own file, durably.
pub(crate) fn describe(world: &World, layout: &Layout, meta: &TableMeta) -> io::Result<()> {
    let temp = layout.meta().with_extension("tmp");
    remove(world, &temp)?;
    let line = |file: &dyn WriteFile| {
        // Where the mount table does not tell, nothing is known of the numbers.
        let mount = world.fs.mount_type(layout.root()).unwrap_or_default();
        let binding = Binding::of(world, layout.root(), &mount, file)?;
        Ok(TableMeta { binding, ..meta.clone() }.to_line().into_bytes())
    };
    steps::durable_replace_by(&*world.fs, &temp, &layout.meta(), line, FILE_MODE)
}

impl JournalEngine {
    /// Raises every fence to come by `by`, and opens the table: for one that was put back from a backup,
    /// by somebody who knows how many grants there may have been since it was made.
    ///
    /// *Durability:* done means that no fence up to the highest one there is and `by` more is put into a
    /// token, also after a power cut. On failure the fences may have been raised; the table is refused
    /// as before.
    pub fn raise_fences(world: &World, root: &Path, by: NonZeroU64) -> Result<Self, OpenError> {
        let engine = Self::open_as(world, root, Purpose::Raise)?;
        engine.raise(by).map_err(|failure| OpenError::Failure(Box::new(failure)))?;
        Ok(engine)
    }

    fn raise(&self, by: NonZeroU64) -> Result<(), Failure> {
        let journal = &*self.journal;
        let held = journal.lock(Which::Append, journal.long())?;
        let mut replica = journal.replica();
        let issued = journal.catch_up_for_writing(&mut replica, &held);
        let now = issued.map_err(Failure::Untouched)?.max(replica.fence);
        let raised = now.checked_add(by.get()).ok_or_else(crate::commit::exhausted)?;
        let fields = [
            ("at", json::float(Timestamp::from_unix(journal.world.clock.wall()).seconds())),
            ("by", by.to_string()),
            ("event", json::quoted("bump-fence")),
            ("fence", raised.to_string()),
        ];
        let line = json::object_line(&fields.into_iter().collect()).trim_end().to_owned();
        audit::append(&journal.world, &journal.layout, &Audit(line))?;
        // B2. The checkpoint that ends the epoch holds it.
        if !journal.hints.set_issued(raised) {
            return Err(Failure::Untouched(journal.not_told("tell the highest fence in")));
        }
        journal.close(&mut replica, Counts::All, &held).map_err(Failure::Untouched)?;
        let root = journal.layout.root();
        let fail =
            |source| Failure::Untouched(StorageError::new("describe", root.display(), source));
        describe(&journal.world, &journal.layout, &journal.meta).map_err(fail)
    }
}
