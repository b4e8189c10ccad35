//! One test per invariant of F325. M1 is in `locks`, M5 and M9 stand beside the batch.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Engine, Failure, Request};
use ringfence_env::World;
use ringfence_env::fault::{Call, Effect, When};
use ringfence_files::batch::Barriers;
use ringfence_files::{FilesEngine, Tuning};
use ringfence_model::{Edit, Payload, PayloadError, Record, Transition};

use crate::table::{
    SERIAL, Table, Verbs as _, ask, assert_no_lock_is_held, group, keys, options, scratch,
    targets_over, temps,
};
use crate::watch::{Event, WatchFs};

#[test]
fn m2_a_refused_release_removes_nothing() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let old = table.engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    for &stolen in &targets {
        let before = table.snapshot();
        let new = table.engine.grab("b", &[stolen], Some(2000.0)).unwrap().unwrap();
        let taken = table.snapshot();
        let unlinks = table.fs.count(Call::Unlink);
        let lost = table.engine.free(&targets, old).unwrap().unwrap_err();
        assert_eq!(lost.members.len(), 1, "{lost}");
        assert_eq!(table.snapshot(), taken, "a refused release changed bytes");
        assert_eq!(table.fs.count(Call::Unlink), unlinks, "nothing was even tried");
        table.engine.free(&[stolen], new).unwrap().unwrap();
        table.reset(&before);
    }
    table.engine.free(&targets, old).unwrap().unwrap();
}

#[test]
fn m3_a_claim_that_cannot_be_serialised_publishes_nothing() {
    // What is no JSON object never becomes a payload, so it never reaches a table.
    for text in ["{\"score\":NaN}", "{\"score\":Infinity}", "[1]", "{\"a\":1e999}", "{'a':1}"] {
        assert!(Payload::parse(text).is_err(), "{text}");
    }
    let large = format!("{{\"x\":\"{}\"}}", "y".repeat(100_000));
    assert!(matches!(Payload::parse(&large), Err(PayloadError::TooLarge(_))));

    // A record that nobody could read back is refused whole, though only the last member has it.
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    let group = group(&targets);
    let keys = keys(&group);
    table.engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    let before = table.snapshot();
    let request = Request { keys: &keys, now: None, patience: Duration::ZERO };
    let writes = table.fs.count(Call::Write);
    let failure = table
        .engine
        .transact(&request, &mut |view| {
            let edits = view.entries.iter().enumerate().map(|(index, (key, entry))| {
                let ringfence_model::Entry::Present(Record::Target(record)) = entry else {
                    unreachable!()
                };
                let mut record = record.clone();
                if index + 1 == view.entries.len() {
                    let text = format!("\"{}\"", "x".repeat(1024 * 1024));
                    let huge = serde_json::value::RawValue::from_string(text).unwrap();
                    record.extra.insert("huge".to_owned(), huge);
                }
                Edit { key: *key, to: Some(Record::Target(record)) }
            });
            Some(Transition::edits(edits.collect()))
        })
        .unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    assert_eq!(table.snapshot(), before);
    assert_eq!(table.fs.count(Call::Write), writes, "nothing was written at all");
    assert_no_lock_is_held(table.root());
}

/// A table on a file system that records what returned, and in what order.
fn watched(tuning: Tuning) -> (tempfile::TempDir, WatchFs, FilesEngine) {
    let dir = scratch();
    let root = dir.path().join("table");
    let fs = WatchFs { sync_takes: Duration::from_millis(2), ..WatchFs::default() };
    let world = World::system().with_fs(Arc::new(fs.clone()));
    FilesEngine::init(&world, &root, &options(8)).unwrap();
    let engine = FilesEngine::open(&world, &root, tuning).unwrap();
    // The first grant also raises the fence counter's limit.
    let warm = engine.grab("warm", &[1], None).unwrap().unwrap();
    engine.free(&[1], warm).unwrap().unwrap();
    fs.take();
    (dir, fs, engine)
}

/// B42: bytes before names.
#[test]
fn m4_a_records_bytes_are_durable_before_its_name_points_at_them() {
    for sync_width in [1, 3, 16] {
        let (_dir, fs, engine) = watched(Tuning { sync_width, ..SERIAL });
        let targets = targets_over(3, 8);
        let token = engine.grab("a", &targets, None).unwrap().unwrap();
        let claim = fs.take();
        engine.beat(&targets, token, None).unwrap().unwrap();
        let beat = fs.take();
        for events in [claim, beat] {
            let mut renamed = 0;
            for (index, event) in events.iter().enumerate() {
                let Event::Renamed(from, _) = event else { continue };
                renamed += 1;
                let before = &events[..index];
                let synced = before.iter().rposition(|e| *e == Event::Synced(from.clone()));
                let synced = synced.unwrap_or_else(|| panic!("{from:?} was never synced"));
                let written = before.iter().rposition(|e| *e == Event::Wrote(from.clone()));
                assert!(written.unwrap() < synced, "{from:?} was written after its sync");
            }
            assert_eq!(renamed, 8);
        }
    }
}

/// B42: names before success.
#[test]
fn m6_success_is_reported_only_after_every_touched_directory_was_synced() {
    for barriers in [Barriers::Batched, Barriers::PerRecord] {
        let (_dir, fs, engine) = watched(Tuning { sync_width: 1, barriers });
        let targets = targets_over(3, 8);
        let token = engine.grab("a", &targets, None).unwrap().unwrap();
        let claim = fs.take();
        engine.free(&targets, token).unwrap().unwrap();
        let release = fs.take();
        for events in [claim, release] {
            let mut last_change = std::collections::BTreeMap::new();
            for (index, event) in events.iter().enumerate() {
                if let Event::Renamed(_, path) | Event::Unlinked(path) = event {
                    last_change.insert(path.parent().unwrap().to_owned(), index);
                }
            }
            assert_eq!(last_change.len(), 3);
            for (dir, changed) in last_change {
                let later = &events[changed..];
                assert!(later.contains(&Event::SyncedDir(dir.clone())), "{dir:?} is not durable");
            }
        }
    }
    // And no success if any one of them fails.
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    for nth in 1..=3 {
        table.fs.arm(When::NthOf(Call::SyncDir, nth), Effect::Errno(5));
        assert!(table.engine.grab("a", &targets, None).is_err(), "barrier {nth}");
        table.fs.disarm();
    }
}

#[test]
fn m7_a_detected_failure_puts_back_the_exact_previous_bytes() {
    let table = Table::new(8);
    let targets = targets_over(3, 8);
    table.engine.grab("a", &targets[..5], Some(1000.0)).unwrap().unwrap();
    // Not canonical, so that rewriting what was parsed would show.
    for &target in &targets[..5] {
        let line = std::fs::read_to_string(table.record(target)).unwrap();
        std::fs::write(table.record(target), line.replace(':', ": ").replace(": 1,", ":  1,"))
            .unwrap();
    }
    let before = table.snapshot();
    for nth in 1..=8 {
        table.fs.arm(When::NthOf(Call::Rename, nth), Effect::Errno(5));
        let failure = table.engine.grab("b", &targets, Some(2000.0)).unwrap_err();
        table.fs.disarm();
        assert!(matches!(failure, Failure::Restored(_)), "{failure:?}");
        assert_eq!(table.snapshot(), before, "rename {nth}");
        assert_eq!(temps(table.root()), Vec::<PathBuf>::new());
    }
}

#[test]
fn m8_what_is_put_back_is_durable_too() {
    let (_dir, fs, engine) = watched(SERIAL);
    let targets = targets_over(3, 8);
    let token = engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    fs.take();
    // The watch sees what returned; the faults are above it.
    let faults = ringfence_env::fault::FaultFs::new(Arc::new(fs.clone()));
    let world = World::system().with_fs(Arc::new(faults.clone()));
    let engine = FilesEngine::open(&world, engine.root(), SERIAL).unwrap();
    faults.arm(When::NthOf(Call::SyncDir, 3), Effect::Errno(5));
    let failure = engine.free(&targets, token).unwrap_err();
    faults.disarm();
    assert!(matches!(failure, Failure::Restored(_)), "{failure:?}");
    let events = fs.take();
    let back: Vec<_> = events
        .iter()
        .enumerate()
        .filter_map(|(index, event)| match event {
            Event::Renamed(from, to) => Some((index, from, to)),
            _ => None,
        })
        .collect();
    assert_eq!(back.len(), 8, "every member is put back");
    for (index, from, to) in back {
        assert!(events[..index].contains(&Event::Synced(from.clone())), "{to:?}: bytes first");
        let dir = Event::SyncedDir(to.parent().unwrap().to_owned());
        assert!(events[index..].contains(&dir), "{to:?}: then the name");
    }
    // And if that second flush fails, nobody is told that it was put back.
    faults.arm(When::NthOf(Call::SyncDir, 3), Effect::Errno(5));
    faults.arm(When::NthOf(Call::SyncDir, 4), Effect::Errno(5));
    let failure = engine.ask(&ask("b", &targets), Some(2000.0), Duration::ZERO).unwrap_err();
    assert!(matches!(failure, Failure::Unknown { .. }), "{failure:?}");
}
