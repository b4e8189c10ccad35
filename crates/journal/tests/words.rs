//! Memory that processes share, where the disk has no room for a page of it: what is answered, and what
//! stands after it.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test damages files and fails by panicking"
)]

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Engine, Failure, Outcome, Request};
use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{Clock as _, HostIdentity, RealFs, SystemClock, World};
use ringfence_journal::{InitOptions, JournalEngine, moving};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{FencingToken, Key, Owner, Payload, Space, TargetGroup, Token, Ttl};

/// More than a call of any kind makes.
const MOST: u64 = 60;

struct Table {
    _dir: tempfile::TempDir,
    root: PathBuf,
    faults: FaultFs,
    /// Has the memory that `other` lacks.
    other: JournalEngine,
    engine: JournalEngine,
}

impl Table {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let options = InitOptions { segment_bytes: 64 * 1024, ..InitOptions::default() };
        let other = JournalEngine::init(&World::system(), &root, &options).unwrap();
        let faults = FaultFs::new(Arc::new(RealFs));
        let world = World::system().with_fs(Arc::new(faults.clone()));
        let engine = JournalEngine::open(&world, &root).unwrap();
        Self { _dir: dir, root, faults, other, engine }
    }
}

fn keys(target: u64) -> (TargetGroup, Vec<Key>) {
    let group = TargetGroup::from_numbers([target, target + 1_000]).unwrap();
    let keys = group.targets().map(Key::target).collect();
    (group, keys)
}

fn claim(engine: &dyn Engine, target: u64) -> Result<FencingToken, Failure> {
    let (group, keys) = keys(target);
    let request = ClaimRequest {
        group,
        owner: Owner::new("a").unwrap(),
        worker: 1,
        payload: Payload::empty(),
        ttl: Ttl::from_seconds(600.0).unwrap(),
    };
    let ask = Request { keys: &keys, now: None, patience: Duration::from_secs(5) };
    match engine.transact(&ask, &mut |view| rules::claim(view, &request).ok())? {
        Outcome::Done(done) => Ok(done.token.unwrap()),
        Outcome::Refused => panic!("nobody holds {target}"),
    }
}

fn release(engine: &dyn Engine, target: u64, token: FencingToken) -> Result<(), Failure> {
    let (group, keys) = keys(target);
    let ask = Request { keys: &keys, now: None, patience: Duration::from_secs(5) };
    let rule = &mut |view: &_| rules::release(view, &group, &Token::from(token)).ok();
    engine.transact(&ask, rule).map(|_| ())
}

/// What is held, as a process sees it that has nothing in memory.
fn held(root: &Path) -> BTreeSet<Key> {
    let engine = JournalEngine::open_read_only(&World::system(), root).unwrap();
    let scan = engine.scan(Space::Targets, None).unwrap();
    scan.entries.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn wherever_memory_ends_in_a_call_its_answer_is_true_and_no_fence_is_there_twice() {
    let mut endings = [0; 3];
    for left in 0..MOST {
        let table = Table::new();
        let mut tokens = vec![claim(&table.engine, 1).unwrap(), claim(&table.engine, 2).unwrap()];
        let before = held(&table.root);
        let mut judge = |told: Result<bool, Failure>, target: u64| {
            let is_held = held(&table.root).contains(&keys(target).1[0]);
            let was_held = before.contains(&keys(target).1[0]);
            match told {
                Ok(now_held) => assert_eq!(is_held, now_held, "{left} left, {target}"),
                Err(Failure::Untouched(_) | Failure::Restored(_)) => {
                    assert_eq!(is_held, was_held, "{left} left, {target}");
                    endings[1] += 1;
                }
                Err(Failure::Unknown { .. }) => endings[2] += 1,
                Err(other) => panic!("{left} left, {target}: {other:?}"),
            }
            endings[0] += 1;
        };
        table.faults.limit_words(Some(left));
        let claimed = claim(&table.engine, 3);
        // Its fence first, and then that the last frame is not the last one any more.
        assert_eq!(left < 2, matches!(claimed, Err(Failure::Untouched(_))), "{left}: {claimed:?}");
        tokens.extend(claimed.as_ref().ok());
        judge(claimed.map(|_| true), 3);
        table.faults.limit_words(Some(left));
        judge(release(&table.engine, 2, tokens[1]).map(|()| false), 2);
        table.faults.limit_words(None);
        for target in 4..8 {
            let engine = if target % 2 == 0 { &table.engine } else { &table.other };
            tokens.push(claim(engine, target).unwrap());
        }
        let fences: BTreeSet<u64> = tokens.iter().map(|token| token.fence().0).collect();
        assert_eq!(fences.len(), tokens.len(), "{left} left: {tokens:?}");
    }
    assert_eq!(endings[1], 3, "two claims and a release that wrote nothing");
    assert!(endings[2] > 1 && endings[0] > endings[1] + endings[2] + 20, "{endings:?}");
}

/// J10. The frame with it may be lost.
#[test]
fn no_token_has_a_fence_that_nobody_could_be_told_of() {
    let table = Table::new();
    claim(&table.engine, 1).unwrap();
    // A fence, and that there is no last frame; that there is one again is not told.
    table.faults.limit_words(Some(2));
    assert!(matches!(claim(&table.engine, 2), Err(Failure::Unknown { .. })));
    table.faults.limit_words(Some(0));
    let told = claim(&table.engine, 3);
    assert!(matches!(told, Err(Failure::Untouched(_))), "{told:?}");
}

/// H5. What is durable is told before it is acknowledged, or a sync that fails afterwards drops it.
#[test]
fn what_was_acknowledged_stays_when_a_later_sync_of_somebody_else_fails() {
    let mut acknowledged = 0;
    for left in 0..MOST {
        let table = Table::new();
        let failing = FaultFs::new(Arc::new(RealFs));
        let world = World::system().with_fs(Arc::new(failing.clone()));
        let later = JournalEngine::open(&world, &table.root).unwrap();
        claim(&later, 1).unwrap();
        claim(&table.engine, 2).unwrap();
        table.faults.limit_words(Some(left));
        let told = claim(&table.engine, 3);
        failing.arm(When::NthOf(Call::SyncFile, 1), Effect::Errno(libc::EIO));
        claim(&later, 4).unwrap_err();
        assert!(failing.fired() > 0, "{left} left");
        let is_held = held(&table.root).contains(&keys(3).1[0]);
        assert!(told.is_err() || is_held, "{left} left: it was acknowledged and is gone");
        acknowledged += u64::from(told.is_ok());
    }
    assert!(acknowledged > MOST / 4, "{acknowledged}");
}

/// H5. Neither the mark in the segment nor the words can be written.
#[test]
fn a_failed_sync_that_nobody_can_be_told_of_is_known_to_whoever_made_it() {
    let table = Table::new();
    claim(&table.engine, 1).unwrap();
    let epoch = table.engine.place().unwrap().epoch;
    let faults = table.faults.clone();
    table.faults.on_call(move |call, _| {
        if call == Call::SyncFile {
            faults.limit_words(Some(0));
        }
    });
    table.faults.arm(When::NthOf(Call::SyncFile, 1), Effect::Errno(libc::EIO));
    table.faults.arm(When::FromOf(Call::Write, 2), Effect::Errno(libc::ENOSPC));
    let told = claim(&table.engine, 2);
    assert!(matches!(told, Err(Failure::Unknown { .. })), "{told:?}");
    table.faults.on_call(|_, _| {});
    table.faults.disarm();
    table.faults.limit_words(None);
    claim(&table.engine, 3).unwrap();
    let after = table.engine.place().unwrap().epoch;
    assert!(after > epoch, "its next sync proves nothing of what the first one lost");
    assert!(!held(&table.root).contains(&keys(2).1[0]), "dropped for all");
}

#[test]
fn a_table_is_not_opened_for_changes_where_the_first_words_of_a_boot_cannot_be_stored() {
    let table = Table::new();
    claim(&table.engine, 1).unwrap();
    let now = World::system();
    let host = HostIdentity { boot: Some("another".into()), ..(*now.host).clone() };
    let next_boot = World { host: Arc::new(host), ..now }.with_fs(Arc::new(table.faults.clone()));
    table.faults.limit_words(Some(0));
    let refused = JournalEngine::open(&next_boot, &table.root).unwrap_err();
    assert!(format!("{refused}").contains("no room"), "{refused}");
    JournalEngine::open_read_only(&next_boot, &table.root).unwrap();
    table.faults.limit_words(None);
    claim(&JournalEngine::open(&next_boot, &table.root).unwrap(), 2).unwrap();
}

/// X2. Others decide without reading where they are told that nothing came after what they know.
#[test]
fn a_table_is_not_closed_where_it_cannot_be_taken_back_that_it_has_an_end() {
    let table = Table::new();
    claim(&table.engine, 1).unwrap();
    let close = || {
        let still = table.engine.hold_still(SystemClock.deadline(Duration::from_secs(5))).unwrap();
        still.close("{\"engine\":\"moved\",\"to\":\"/elsewhere\"}\n")
    };
    table.faults.limit_words(Some(0));
    let refused = close().unwrap_err();
    assert!(refused.to_string().contains("no room"), "{refused}");
    assert_eq!(moving::closed(&World::system(), &table.root).unwrap(), None);
    claim(&table.other, 2).unwrap();
    table.faults.limit_words(None);
    close().unwrap();
    claim(&table.other, 3).unwrap_err();
}

#[test]
fn fences_are_not_raised_where_it_cannot_be_told() {
    let table = Table::new();
    let first = claim(&table.engine, 1).unwrap().fence().0;
    let world = World::system().with_fs(Arc::new(table.faults.clone()));
    let raise =
        || JournalEngine::raise_fences(&world, &table.root, NonZeroU64::new(1_000).unwrap());
    table.faults.limit_words(Some(0));
    let refused = raise().unwrap_err();
    assert!(format!("{refused:?}").contains("NoRoomForWords"), "{refused:?}");
    table.faults.limit_words(None);
    assert!(claim(&table.other, 2).unwrap().fence().0 < first + 1_000);
    let raised = raise().unwrap();
    assert!(claim(&raised, 3).unwrap().fence().0 > first + 1_000);
}
