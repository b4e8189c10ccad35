//! Group commit within one process: threads of one handle, in orders that shuttle chooses.
//!
//! `cargo test -p ringfence-journal --features shuttle --test orders`. In every order:
//!
//! 1. whoever is told that his call is done finds it in what was durable at that moment: a sync that
//!    began after his frame was whole has succeeded;
//! 2. a failed sync is told to everybody whose frame it should have covered, and each is told the fate of
//!    his own call: what is done is there at the end, what was restored is not;
//! 3. everybody comes to an end.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test that fails by panicking")]

#[allow(dead_code, reason = "the fuzz targets use all of it")]
#[path = "fuzz/memory.rs"]
mod memory;
#[path = "orders/switching.rs"]
mod switching;

use std::path::Path;
use std::time::Duration;

use ringfence_engine::{Engine as _, Failure, Outcome, Request, UnitOutcome};
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Entry, Key, Owner, Payload, TargetGroup, Token, Ttl};
use shuttle::rand::Rng as _;

use switching::{Lie, SwitchingFs};

const ROOT: &str = "/table";
const THREADS: u64 = 3;

fn group(thread: u64, number: u64) -> TargetGroup {
    let first = thread * 100 + number * 10;
    TargetGroup::from_numbers([first + 1, first + 2]).unwrap()
}

fn keys(group: &TargetGroup) -> Vec<Key> {
    group.targets().map(Key::target).collect()
}

fn request(group: &TargetGroup) -> ClaimRequest {
    ClaimRequest {
        group: group.clone(),
        owner: Owner::new("a").unwrap(),
        worker: 0,
        payload: Payload::empty(),
        ttl: Ttl::from_seconds(1e6).unwrap(),
    }
}

fn ask(keys: &[Key]) -> Request<'_> {
    Request { keys, now: None, patience: Duration::from_secs(1000) }
}

/// Who holds a group in some files: its token, or nobody.
fn holder(fs: &SwitchingFs, durable: bool, group: &TargetGroup) -> Option<Token> {
    let world = if durable { fs.durable().world() } else { fs.world() };
    let reader = JournalEngine::open_read_only(&world, Path::new(ROOT)).unwrap();
    let view = reader.view(&keys(group), None).unwrap();
    let token = |(_, entry): &(Key, Entry)| match entry {
        Entry::Present(record) => Some(record.holder().token.clone()),
        _ => None,
    };
    let held: Vec<_> = view.entries.iter().map(token).collect();
    assert!(held.windows(2).all(|pair| pair[0] == pair[1]), "part of a group: {held:?}");
    held[0].clone()
}

/// What must be there of a group at the end.
#[derive(Debug)]
enum Expected {
    Held(Token),
    Free,
    Either,
}

fn claimed(fs: &SwitchingFs, group: &TargetGroup, answer: Result<Token, Failure>) -> Expected {
    match answer {
        Ok(token) => {
            let found = holder(fs, true, group);
            assert_eq!(found.as_ref(), Some(&token), "done, but not durable");
            Expected::Held(token)
        }
        Err(Failure::Unknown { .. }) => Expected::Either,
        Err(_) => Expected::Free,
    }
}

/// Two groups in one batch, then one of them is given up.
fn calls(engine: &JournalEngine, fs: &SwitchingFs, thread: u64) -> Vec<(TargetGroup, Expected)> {
    if thread == 0 {
        let groups = [group(0, 1), group(0, 2)];
        let all: Vec<Vec<Key>> = groups.iter().map(keys).collect();
        let units: Vec<Request<'_>> = all.iter().map(|keys| ask(keys)).collect();
        let report = engine.transact_each(&units, &mut |unit, view| {
            rules::claim(view, &request(&groups[unit])).ok()
        });
        let ends = report.units.into_iter().map(|unit| match unit {
            UnitOutcome::Done(token) => Ok(Token::from(token.unwrap())),
            UnitOutcome::Failed(failure) => Err(failure),
            other => panic!("nobody else wants it: {other:?}"),
        });
        return groups
            .iter()
            .zip(ends)
            .map(|(group, end)| (group.clone(), claimed(fs, group, end)))
            .collect();
    }
    let mut found = Vec::new();
    for number in 1..=2 {
        let group = group(thread, number);
        let all = keys(&group);
        let claim = |view: &_| rules::claim(view, &request(&group)).ok();
        let answer = engine.transact(&ask(&all), &mut { claim }).map(|outcome| match outcome {
            Outcome::Done(done) => Token::from(done.token.unwrap()),
            Outcome::Refused => panic!("nobody else wants it"),
        });
        let mut expected = claimed(fs, &group, answer);
        if number == 2
            && let Expected::Held(token) = &expected
        {
            let free = |view: &_| rules::release(view, &group, token).ok();
            expected = match engine.transact(&ask(&all), &mut { free }) {
                Ok(Outcome::Done(_)) => {
                    assert_eq!(holder(fs, true, &group), None, "done, but not durable");
                    Expected::Free
                }
                Ok(Outcome::Refused) => panic!("an acknowledged lease was lost"),
                Err(Failure::Unknown { .. }) => Expected::Either,
                Err(_) => Expected::Held(token.clone()),
            };
        }
        found.push((group, expected));
    }
    found
}

fn run(lie: Option<Lie>) {
    let fs = SwitchingFs::default();
    let options = InitOptions { segment_bytes: 64 * 1024, ..InitOptions::default() };
    let engine = JournalEngine::init(&fs.world(), Path::new(ROOT), &options).unwrap();
    // The first call of a process settles what it found.
    let first = group(9, 1);
    let claim = |view: &_| rules::claim(view, &request(&first)).ok();
    assert!(matches!(engine.transact(&ask(&keys(&first)), &mut { claim }), Ok(Outcome::Done(_))));
    let fails = shuttle::rand::thread_rng().gen_range(0..8_u64);
    fs.arm((fails < 6).then_some(fails), lie);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (engine, fs) = (engine.clone(), fs.clone());
            shuttle::thread::spawn(move || calls(&engine, &fs, thread))
        })
        .collect();
    let found: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    for (group, expected) in found {
        let held = holder(&fs, false, &group);
        match expected {
            Expected::Held(token) => assert_eq!(held, Some(token)),
            Expected::Free => assert_eq!(held, None, "told that it was not done"),
            Expected::Either => {}
        }
    }
}

/// A fixed seed: the same orders each time.
fn explore(scheduler: impl shuttle::scheduler::Scheduler + 'static, lie: Option<Lie>) {
    let config = shuttle::Config::new();
    shuttle::Runner::new(scheduler, config).run(move || run(lie));
}

#[test]
fn in_random_orders_everybody_is_told_the_fate_of_his_own_call() {
    explore(shuttle::scheduler::RandomScheduler::new_from_seed(7, 8000), None);
}

#[test]
fn in_orders_with_few_changes_everybody_is_told_the_fate_of_his_own_call() {
    explore(shuttle::scheduler::PctScheduler::new_from_seed(7, 3, 8000), None);
}

#[test]
fn a_sync_that_covers_only_what_was_there_when_the_last_one_began_is_noticed() {
    for lie in [Lie::SaysSynced, Lie::CoversEarlier] {
        let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(7, 300);
        let seen = std::panic::catch_unwind(move || explore(scheduler, Some(lie)));
        assert!(seen.is_err(), "{lie:?} was not noticed");
    }
}
