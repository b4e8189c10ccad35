//! The files engine, in both durabilities.

use std::path::PathBuf;

use ringfence_env::World;
use ringfence_files::open::Tuning;
use ringfence_files::{Durability, FilesEngine, Finding, InitOptions};
use ringfence_model::{Key, ShardCount, Space};

use super::{Mode, Oddity, Subject, Table};
use crate::case::{ACTS, Act};
use crate::disk::Disk;
use crate::setup::{SHARDS, TTL_SECONDS, WORK_SHARDS, root, ttl};

/// Groups change as one.
pub const FILES_GROUP: &dyn Subject = &Files(Mode::Group);

/// Records change one by one.
pub const FILES_RECORD: &dyn Subject = &Files(Mode::Record);

#[derive(Debug)]
struct Files(Mode);

/// Where force-releases are told.
pub fn audit_path() -> PathBuf {
    root().join("audit.log")
}

/// Where a record is.
pub fn record_path(key: Key) -> PathBuf {
    let (top, shards) = match key.space {
        Space::Targets => (root(), SHARDS),
        Space::Work => (root().join("work"), WORK_SHARDS),
    };
    let shards = ShardCount::new(shards).expect("in range");
    top.join(key.id.shard(shards).to_string()).join(format!("{}.json", key.id))
}

impl Subject for Files {
    fn mode(&self) -> Mode {
        self.0
    }

    fn reads_under_lock(&self) -> bool {
        true
    }

    fn init(&self, world: &World) -> Result<Box<dyn Table>, String> {
        let options = InitOptions {
            shards: ShardCount::new(SHARDS).expect("in range"),
            work_shards: ShardCount::new(WORK_SHARDS).expect("in range"),
            ttl: ttl(TTL_SECONDS),
            durability: match self.0 {
                Mode::Record => Durability::Record,
                Mode::Group => Durability::Group,
            },
        };
        FilesEngine::init(world, &root(), &options).map_err(|error| error.to_string())?;
        self.open(world)
    }

    /// File syncs come one after the other, so that no thread escapes the scheduler.
    fn open(&self, world: &World) -> Result<Box<dyn Table>, String> {
        let tuning = Tuning { sync_width: 1, ..Tuning::default() };
        let engine =
            FilesEngine::open(world, &root(), tuning).map_err(|error| error.to_string())?;
        Ok(Box::new(engine))
    }

    fn acts(&self) -> &'static [Act] {
        &ACTS
    }

    fn commits_by(&self) -> &'static str {
        "SyncDir"
    }

    fn audit(&self, disk: &Disk) -> Vec<u8> {
        disk.file(&audit_path()).unwrap_or_default()
    }

    fn stored(&self, disk: &Disk, key: Key) -> Option<Vec<u8>> {
        Some(disk.file(&record_path(key)).unwrap_or_default())
    }
}

impl Table for FilesEngine {
    fn oddities(&self) -> Result<Vec<Oddity>, String> {
        let report = self.check().map_err(|error| error.to_string())?;
        let oddity = |finding: &Finding| match finding {
            Finding::Temporary(path) => Oddity::Temporary(path.clone()),
            Finding::Intent { .. } => Oddity::Unfinished,
            other => Oddity::Other(format!("{other:?}")),
        };
        Ok(report.findings.iter().map(oddity).collect())
    }

    fn tidy(&self) -> Result<(), String> {
        self.repair().map(drop).map_err(|error| format!("repair: {error}"))
    }
}
