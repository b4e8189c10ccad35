//! Another program on the same table, at the same time: python3 with its standard library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_engine::Failure;
use ringfence_env::{Clock as _, World};
use ringfence_files::{FilesEngine, InitError, Tuning};

use crate::child::Other;
use crate::table::{PATIENCE, Table, Verbs as _, ask, at, options, record_path, scratch};

fn python(verb: &str, root: &Path, targets: &str, more: &[&str]) -> Other {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/foreign.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(verb).arg(root).arg(targets).args(more);
    Other::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

#[test]
fn a_lease_of_another_program_is_respected_and_ours_by_it() {
    let table = Table::new(8);
    assert_eq!(python("claim", table.root(), "7,8", &[]).says(), "granted");
    let refused = table.engine.grab("a", &[6, 7], None).unwrap().unwrap_err();
    assert_eq!(&*refused.conflicts[0].holding.owner, "python");
    assert_eq!(refused.conflicts[0].holding.token.as_str(), "py-token");
    table.engine.grab("a", &[9], None).unwrap().unwrap();
    assert_eq!(python("claim", table.root(), "9,10", &[]).says(), "refused");
    assert!(!table.record(10).exists());
    assert_eq!(python("release", table.root(), "7,8", &[]).says(), "released");
    table.engine.grab("a", &[7, 8], None).unwrap().unwrap();
}

#[test]
fn an_expired_lease_of_another_program_is_taken_over_with_its_history() {
    let table = Table::new(8);
    assert_eq!(python("claim", table.root(), "7,8", &[]).says(), "granted");
    let updated = table.read(7).holder.updated.seconds();
    let token = table.engine.grab("a", &[7], Some(updated + 60.0)).unwrap().unwrap();
    let taken = table.read(7);
    assert_eq!((taken.history.attempts, taken.history.steals), (2, 1));
    assert_eq!(taken.history.previous_owner.as_deref(), Some("python"));
    assert_eq!(taken.holder.token, token.into());
    assert_eq!(python("release", table.root(), "7,8", &[]).says(), "refused");
    // By the host's clocks it is not expired, so the store's clock is not even asked.
    table.engine.grab("a", &[8], None).unwrap().unwrap_err();
}

#[test]
fn our_heartbeat_of_a_foreign_record_changes_its_moment_only() {
    let table = Table::new(8);
    assert_eq!(python("claim", table.root(), "7", &[]).says(), "granted");
    let before = fs::read_to_string(table.record(7)).unwrap();
    let updated = table.read(7).holder.updated;
    let group = crate::table::group(&[7]);
    let keys = crate::table::keys(&group);
    let request = ringfence_engine::Request {
        keys: &keys,
        now: Some(at(updated.seconds() + 1.5)),
        patience: Duration::ZERO,
    };
    let token = "py-token".parse().unwrap();
    let engine: &dyn ringfence_engine::Engine = &table.engine;
    engine
        .decide(&request, |view| ringfence_model::rules::heartbeat(view, &group, &token))
        .unwrap()
        .unwrap();
    let after = fs::read_to_string(table.record(7)).unwrap();
    assert!(before.contains("\"note\":{\"kept\":[1.5]}"), "{before}");
    let number = |line: &str| {
        let from = line.find("\"updated\":").unwrap() + 10;
        let to = line[from..].find([',', '}']).unwrap() + from;
        (line[..from].to_owned(), line[from..to].parse::<f64>().unwrap(), line[to..].to_owned())
    };
    let (one, two) = (number(&before), number(&after));
    assert_eq!((one.0, one.2), (two.0, two.2));
    assert!((two.1 - one.1 - 1.5).abs() < 1e-6);
}

#[test]
fn what_we_write_reads_back_in_another_program_field_by_field() {
    let table = Table::new(8);
    table.engine.grab("old", &[77], Some(1000.0)).unwrap().unwrap();
    let request = ringfence_model::rules::ClaimRequest {
        payload: ringfence_model::Payload::parse(r#"{"seed":"é","n":[1,2.5,null]}"#).unwrap(),
        worker: 5,
        ..ask("coordinator-1", &[77, 18_446_744_073_709_551_615])
    };
    let token = table.engine.ask(&request, Some(2000.25), Duration::ZERO).unwrap().unwrap();
    let said = python("show", table.root(), "77", &[]).says();
    let seen: serde_json::Value = serde_json::from_str(&said).unwrap();
    let id = crate::table::id(77).to_string();
    let targets: Vec<u64> = request.group.targets().map(ringfence_model::Target::get).collect();
    let expected = serde_json::json!({
        "schema": 1, "id": id, "target": 77, "targets": targets, "status": "leased",
        "payload": {"seed": "é", "n": [1, 2.5, null]}, "owner": "coordinator-1",
        "previous_owner": "old", "worker": 5, "token": token.to_string(), "updated": 2000.25,
        "attempts": 2, "steals": 1,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(seen.get(field), Some(value), "{field}");
    }
    let seen = seen.as_object().unwrap();
    let others: Vec<_> = seen.keys().filter(|field| expected.get(field).is_none()).collect();
    assert_eq!(others, ["ringfence"], "everything of ours is inside one field");
    // Canonical: python3 writes the same bytes.
    let line = fs::read_to_string(table.record(77)).unwrap();
    assert_eq!(line, format!("{said}\n"));
}

#[test]
fn another_programs_kernel_lock_makes_us_busy_by_the_deadline() {
    let table = Table::new(8);
    let mut other = python("hold", table.root(), "7", &[]);
    assert_eq!(other.says(), "holding");
    let (engine, clock) = table.by_waits();
    let (patience, started) = (Duration::from_millis(150), clock.monotonic());
    let failure = engine.ask(&ask("a", &[6, 7]), None, patience).unwrap_err();
    let Failure::Busy { what, .. } = &failure else { panic!("{failure:?}") };
    assert!(what.contains(&crate::table::id(7).to_string()), "{what}");
    assert_eq!(clock.monotonic(), started + patience);
    other.tell("go");
    table.engine.grab("a", &[6, 7], None).unwrap().unwrap();
}

/// Claims, marks its targets, checks that nobody else has, releases; the twin of the script's.
pub(crate) fn churn(world: &World, root: &Path, owner: &str) {
    let engine = FilesEngine::open(world, root, Tuning::default()).unwrap();
    let marks = root.with_file_name("marks");
    let (end, last) = (Instant::now() + CHURN, Instant::now() + PATIENCE);
    let groups: [&[u64]; 3] = [&[5, 1, 4], &[2, 3], &[3, 4, 5]];
    let mut grants = 0usize;
    // Kernel locks are not fair: on a busy machine it may take long to get a group once.
    while Instant::now() < end || grants == 0 && Instant::now() < last {
        let targets = groups[grants % 3];
        let Ok(token) = engine.grab(owner, targets, None).unwrap() else {
            std::thread::sleep(Duration::from_micros(500));
            continue;
        };
        let mark = |target: &u64| marks.join(target.to_string());
        for target in targets {
            fs::File::create_new(mark(target)).expect("somebody else holds this target");
        }
        for target in targets {
            fs::remove_file(mark(target)).unwrap();
        }
        engine.free(targets, token).unwrap().expect("lost an unexpired lease");
        grants += 1;
    }
    println!("> {grants}");
}

const CHURN: Duration = Duration::from_secs(3);

#[test]
fn both_kinds_of_program_contend_for_overlapping_groups_and_never_hold_one_target_together() {
    let table = Table::new(8);
    let marks = table.root().with_file_name("marks");
    fs::create_dir(&marks).unwrap();
    let (marks, seconds) = (marks.display().to_string(), CHURN.as_secs().to_string());
    let mut all = [
        Other::start("churn ours-1", table.root()),
        Other::start("churn ours-2", table.root()),
        python("churn", table.root(), "1", &[&marks, &seconds]),
        python("churn", table.root(), "1", &[&marks, &seconds]),
    ];
    for (index, other) in all.iter_mut().enumerate() {
        let grants: u32 = other.says().parse().unwrap();
        assert!(grants > 0, "process {index} never got a group");
    }
    let left = table.snapshot().into_keys();
    let left: Vec<PathBuf> = left
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .filter(|path| !path.ends_with("table.json"))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}

#[test]
fn a_table_of_another_program_becomes_ours_only_with_its_own_shard_count() {
    let dir = scratch();
    let root = dir.path().join("theirs");
    let world = World::system();
    fs::create_dir(&root).unwrap();
    let eight = options(8).shards;
    fs::create_dir(record_path(&root, eight, 7).parent().unwrap()).unwrap();
    assert_eq!(python("claim", &root, "7", &[]).says(), "granted");
    let before = crate::table::snapshot(&root);
    let odd = [3u16, 5, 7, 64].map(options);
    for options in odd {
        let placed = record_path(&root, options.shards, 7) == record_path(&root, eight, 7);
        assert!(!placed, "a test of nothing");
        let refused = FilesEngine::init(&world, &root, &options).unwrap_err();
        assert!(matches!(refused, InitError::OtherShards { .. }), "{refused:?}");
        assert_eq!(crate::table::snapshot(&root), before);
    }
    let engine = FilesEngine::init(&world, &root, &options(8)).unwrap();
    engine.grab("a", &[7], None).unwrap().unwrap_err();
    assert_eq!(python("release", &root, "7", &[]).says(), "released");
}
