//! Syncs, counted: F325 section 6, and what the intent of durability `group` adds.

use ringfence_env::fault::Call;
use ringfence_files::batch::Barriers;
use ringfence_files::{Durability, InitOptions, Tuning};

use crate::table::{Table, Verbs as _, id, options};

/// What one claim and release of a group cost.
struct Cost {
    directory_syncs: u64,
    file_syncs: u64,
    /// Shards that the group touches.
    touched: u64,
}

fn cost(durability: Durability, shards: u16, members: u64, barriers: Barriers) -> Cost {
    let options = InitOptions { durability, ..options(shards) };
    let table = Table::made(&options, Tuning { sync_width: 16, barriers });
    let targets: Vec<u64> = (1..=members).collect();
    let count = table.engine.meta().shards;
    let touched: std::collections::BTreeSet<_> =
        targets.iter().map(|&target| id(target).shard(count)).collect();
    // The first grant also raises the fence counter's limit, once in a thousand.
    let warm = table.engine.grab("warm", &[1], None).unwrap().unwrap();
    table.engine.free(&[1], warm).unwrap().unwrap();
    let before = (table.fs.count(Call::SyncDir), table.fs.count(Call::SyncFile));
    let token = table.engine.grab("a", &targets, None).unwrap().unwrap();
    let done = table.engine.free(&targets, token).unwrap().unwrap();
    let directory_syncs = table.fs.count(Call::SyncDir) - before.0;
    let file_syncs = table.fs.count(Call::SyncFile) - before.1;
    assert_eq!(done.barriers * 2, directory_syncs, "what is reported is what was done");
    Cost { directory_syncs, file_syncs, touched: touched.len() as u64 }
}

#[test]
fn claim_and_release_of_64_targets_cost_128_directory_syncs_one_by_one_and_2k_in_the_batch() {
    for shards in [1, 8, 64] {
        let scalar = cost(Durability::Record, shards, 64, Barriers::PerRecord);
        let batched = cost(Durability::Record, shards, 64, Barriers::Batched);
        assert_eq!(scalar.directory_syncs, 128, "{shards} shards");
        assert_eq!(batched.directory_syncs, 2 * batched.touched, "{shards} shards");
        assert_eq!((scalar.file_syncs, batched.file_syncs), (64, 64), "one per record claimed");
        match shards {
            1 | 8 => assert_eq!(batched.touched, u64::from(shards)),
            _ => assert!((33..64).contains(&batched.touched), "{} of 64", batched.touched),
        }
    }
}

#[test]
fn an_intent_adds_two_data_syncs_to_a_call_on_a_group_and_nothing_to_a_call_on_one_record() {
    for shards in [1, 8] {
        for members in [1, 2, 64] {
            let record = cost(Durability::Record, shards, members, Barriers::Batched);
            let group = cost(Durability::Group, shards, members, Barriers::Batched);
            let context = format!("{members} members, {shards} shards");
            assert_eq!(group.directory_syncs, record.directory_syncs, "{context}");
            // Two calls, each of which writes an intent and retires it.
            let intents = if members == 1 { 0 } else { 2 * 2 };
            assert_eq!(group.file_syncs, record.file_syncs + intents, "{context}");
        }
    }
}
