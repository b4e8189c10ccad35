//! Directory syncs, counted: F325 section 6.

use ringfence_env::fault::Call;
use ringfence_files::Tuning;
use ringfence_files::batch::Barriers;

use crate::table::{Table, Verbs as _, id};

/// Directory syncs of one claim and release of 64 targets, and how many shards they touch.
fn cost(shards: u16, barriers: Barriers) -> (u64, u64) {
    let table = Table::tuned(shards, Tuning { sync_width: 16, barriers });
    let targets: Vec<u64> = (1..=64).collect();
    let count = table.engine.meta().shards;
    let touched: std::collections::BTreeSet<_> =
        targets.iter().map(|&target| id(target).shard(count)).collect();
    // The first grant also raises the fence counter's limit, once in a thousand.
    let warm = table.engine.grab("warm", &[1], None).unwrap().unwrap();
    table.engine.free(&[1], warm).unwrap().unwrap();
    let before = table.fs.count(Call::SyncDir);
    let token = table.engine.grab("a", &targets, None).unwrap().unwrap();
    let done = table.engine.free(&targets, token).unwrap().unwrap();
    let syncs = table.fs.count(Call::SyncDir) - before;
    assert_eq!(done.barriers * 2, syncs, "what is reported is what was done");
    (syncs, touched.len() as u64)
}

#[test]
fn claim_and_release_of_64_targets_cost_128_directory_syncs_one_by_one_and_2k_in_the_batch() {
    for shards in [1, 8, 64] {
        let (scalar, _) = cost(shards, Barriers::PerRecord);
        let (batched, touched) = cost(shards, Barriers::Batched);
        assert_eq!(scalar, 128, "{shards} shards");
        assert_eq!(batched, 2 * touched, "{shards} shards");
        match shards {
            1 | 8 => assert_eq!(touched, u64::from(shards)),
            _ => assert!((33..64).contains(&touched), "{touched} of 64"),
        }
    }
}
