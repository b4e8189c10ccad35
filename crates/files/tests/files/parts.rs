//! Parts of a table that are missing, or that contradict each other.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use ringfence_engine::Failure;
use ringfence_env::fault::{Call, Effect, When};
use ringfence_env::{FileLock, LockMode, World};
use ringfence_files::{
    Durability, FilesEngine, Finding, InitError, InitOptions, OpenError, Repair,
};

use crate::table::{PATIENCE, SERIAL, Table, Verbs as _, options, scratch, targets_over};

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
/// durable; and then, where its sync had failed, after a sync of somebody else's that proved nothing.
#[test]
fn while_a_repair_that_died_has_left_directories_in_doubt_nobody_uses_one_of_them() {
    let table = Table::new(8);
    let shard = table.record(7).parent().unwrap().to_owned();
    let name = shard.file_name().unwrap().to_str().unwrap().to_owned();
    let elsewhere = targets_over(8, 8).into_iter().find(|t| !table.record(*t).starts_with(&shard));
    let elsewhere = elsewhere.unwrap();
    let mark = table.root().join("shards.making");
    let (mut doubted, mut left) = (0, 0);
    // The first grant also raises the fence counter's limit.
    let token = table.engine.grab("warm", &[elsewhere], None).unwrap().unwrap();
    table.engine.free(&[elsewhere], token).unwrap().unwrap();
    for nth in 1.. {
        fs::remove_dir_all(&shard).unwrap();
        // As if it were killed: nothing that it tries after the first failure has an effect.
        table.fs.arm(When::From(nth), Effect::Errno(5));
        let ended = table.engine.repair();
        let fired = table.fs.fired();
        table.fs.disarm();
        if fs::read_to_string(&mark).is_ok_and(|mark| mark.contains(&name)) {
            doubted += 1;
            let before = table.snapshot();
            let failure = table.engine.grab("a", &[elsewhere, 7], Some(1.0)).unwrap_err();
            assert!(matches!(failure, Failure::Untouched(_)), "call {nth}: {failure:?}");
            let told = failure.storage().unwrap().to_string();
            assert!(told.contains(&name) && told.contains("check STORE --repair"), "{told}");
            assert_eq!(table.snapshot(), before, "call {nth}: {ended:?}");
            let found = incomplete(&table);
            assert!(found.contains(&"shards.making".into()), "call {nth}: {ended:?}");
            // What is not in doubt goes on as ever.
            let syncs = table.fs.count(Call::SyncDir);
            let token = table.engine.grab("a", &[elsewhere], None).unwrap().unwrap();
            assert_eq!(table.fs.count(Call::SyncDir) - syncs, 1, "call {nth}");
            table.engine.free(&[elsewhere], token).unwrap().unwrap();
        }
        let number = |path: &Path| fs::metadata(path).ok().map(|stat| stat.ino());
        let dead = number(&shard).filter(|_| mark.exists());
        left += usize::from(dead.is_some());
        table.engine.repair().unwrap();
        assert!(dead.is_none() || number(&shard) != dead, "call {nth}: it was not put there anew");
        assert!(!mark.exists() && incomplete(&table).is_empty(), "call {nth}");
        let token = table.engine.grab("a", &[7], None).unwrap().unwrap();
        table.engine.free(&[7], token).unwrap().unwrap();
        if fired == 0 {
            break;
        }
    }
    assert!(doubted > 1 && left > 1, "{doubted} {left}: no repair died in between");
}

/// The mark of whoever waits to move the table has the same name.
#[test]
fn a_mover_does_not_take_away_what_a_repair_that_died_says_is_in_doubt() {
    let table = Table::new(8);
    let mark = table.root().join("shards.making");
    fs::write(&mark, "").unwrap();
    let token = table.engine.grab("a", &[7], None).unwrap().unwrap();
    table.engine.free(&[7], token).unwrap().unwrap();
    assert!(mark.exists(), "a mover that died left it, and it is in nobody's way");
    let deadline = || table.world.clock.deadline(PATIENCE);
    drop(table.engine.hold_still(deadline()).unwrap());
    assert!(!mark.exists());
    let shard = table.record(7).parent().unwrap().to_owned();
    let name = shard.file_name().unwrap().to_str().unwrap().to_owned();
    // Another part of the list was cut short, and one is none of the table's.
    fs::write(&mark, format!("\n../x\n\n{name}\n\nwork/00")).unwrap();
    let failure = table.engine.hold_still(deadline()).unwrap_err();
    assert!(failure.storage().unwrap().to_string().contains("check STORE --repair"), "{failure:?}");
    assert!(fs::read_to_string(&mark).unwrap().contains(&name));
    table.engine.grab("a", &[7], None).unwrap_err();
    let held = FileLock::acquire(
        &*table.world.fs,
        &*table.world.clock,
        &table.root().join("gate.lock"),
        LockMode::Shared,
        None,
        deadline(),
    );
    let soon = table.world.clock.deadline(Duration::from_millis(20));
    let failure = table.engine.hold_still(soon).unwrap_err();
    assert!(matches!(failure, Failure::Busy { .. }), "{failure:?}");
    assert!(fs::read_to_string(&mark).unwrap().contains(&name), "nor who knocked in vain");
    drop(held.unwrap());
    table.engine.repair().unwrap();
    assert!(!mark.exists());
    // Every group needs the place of intents.
    fs::write(&mark, "\nintents\n").unwrap();
    table.engine.grab("a", &[7], None).unwrap_err();
    table.engine.repair().unwrap();
    table.engine.grab("a", &[7], None).unwrap().unwrap();
    drop(table.engine.hold_still(deadline()).unwrap());
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
