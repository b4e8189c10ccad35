//! The journal engine.

use std::time::Duration;

use ringfence_env::{LockMode, World};
use ringfence_journal::check::Place;
use ringfence_journal::frame::SECTOR;
use ringfence_journal::layout::Layout;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::ClaimRequest;
use ringfence_model::{Key, Payload, ShardCount, TargetGroup, Token};

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
pub(crate) const SEGMENT_BYTES: u64 = 64 * 1024;

/// The target whose heartbeats fill segments.
const FILLER: u64 = 7000;

/// Targets whose leases have payloads of so many bytes: a checkpoint with all of them is larger than a
/// segment, and yet the first one that has them is written when heartbeats have filled half of one.
const LARGE: std::ops::Range<u64> = 7001..7005;
const LARGE_BYTES: usize = 17_000;

/// More heartbeats than it takes to fill any two segments.
const MOST_BEATS: usize = 1000;

/// What one heartbeat came to.
struct Beat<'a> {
    /// Where the journal was before the first one.
    first: &'a Place,
    now: &'a Place,
    /// How long the files of both segments were before the first one, together, and how long they are.
    bytes: (u64, u64),
    fate: Fate,
}

/// No shards are removed from a journal; it has segments instead.
const JOURNAL_ACTS: [Act; 22] = [
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
    Act::Grow,
    Act::Shrink,
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
            Act::Grow => |beat| beat.bytes.1 > beat.bytes.0,
            Act::Shrink => |beat| beat.bytes.1 < beat.bytes.0,
            _ => return,
        };
        let fs = machine.world(0).fs;
        let lock = fs.open_lock(&root().join("maintain.lock"), true, 0o600).expect("a lock");
        if act == Act::NoRoom {
            // Whoever makes room has been stopped.
            assert!(lock.try_lock(LockMode::Exclusive).expect("a lock"), "nobody else has it");
        }
        let world = machine.world(0);
        let engine = JournalEngine::open(&world, &root()).expect("opens");
        let resizes = matches!(act, Act::Grow | Act::Shrink);
        let large = if resizes { claim_large(machine, &engine) } else { Vec::new() };
        let filler = request("filler", &[FILLER], 1e6);
        let token = {
            let history = History::default();
            let claimed = verbs("filler", machine, &history, &engine, None).claim(&filler);
            claimed.token.expect("granted")
        };
        let beat = |engine: &JournalEngine, machine: &Machine| {
            let history = History::default();
            verbs("filler", machine, &history, engine, None).heartbeat(&filler.group, &token).fate
        };
        if act == Act::Shrink {
            let before = segment_lengths(machine);
            while segment_lengths(machine) == before {
                assert_eq!(beat(&engine, machine), Fate::Done);
            }
            assert!(segment_lengths(machine) > before, "so much is held");
            for (group, token) in &large {
                let history = History::default();
                let releasing = verbs("large", machine, &history, &engine, None);
                assert_eq!(releasing.release(group, token).fate, Fate::Done);
            }
        }
        let trial = machine.copy();
        let tried = JournalEngine::open(&trial.world(0), &root()).expect("opens");
        let (first, before) = (tried.place().expect("reads"), segment_lengths(&trial));
        let beats = (0..MOST_BEATS).find(|_| {
            let fate = beat(&tried, &trial);
            let now = tried.place().expect("reads");
            let bytes = (before, segment_lengths(&trial));
            until(&Beat { first: &first, now: &now, bytes, fate })
        });
        for _ in 0..beats.expect("it comes about") {
            assert_eq!(beat(&engine, machine), Fate::Done);
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

/// What makes a lease large.
pub(crate) fn large(bytes: usize) -> Payload {
    let payload = format!(r#"{{"seed":"{}"}}"#, "s".repeat(bytes));
    Payload::parse(&payload).expect("an object")
}

/// Claims what makes a checkpoint larger than a segment.
fn claim_large(machine: &Machine, engine: &JournalEngine) -> Vec<(TargetGroup, Token)> {
    let claim = |number| {
        let history = History::default();
        let asked =
            ClaimRequest { payload: large(LARGE_BYTES), ..request("large", &[number], 1e6) };
        let claimed = verbs("large", machine, &history, engine, None).claim(&asked);
        (asked.group, claimed.token.expect("granted"))
    };
    LARGE.map(claim).collect()
}

/// How long the files of both segments are, together.
fn segment_lengths(machine: &Machine) -> u64 {
    let layout = Layout::new(&root());
    let lengths = [0, 1].map(|slot| {
        let stat = machine.world(0).fs.stat(&layout.segment(slot));
        stat.expect("a segment").len
    });
    lengths.iter().sum()
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
