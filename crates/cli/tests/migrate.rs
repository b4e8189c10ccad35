//! Moving a table, with the real command: what goes along, what is refused, and who is let in.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ringfence::{Owner, Payload, RecordId, Store, Token};
use serde_json::{Value, json};

use crate::support::{KernelLock, Ran, Table, damage, ringfence};

/// Later than anything that these tests store.
const NOW: &str = "2000";

/// A table of one engine in memory.
pub(crate) fn table(engine: &str) -> Table {
    Table::with(&["--engine", engine])
}

/// What a table holds that was filled.
pub(crate) struct Filled {
    /// Of the lease on 5, 6 and 7.
    pub(crate) active: String,
    committing: (RecordId, Token),
    /// The highest token of all, of a lease that was given back.
    pub(crate) last: String,
}

/// Leases of every kind, work items in every state, and a fence that no record shows.
pub(crate) fn fill(table: &Table) -> Filled {
    let claim = |targets: &str, ttl: &str, now: &str| {
        let more = ["--ttl", ttl, "--now", now, "--worker", "-3", "--payload", "{\"n\":1.50}"];
        table.claim(targets, "me", &more)
    };
    claim("5,6", "10s", "1000");
    let active = claim("6,5,7", "11d", "1010");
    claim("8", "1s", "1000");
    let committing = work(&table.store);
    let last = claim("99", "10s", "1000");
    assert_eq!(table.run("release", &["--targets", "99", "--token", &last]).code, 0);
    Filled { active, committing, last }
}

fn work(store: &Path) -> (RecordId, Token) {
    let work = Store::open(store).unwrap().work();
    let (owner, now) = (Owner::new("worker").unwrap(), Some(at(1000.0)));
    let payload = |text: &str| Payload::parse(&format!(r#"{{"seed":"{text}"}}"#)).unwrap();
    let long = Some(ringfence::Ttl::from_seconds(1e6).unwrap());
    let [_leased, committing, done] = ["leased", "committing", "done"]
        .map(|seed| work.claim(&payload(seed), &owner, 1, long, now).unwrap());
    for item in [&committing, &done] {
        work.begin_commit(item.id, &item.token, &payload("out"), now).unwrap();
    }
    work.complete_once(done.id, &done.token, now).unwrap();
    (committing.id, committing.token)
}

fn at(seconds: f64) -> ringfence::Timestamp {
    ringfence::Timestamp::from_seconds(seconds).unwrap()
}

/// Every name of the table with its bytes, but for memory that processes share.
pub(crate) fn bytes(table: &Table) -> Vec<(PathBuf, Vec<u8>)> {
    let mut contents = table.contents();
    contents.retain(|(path, _)| !path.ends_with("hints"));
    contents
}

/// `ringfence VERB STORE ARGS.. --json`
pub(crate) fn json_at(store: &Path, verb: &str, args: &[&str]) -> (i32, Value) {
    let ran = Ran::of(ringfence().arg(verb).arg(store).args(args).arg("--json"));
    (ran.code, ran.json())
}

/// All that `list` and `status` say of what is stored.
pub(crate) fn seen(store: &Path) -> Value {
    let (code, listed) = json_at(store, "list", &["--now", NOW]);
    assert_eq!((code, &listed["consistent"]), (0, &json!(true)), "{listed}");
    let (code, status) = json_at(store, "status", &["--now", NOW]);
    assert_eq!(code, 0, "{status}");
    json!([listed["leases"], listed["work"], status["leases"], status["work"], status["ttl"]])
}

pub(crate) fn migrate(from: &Path, to: &Path, more: &[&str]) -> Command {
    let mut command = ringfence();
    command.arg("migrate").arg(from).arg(to).args(more).arg("--json");
    command
}

pub(crate) fn moved(from: &Path, to: &Path, more: &[&str]) -> Value {
    let ran = Ran::of(&mut migrate(from, to, more));
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.json()
}

/// The number in a token.
pub(crate) fn fence(token: &str) -> u64 {
    token.split('-').next().unwrap().parse().unwrap()
}

/// The names in the directory of the table.
pub(crate) fn names_beside(table: &Table) -> Vec<String> {
    let dir = table.store.parent().unwrap();
    let names = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Holders go on under their tokens, and the next fence is above all that were.
pub(crate) fn assert_goes_on(to: &Path, filled: &Filled, floor: u64) {
    let group = ["--targets", "5,6,7", "--token", &filled.active, "--now", "2001"];
    assert_eq!(json_at(to, "heartbeat", &group).0, 0);
    let (id, token) = &filled.committing;
    Store::open(to).unwrap().work().complete_once(*id, token, Some(at(2001.0))).unwrap();
    assert_eq!(json_at(to, "release", &group[..4]).0, 0);
    let (code, next) = json_at(to, "claim", &["--targets", "100", "--owner", "next"]);
    assert_eq!(code, 0, "{next}");
    let next = next["fence"].as_u64().unwrap();
    assert!(next > floor && floor >= fence(&filled.last), "{next}, {floor}, {}", filled.last);
    let (code, checked) = json_at(to, "check", &[]);
    assert_eq!((code, &checked["findings"]), (0, &json!([])), "{checked}");
}

/// Every verb at a place that a table was moved from.
fn assert_closed(from: &Path, to: &Path, token: &str) {
    let both = ["--targets", "5,6,7", "--token", token];
    let claim = ["--targets", "1", "--owner", "you"];
    let run = ["--targets", "1", "--owner", "you", "--", "true"];
    let forced = ["--targets", "5,6,7", "--token", token, "--reason", "x"];
    let elsewhere = from.with_file_name("elsewhere");
    for (verb, args) in [
        ("list", &[][..]),
        ("show", &["5"]),
        ("status", &[]),
        ("check", &[]),
        ("check", &["--repair"]),
        ("dump", &[]),
        ("init", &[]),
        ("claim", &claim),
        ("heartbeat", &both),
        ("release", &both),
        ("force-release", &forced),
        ("migrate", &[elsewhere.to_str().unwrap(), "--engine", "files"]),
    ] {
        let (code, answer) = json_at(from, verb, args);
        let says = (code, &answer["outcome"], &answer["to"]);
        assert_eq!(says, (66, &json!("moved"), &json!(to)), "{verb}: {answer}");
    }
    let ran = Ran::of(ringfence().arg("run").arg(from).args(run));
    assert!(ran.code == 66 && ran.err.contains(&to.display().to_string()), "{ran:?}");
}

#[test]
fn a_table_goes_to_the_other_engine_and_back_with_all_it_holds() {
    for (engine, other) in [("files", "journal"), ("journal", "files")] {
        let table = table(engine);
        let filled = fill(&table);
        let before = seen(&table.store);
        let places = ["new", "third"].map(|name| table.beside(name));
        let answer = moved(&table.store, &places[0], &[]);
        let says = [&answer["engine"], &answer["leases"], &answer["work"], &answer["store"]];
        assert_eq!(says, [&json!(other), &json!(4), &json!(3), &json!(places[0])]);
        assert_eq!(seen(&places[0]), before);
        assert_closed(&table.store, &places[0], &filled.active);
        assert_eq!(names_beside(&table), ["new", "store"]);
        // Again is harmless, whatever engine is named.
        let again = moved(&table.store, &places[0], &["--engine", engine]);
        for field in ["engine", "table", "leases", "work", "fence_floor"] {
            assert_eq!(again[field], answer[field], "{field}");
        }
        // And back.
        let back = moved(&places[0], &places[1], &["--engine", engine]);
        assert_eq!((&back["engine"], seen(&places[1])), (&json!(engine), before));
        let (floor, first) = (back["fence_floor"].as_u64(), answer["fence_floor"].as_u64());
        assert!(floor > first, "{back} {answer}");
        assert_goes_on(&places[1], &filled, floor.unwrap());
        assert_eq!(names_beside(&table), ["new", "store", "third"]);
    }
}

#[test]
fn options_of_the_new_place_are_kept_and_a_move_within_one_engine_is_one_too() {
    let table = table("files");
    fill(&table);
    let before = seen(&table.store);
    let to = table.beside("new");
    let more = ["--engine", "files", "--shards", "3", "--durability", "record"];
    moved(&table.store, &to, &more);
    let (_, status) = json_at(&to, "status", &[]);
    let kept = [&status["engine"], &status["shards"], &status["durability"]];
    assert_eq!(kept, [&json!("files"), &json!(3), &json!("record")]);
    assert_eq!(seen(&to), before);
}

#[test]
fn what_cannot_be_moved_is_refused_with_every_byte_as_it_was() {
    for engine in ["files", "journal"] {
        let table = table(engine);
        let filled = fill(&table);
        let before = bytes(&table);
        let taken = table.beside("taken");
        std::fs::create_dir(&taken).unwrap();
        std::fs::write(taken.join("x"), "x").unwrap();
        let occupied = table.beside(".later.arriving");
        std::fs::create_dir(&occupied).unwrap();
        std::fs::write(occupied.join("y"), "y").unwrap();
        let link = table.beside("link");
        std::os::unix::fs::symlink(&table.store, &link).unwrap();
        let names = names_beside(&table);
        let (store, new) = (&table.store, &table.beside("new"));
        let none = table.beside("none");
        let refused = [
            (66, "exists", migrate(store, &taken, &[])),
            (66, "exists", migrate(store, &taken.join("x"), &[])),
            (66, "exists", migrate(store, &link, &[])),
            (66, "occupied", migrate(store, &table.beside("later"), &[])),
            (64, "usage", migrate(store, store, &[])),
            (64, "usage", migrate(store, &store.join("new"), &[])),
            (64, "usage", migrate(store, &link.join("new"), &[])),
            (64, "usage", migrate(store, new, &["--engine", "etcd"])),
            (64, "usage", migrate(store, new, &["--engine", "files", "--shards", "0"])),
            (64, "usage", migrate(store, new, &["--engine", "journal", "--shards", "0"])),
            (64, "usage", migrate(store, new, &["--engine", "journal", "--durability", "record"])),
            (66, "no-table", migrate(&none, new, &[])),
            (66, "no-table", migrate(&taken, new, &["--engine", "journal"])),
            (125, "failed", migrate(store, &none.join("new"), &[])),
        ];
        for (code, outcome, mut command) in refused {
            let ran = Ran::of(&mut command);
            let answer = ran.json();
            assert_eq!((ran.code, &answer["outcome"]), (code, &json!(outcome)), "{ran:?}");
        }
        assert_eq!(names_beside(&table), names);
        assert!(bytes(&table) == before, "something was changed");
        let beat = ["--targets", "5,6,7", "--token", &filled.active, "--now", "2000"];
        assert_eq!(table.run("heartbeat", &beat).code, 0);
    }
}

#[test]
fn a_damaged_record_is_named_and_its_table_is_not_moved() {
    let table = table("files");
    fill(&table);
    damage(&table, 7);
    let before = bytes(&table);
    let ran = Ran::of(&mut migrate(&table.store, &table.beside("new"), &[]));
    let answer = ran.json();
    assert_eq!((ran.code, &answer["outcome"]), (65, &json!("not-sound")), "{answer}");
    let path = table.record(7).display().to_string();
    assert!(answer["reasons"][0].as_str().unwrap().contains(&path), "{answer}");
    assert!(bytes(&table) == before, "something was changed");
    assert_eq!(names_beside(&table), ["store"]);
}

/// Somebody was stopped in the middle of a call.
#[test]
fn a_table_that_stays_in_use_is_given_up_after_ten_seconds_and_both_places_are_as_they_were() {
    let cases = [("files", "gate.lock"), ("journal", "append.lock")].map(|(engine, lock)| {
        let table = table(engine);
        fill(&table);
        (bytes(&table), table.store.join(lock), table)
    });
    std::thread::scope(|scope| {
        for (before, lock, table) in &cases {
            scope.spawn(move || {
                // As an operation does: those of a table of files share the gate.
                let held = if lock.ends_with("gate.lock") {
                    KernelLock::share(lock)
                } else {
                    KernelLock::hold(lock)
                };
                let ran = Ran::of(&mut migrate(&table.store, &table.beside("new"), &[]));
                let answer = ran.json();
                let says = (ran.code, &answer["outcome"], &answer["locked"]);
                assert_eq!(says, (75, &json!("busy"), &json!(lock)), "{answer}");
                assert!(ran.took >= Duration::from_secs(9), "{ran:?}");
                assert!(ran.err.contains("stop what uses the table"), "{ran:?}");
                drop(held);
                assert!(bytes(table) == *before, "something was changed");
                assert_eq!(names_beside(table), ["store"]);
                table.claim("200", "me", &[]);
                moved(&table.store, &table.beside("new"), &[]);
                assert!(!json_at(&table.beside("new"), "show", &["200"]).1["lease"].is_null());
            });
        }
    });
}

/// Processes that claim without a pause, each target once, never keep the command out; what they were
/// told before the end is there, and afterwards they are told where the table is.
#[test]
fn a_table_in_use_is_moved_between_two_calls_and_nothing_acknowledged_is_lost() {
    for engine in ["files", "journal"] {
        let table = table(engine);
        let to = table.beside("new");
        let (claimed, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let granted = std::thread::scope(|scope| {
            let claimers = [1_000, 2_000, 3_000, 4_000].map(|first| {
                let (table, to, claimed, over) = (&table, &to, &claimed, &over);
                scope.spawn(move || {
                    let mut granted = Vec::new();
                    for target in first..first + 900 {
                        let number = target.to_string();
                        let claim = ["--targets", &number, "--owner", "me", "--ttl", "1h"];
                        let (code, answer) = table.json("claim", &claim);
                        match code {
                            0 => granted.push(target),
                            // The move took longer than a claim waits for a kernel lock.
                            75 => {}
                            _ => {
                                let says = (code, &answer["outcome"], &answer["to"]);
                                let told = says == (66, &json!("moved"), &json!(to));
                                // It was open when the table was closed.
                                let words = format!("it is {} now", to.display());
                                let late = answer["error"].as_str().unwrap().contains(&words);
                                assert!(told || late, "{answer}");
                                return granted;
                            }
                        }
                        claimed.fetch_add(1, Ordering::SeqCst);
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                    panic!("never told that the table was moved")
                })
            });
            while claimed.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            let ran = Ran::of(&mut migrate(&table.store, &to, &[]));
            over.store(ran.code != 0, Ordering::SeqCst);
            assert_eq!(ran.code, 0, "{ran:?}");
            claimers.map(|claimer| claimer.join().unwrap())
        });
        let mut granted = granted.concat();
        granted.sort_unstable();
        let (_, listed) = json_at(&to, "list", &[]);
        let leases = listed["leases"].as_array().unwrap();
        let mut there: Vec<u64> =
            leases.iter().map(|lease| lease["target"].as_u64().unwrap()).collect();
        there.sort_unstable();
        assert_eq!(there, granted, "{engine}");
    }
}
