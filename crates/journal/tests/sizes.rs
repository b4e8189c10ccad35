//! How large segments are: what is written for the sake of checkpoints is bounded by what is stored, and
//! the files by what is held.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test changes files and fails by panicking"
)]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_engine::{Engine, Failure, Outcome, Request, UnitOutcome};
use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{RealFs, World};
use ringfence_journal::layout::Layout;
use ringfence_journal::segment::Segments;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{FencingToken, Key, Owner, Payload, Space, TargetGroup, Token, Ttl};

/// The smallest there is.
const SEGMENT: u64 = 64 * 1024;
/// A lease of one target is one frame of one sector; so is its heartbeat.
const FRAME: u64 = 512;
/// Units of one call.
const BATCH: u64 = 250;

fn ask(number: u64, payload_bytes: usize) -> (ClaimRequest, [Key; 1]) {
    let group = TargetGroup::from_numbers([number]).unwrap();
    let keys = [Key::target(group.targets().next().unwrap())];
    let payload = format!("{{\"seed\":\"{}\"}}", "s".repeat(payload_bytes));
    let request = ClaimRequest {
        group,
        owner: Owner::new("somebody").unwrap(),
        worker: 1,
        payload: Payload::parse(&payload).unwrap(),
        ttl: Ttl::from_seconds(600.0).unwrap(),
    };
    (request, keys)
}

fn patient(keys: &[Key]) -> Request<'_> {
    Request { keys, now: None, patience: Duration::from_secs(5) }
}

fn claim(engine: &dyn Engine, number: u64, payload: usize) -> Result<FencingToken, Failure> {
    let (request, keys) = ask(number, payload);
    match engine.transact(&patient(&keys), &mut |view| rules::claim(view, &request).ok())? {
        Outcome::Done(done) => Ok(done.token.unwrap()),
        Outcome::Refused => panic!("{number} is free"),
    }
}

type Asked = (ClaimRequest, [Key; 1]);

/// Calls on many targets, so many at a time that it does not take a sync for each.
fn each<R>(
    engine: &dyn Engine,
    numbers: Range<u64>,
    rule: impl Fn(&Asked, &ringfence_model::View, usize) -> Option<ringfence_model::Transition>,
    see: impl Fn(Option<FencingToken>) -> R,
) -> Vec<R> {
    let mut seen = Vec::new();
    for from in numbers.clone().step_by(usize::try_from(BATCH).unwrap()) {
        let asks: Vec<Asked> =
            (from..(from + BATCH).min(numbers.end)).map(|number| ask(number, 8)).collect();
        let units: Vec<_> = asks.iter().map(|(_, keys)| patient(keys)).collect();
        let before = seen.len();
        let report =
            engine.transact_each(&units, &mut |at, view| rule(&asks[at], view, before + at));
        for unit in report.units {
            match unit {
                UnitOutcome::Done(token) => seen.push(see(token)),
                other => panic!("{other:?}"),
            }
        }
    }
    seen
}

fn claim_each(engine: &dyn Engine, numbers: Range<u64>) -> Vec<Token> {
    let rule = |asked: &Asked, view: &_, _| rules::claim(view, &asked.0).ok();
    each(engine, numbers, rule, |token| Token::from(token.unwrap()))
}

fn release_each(engine: &dyn Engine, numbers: Range<u64>, tokens: &[Token]) {
    let rule = |asked: &Asked, view: &_, at| rules::release(view, &asked.0.group, &tokens[at]).ok();
    each(engine, numbers, rule, |_| ());
}

fn heartbeat(engine: &dyn Engine, number: u64, token: &Token) {
    let (request, keys) = ask(number, 8);
    let rule = |view: &_| rules::heartbeat(view, &request.group, token).ok();
    let outcome = engine.transact(&patient(&keys), &mut { rule }).unwrap();
    assert!(matches!(outcome, Outcome::Done(_)));
}

/// How many files there are, and how many bytes in them.
fn files(root: &Path) -> (usize, u64) {
    let entries = std::fs::read_dir(root).unwrap();
    let sizes: Vec<u64> = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    (sizes.len(), sizes.iter().sum())
}

fn segments(root: &Path) -> [u64; 2] {
    [0, 1].map(|slot| std::fs::metadata(Layout::new(root).segment(slot)).unwrap().len())
}

/// A table, seen through a file system that counts the bytes of its checkpoints.
struct Bed {
    _dir: tempfile::TempDir,
    root: PathBuf,
    world: World,
    checkpoints: Arc<AtomicU64>,
}

impl Bed {
    fn new() -> (Self, JournalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = dir.path().join("table");
        let options = InitOptions { segment_bytes: SEGMENT, ..InitOptions::default() };
        JournalEngine::init(&World::system(), &root, &options).unwrap();
        let faults = FaultFs::new(Arc::new(RealFs));
        let checkpoints = Arc::new(AtomicU64::new(0));
        let (temp, count) = (Layout::new(&root).new_checkpoint(), checkpoints.clone());
        faults.on_call(move |call, _| {
            // It is complete by then.
            if call == Call::Rename
                && let Ok(there) = std::fs::metadata(&temp)
            {
                count.fetch_add(there.len(), Ordering::SeqCst);
            }
        });
        let world = World::system().with_fs(Arc::new(faults));
        let engine = JournalEngine::open(&world, &root).unwrap();
        (Self { _dir: dir, root, world, checkpoints }, engine)
    }

    fn written(&self) -> u64 {
        self.checkpoints.load(Ordering::SeqCst)
    }
}

/// A checkpoint of everything was written for each 64 KiB of frames: of 20,000 leases 50 times what the
/// calls themselves had stored, and more where more was held.
#[test]
fn checkpoints_of_many_leases_cost_no_more_than_a_few_times_what_the_calls_store() {
    const LEASES: u64 = 20_000;
    const BEATS: u64 = 20_000;
    let (bed, engine) = Bed::new();
    let tokens = claim_each(&engine, 1..LEASES + 1);
    let (growing, frames) = (bed.written(), LEASES * FRAME);
    assert!(growing <= 6 * frames, "{growing} bytes of checkpoints for {frames} of frames");
    let beats = BEATS / LEASES.min(BEATS);
    for _ in 0..beats {
        for (number, token) in (1..).zip(&tokens) {
            heartbeat(&engine, number, token);
        }
    }
    let (holding, frames) = (bed.written() - growing, beats * LEASES * FRAME);
    let live = std::fs::metadata(Layout::new(&bed.root).checkpoint()).unwrap().len();
    assert!(live > 40 * SEGMENT && holding >= live, "{live} bytes are held, {holding} written");
    assert!(holding <= 5 * frames, "{holding} bytes of checkpoints for {frames} of frames");
    for bytes in segments(&bed.root) {
        assert!(
            bytes <= live / 4 + 2 * SEGMENT,
            "a segment of {bytes} bytes where {live} are held"
        );
    }
}

#[test]
fn the_files_are_small_again_once_little_is_held_for_everybody_who_has_them_open() {
    const LEASES: u64 = 9000;
    let (bed, engine) = Bed::new();
    let other = JournalEngine::open(&bed.world, &bed.root).unwrap();
    let reader = JournalEngine::open_read_only(&bed.world, &bed.root).unwrap();
    let start = files(&bed.root);
    let tokens = claim_each(&engine, 1..LEASES + 1);
    assert_eq!(reader.scan(Space::Targets, None).unwrap().entries.len(), 9000);
    let large = segments(&bed.root);
    assert!(large.iter().all(|bytes| *bytes > 4 * SEGMENT), "{large:?}");
    release_each(&other, 1..LEASES + 1, &tokens);
    // As many frames as both segments have.
    let kept = claim(&engine, 99_999, 8).unwrap().into();
    for _ in 0..large.iter().sum::<u64>() / FRAME / 2 {
        heartbeat(&engine, 99_999, &kept);
        heartbeat(&other, 99_999, &kept);
    }
    assert_eq!(segments(&bed.root), [SEGMENT; 2]);
    let end = files(&bed.root);
    assert_eq!(end.0, start.0, "as many files as at the start");
    assert!(end.1 <= start.1 * 2, "{start:?}, then {end:?}");
    for engine in [&engine, &other, &reader] {
        assert_eq!(engine.scan(Space::Targets, None).unwrap().entries.len(), 1);
    }
    let fresh = JournalEngine::open(&bed.world, &bed.root).unwrap();
    assert_eq!(fresh.scan(Space::Targets, None).unwrap().entries.len(), 1);
}

/// What is stored can be renewed and released whatever became of the segments since.
#[test]
fn what_one_call_may_store_does_not_depend_on_how_much_is_held() {
    let too_large = |engine: &JournalEngine, number| {
        let failure = claim(engine, number, 64_000).unwrap_err();
        assert!(
            format!("{failure:?}").contains("one call is larger than a segment"),
            "{failure:?}"
        );
    };
    let (bed, engine) = Bed::new();
    too_large(&engine, 1);
    claim(&engine, 2, 60_000).unwrap();
    claim_each(&engine, 1000..9000);
    assert!(segments(&bed.root).iter().all(|bytes| *bytes > 4 * SEGMENT));
    too_large(&engine, 1);
    // One that does not fit behind what is there goes into the next segment.
    let from = engine.place().unwrap().segment;
    for number in 10..40 {
        claim(&engine, number, 60_000).unwrap();
    }
    assert!(engine.place().unwrap().segment > from);
}

/// J10. Frames may have been in any sector of a segment that has grown.
#[test]
fn as_many_fences_are_passed_over_after_a_boot_as_a_grown_segment_has_room_for() {
    let (bed, engine) = Bed::new();
    claim_each(&engine, 1..8001);
    let last = claim(&engine, 9000, 8).unwrap().fence();
    let longest = segments(&bed.root).into_iter().max().unwrap();
    assert!(longest > 4 * SEGMENT);
    drop(engine);
    let hints = Layout::new(&bed.root).hints();
    let words = std::fs::metadata(&hints).unwrap().len();
    std::fs::write(&hints, vec![0; usize::try_from(words).unwrap()]).unwrap();
    let engine = JournalEngine::open(&bed.world, &bed.root).unwrap();
    let next = claim(&engine, 9001, 8).unwrap().fence();
    assert!(next.0 > last.0 + longest / FRAME, "{next:?} after {last:?}");
}

#[test]
fn a_segment_that_cannot_grow_on_a_full_disk_keeps_the_room_that_it_has() {
    const MANY: u64 = 16 * SEGMENT;
    let (bed, engine) = Bed::new();
    drop(engine);
    let layout = Layout::new(&bed.root);
    let faults = FaultFs::new(Arc::new(RealFs));
    let world = World::system().with_fs(Arc::new(faults.clone()));
    let segments_of = Segments::open(&world, &layout, 7, true).unwrap();
    let header = |slot| segments_of.header(slot).unwrap().unwrap();
    // After the first sector zeros are written in four pieces.
    for (had, write, kept) in [(SEGMENT, 2, SEGMENT), (SEGMENT, 5, SEGMENT), (0, 3, 2 * SEGMENT)] {
        segments_of.prepare(0, 3, SEGMENT, SEGMENT).unwrap();
        let path = layout.segment(0);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(had).unwrap();
        faults.disarm();
        faults.arm(When::NthOf(Call::Write, write), Effect::Errno(28));
        segments_of.prepare(0, 4, MANY, kept).unwrap();
        assert_eq!((header(0).segment, header(0).bytes), (4, kept));
        assert_eq!(segments(&bed.root)[0], kept);
        let zeros = std::fs::read(&path).unwrap();
        assert!(zeros[512..].iter().all(|byte| *byte == 0));
    }
    // Another error is no reason to go on.
    faults.disarm();
    faults.arm(When::NthOf(Call::Write, 3), Effect::Errno(5));
    segments_of.prepare(0, 5, MANY, SEGMENT).unwrap_err();
    assert_eq!(segments_of.header(0).unwrap(), None);
    faults.disarm();
    segments_of.prepare(0, 5, MANY, SEGMENT).unwrap();
    assert_eq!((header(0).bytes, segments(&bed.root)[0]), (MANY, MANY));
    segments_of.prepare(0, 6, SEGMENT, SEGMENT).unwrap();
    assert_eq!((header(0).bytes, segments(&bed.root)[0]), (SEGMENT, SEGMENT));
}
