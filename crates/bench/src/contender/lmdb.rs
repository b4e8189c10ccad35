//! LMDB, through `heed`: one key per target, synced at each commit.

use std::path::Path;

use heed::byteorder::BE;
use heed::types::{Bytes, U64};
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions};

use super::lease::{Record, Tokens, lost, now, token_of};
use super::{Claimed, Held, Keeper, Session};
use crate::{Result, during};

const MAP_BYTES: usize = 256 << 20;

/// An open environment.
pub(super) struct Lmdb {
    env: Env,
    leases: Database<'static, U64<BE>, Bytes>,
    tokens: Tokens,
}

/// Makes the directory; the first to open it makes the rest.
pub(super) fn set_up(place: &Path) -> Result<Keeper> {
    std::fs::create_dir(place.join("lmdb")).map_err(during("make the directory"))?;
    drop(Lmdb::open(place)?);
    Ok(Box::new(()))
}

impl Lmdb {
    pub(super) fn open(place: &Path) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES).max_dbs(1);
        // SAFETY: nobody but LMDB writes the files while they are mapped.
        #[expect(unsafe_code, reason = "a mapped file that nobody else changes")]
        let env = unsafe { options.open(place.join("lmdb")) }.map_err(during("open"))?;
        let writing = env.write_txn()?;
        let made = env.create_databases_and_commit(writing, |make, writing| {
            make.create_database(writing, Some("leases")).map(CommitOrAbort::<_, ()>::Commit)
        })?;
        let leases = made.unwrap_commit();
        Ok(Self { env, leases, tokens: Tokens::new() })
    }
}

impl Session for Lmdb {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let token = self.tokens.next();
        let mut writing = self.env.write_txn()?;
        let now = now();
        for target in targets {
            if let Some(bytes) = self.leases.get(&writing, target)?
                && Record::parse(bytes)?.is_active(now)
            {
                return Ok(Claimed::Busy);
            }
        }
        for target in targets {
            self.leases.put(&mut writing, target, &Record::granted(*target, &token, now)?)?;
        }
        writing.commit()?;
        Ok(Claimed::Held(Held::Token { targets: targets.to_vec(), token }))
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let (targets, token) = token_of(held)?;
        let mut writing = self.env.write_txn()?;
        for target in targets {
            let bytes = self.leases.get(&writing, target)?.ok_or_else(|| lost(*target))?;
            if !Record::parse(bytes)?.is_under(token) {
                return Err(lost(*target));
            }
        }
        for target in targets {
            self.leases.delete(&mut writing, target)?;
        }
        writing.commit()?;
        Ok(true)
    }

    fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let mut writing = self.env.write_txn()?;
        let now = now();
        for held in held {
            let (targets, token) = token_of(held)?;
            for target in targets {
                let bytes = self.leases.get(&writing, target)?.ok_or_else(|| lost(*target))?;
                let record = Record::parse(bytes)?;
                if !record.is_under(token) {
                    return Err(lost(*target));
                }
                let renewed = record.renewed(now)?;
                self.leases.put(&mut writing, target, &renewed)?;
            }
        }
        writing.commit()?;
        Ok(())
    }
}
