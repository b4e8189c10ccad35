//! What is stored and read is bounded by what is held, not by what was done.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Engine, Outcome, Request, UnitOutcome};
use ringfence_env::fault::{Call, FaultFs};
use ringfence_env::{RealFs, World};
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Fence, FencingToken, Key, Owner, Payload, Space, TargetGroup, Token, Ttl};

fn ask(numbers: std::ops::Range<u64>) -> (ClaimRequest, Vec<Key>) {
    let group = TargetGroup::from_numbers(numbers).unwrap();
    let keys = group.targets().map(Key::target).collect();
    let request = ClaimRequest {
        group,
        owner: Owner::new("somebody").unwrap(),
        worker: 1,
        payload: Payload::parse("{\"seed\":\"0123456789abcdef\"}").unwrap(),
        ttl: Ttl::from_seconds(600.0).unwrap(),
    };
    (request, keys)
}

fn patient(keys: &[Key]) -> Request<'_> {
    Request { keys, now: None, patience: Duration::from_secs(5) }
}

fn claim(engine: &dyn Engine, numbers: std::ops::Range<u64>) -> FencingToken {
    let (request, keys) = ask(numbers);
    let outcome =
        engine.transact(&patient(&keys), &mut |view| rules::claim(view, &request).ok()).unwrap();
    match outcome {
        Outcome::Done(done) => done.token.unwrap(),
        Outcome::Refused => panic!("free"),
    }
}

fn release(engine: &dyn Engine, numbers: std::ops::Range<u64>, token: FencingToken) {
    let (request, keys) = ask(numbers);
    let token = Token::from(token);
    let rule = |view: &_| rules::release(view, &request.group, &token).ok();
    let outcome = engine.transact(&patient(&keys), &mut { rule }).unwrap();
    assert!(matches!(outcome, Outcome::Done(_)));
}

fn files(root: &Path) -> (usize, u64) {
    let entries = std::fs::read_dir(root).unwrap();
    let sizes: Vec<u64> = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    (sizes.len(), sizes.iter().sum())
}

fn table(segment_bytes: u64) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = dir.path().join("table");
    let options = InitOptions { segment_bytes, ..InitOptions::default() };
    JournalEngine::init(&World::system(), &root, &options).unwrap();
    (dir, root)
}

#[test]
fn cycles_of_ever_new_targets_leave_neither_files_nor_bytes_nor_memory_behind() {
    let (_dir, root) = table(64 * 1024);
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    let held = claim(&engine, 1..5);
    let start = files(&root);
    let mut fence = Fence(0);
    for round in 0..6000_u64 {
        let numbers = 1000 + round * 4..1004 + round * 4;
        let token = claim(&engine, numbers.clone());
        assert!(token.fence() > fence);
        fence = token.fence();
        release(&engine, numbers, token);
    }
    let end = files(&root);
    assert_eq!(end.0, start.0, "as many files as at the start");
    assert!(end.1 <= start.1 * 2, "{start:?}, then {end:?}");
    // A process that begins now knows the same, from a bounded part of it.
    let faults = FaultFs::new(Arc::new(RealFs));
    let world = World::system().with_fs(Arc::new(faults.clone()));
    let fresh = JournalEngine::open(&world, &root).unwrap();
    assert_eq!(fresh.scan(Space::Targets, None).unwrap().entries.len(), 4);
    assert!(claim(&fresh, 5000..5001).fence() > fence);
    release(&engine, 1..5, held);
}

#[test]
fn a_look_at_one_of_many_leases_does_not_read_them_all() {
    let (_dir, root) = table(1024 * 1024);
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    // In batches, so that it does not take a sync for each.
    for batch in 0..20_u64 {
        let asks: Vec<_> = (0..250)
            .map(|number| ask(batch * 1000 + number * 4 + 1..batch * 1000 + number * 4 + 5))
            .collect();
        let units: Vec<_> = asks.iter().map(|(_, keys)| patient(keys)).collect();
        let report =
            engine.transact_each(&units, &mut |at, view| rules::claim(view, &asks[at].0).ok());
        assert!(report.units.iter().all(|unit| matches!(unit, UnitOutcome::Done(Some(_)))));
    }
    let faults = FaultFs::new(Arc::new(RealFs));
    let world = World::system().with_fs(Arc::new(faults.clone()));
    let fresh = JournalEngine::open(&world, &root).unwrap();
    claim(&fresh, 900_001..900_002);
    let reads = faults.count(Call::Read);
    assert!(reads < 60, "{reads} reads for one claim among 20,000 leases");
    assert_eq!(fresh.scan(Space::Targets, None).unwrap().entries.len(), 20_001);
}
