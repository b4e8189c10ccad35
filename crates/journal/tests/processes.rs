//! Real processes that are killed: what was acknowledged stands, groups are whole, fences rise.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that kills processes and fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ringfence_engine::{Engine, Outcome, Request};
use ringfence_env::World;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Entry, Key, Owner, Payload, Record, Space, TargetGroup, Token, Ttl};

const ROLE: &str = "RINGFENCE_JOURNAL_TEST_WORKER";
const TARGETS: u64 = 24;
const WORKERS: u64 = 4;
const KILLS: u64 = 60;

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// One process: claims, renews and releases, and says what was acknowledged, and what it is about to
/// try, each in one write.
fn work(root: &Path, seed: u64) {
    let engine = JournalEngine::open(&World::system(), root).unwrap();
    let log = root.parent().unwrap().join(format!("log.{seed}"));
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    let mut say = |line: String| log.write_all(line.as_bytes()).unwrap();
    let mut dice = Dice(seed);
    loop {
        let size = dice.below(6) + 1;
        let first = dice.below(TARGETS - size) + 1;
        let group = TargetGroup::from_numbers(first..first + size).unwrap();
        let keys: Vec<Key> = group.targets().map(Key::target).collect();
        let request = ClaimRequest {
            group: group.clone(),
            owner: Owner::new(&format!("worker-{seed}")).unwrap(),
            worker: 0,
            payload: Payload::empty(),
            // Long: a dead worker's leases stay, and are cleared away by the parent.
            ttl: Ttl::from_seconds(3600.0).unwrap(),
        };
        let ask = Request { keys: &keys, now: None, patience: Duration::from_mins(1) };
        let claimed = engine.transact(&ask, &mut |view| rules::claim(view, &request).ok());
        let Outcome::Done(done) = claimed.unwrap() else { continue };
        let token = done.token.unwrap();
        say(format!("held {token} {first} {size}\n"));
        let text = Token::from(token);
        for _ in 0..dice.below(3) {
            let beat = |view: &_| rules::heartbeat(view, &group, &text).ok();
            let beat = engine.transact(&ask, &mut { beat }).unwrap();
            assert!(matches!(beat, Outcome::Done(_)), "a lease that nobody could take was lost");
        }
        say(format!("freeing {token} {first} {size}\n"));
        let free = |view: &_| rules::release(view, &group, &text).ok();
        let freed = engine.transact(&ask, &mut { free }).unwrap();
        assert!(matches!(freed, Outcome::Done(_)), "a lease that nobody could take was lost");
        say(format!("freed {token} {first} {size}\n"));
    }
}

#[test]
fn worker() {
    // A test of its own only when started as one of the processes below.
    if let Some(seed) = std::env::var_os(ROLE) {
        let seed = seed.into_string().unwrap().parse().unwrap();
        let root = std::env::var_os("RINGFENCE_JOURNAL_TEST_ROOT").unwrap();
        work(Path::new(&root), seed);
    }
}

fn spawn(root: &Path, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker", "--nocapture"]).env(ROLE, seed.to_string());
    command.env("RINGFENCE_JOURNAL_TEST_ROOT", root).stdout(std::process::Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn processes_that_are_killed_leave_groups_whole_and_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let root: PathBuf = dir.path().join("table");
    // Small segments: kills fall into checkpoints and changes of segments as well.
    let options = InitOptions { segment_bytes: 64 * 1024, ..InitOptions::default() };
    JournalEngine::init(&World::system(), &root, &options).unwrap();
    let mut dice = Dice(11);
    let mut seeds = 1..;
    let mut workers: Vec<(u64, Child)> = Vec::new();
    for kill in 0..KILLS {
        while workers.len() < usize::try_from(WORKERS).unwrap() {
            let seed = seeds.next().unwrap();
            workers.push((seed, spawn(&root, seed)));
        }
        std::thread::sleep(Duration::from_millis(20 + dice.below(40)));
        // On a busy machine they would be killed before they have done anything.
        let began = Instant::now();
        while granted(dir.path()) < 9 * (kill + 1) && began.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let victim = usize::try_from(dice.below(WORKERS)).unwrap();
        let (seed, mut child) = workers.swap_remove(victim);
        let early = child.try_wait().unwrap();
        assert!(early.is_none(), "worker {seed} ended by itself: {early:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        clear(&root, dir.path(), seed);
        if kill % 10 == 9 {
            // All of them at once: nobody is left who has anything in memory.
            for (seed, mut child) in workers.drain(..) {
                child.kill().unwrap();
                child.wait().unwrap();
                clear(&root, dir.path(), seed);
            }
        }
    }
    for (seed, mut child) in workers {
        child.kill().unwrap();
        child.wait().unwrap();
        clear(&root, dir.path(), seed);
    }
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    assert_eq!(engine.scan(Space::Targets, None).unwrap().entries.len(), 0);
    let mut all = BTreeSet::new();
    let mut granted = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let tokens = text.lines().filter_map(|line| line.strip_prefix("held "));
        let fences: Vec<&str> = tokens.map(|rest| &rest[..20]).collect();
        assert!(fences.is_sorted_by(|a, b| a < b), "{}", path.display());
        granted += fences.len();
        all.extend(fences.into_iter().map(ToOwned::to_owned));
    }
    assert_eq!(all.len(), granted, "no fence is given twice");
    assert!(granted > 500, "only {granted} grants");
}

/// How many groups the workers have got so far.
fn granted(logs: &Path) -> u64 {
    let files = std::fs::read_dir(logs).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("held ")).count() as u64).sum()
}

/// What a dead worker held must be what it said, but for the call it was in; then it is freed.
fn clear(root: &Path, logs: &Path, seed: u64) {
    let text = std::fs::read_to_string(logs.join(format!("log.{seed}"))).unwrap_or_default();
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let last = whole.lines().last().map(|line| line.split(' ').collect::<Vec<_>>());
    let engine = JournalEngine::open(&World::system(), root).unwrap();
    let scan = engine.scan(Space::Targets, None).unwrap();
    let mut held: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for (_, entry) in scan.entries {
        let Entry::Present(Record::Target(record)) = entry else { panic!("{entry:?}") };
        if *record.holder.owner == *format!("worker-{seed}") {
            let members: BTreeSet<u64> = record.group.targets.iter().map(|t| t.get()).collect();
            assert!(members.contains(&record.target.get()));
            held.entry(record.holder.token.to_string()).or_default().insert(record.target.get());
            assert!(held.len() <= 1, "more than one group of worker {seed}");
            let group = TargetGroup::new(record.group.targets.iter().copied()).unwrap();
            let keys: Vec<Key> = group.targets().map(Key::target).collect();
            let view = engine.view(&keys, None).unwrap();
            for (key, entry) in &view.entries {
                let Entry::Present(other) = entry else { panic!("part of a group: {key:?} free") };
                assert_eq!(other.holder().token, record.holder.token, "part of a group");
            }
        }
    }
    let now = held.keys().next().cloned();
    match last.as_deref() {
        Some(["held", token, ..]) => assert_eq!(now.as_deref(), Some(*token), "acknowledged"),
        Some(["freeing", token, ..]) => {
            assert!(now.is_none() || now.as_deref() == Some(*token), "{now:?}");
        }
        // The grant it died in may have happened or not.
        Some(["freed", token, ..]) => assert_ne!(now.as_deref(), Some(*token), "acknowledged"),
        None => {}
        other => panic!("{other:?}"),
    }
    if let Some((token, members)) = held.pop_first() {
        let group = TargetGroup::from_numbers(members).unwrap();
        let keys: Vec<Key> = group.targets().map(Key::target).collect();
        let token: Token = token.parse().unwrap();
        assert!(token.fence().is_some());
        let ask = Request { keys: &keys, now: None, patience: Duration::from_mins(1) };
        let free = |view: &_| rules::release(view, &group, &token).ok();
        assert!(matches!(engine.transact(&ask, &mut { free }).unwrap(), Outcome::Done(_)));
    }
}
