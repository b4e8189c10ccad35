//! Readers beside writers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringfence_engine::Engine as _;
use ringfence_files::{Durability, InitOptions, Tuning};
use ringfence_model::Space;

use crate::table::{Table, Verbs as _, options};

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
            while began.elapsed() < Duration::from_millis(1500) {
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
