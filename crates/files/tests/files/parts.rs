//! Parts of a table that are missing, or that contradict each other.

use std::fs;

use ringfence_engine::Failure;
use ringfence_env::World;
use ringfence_env::fault::{Call, Effect, When};
use ringfence_files::{
    Durability, FilesEngine, Finding, InitError, InitOptions, OpenError, Repair,
};

use crate::table::{SERIAL, Table, Verbs as _, options, scratch};

/// The name of a part that a check reports as missing.
fn incomplete(table: &Table) -> Vec<String> {
    let name = |finding: &Finding| match finding {
        Finding::Incomplete(path) => path.strip_prefix(table.root()).unwrap().display().to_string(),
        other => panic!("{other:?}"),
    };
    table.engine.check().unwrap().findings.iter().map(name).collect()
}

#[test]
fn no_operation_makes_a_shard_that_somebody_removed_and_repair_makes_it_durably() {
    let table = Table::new(8);
    let shard = table.record(7).parent().unwrap().to_owned();
    let name = shard.file_name().unwrap().to_str().unwrap().to_owned();
    fs::remove_dir_all(&shard).unwrap();
    let before = table.snapshot();
    let failure = table.engine.grab("a", &[6, 7, 8], None).unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    assert!(failure.storage().unwrap().to_string().contains("check STORE --repair"), "{failure:?}");
    assert_eq!(table.snapshot(), before);
    assert_eq!(incomplete(&table), [name]);
    let syncs = table.fs.count(Call::SyncDir);
    let report = table.engine.repair().unwrap();
    assert_eq!(report.made, [shard]);
    assert!(report.findings.is_empty(), "{report:?}");
    assert!(table.fs.count(Call::SyncDir) > syncs);
    table.engine.grab("a", &[6, 7, 8], None).unwrap().unwrap();
}

/// Found by the simulator: a directory that a dying process had made was used before its name was
/// durable.
#[test]
fn while_a_repair_that_died_has_left_directories_whoever_uses_one_makes_its_name_durable() {
    let table = Table::new(8);
    let shard = table.record(7).parent().unwrap().to_owned();
    let mark = table.root().join("shards.making");
    let mut used = 0;
    // The first grant also raises the fence counter's limit.
    let token = table.engine.grab("warm", &[1], None).unwrap().unwrap();
    table.engine.free(&[1], token).unwrap().unwrap();
    for nth in 1.. {
        fs::remove_dir_all(&shard).unwrap();
        table.fs.arm(When::From(nth), Effect::Errno(5));
        let ended = table.engine.repair();
        let fired = table.fs.fired();
        table.fs.disarm();
        if shard.exists() {
            let marked = mark.exists();
            let syncs = table.fs.count(Call::SyncDir);
            let token = table.engine.grab("a", &[7], Some(1.0)).unwrap().unwrap();
            let root_too = u64::from(marked) * 2;
            used += usize::from(marked);
            assert_eq!(table.fs.count(Call::SyncDir) - syncs, 1 + root_too, "call {nth}");
            if marked {
                assert_eq!(incomplete(&table), ["shards.making"], "call {nth}: {ended:?}");
            }
            table.engine.free(&[7], token).unwrap().unwrap();
        }
        table.engine.repair().unwrap();
        assert!(!mark.exists() && incomplete(&table).is_empty(), "call {nth}");
        if fired == 0 {
            break;
        }
    }
    assert!(used > 1, "no repair died in between");
}

#[test]
fn a_caller_may_demand_a_durability_and_init_never_changes_one() {
    let world = World::system();
    for (made, other) in
        [(Durability::Group, Durability::Record), (Durability::Record, Durability::Group)]
    {
        let table = Table::made(&InitOptions { durability: made, ..options(8) }, SERIAL);
        FilesEngine::open_as(&world, table.root(), SERIAL, made).unwrap();
        let error = FilesEngine::open_as(&world, table.root(), SERIAL, other).unwrap_err();
        assert!(matches!(error, OpenError::OtherDurability { .. }), "{error:?}");
        assert!(error.to_string().contains("init --durability"), "{error}");
        let again = InitOptions { durability: other, ..options(8) };
        let error = FilesEngine::init(&world, table.root(), &again).unwrap_err();
        assert!(matches!(error, InitError::Differs { .. }), "{error:?}");
        let intents = table.root().join("intents").exists();
        assert_eq!(intents, made == Durability::Group, "a table of records has no place for them");
    }
}

/// A program from before there were intents knows format 1 only.
#[test]
fn each_durability_is_a_format_of_its_own_and_an_edited_one_is_refused() {
    let world = World::system();
    for durability in [Durability::Group, Durability::Record] {
        let table = Table::made(&InitOptions { durability, ..options(8) }, SERIAL);
        let path = table.root().join("table.json");
        let good = fs::read_to_string(&path).unwrap();
        let format = if durability == Durability::Record { 1 } else { 2 };
        assert!(good.contains(&format!("\"format\":{format},")), "{good}");
        let edits = |line: &str, durability: bool, format: bool| {
            let swap = |text: String, one: &str, two: &str| {
                text.replace(one, "?").replace(two, one).replace('?', two)
            };
            let text = line.to_owned();
            let text = if durability { swap(text, "\"group\"", "\"record\"") } else { text };
            if format { swap(text, "\"format\":1", "\"format\":2") } else { text }
        };
        for (edit_durability, edit_format) in [(true, false), (false, true)] {
            fs::write(&path, edits(&good, edit_durability, edit_format)).unwrap();
            for error in [
                FilesEngine::open(&world, table.root(), SERIAL).unwrap_err(),
                FilesEngine::open_read_only(&world, table.root()).unwrap_err(),
            ] {
                assert!(matches!(error, OpenError::Meta(_)), "{error:?}");
                assert!(error.to_string().contains("edited"), "{error}");
            }
        }
        // Both at once: what is in the table tells.
        fs::write(&path, edits(&good, true, true)).unwrap();
        let error = FilesEngine::open(&world, table.root(), SERIAL).unwrap_err();
        let reader = FilesEngine::open_read_only(&world, table.root()).unwrap();
        let found = reader.check().unwrap().findings;
        if durability == Durability::Group {
            assert!(matches!(error, OpenError::Contradicts { .. }), "{error:?}");
            assert!(error.to_string().contains("as it was made"), "{error}");
            assert!(matches!(found[..], [Finding::Contradiction(_)]), "{found:?}");
            FilesEngine::open_to_repair(&world, table.root()).unwrap_err();
        } else {
            assert!(matches!(error, OpenError::Incomplete { .. }), "{error:?}");
            assert!(matches!(found[..], [Finding::Incomplete(_)]), "{found:?}");
        }
        fs::write(&path, &good).unwrap();
        FilesEngine::open(&world, table.root(), SERIAL).unwrap();
    }
}

#[test]
fn a_table_whose_place_for_intents_was_removed_is_refused_until_a_repair_made_it() {
    let options = InitOptions { durability: Durability::Group, ..options(8) };
    let table = Table::made(&options, SERIAL);
    fs::remove_dir_all(table.root().join("intents")).unwrap();
    let error = FilesEngine::open(&table.world, table.root(), SERIAL).unwrap_err();
    assert!(matches!(error, OpenError::Incomplete { .. }), "{error:?}");
    assert!(error.to_string().contains("check STORE --repair"), "{error}");
    // An engine that was open before finds no slot, and changes nothing.
    let before = table.snapshot();
    let failure = table.engine.grab("a", &[1, 2], None).unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    assert_eq!(table.snapshot(), before);
    let engine = FilesEngine::open_to_repair(&table.world, table.root()).unwrap();
    let report = engine.repair_with(Repair::default()).unwrap();
    assert_eq!(report.made, [table.root().join("intents")]);
    let engine = FilesEngine::open(&table.world, table.root(), SERIAL).unwrap();
    engine.grab("a", &[1, 2], None).unwrap().unwrap();
}

#[test]
fn a_table_of_records_is_made_where_the_maker_of_one_of_groups_died() {
    let dir = scratch();
    let root = dir.path().join("table");
    let world = World::system();
    let group = InitOptions { durability: Durability::Group, ..options(3) };
    FilesEngine::init(&world, &root, &group).unwrap();
    fs::remove_file(root.join("table.json")).unwrap();
    let record = InitOptions { durability: Durability::Record, ..options(3) };
    let engine = FilesEngine::init(&world, &root, &record).unwrap();
    FilesEngine::open(&world, &root, SERIAL).unwrap();
    assert!(engine.check().unwrap().findings.is_empty());
}
