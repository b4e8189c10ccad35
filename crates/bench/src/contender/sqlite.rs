//! `SQLite`: WAL, synchronous=FULL, one row per target.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};

use super::lease::{OWNER, PAYLOAD, TTL, Tokens, WORKER, lost, now, token_of};
use super::{Claimed, Held, Keeper, Session};
use crate::{Result, during};

/// An open connection.
pub(super) struct Sqlite {
    connection: Connection,
    tokens: Tokens,
}

/// Past this many bytes the log has been checkpointed once (1,000 pages of 4 KiB) and is written over,
/// not grown, from then on.
const GROWN: u64 = 1000 * 4096;

/// Makes the table, and claims and releases until the log has grown as large as it gets. The connection
/// stays open, because the last one to go would remove the log.
pub(super) fn set_up(place: &Path) -> Result<Keeper> {
    let connection = connect(place)?;
    connection.execute_batch(
        "CREATE TABLE leases (
             target INTEGER PRIMARY KEY, owner TEXT NOT NULL, worker INTEGER NOT NULL,
             token TEXT NOT NULL, acquired_at REAL NOT NULL, updated_at REAL NOT NULL,
             ttl REAL NOT NULL, attempt INTEGER NOT NULL, payload TEXT NOT NULL);",
    )?;
    let mut session = Sqlite { connection, tokens: Tokens::new() };
    let group: Vec<u64> = (1..=64).collect();
    let log = place.join("leases.db-wal");
    let mut cycles_more = 50;
    while cycles_more > 0 {
        let Claimed::Held(held) = session.claim(&group)? else { return Err("busy alone".into()) };
        session.release(&held)?;
        let grown = std::fs::metadata(&log).map_err(during("look at the log"))?.len() >= GROWN;
        cycles_more -= i32::from(grown);
    }
    Ok(Box::new(session.connection))
}

fn connect(place: &Path) -> Result<Connection> {
    let connection = Connection::open(place.join("leases.db")).map_err(during("open"))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

impl Sqlite {
    pub(super) fn open(place: &Path, fair: bool) -> Result<Self> {
        let mut connection = connect(place)?;
        if fair {
            connection.busy_handler(Some(|_| {
                std::thread::sleep(Duration::from_micros(100));
                true
            }))?;
        }
        Ok(Self { connection, tokens: Tokens::new() })
    }

    fn try_claim(&mut self, targets: &[u64], token: &str) -> rusqlite::Result<bool> {
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = now();
        let mut look = begun
            .prepare_cached("SELECT 1 FROM leases WHERE target = ?1 AND updated_at + ttl > ?2")?;
        for target in targets {
            if look.exists(params![target.cast_signed(), now])? {
                return Ok(false);
            }
        }
        drop(look);
        let mut put = begun.prepare_cached(
            "INSERT OR REPLACE INTO leases VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, 1, ?7)",
        )?;
        for target in targets {
            put.execute(params![target.cast_signed(), OWNER, WORKER, token, now, TTL, PAYLOAD])?;
        }
        drop(put);
        begun.commit()?;
        Ok(true)
    }

    /// `Some` target is not held under its token; nothing was written then.
    fn try_change(
        &mut self,
        change: &str,
        held: &[(u64, &str)],
        now: Option<f64>,
    ) -> rusqlite::Result<Option<u64>> {
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut statement = begun.prepare_cached(change)?;
        for &(target, token) in held {
            let target_of_row = target.cast_signed();
            let changed = match now {
                Some(now) => statement.execute(params![target_of_row, token, now])?,
                None => statement.execute(params![target_of_row, token])?,
            };
            if changed != 1 {
                return Ok(Some(target));
            }
        }
        drop(statement);
        begun.commit()?;
        Ok(None)
    }
}

/// `None` where the lock could not be had in time.
fn unless_busy<T>(result: rusqlite::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Session for Sqlite {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let token = self.tokens.next();
        Ok(match unless_busy(self.try_claim(targets, &token))? {
            Some(true) => Claimed::Held(Held::Token { targets: targets.to_vec(), token }),
            Some(false) => Claimed::Busy,
            None => Claimed::TimedOut,
        })
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let (targets, token) = token_of(held)?;
        let each: Vec<_> = targets.iter().map(|&target| (target, token)).collect();
        let delete = "DELETE FROM leases WHERE target = ?1 AND token = ?2";
        match unless_busy(self.try_change(delete, &each, None))? {
            Some(None) => Ok(true),
            Some(Some(target)) => Err(lost(target)),
            None => Ok(false),
        }
    }

    fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let mut each = Vec::new();
        for held in held {
            let (targets, token) = token_of(held)?;
            each.extend(targets.iter().map(|&target| (target, token)));
        }
        let update = "UPDATE leases SET updated_at = ?3 WHERE target = ?1 AND token = ?2";
        match self.try_change(update, &each, Some(now()))? {
            None => Ok(()),
            Some(target) => Err(lost(target)),
        }
    }
}
