//! Makes the tables of `tests/fixtures/v1` anew, in the directory that is named:
//!
//! ```text
//! cargo run -p ringfence-journal --example fixtures -- NEW_DIRECTORY
//! ```
//! Clocks, randomness, host, boot and process are fixed, so the bytes depend on the program alone. The
//! tables that are committed are frozen: a program that makes others has another format, and they stay
//! as they are.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a tool of the developers', which spoils tables on purpose"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_engine::{Engine, Failure, Outcome, Request, UnitOutcome};
use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{Clock, Entropy, HostIdentity, RealFs, SystemClock, World};
use ringfence_journal::dump::dump;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest, WorkClaim};
use ringfence_model::{
    Edit, Entry, Key, Owner, Payload, Record, Space, Target, TargetGroup, Timestamp, Token,
    Transition, Ttl, View, Writer, WriterBoot,
};

/// Files of a table that are stored; the rest holds nothing that outlives a boot, or nothing at all.
pub(crate) const STORED: [&str; 4] = ["table.json", "checkpoint", "journal.0", "journal.1"];

/// Makes a table in a directory that is not there yet.
pub(crate) type Maker = fn(&Path);

/// Every table with its name.
pub(crate) const TABLES: [(&str, Maker); 6] = [
    ("fresh", fresh),
    ("leases", leases),
    ("rotated", rotated),
    ("torn", torn),
    ("damaged", damaged),
    ("closed", closed),
];

fn main() {
    let Some(into) = std::env::args_os().nth(1).map(PathBuf::from) else {
        panic!("name a directory that is not there");
    };
    std::fs::create_dir(&into).unwrap();
    for (name, make) in TABLES {
        // In memory no table is bound to the files that it stands in.
        let made = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = made.path().join("table");
        make(&root);
        std::fs::create_dir(into.join(name)).unwrap();
        for file in STORED {
            let bytes = without_zeros(file, std::fs::read(root.join(file)).unwrap());
            std::fs::write(into.join(name).join(file), bytes).unwrap();
        }
        let content = content(&world(), &root);
        std::fs::write(into.join(name).join("content.jsonl"), content).unwrap();
    }
}

/// Segments are stored without the zeros at their ends.
pub(crate) fn without_zeros(file: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    if file.starts_with("journal.") {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end.next_multiple_of(512));
    }
    bytes
}

/// What `ringfence dump --json` shows, and then every record that stands, or why none is shown.
pub(crate) fn content(world: &World, root: &Path) -> String {
    let mut text = String::new();
    for item in dump(world, root).unwrap() {
        text += &item.to_json().replace(&*root.to_string_lossy(), "TABLE");
    }
    let engine = match JournalEngine::open_read_only(world, root) {
        Ok(engine) => engine,
        Err(error) => {
            let error = error.to_string().replace(&*root.to_string_lossy(), "TABLE");
            return text + &format!("refused: {error}\n");
        }
    };
    for space in [Space::Targets, Space::Work] {
        for (_, entry) in engine.scan(space, None).unwrap().entries {
            let Entry::Present(record) = entry else { panic!("{entry:?}") };
            write!(text, "{}", record.to_line()).unwrap();
        }
    }
    text
}

/// Time stands still, but for whoever waits.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn wall(&self) -> Duration {
        Duration::from_millis(1_700_000_000_250)
    }

    fn boottime(&self) -> Duration {
        Duration::from_millis(5_000_500)
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn sleep(&self, duration: Duration) {
        SystemClock.sleep(duration);
    }
}

/// Counts where the world draws.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        let count = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = count.to_le_bytes()[at % 8] ^ u8::try_from(at % 256).unwrap() ^ 0xa5;
        }
        Ok(())
    }
}

/// The world that the tables were made in; readers need its boot.
pub(crate) fn world() -> World {
    let real = World::system();
    let uid = real.host.uid;
    World {
        clock: Arc::new(Still),
        entropy: Arc::new(Counting::default()),
        host: Arc::new(HostIdentity { name: "host".into(), boot: Some("boot".into()), uid }),
        fs: Arc::new(RealFs),
    }
}

struct Bed {
    engine: JournalEngine,
    faults: FaultFs,
}

impl Bed {
    fn new(root: &Path) -> Self {
        let world = world();
        let options = InitOptions { segment_bytes: 64 * 1024, ..InitOptions::default() };
        JournalEngine::init(&world, root, &options).unwrap();
        let faults = FaultFs::new(Arc::new(RealFs));
        let engine = JournalEngine::open(&world.with_fs(Arc::new(faults.clone())), root).unwrap();
        Self { engine, faults }
    }

    /// One call, by a process whose number is always the same.
    fn call<R: std::fmt::Debug>(
        &self,
        keys: &[Key],
        life: Option<&str>,
        mut rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Result<Option<Token>, Failure> {
        let request = Request { keys, now: None, patience: Duration::from_secs(10) };
        let outcome = self
            .engine
            .transact(&request, &mut |view| Some(rule(&seen(view, life, 0.0)).unwrap()))?;
        let Outcome::Done(done) = outcome else { panic!("refused") };
        Ok(done.token.map(Token::from))
    }

    fn claim(&self, owner: &str, numbers: &[u64], life: Option<&str>) -> Result<Token, Failure> {
        let request = ClaimRequest {
            group: group(numbers),
            owner: Owner::new(owner).unwrap(),
            worker: 3,
            payload: Payload::parse(r#"{"seed":"s","ü":[1,2.5]}"#).unwrap(),
            ttl: Ttl::from_seconds(90.5).unwrap(),
        };
        let granted = self.call(&keys(numbers), life, |view| rules::claim(view, &request))?;
        Ok(granted.unwrap())
    }

    fn release(&self, numbers: &[u64], token: &Token) {
        let held = group(numbers);
        self.call(&keys(numbers), None, |view| rules::release(view, &held, token)).unwrap();
    }
}

/// What a process sees whose number is always the same, some seconds after the clock.
fn seen(view: &View, life: Option<&str>, later: f64) -> View {
    let mut moment = view.moment.clone();
    moment.wall = Timestamp::from_seconds(moment.wall.seconds() + later).unwrap();
    let boot = view.writer.boot.as_ref().map(|boot| WriterBoot {
        life: life.map(Into::into),
        seconds: boot.seconds + later,
        ..boot.clone()
    });
    let writer = Arc::new(Writer { pid: 4242, boot, ..(*view.writer).clone() });
    View { writer, moment, ..view.clone() }
}

fn group(numbers: &[u64]) -> TargetGroup {
    TargetGroup::from_numbers(numbers.iter().copied()).unwrap()
}

fn keys(numbers: &[u64]) -> Vec<Key> {
    group(numbers).targets().map(Key::target).collect()
}

fn item(number: u64) -> WorkClaim {
    WorkClaim {
        payload: Payload::parse(&format!(r#"{{"item":{number}}}"#)).unwrap(),
        owner: Owner::new("w").unwrap(),
        worker: -1,
        ttl: Ttl::from_seconds(60.0).unwrap(),
    }
}

/// A table in which nothing has happened.
fn fresh(root: &Path) {
    Bed::new(root);
}

/// Leases of groups, one of them tied to a life; work items in each state; a job that is completed; a
/// force-release with its line; a record as another program wrote it.
fn leases(root: &Path) {
    let bed = Bed::new(root);
    let first = bed.claim("a", &[7, 3, 11], None).unwrap();
    let tied = "4026531836-000102030405060708090a0b0c0d0e0f";
    let token = bed.claim("b", &[20, 21], Some(tied)).unwrap();
    renew(&bed, &[(&[20, 21], &token)], Some(tied), 1.5);
    renew(&bed, &[(&[3, 7, 11], &first), (&[20, 21], &token)], None, 2.25);
    let gone = bed.claim("c", &[30], None).unwrap();
    let one = group(&[30]);
    let force = |view: &View| rules::force_release(view, &one, &gone, "it hangs");
    bed.call(&keys(&[30]), None, force).unwrap();
    let manifest = Payload::parse(r#"{"files":["x"]}"#).unwrap();
    for number in 1..=3 {
        let (item, key) = (item(number), [Key::work(item(number).id())]);
        let claim = |view: &View| rules::claim_work(view, &item);
        let token = bed.call(&key, None, claim).unwrap().unwrap();
        if number > 1 {
            let begin = |view: &View| rules::begin_commit(view, &token, &manifest);
            bed.call(&key, None, begin).unwrap();
        }
        if number > 2 {
            bed.call(&key, None, |view| rules::complete(view, &token)).unwrap();
        }
    }
    job(&bed, &manifest);
    let key = Key::target(Target::new(40).unwrap());
    let line = format!(
        r#"{{"attempts":2,"id":"{}","owner":"o","payload":{{}},"previous_owner":"p","schema":1,
        "status":"leased","steals":1,"target":40,"targets":[40,41],"theirs":{{"a":[1,2.50]}},
        "token":"opaque","updated":1699999999.125,"worker":0}}"#,
        key.id
    );
    let record = Record::parse(Space::Targets, key.id, line.as_bytes()).unwrap();
    let edit = Edit { key, to: Some(record) };
    let put = |_: &View| Ok::<_, ()>(Transition::edits(vec![edit.clone()]));
    bed.call(&[key], None, put).unwrap();
}

/// Heartbeats of these groups, as one call.
fn renew(bed: &Bed, held: &[(&[u64], &Token)], life: Option<&str>, later: f64) {
    let keys: Vec<Vec<Key>> = held.iter().map(|(numbers, _)| keys(numbers)).collect();
    let patience = Duration::from_secs(10);
    let units: Vec<Request<'_>> =
        keys.iter().map(|keys| Request { keys, now: None, patience }).collect();
    let report = bed.engine.transact_each(&units, &mut |unit, view| {
        let (numbers, token) = held[unit];
        rules::heartbeat(&seen(view, life, later), &group(numbers), token).ok()
    });
    assert!(report.units.iter().all(|unit| matches!(unit, UnitOutcome::Done(_))), "{report:?}");
}

/// A group and an item under one token; then the item is done and the group free, in one frame.
fn job(bed: &Bed, manifest: &Payload) {
    let (item, numbers) = (item(9), [50, 51]);
    let mut all = keys(&numbers);
    all.push(Key::work(item.id()));
    let request = ClaimRequest {
        group: group(&numbers),
        owner: item.owner.clone(),
        worker: item.worker,
        payload: Payload::empty(),
        ttl: item.ttl,
    };
    let claim = |view: &View| rules::claim_job(view, &request, &item);
    let token = bed.call(&all, None, claim).unwrap().unwrap();
    let begin = |view: &View| rules::begin_commit(view, &token, manifest);
    bed.call(&[Key::work(item.id())], None, begin).unwrap();
    let held = group(&numbers);
    bed.call(&all, None, |view| rules::complete_job(view, &held, &token)).unwrap();
}

/// Over the end of two segments, with a checkpoint of several blocks.
fn rotated(root: &Path) {
    let bed = Bed::new(root);
    for first in [1_u64, 101, 201] {
        let numbers: Vec<u64> = (first..first + 50).collect();
        bed.claim("many", &numbers, None).unwrap();
    }
    for round in 0..100 {
        let token = bed.claim("a", &[1000 + round, 1001 + round], None).unwrap();
        if round < 97 {
            bed.release(&[1000 + round, 1001 + round], &token);
        } else {
            bed.release(&[1001 + round], &token);
        }
    }
}

fn edit_segment(root: &Path, edit: impl FnOnce(&mut [u8], &[usize])) {
    let path = root.join("journal.0");
    let mut bytes = std::fs::read(&path).unwrap();
    let begins = |at: &usize| bytes[*at..].starts_with(b"RFj1");
    let frames: Vec<usize> = (1024..bytes.len()).step_by(512).filter(begins).collect();
    edit(&mut bytes, &frames);
    std::fs::write(&path, bytes).unwrap();
}

fn three_frames(root: &Path) {
    let bed = Bed::new(root);
    bed.claim("a", &[1, 2], None).unwrap();
    bed.claim("b", &(10..20).collect::<Vec<u64>>(), None).unwrap();
    bed.claim("c", &(30..60).collect::<Vec<u64>>(), None).unwrap();
}

/// The second sector of the last frame never reached the disk.
fn torn(root: &Path) {
    three_frames(root);
    edit_segment(root, |bytes, frames| {
        let last = *frames.last().unwrap();
        bytes[last + 512..last + 1024].fill(0);
    });
}

/// One bit of the second frame is wrong, which the third one calls durable.
fn damaged(root: &Path) {
    three_frames(root);
    edit_segment(root, |bytes, frames| bytes[frames[1] + 100] ^= 1);
}

/// A sync failed, its epoch was ended, and making a segment ready for the next one failed too.
fn closed(root: &Path) {
    let bed = Bed::new(root);
    bed.claim("a", &[1, 2], None).unwrap();
    bed.faults.disarm();
    for nth in [1, 3] {
        bed.faults.arm(When::NthOf(Call::SyncFile, nth), Effect::Errno(5));
    }
    let answer = bed.claim("b", &[3, 4], None);
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(bed.faults.fired(), 2);
}
