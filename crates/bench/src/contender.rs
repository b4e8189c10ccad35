//! Who is measured: each in a file of its own, behind one trait.

mod etcd;
mod floor;
mod lease;
mod lmdb;
mod postgres;
mod redb;
mod redis;
mod ringfence;
mod server;
mod sqlite;

use std::any::Any;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::work::Work;

pub(crate) use etcd::syncs as etcd_syncs;
pub(crate) use lease::PAYLOAD;
pub(crate) use server::{Around, call};

/// One that is measured.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// Two 4 KiB writes, each with an fdatasync, into a file that was written with zeros
    Floor,
    /// Our engine `journal`
    Journal,
    /// Our engine `files`, durability `group`
    FilesGroup,
    /// Our engine `files`, durability `record`
    FilesRecord,
    /// The same as F325 describes it: one file sync after the other, a directory sync per shard
    F325,
    /// `SQLite`, WAL, synchronous=FULL, its default way of waiting
    Sqlite,
    /// The same with a busy handler that tries again every 100 us
    SqliteFair,
    /// LMDB
    Lmdb,
    /// redb, for one process at a time
    Redb,
    /// redb in its mode for several processes
    RedbMulti,
    /// `PostgreSQL` 15, on a socket
    Postgres,
    /// Redis 7, appendfsync always, on a socket
    Redis,
    /// etcd 3.4, one member on the loopback
    Etcd,
}

/// How a claim ended that did not fail.
pub(crate) enum Claimed {
    /// The whole group is held.
    Held(Held),
    /// Somebody holds part of it.
    Busy,
    /// The lock could not be had in time.
    TimedOut,
}

/// What shows that a group is held.
pub(crate) enum Held {
    /// A group of ours.
    Ours {
        /// The group.
        group: Box<::ringfence::TargetGroup>,
        /// The token, as the table compares it.
        token: ::ringfence::Token,
    },
    /// What a peer stored with every target.
    Token {
        /// The group.
        targets: Vec<u64>,
        /// The token.
        token: String,
    },
}

impl Held {
    /// The token, to be handed to another process.
    pub(crate) fn token(&self) -> String {
        match self {
            Self::Ours { token, .. } => token.to_string(),
            Self::Token { token, .. } => token.clone(),
        }
    }
}

/// What one process does on a contender. Every call is durable when it returns.
pub(crate) trait Session {
    /// Claims `targets`, which are in ascending order, all or nothing.
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed>;

    /// Releases a group, every token checked. `false`: the lock could not be had in time.
    fn release(&mut self, held: &Held) -> Result<bool>;

    /// Renews all of `held` in one call, every token checked.
    fn heartbeat(&mut self, held: &[Held]) -> Result<()>;

    /// Claims `targets`, blocked until they are free, but no longer than `longest`.
    fn claim_waiting(&mut self, _targets: &[u64], _longest: Duration) -> Result<Held> {
        Err("it cannot wait".into())
    }

    /// What shows that another process claimed `target` under `token`.
    fn held(&self, target: u64, token: &str) -> Result<Held> {
        Ok(Held::Token { targets: vec![target], token: token.to_owned() })
    }
}

/// What must live as long as the measurement: a server, or a connection that keeps a log open.
pub(crate) type Keeper = Box<dyn Any>;

impl Contender {
    /// All, in the order of the report.
    pub(crate) const ALL: [Self; 13] = [
        Self::Floor,
        Self::Journal,
        Self::FilesGroup,
        Self::FilesRecord,
        Self::F325,
        Self::Sqlite,
        Self::SqliteFair,
        Self::Lmdb,
        Self::Redb,
        Self::RedbMulti,
        Self::Postgres,
        Self::Redis,
        Self::Etcd,
    ];

    /// What the command line and the report call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Journal => "journal",
            Self::FilesGroup => "files-group",
            Self::FilesRecord => "files-record",
            Self::F325 => "f325",
            Self::Sqlite => "sqlite",
            Self::SqliteFair => "sqlite-fair",
            Self::Lmdb => "lmdb",
            Self::Redb => "redb",
            Self::RedbMulti => "redb-multi",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
        }
    }

    /// Whether all of it runs in the measured processes, so that what they preload reaches every sync.
    pub(crate) fn is_embedded(self) -> bool {
        match self {
            Self::Floor
            | Self::Journal
            | Self::FilesGroup
            | Self::FilesRecord
            | Self::F325
            | Self::Sqlite
            | Self::SqliteFair
            | Self::Lmdb
            | Self::Redb
            | Self::RedbMulti => true,
            Self::Postgres | Self::Redis | Self::Etcd => false,
        }
    }

    /// Whether it can do this work at all.
    pub(crate) fn can(self, work: Work) -> bool {
        if matches!(work, Work::WakeUp | Work::OneShot) {
            return self == Self::Journal;
        }
        match self {
            // Nothing to exclude, so nothing to overlap.
            Self::Floor => work != Work::Overlap8,
            Self::Redb => work.processes() == 1,
            // A transaction holds at most 128 operations.
            Self::Etcd => work != Work::Heartbeat,
            _ => true,
        }
    }

    /// Whether what is preloaded sees its syncs, and can make them slow.
    pub(crate) fn can_be_preloaded(self) -> bool {
        // It is linked statically.
        self != Self::Etcd
    }

    /// Makes it ready in the empty directory `place`, for up to `processes` processes.
    pub(crate) fn set_up(
        self,
        place: &Path,
        processes: usize,
        around: Around<'_>,
    ) -> Result<Keeper> {
        match self {
            Self::Floor => floor::set_up(place, processes),
            Self::Journal | Self::FilesGroup | Self::FilesRecord | Self::F325 => {
                ringfence::set_up(self, place)
            }
            Self::Sqlite | Self::SqliteFair => sqlite::set_up(place),
            Self::Lmdb => lmdb::set_up(place),
            Self::Redb | Self::RedbMulti => redb::set_up(place),
            Self::Postgres => postgres::set_up(place, around),
            Self::Redis => redis::set_up(place, around),
            Self::Etcd => etcd::set_up(place, around),
        }
    }

    /// Opens it in this process, the `index`-th.
    pub(crate) fn open(self, place: &Path, index: usize) -> Result<Box<dyn Session>> {
        Ok(match self {
            Self::Floor => Box::new(floor::Floor::open(place, index)?),
            Self::Journal | Self::FilesGroup | Self::FilesRecord | Self::F325 => {
                Box::new(ringfence::Ringfence::open(self, place)?)
            }
            Self::Sqlite => Box::new(sqlite::Sqlite::open(place, false)?),
            Self::SqliteFair => Box::new(sqlite::Sqlite::open(place, true)?),
            Self::Lmdb => Box::new(lmdb::Lmdb::open(place)?),
            Self::Redb => {
                Box::new(redb::Redb::open(place, ::redb::ConcurrencyMode::ExclusiveWriter)?)
            }
            Self::RedbMulti => {
                Box::new(redb::Redb::open(place, ::redb::ConcurrencyMode::MultiWriter)?)
            }
            Self::Postgres => Box::new(postgres::Postgres::open(place)?),
            Self::Redis => Box::new(redis::Redis::open(place)?),
            Self::Etcd => Box::new(etcd::Etcd::open(place)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(claimed: Claimed) -> Held {
        match claimed {
            Claimed::Held(held) => held,
            Claimed::Busy => panic!("somebody holds it"),
            Claimed::TimedOut => panic!("timed out"),
        }
    }

    /// That it is a contender at all: whole groups or nothing, and no release or heartbeat without the
    /// token.
    fn keeps_the_contract(contender: Contender) {
        let scratch = crate::run::scratch(Some(&std::env::temp_dir())).unwrap();
        let dir = scratch.path().join("place");
        std::fs::create_dir(&dir).unwrap();
        let around = Around { shim: None };
        let _keeper = contender.set_up(&dir, 1, around).unwrap();
        let name = contender.name();
        let mut session = contender.open(&dir, 0).unwrap();
        let first = held(session.claim(&[1, 2, 3]).unwrap());
        let second = session.claim(&[3, 4]).unwrap();
        assert!(matches!(second, Claimed::Busy), "{name} granted a target twice");
        let fourth = held(session.claim(&[4]).unwrap());
        // What the refused claim asked for besides is free, and has a token of its own.
        assert_ne!(first.token(), fourth.token(), "{name}");
        let forged = session.held(4, &first.token()).unwrap();
        assert!(session.release(&forged).is_err(), "{name} released under another's token");
        if contender.can(Work::Heartbeat) {
            session.heartbeat(&[session.held(1, &first.token()).unwrap()]).unwrap();
            assert!(session.heartbeat(&[forged]).is_err(), "{name} renewed under another's token");
        }
        assert!(matches!(session.claim(&[4]).unwrap(), Claimed::Busy), "{name} lost a lease");
        assert!(session.release(&first).unwrap() && session.release(&fourth).unwrap(), "{name}");
        assert!(session.release(&first).is_err(), "{name} released twice");
        let again = held(session.claim(&[1, 2, 3, 4]).unwrap());
        assert!(session.release(&again).unwrap(), "{name}");
    }

    #[test]
    fn every_embedded_contender_grants_whole_groups_and_checks_every_token() {
        let embedded = Contender::ALL.into_iter().filter(|contender| contender.is_embedded());
        // The floor stores nothing.
        for contender in embedded.filter(|&contender| contender != Contender::Floor) {
            keeps_the_contract(contender);
        }
    }

    // Needs the three servers, which `cargo xtask bench --peers` installs.
    #[cfg(feature = "servers")]
    #[test]
    fn every_server_grants_whole_groups_and_checks_every_token() {
        for contender in Contender::ALL.into_iter().filter(|contender| !contender.is_embedded()) {
            keeps_the_contract(contender);
        }
    }
}
