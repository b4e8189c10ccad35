//! The journal engine.

use std::time::Duration;

use ringfence_env::{LockMode, World};
use ringfence_journal::check::Place;
use ringfence_journal::frame::SECTOR;
use ringfence_journal::layout::Layout;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::{Key, ShardCount};

use super::{Mode, Oddity, Subject, Table};
use crate::case::{Act, verbs};
use crate::disk::{DataChange, Disk};
use crate::frames;
use crate::history::{Fate, History};
use crate::machine::Machine;
use crate::setup::{SHARDS, TTL_SECONDS, root, ttl};
use crate::verbs::request;

/// Every call is whole or not there.
pub const JOURNAL: &dyn Subject = &Journal;

/// Small, so that runs go through changes of segments and checkpoints.
const SEGMENT_BYTES: u64 = 64 * 1024;

/// The target whose heartbeats fill segments.
const FILLER: u64 = 7000;

/// What one heartbeat came to.
struct Beat<'a> {
    /// Where the journal was before the first one.
    first: &'a Place,
    now: &'a Place,
    fate: Fate,
}

/// No shards are removed from a journal; it has segments instead.
const JOURNAL_ACTS: [Act; 20] = [
    Act::Init,
    Act::Claim,
    Act::FenceRaise,
    Act::TakeOver,
    Act::Heartbeat,
    Act::HeartbeatEach,
    Act::Release,
    Act::ForceRelease,
    Act::ClaimWork,
    Act::BeginCommit,
    Act::Complete,
    Act::Abandon,
    Act::ClaimJob,
    Act::CompleteJob,
    Act::AbandonJob,
    Act::StaleIntent,
    Act::OverUnsynced,
    Act::Rotate,
    Act::MakeRoom,
    Act::NoRoom,
];

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
        &JOURNAL_ACTS
    }

    fn has_memory(&self) -> bool {
        true
    }

    fn commits_by(&self) -> &'static str {
        "SyncFile"
    }

    /// Fills the segments with heartbeats, until one more would do what the act is about.
    fn stage(&self, act: Act, machine: &Machine) {
        let until: fn(&Beat<'_>) -> bool = match act {
            Act::Rotate => |beat| beat.now.segment != beat.first.segment,
            Act::MakeRoom => |beat| beat.now.checkpoint != beat.first.checkpoint,
            Act::NoRoom => |beat| beat.fate != Fate::Done,
            _ => return,
        };
        let fs = machine.world(0).fs;
        let lock = fs.open_lock(&root().join("maintain.lock"), true, 0o600).expect("a lock");
        if act == Act::NoRoom {
            // Whoever makes room has been stopped.
            assert!(lock.try_lock(LockMode::Exclusive).expect("a lock"), "nobody else has it");
        }
        let asked = request("filler", &[FILLER], 1e6);
        let world = machine.world(0);
        let engine = JournalEngine::open(&world, &root()).expect("opens");
        let token = {
            let history = History::default();
            let claimed = verbs("filler", machine, &history, &engine, None).claim(&asked);
            claimed.token.expect("granted")
        };
        let trial = machine.copy();
        let tried = JournalEngine::open(&trial.world(0), &root()).expect("opens");
        let mut beats = 0;
        let first = tried.place().expect("reads");
        loop {
            let history = History::default();
            let beating = verbs("filler", &trial, &history, &tried, None);
            let fate = beating.heartbeat(&asked.group, &token).fate;
            let now = tried.place().expect("reads");
            if until(&Beat { first: &first, now: &now, fate }) {
                break;
            }
            beats += 1;
        }
        for _ in 0..beats {
            let history = History::default();
            let beating = verbs("filler", machine, &history, &engine, None);
            assert_eq!(beating.heartbeat(&asked.group, &token).fate, Fate::Done);
        }
    }

    fn damages(&self, machine: &Machine) -> Vec<(String, Disk)> {
        let fs = machine.world(0).fs;
        let table = frames::table(&*fs).expect("a table");
        let base = frames::head(&*fs, table).expect("a checkpoint").base;
        let layout = Layout::new(&root());
        let mut damages = Vec::new();
        for path in [0, 1].map(|slot| layout.segment(slot)) {
            let bytes = frames::bytes(&*fs, &path);
            if frames::segment(&bytes) != Some(base.segment) {
                continue;
            }
            let from = usize::try_from(base.offset).expect("in the file");
            let chain = frames::chain(&bytes, table, from);
            let durable = chain.iter().map(|(_, frame)| frame.header.durable).max();
            for (at, frame) in chain.iter().filter(|it| Some(it.1.header.sequence) <= durable) {
                for sector in (*at..at + frame.len).step_by(SECTOR) {
                    let mut disk = machine.disk();
                    let ino = disk.lookup(&path).expect("the same file");
                    let bytes = [0xa5; SECTOR].into();
                    disk.change(ino, DataChange::Write { at: sector, bytes }, 0.0);
                    let name = format!("byte {sector} of segment {}", base.segment);
                    damages.push((name, disk));
                }
            }
        }
        damages
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
