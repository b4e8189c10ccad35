//! `kill -9` of the command that moves a table, at every kind of call that it makes.

use std::collections::BTreeMap;

use serde_json::json;

use crate::migrate::{assert_goes_on, fill, json_at, migrate, names_beside, seen, table};
use crate::support::{Ran, Table, traced};

/// The calls that change something, or that keep others out. Not every machine has every spelling.
const CALLS: &str = "?rename,renameat,renameat2,fsync,fdatasync,write,pwrite64,?mkdir,mkdirat,\
                     ?unlink,unlinkat,?rmdir,openat,flock,ftruncate";

/// How often the command makes each of these calls, in its first thread, when nothing stops it.
fn calls(engine: &str) -> BTreeMap<String, usize> {
    let table = table(engine);
    fill(&table);
    let log = table.beside("log");
    let options = ["-e", &format!("trace={CALLS}")];
    let command = migrate(&table.store, &table.beside("new"), &[]);
    let ran = Ran::of(&mut traced(&options, &log, &command));
    assert_eq!(ran.code, 0, "{ran:?}");
    let log = std::fs::read_to_string(log).unwrap();
    let calls = log.lines().filter_map(|line| {
        let (thread, call) = line.split_once(' ')?;
        Some((thread, call.trim_start().split_once('(')?.0))
    });
    let mut counts = BTreeMap::new();
    let first = log.split_once(' ').unwrap().0;
    for (_, call) in calls.filter(|(thread, _)| *thread == first) {
        *counts.entry(call.to_owned()).or_default() += 1;
    }
    counts
}

/// Points in a row of `count` calls: some all along, and the ones near the end, where it is decided.
fn points(count: usize) -> Vec<usize> {
    let mut points = vec![1, 1 + count / 2];
    points.extend(count.saturating_sub(1)..=count);
    points.retain(|point| (1..=count).contains(point));
    points.sort_unstable();
    points.dedup();
    points
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Old,
    New,
}

/// Claims at both places, as two who know of one place each would do at the same time.
fn stands(table: &Table, what: &str) -> Stands {
    let claim = ["--targets", "300", "--owner", "x", "--ttl", "1h"];
    let (old, new) = (&table.store, &table.beside("new"));
    let (at_old, first) = json_at(old, "claim", &claim);
    let (at_new, second) = json_at(new, "claim", &claim);
    let (stands, answer) = match (at_old, at_new) {
        (0, 66) => (Stands::Old, first),
        (66, 0) => {
            assert_eq!((&first["outcome"], &first["to"]), (&json!("moved"), &json!(new)));
            (Stands::New, second)
        }
        _ => panic!("{what}: not exactly one table: {first} and {second}"),
    };
    let token = answer["token"].as_str().unwrap();
    let store = if stands == Stands::Old { old } else { new };
    assert_eq!(json_at(store, "release", &["--targets", "300", "--token", token]).0, 0, "{what}");
    stands
}

fn killed_at_every_kind_of_call(engine: &str) {
    let (mut tried, mut killed, mut after) = (0, 0, 0);
    for (call, count) in calls(engine) {
        let mut decided = Stands::Old;
        for point in points(count) {
            let what = format!("{engine}, {call} {point} of {count}");
            let table = table(engine);
            let filled = fill(&table);
            let before = seen(&table.store);
            let to = table.beside("new");
            let inject = format!("inject={call}:signal=KILL:when={point}");
            let options = ["-e", &format!("trace={call}"), "-e", &inject];
            let command = migrate(&table.store, &to, &[]);
            let ran = Ran::of(&mut traced(&options, &table.beside("log"), &command));
            assert!([0, 137].contains(&ran.code), "{what}: {ran:?}");
            tried += 1;
            killed += usize::from(ran.code == 137);
            let now = stands(&table, &what);
            assert!(decided == Stands::Old || now == Stands::New, "{what}: back again");
            decided = now;
            after += usize::from(now == Stands::New && ran.code == 137);
            let at = if now == Stands::Old { &table.store } else { &to };
            assert_eq!(seen(at), before, "{what}");
            let again = Ran::of(&mut migrate(&table.store, &to, &[]));
            assert_eq!(again.code, 0, "{what}: {again:?}");
            assert_eq!(seen(&to), before, "{what}");
            let floor = again.json()["fence_floor"].as_u64().unwrap();
            assert_goes_on(&to, &filled, floor);
            assert_eq!(json_at(&table.store, "claim", &["--targets", "1", "--owner", "x"]).0, 66);
            assert_eq!(names_beside(&table), ["log", "new", "store"], "{what}");
        }
    }
    // Calls are counted by thread, so a few points are never reached.
    assert!(tried > 20 && killed * 4 >= tried * 3, "{killed} of {tried} killed");
    assert!(after > 2, "{after} of {killed} were killed after the decision");
}

#[test]
fn a_move_from_files_that_is_killed_leaves_exactly_one_table_and_the_same_command_finishes_it() {
    killed_at_every_kind_of_call("files");
}

#[test]
fn a_move_from_a_journal_that_is_killed_leaves_exactly_one_table_and_the_same_command_finishes() {
    killed_at_every_kind_of_call("journal");
}
