//! redb: one key per target, synced at each commit.

use std::path::{Path, PathBuf};

use ::redb::{Builder, ConcurrencyMode, Database, ReadableTable as _, TableDefinition};

use super::lease::{Record, Tokens, lost, now, token_of};
use super::{Claimed, Held, Keeper, Session};
use crate::{Result, during};

const LEASES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("leases");

/// An open database.
pub(super) struct Redb {
    database: Database,
    tokens: Tokens,
}

fn path(place: &Path) -> PathBuf {
    place.join("leases.redb")
}

/// Makes the file and the table.
pub(super) fn set_up(place: &Path) -> Result<Keeper> {
    let database = Builder::new().create(path(place)).map_err(during("make the database"))?;
    let writing = database.begin_write()?;
    writing.open_table(LEASES)?;
    writing.commit()?;
    Ok(Box::new(()))
}

impl Redb {
    pub(super) fn open(place: &Path, mode: ConcurrencyMode) -> Result<Self> {
        let opened = Builder::new().set_concurrency_mode(mode).open(path(place));
        Ok(Self { database: opened.map_err(during("open"))?, tokens: Tokens::new() })
    }
}

impl Session for Redb {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let token = self.tokens.next();
        let writing = self.database.begin_write()?;
        let mut leases = writing.open_table(LEASES)?;
        let now = now();
        for target in targets {
            if let Some(stored) = leases.get(target)?
                && Record::parse(stored.value())?.is_active(now)
            {
                return Ok(Claimed::Busy);
            }
        }
        for &target in targets {
            leases.insert(target, Record::granted(target, &token, now)?.as_slice())?;
        }
        drop(leases);
        writing.commit()?;
        Ok(Claimed::Held(Held::Token { targets: targets.to_vec(), token }))
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let (targets, token) = token_of(held)?;
        let writing = self.database.begin_write()?;
        let mut leases = writing.open_table(LEASES)?;
        for &target in targets {
            // Dropping the transaction puts back what was removed.
            let stored = leases.remove(target)?.ok_or_else(|| lost(target))?;
            if !Record::parse(stored.value())?.is_under(token) {
                return Err(lost(target));
            }
        }
        drop(leases);
        writing.commit()?;
        Ok(true)
    }

    fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let writing = self.database.begin_write()?;
        let mut leases = writing.open_table(LEASES)?;
        let now = now();
        for held in held {
            let (targets, token) = token_of(held)?;
            for &target in targets {
                let renewed = {
                    let stored = leases.get(target)?.ok_or_else(|| lost(target))?;
                    let record = Record::parse(stored.value())?;
                    if !record.is_under(token) {
                        return Err(lost(target));
                    }
                    record.renewed(now)?
                };
                leases.insert(target, renewed.as_slice())?;
            }
        }
        drop(leases);
        writing.commit()?;
        Ok(())
    }
}
