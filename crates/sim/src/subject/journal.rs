//! The journal engine.

use std::time::Duration;

use ringfence_env::World;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::{Key, ShardCount};

use super::{Mode, Oddity, Subject, Table};
use crate::case::{ACTS, Act};
use crate::disk::Disk;
use crate::setup::{SHARDS, TTL_SECONDS, root, ttl};

/// Every call is whole or not there.
pub const JOURNAL: &dyn Subject = &Journal;

/// Small, so that runs go through changes of segments and checkpoints.
const SEGMENT_BYTES: u64 = 64 * 1024;

#[derive(Debug)]
struct Journal;

impl Subject for Journal {
    fn mode(&self) -> Mode {
        Mode::Group
    }

    fn reads_under_lock(&self) -> bool {
        false
    }

    fn init(&self, world: &World) -> Result<Box<dyn Table>, String> {
        let options = InitOptions {
            shards: ShardCount::new(SHARDS).expect("in range"),
            ttl: ttl(TTL_SECONDS),
            segment_bytes: SEGMENT_BYTES,
        };
        let engine = JournalEngine::init(world, &root(), &options);
        Ok(Box::new(engine.map_err(|error| error.to_string())?))
    }

    fn open(&self, world: &World) -> Result<Box<dyn Table>, String> {
        let engine = JournalEngine::open(world, &root());
        Ok(Box::new(engine.map_err(|error| error.to_string())?))
    }

    fn acts(&self) -> &'static [Act] {
        &ACTS
    }

    fn audit(&self, disk: &Disk) -> Vec<u8> {
        disk.file(&root().join("audit.log")).unwrap_or_default()
    }

    fn stored(&self, _: &Disk, _: Key) -> Option<Vec<u8>> {
        None
    }
}

impl Table for JournalEngine {
    fn oddities(&self) -> Result<Vec<Oddity>, String> {
        let check = self.check().map_err(|error| error.to_string())?;
        let strays = check.strays.iter().map(|path| Oddity::Other(path.display().to_string()));
        let temporaries = check.temporaries.into_iter().map(Oddity::Temporary);
        Ok(temporaries.chain(strays).collect())
    }

    fn tidy(&self) -> Result<(), String> {
        let patience = Duration::from_secs(10);
        self.repair(self.deadline(patience)).map(drop).map_err(|error| format!("repair: {error}"))
    }
}
