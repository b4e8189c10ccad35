//! `docs/cli.md` against the real answers: every example is produced, field by field.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use ringfence::{Owner, Payload, Store};
use serde_json::{Value, json};

use crate::support::{
    KernelLock, Ran, Table, damage, first, killed_at_rename, ringfence, signal, spawn, told, traced,
};

const DOCS: &str = include_str!("../../../docs/cli.md");

/// Fields whose inside is not part of the format.
const OPAQUE: [&str; 3] = ["payload", "manifest", "by_kind"];
/// Fields whose words are part of the format.
const WORDS: [&str; 7] = ["outcome", "state", "why", "kind", "status", "verdict", "engine"];

struct Example {
    exit: i32,
    answer: Value,
}

fn examples() -> BTreeMap<&'static str, Example> {
    let blocks = DOCS.split("```json ").skip(1);
    let read = |block: &'static str| {
        let (head, rest) = block.split_once('\n').unwrap();
        let (id, exit) = head.split_once(" exit=").unwrap();
        let body = rest.split_once("\n```").unwrap().0;
        let answer = serde_json::from_str(body).unwrap_or_else(|error| panic!("{id}: {error}"));
        (id, Example { exit: exit.parse().unwrap(), answer })
    };
    let all: Vec<_> = blocks.map(read).collect();
    let map: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(map.len(), DOCS.matches("```json ").count(), "an example is named twice");
    map
}

fn nullable() -> BTreeSet<&'static str> {
    let list = DOCS.split_once("May be `null`:").unwrap().1.split_once('.').unwrap().0;
    list.split('`').skip(1).step_by(2).collect()
}

/// Says how `real` differs in shape from `example`.
fn differs(field: &str, example: &Value, real: &Value) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{field}: {what}\n  documented {example}\n  real {real}"));
    if real.is_null() || example.is_null() {
        let allowed = nullable().contains(field) || real.is_null() && example.is_null();
        return if allowed { Ok(()) } else { wrong("is null") };
    }
    if OPAQUE.contains(&field) {
        return if real.is_object() { Ok(()) } else { wrong("is no object") };
    }
    match (example, real) {
        (Value::Object(a), Value::Object(b)) => {
            let (a_keys, b_keys): (BTreeSet<_>, BTreeSet<_>) =
                (a.keys().collect(), b.keys().collect());
            if a_keys != b_keys {
                let odd: Vec<_> = a_keys.symmetric_difference(&b_keys).collect();
                return wrong(&format!("only one of the two has {odd:?}"));
            }
            a.iter().try_for_each(|(key, value)| differs(key, value, &b[key]))
        }
        (Value::Array(a), Value::Array(b)) => {
            for one in b {
                if !a.iter().any(|other| differs(field, other, one).is_ok()) {
                    let why = a.first().map(|other| differs(field, other, one));
                    return wrong(&format!("an element is not documented: {why:?}"));
                }
            }
            match a.iter().find(|one| !b.iter().any(|other| differs(field, one, other).is_ok())) {
                Some(missing) => wrong(&format!("no real element is like {missing}")),
                None => Ok(()),
            }
        }
        (Value::String(a), Value::String(b)) if WORDS.contains(&field) && a != b => {
            wrong("differs")
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() != b.is_f64() => wrong("float or not"),
        _ if std::mem::discriminant(example) == std::mem::discriminant(real) => Ok(()),
        _ => wrong("another type"),
    }
}

#[derive(Default)]
struct Produced(Vec<(&'static str, i32, Value)>);

impl Produced {
    fn add(&mut self, id: &'static str, (code, answer): (i32, Value)) -> Value {
        self.0.push((id, code, answer.clone()));
        answer
    }

    fn ran(&mut self, id: &'static str, ran: &Ran) {
        self.add(id, (ran.code, ran.json()));
    }
}

#[test]
fn every_documented_answer_is_given_for_real_and_no_other() {
    let mut produced = Produced::default();
    leases(&mut produced);
    journals(&mut produced);
    damages(&mut produced);
    makes(&mut produced);
    refusals(&mut produced);
    failures(&mut produced);
    cut_short(&mut produced);
    restored(&mut produced);
    moves(&mut produced);
    other_tables(&mut produced);
    measures(&mut produced);
    let examples = examples();
    let ids: BTreeSet<&str> = produced.0.iter().map(|(id, ..)| *id).collect();
    assert_eq!(ids, examples.keys().copied().collect(), "documented and produced");
    for (id, code, real) in &produced.0 {
        let example = &examples[id];
        assert_eq!(*code, example.exit, "{id}: {real}");
        if let Err(why) = differs("", &example.answer, real) {
            panic!("{id}: {why}");
        }
    }
}

fn leases(produced: &mut Produced) {
    let table = Table::files();
    let made = table.json("init", &["--engine", "files"]);
    produced.add("init/files", made);
    let claim = ["--targets", "77,88", "--owner", "me", "--worker", "3", "--payload", "{\"a\":1}"];
    let granted = produced.add("claim/granted", table.json("claim", &claim));
    let token = granted["token"].as_str().unwrap();
    let both = ["--targets", "77,88", "--token", token];
    produced.add("claim/busy", table.json("claim", &["--targets", "88,99", "--owner", "you"]));
    produced.add("heartbeat/renewed", table.json("heartbeat", &both));
    produced.add("show/active", table.json("show", &["77"]));
    produced.add("show/free", table.json("show", &["99"]));
    let far = ["77", "--now", "99999999999"];
    produced.add("show/expired", table.json("show", &far));
    produced.add("status/status", table.json("status", &[]));
    std::fs::write(table.record(77).with_extension("txt~"), "x").unwrap();
    produced.add("check/checked", table.json("check", &[]));
    std::fs::remove_file(table.record(77).with_extension("txt~")).unwrap();
    let wrong = ["--targets", "77,88", "--token", "x"];
    let forced = |token| ["--targets", "77,88", "--token", token, "--reason", "host lost power"];
    produced.add("force-release/lost", table.json("force-release", &forced("x")));
    produced.add("release/released", table.json("release", &both));
    produced.add("release/lost", table.json("release", &wrong));
    let token = table.claim("77,88", "me", &[]);
    produced.add("force-release/force-released", table.json("force-release", &forced(&token)));
    produced.add("force-release/not-held", table.json("force-release", &forced(&token)));
    produced.add("check/repaired", table.json("check", &["--repair"]));
}

/// The engine `journal`.
fn journals(produced: &mut Produced) {
    let table = Table::new();
    produced.add("init/ready", table.json("init", &[]));
    assert_eq!(table.json("init", &["--engine", "journal", "--durability", "group"]).0, 0);
    // Only files can keep less than whole groups: whoever asks for that gets them.
    let record = table.beside("record");
    let made =
        Ran::of(ringfence().arg("init").arg(&record).args(["--durability", "record", "--json"]));
    assert_eq!((made.code, &made.json()["engine"]), (0, &json!("files")), "{made:?}");
    let other = Table::new();
    assert_eq!(other.json("init", &[]).0, 0);
    let (code, raised) = other.json("check", &["--repair", "--bump-fence", "9"]);
    assert_eq!((code, &raised["outcome"]), (0, &json!("repaired")), "{raised}");
    assert_eq!(raised["fence_limit"], 9, "{raised}");
    produced.add("init/other-engine", table.json("init", &["--engine", "files"]));
    let token = table.claim("77", "me", &[]);
    let both = ["--targets", "77", "--token", &token];
    assert_eq!(table.json("release", &both).0, 0);
    produced.add("status/journal", table.json("status", &[]));
    let token = table.claim("77", "me", &[]);
    assert_eq!(table.json("release", &["--targets", "77", "--token", &token]).0, 0);
    let path = table.store.join("journal.0");
    let mut bytes = std::fs::read(&path).unwrap();
    // The third frame, which the fourth calls durable.
    bytes[2048 + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    produced.add("dump/dumped", table.json("dump", &[]));
    produced.add("any/damaged-journal", table.json("claim", &["--targets", "1", "--owner", "me"]));
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "damage is left alone");
    produced.add("dump/no-journal", Table::files().json("dump", &[]));
}

fn damages(produced: &mut Produced) {
    let table = Table::files();
    let payload = Payload::parse("{\"seed\":\"s1\"}").unwrap();
    let work = Store::open(&table.store).unwrap().work();
    let item = work.claim(&payload, &Owner::new("me").unwrap(), 3, None, None).unwrap();
    work.begin_commit(item.id, &item.token, &payload, None).unwrap();
    table.claim("77", "you", &["--now", "1000", "--ttl", "1s"]);
    table.claim("77", "me", &[]);
    table.claim("88", "you", &[]);
    table.claim("99", "me", &[]);
    damage(&table, 99);
    produced.add("list/listed", table.json("list", &[]));
    produced.add("show/corrupt", table.json("show", &["99"]));
    produced.add("check/damaged", table.json("check", &[]));
    produced.add("claim/corrupt", table.json("claim", &["--targets", "99,100", "--owner", "me"]));
    let beat = ["--targets", "66,88,99", "--token", "00000000000000000001-x"];
    produced.add("heartbeat/lost", table.json("heartbeat", &beat));
    let id = item.id.to_string();
    let forced = |token| ["--work", &id, "--token", token, "--reason", "cut by a full disk"];
    produced.add("force-release/work-lost", table.json("force-release", &forced("x")));
    let token = item.token.as_str();
    produced.add("force-release/work", table.json("force-release", &forced(token)));
    assert_eq!(table.json("force-release", &forced(token)).0, 80);
    std::fs::write(table.store.join("table.json"), "").unwrap();
    produced.add("any/corrupt", table.json("list", &[]));
}

fn makes(produced: &mut Produced) {
    let table = Table::files();
    produced.add("init/differs", table.json("init", &["--engine", "files", "--shards", "4"]));
    let full = table.beside("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("notes.txt"), "x").unwrap();
    produced.ran("init/not-empty", &Ran::of(ringfence().arg("init").arg(&full).arg("--json")));
    let other = table.beside("other");
    let record = table.record(1);
    let real = record.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let wrong = if real == "000" { "001" } else { "000" };
    std::fs::create_dir_all(other.join(wrong)).unwrap();
    std::fs::write(other.join(wrong).join(record.file_name().unwrap()), "{}").unwrap();
    let mut shared = ringfence();
    shared.arg("init").arg(&other).args(["--engine", "files", "--json"]);
    produced.ran("init/other-shards", &Ran::of(&mut shared));
    let dir = table.beside("dir");
    std::fs::create_dir(&dir).unwrap();
    produced.ran("probe/usable", &Ran::of(ringfence().arg("probe").arg(&dir).arg("--json")));
    // Locks that always succeed exclude nobody (cases B69).
    let nothing = ["-e", "trace=flock", "-e", "inject=flock:retval=0"];
    let mut probe = ringfence();
    probe.arg("probe").arg(&dir).arg("--json");
    produced
        .ran("probe/unsupported", &Ran::of(&mut traced(&nothing, &table.beside("log"), &probe)));
    for engine in ["journal", "files"] {
        let mut init = ringfence();
        init.arg("init").arg(&dir).args(["--engine", engine, "--json"]);
        let ran = Ran::of(&mut traced(&nothing, &table.beside("log"), &init));
        produced.ran("any/unsupported", &ran);
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
}

/// A claim that is killed between two of its records, on a table that keeps groups whole.
fn cut_short(produced: &mut Produced) {
    let table = Table::files();
    let claim = table.command("claim", &["--targets", &first(8), "--owner", "me"]);
    assert_eq!(killed_at_rename(5, &claim, &table.beside("log")).code, 137);
    produced.add("check/intent", table.json("check", &[]));
}

/// B34: a table that was put back from a backup.
fn restored(produced: &mut Produced) {
    // On a disk: what is in memory does not outlive its host.
    let table = Table::files_on_disk();
    table.claim("77,88", "me", &[]);
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
        assert!(copied.success());
    };
    let backup = table.beside("backup");
    copy(&table.store, &backup);
    let issued = table.claim("99", "you", &[]);
    std::fs::remove_dir_all(&table.store).unwrap();
    copy(&backup, &table.store);
    for (verb, args) in [
        ("claim", &["--targets", "99", "--owner", "me"][..]),
        ("heartbeat", &["--targets", "99", "--token", &issued]),
        ("release", &["--targets", "99", "--token", &issued]),
        ("force-release", &["--targets", "99", "--token", &issued, "--reason", "x"]),
        ("check", &["--repair"]),
    ] {
        produced.add("any/restored", table.json(verb, args));
    }
    let run = table.run("run", &["--targets", "99", "--owner", "me", "--", "true"]);
    assert_eq!(run.code, 66, "{run:?}");
    assert!(run.err.contains("--bump-fence"), "{run:?}");
    for verb in ["list", "status"] {
        assert_eq!(table.json(verb, &[]).0, 0, "{verb} reads on");
    }
    produced.add("check/restored", table.json("check", &[]));
    produced.add("check/raised", table.json("check", &["--repair", "--bump-fence", "1000000000"]));
    let next = table.claim("99", "me", &[]);
    assert!(next > issued, "{next} after {issued}");
}

fn moves(produced: &mut Produced) {
    let table = Table::with(&["--engine", "files"]);
    table.claim("77,88", "me", &[]);
    let to = table.beside("new");
    let path = to.to_str().unwrap();
    damage(&table, 88);
    produced.add("migrate/not-sound", table.json("migrate", &[path]));
    std::fs::remove_file(table.record(88)).unwrap();
    std::fs::write(table.store.join("003/notes.txt~"), "x").unwrap();
    std::fs::write(&to, "x").unwrap();
    produced.add("migrate/exists", table.json("migrate", &[path]));
    std::fs::remove_file(&to).unwrap();
    let staging = table.beside(".new.arriving");
    std::fs::create_dir(&staging).unwrap();
    std::fs::write(staging.join("x"), "x").unwrap();
    produced.add("migrate/occupied", table.json("migrate", &[path]));
    std::fs::remove_dir_all(&staging).unwrap();
    // Killed at its third rename, when the new table is being made.
    let killed = killed_at_rename(3, &table.command("migrate", &[path]), &table.beside("log"));
    assert_eq!(killed.code, 137, "{killed:?}");
    let arriving = Ran::of(ringfence().arg("list").arg(&to).arg("--json"));
    produced.ran("any/arriving", &arriving);
    produced.add("migrate/migrated", table.json("migrate", &[path]));
    produced.add("any/moved", table.json("claim", &["--targets", "1", "--owner", "me"]));
}

fn other_tables(produced: &mut Produced) {
    let table = Table::files();
    for verb in ["claim", "run"] {
        let mut args = vec!["--targets", "1", "--owner", "me", "--durability", "record"];
        if verb == "run" {
            args.extend(["--", "true"]);
            assert_eq!(table.run("run", &args).code, 66);
        } else {
            produced.add("any/other-durability", table.json("claim", &args));
        }
        args[5] = "group";
        assert_eq!(table.run(verb, &args).code, 0, "{verb}");
        let _ = table.run("check", &["--repair"]);
        std::fs::remove_file(table.record(1)).unwrap_or_default();
    }
    std::fs::remove_dir_all(table.store.join("intents")).unwrap();
    produced.add("any/incomplete", table.json("claim", &["--targets", "1", "--owner", "me"]));
    let (code, answer) = table.json("check", &["--repair"]);
    assert_eq!((code, answer["made"].as_array().unwrap().len()), (0, 1), "{answer}");
}

fn measures(produced: &mut Produced) {
    let dir = tempfile::tempdir().unwrap();
    let mut race = ringfence();
    race.args(["race", "--rounds", "1", "--json", "--dir"]).arg(dir.path());
    produced.ran("race/safe", &Ran::of(&mut race));
    let mut bench = ringfence();
    let small = ["--targets", "2", "--shards", "1", "--rounds", "1", "--json", "--dir"];
    bench.arg("bench").args(small).arg(dir.path());
    produced.ran("bench/measured", &Ran::of(&mut bench));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

fn refusals(produced: &mut Produced) {
    let table = Table::files();
    produced.add("any/usage", table.json("claim", &["--targets", "1,1", "--owner", "me"]));
    let missing = Ran::of(ringfence().arg("list").arg(table.beside("none")).arg("--json"));
    produced.ran("any/no-table", &missing);
    let token = table.claim("5", "me", &[]);
    let mut waiting =
        table.command("claim", &["--targets", "5", "--owner", "you", "--wait", "2m", "--json"]);
    let mut child = spawn(&mut waiting);
    told(&mut child);
    signal(&child, "INT");
    produced.ran("claim/interrupted", &Ran::wait(child));
    let lock = table.record(5).with_extension("json.lock");
    let held = KernelLock::hold(&lock);
    let beat = ["--targets", "5", "--token", &token];
    produced.add("any/locked", table.json("heartbeat", &beat));
    drop(held);
    let open = |mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&table.store, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(0o777);
    produced.add("any/unsafe", table.json("list", &[]));
    open(0o700);
}

fn failures(produced: &mut Produced) {
    let table = Table::files();
    table.claim("1", "me", &[]);
    let before = table.contents();
    let eight = first(9);
    let group = eight.strip_prefix("1,").unwrap();
    let claim = table.command("claim", &["--targets", group, "--owner", "me", "--json"]);
    let full = ["-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=ENOSPC:when=1"];
    let ran = Ran::of(&mut traced(&full, &table.beside("log"), &claim));
    assert!(ran.err.contains("No space left on device"), "{ran:?}");
    produced.ran("any/failed", &ran);
    assert_eq!(table.contents(), before, "what failed changed nothing");
    table.assert_tidy();
    // Every directory sync fails, that of the restore as well.
    let dead = ["-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1+"];
    let token = table.claim(group, "me", &[]);
    let release = table.command("release", &["--targets", group, "--token", &token, "--json"]);
    let ran = Ran::of(&mut traced(&dead, &table.beside("log"), &release));
    produced.ran("any/unknown", &ran);
    assert_eq!(ran.json()["restored"], json!(false));
    let (code, _) = table.json("claim", &["--targets", "100", "--owner", "me"]);
    assert_eq!(code, 0, "the table works on");
}
