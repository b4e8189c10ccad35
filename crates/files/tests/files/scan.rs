//! Readers beside writers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence_engine::Engine;
use ringfence_env::fault::{Call, FaultFs};
use ringfence_env::{RealFs, World};
use ringfence_files::{Durability, FilesEngine, InitOptions, Tuning};
use ringfence_model::{Entry, Space};

use crate::table::{PATIENCE, SERIAL, Table, Verbs as _, group, keys, options};

/// B53: a snapshot is of one instant. A scan fits into a pause of a call many times over.
#[test]
fn b53_no_consistent_scan_shows_part_of_a_group_while_a_call_is_under_way() {
    for durability in [Durability::Record, Durability::Group] {
        let table = Table::made(&InitOptions { durability, ..options(8) }, Tuning::default());
        let targets: Vec<u64> = (1..=32).collect();
        let stop = AtomicBool::new(false);
        let (mut whole, mut none) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let token = table.engine.grab("writer", &targets, None).unwrap().unwrap();
                    table.engine.beat(&targets, token, None).unwrap().unwrap();
                    table.engine.free(&targets, token).unwrap().unwrap();
                }
            });
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(1500)
                || (whole == 0 || none == 0) && began.elapsed() < PATIENCE
            {
                let scan = table.engine.scan(Space::Targets, None).unwrap();
                if !scan.consistent {
                    continue;
                }
                match scan.entries.len() {
                    0 => none += 1,
                    32 => whole += 1,
                    part => {
                        stop.store(true, Ordering::Relaxed);
                        panic!("{durability:?}: a consistent scan shows {part} of 32");
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(whole > 0 && none > 0, "{durability:?}: {whole} whole, {none} empty");
    }
}

#[test]
fn what_is_in_part_and_under_nobodys_lock_is_shown_as_it_is() {
    let table = Table::new(8);
    let targets: Vec<u64> = (1..=4).collect();
    let token = table.engine.grab("dead", &targets, None).unwrap().unwrap();
    std::fs::remove_file(table.record(2)).unwrap();
    let scan = table.engine.scan(Space::Targets, None).unwrap();
    assert!(scan.consistent);
    assert_eq!(scan.entries.len(), 3, "a crash may leave that under {token}");
}

/// When a record was last renewed, to the bit, as `view` and as `scan` show it.
fn moments(engine: &dyn Engine, target: u64) -> [u64; 2] {
    let key = keys(&group(&[target]))[0];
    let view = engine.view(&[key], None).unwrap().entries;
    let scan = engine.scan(Space::Targets, None).unwrap().entries;
    [view, scan].map(|entries| match entries.iter().find(|(found, _)| *found == key) {
        Some((_, Entry::Present(record))) => record.holder().updated.seconds().to_bits(),
        other => panic!("{other:?}"),
    })
}

/// Found by the conformance suite on tables of durability `group`: the records were read before the
/// intents, so that an intent could be retired in between.
#[test]
fn a_reader_that_was_shown_the_new_state_of_a_group_is_never_shown_the_old_one_again() {
    // A call ends while the reader is at the intents, or at the records.
    for (kind, part) in [(Call::List, "intents"), (Call::Read, ".json")] {
        for shows in [0, 1] {
            let options = InitOptions { durability: Durability::Group, ..options(8) };
            let table = Table::made(&options, SERIAL);
            let token = table.engine.grab("a", &[1, 2], Some(1000.0)).unwrap().unwrap();
            let (paused, at_rename) = channel();
            let (go_on, wait) = channel::<()>();
            let wait = Mutex::new(Some(wait));
            table.fs.on_call(move |call, _| {
                if call == Call::Rename
                    && let Some(wait) = wait.lock().unwrap().take()
                {
                    paused.send(()).unwrap();
                    wait.recv().unwrap();
                }
            });
            let fs = FaultFs::new(Arc::new(RealFs));
            let world = World::system().with_fs(Arc::new(fs.clone()));
            let reader = FilesEngine::open_read_only(&world, table.root()).unwrap();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| table.engine.beat(&[1, 2], token, Some(1030.0)));
                at_rename.recv().unwrap();
                let new = 1030f64.to_bits();
                assert_eq!(moments(&reader, 2), [new; 2], "decided, though no record shows it");
                let ended = Arc::new(AtomicBool::new(false));
                let (hook, seen) = (Mutex::new(Some(go_on)), ended.clone());
                fs.on_call(move |call, path| {
                    if call == kind
                        && path.to_string_lossy().ends_with(part)
                        && let Some(go_on) = hook.lock().unwrap().take()
                    {
                        go_on.send(()).unwrap();
                        while !seen.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                    }
                });
                scope.spawn(move || {
                    writer.join().unwrap().unwrap().unwrap();
                    ended.store(true, Ordering::SeqCst);
                });
                let seen = if shows == 0 {
                    moments(&reader, 2)[0]
                } else {
                    let scan = reader.scan(Space::Targets, None).unwrap();
                    let times = scan.entries.iter().map(|(_, entry)| match entry {
                        Entry::Present(record) => record.holder().updated.seconds().to_bits(),
                        other => panic!("{other:?}"),
                    });
                    times.min().unwrap()
                };
                assert_eq!(seen, new, "{kind:?} {part}: the old state again");
            });
        }
    }
}
