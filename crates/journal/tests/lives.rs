//! Leases tied to the life of their holder's process: over when it is gone, and not before.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test kills processes")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_engine::{Engine, Outcome, Request};
use ringfence_env::World;
use ringfence_journal::lives::Children;
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{FencingToken, Key, Owner, Payload, TargetGroup, Token, Ttl};

const ROLE: &str = "RINGFENCE_LIVES_ROLE";
const ROOT: &str = "RINGFENCE_LIVES_ROOT";

fn group() -> TargetGroup {
    TargetGroup::from_numbers(1..4).unwrap()
}

fn keys() -> Vec<Key> {
    group().targets().map(Key::target).collect()
}

fn claim(engine: &JournalEngine, owner: &str) -> Option<FencingToken> {
    let request = ClaimRequest {
        group: group(),
        owner: Owner::new(owner).unwrap(),
        worker: 0,
        payload: Payload::empty(),
        ttl: Ttl::from_seconds(3600.0).unwrap(),
    };
    let keys = keys();
    let ask = Request { keys: &keys, now: None, patience: Duration::from_mins(1) };
    match engine.transact(&ask, &mut |view| rules::claim(view, &request).ok()).unwrap() {
        Outcome::Done(done) => done.token,
        Outcome::Refused => None,
    }
}

fn change(engine: &JournalEngine, token: FencingToken, release: bool) -> bool {
    let (keys, group, token) = (keys(), group(), Token::from(token));
    let ask = Request { keys: &keys, now: None, patience: Duration::from_mins(1) };
    let outcome = engine.transact(&ask, &mut |view| {
        let rule = if release { rules::release } else { rules::heartbeat };
        rule(view, &group, &token).ok()
    });
    matches!(outcome.unwrap(), Outcome::Done(_))
}

/// A process of these tests: holds the group until it is killed, or contends for it once.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    match role.to_str().unwrap() {
        "contend" => println!("granted: {}", claim(&engine, "contender").is_some()),
        tied => {
            let engine = match tied {
                "tied" => engine.tied(Children::DoNotCount).unwrap(),
                "parent" => engine.tied(Children::Count).unwrap(),
                _ => engine,
            };
            let fence = claim(&engine, "holder").unwrap().fence();
            let mut child = (tied == "parent")
                .then(|| Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap());
            if let Some(child) = &child {
                print!("child {} ", child.id());
            }
            println!("fence {fence}");
            std::thread::sleep(Duration::from_mins(10));
            child.as_mut().map(Child::wait);
        }
    }
}

fn start(root: &Path, role: &str, through: &[&str]) -> Child {
    let mut argv: Vec<String> = through.iter().map(ToString::to_string).collect();
    argv.push(std::env::current_exe().unwrap().to_str().unwrap().to_owned());
    argv.extend(["--exact", "role", "--nocapture"].map(ToOwned::to_owned));
    let (program, rest) = argv.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(rest).env(ROLE, role).env(ROOT, root).stdout(Stdio::piped()).spawn().unwrap()
}

/// Starts a holder and waits until it holds.
fn holder(root: &Path, role: &str) -> Child {
    holder_and_words(root, role).0
}

fn holder_and_words(root: &Path, role: &str) -> (Child, String) {
    let mut child = start(root, role, &[]);
    let out = child.stdout.as_mut().unwrap();
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.contains("fence ") || !text.ends_with('\n') {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "the holder ended: {text}");
        text.push(char::from(byte[0]));
    }
    (child, text)
}

fn contend(root: &Path, through: &[&str]) -> bool {
    let mut text = String::new();
    let mut child = start(root, "contend", through);
    child.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text.contains("granted: true")
}

fn table() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("table");
    JournalEngine::init(&World::system(), &root, &InitOptions::default()).unwrap();
    (dir, root)
}

fn lives(root: &Path) -> usize {
    std::fs::read_dir(root.join("lives")).unwrap().count()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn b39_a_lease_tied_to_a_process_is_over_when_it_is_killed_and_not_before() {
    let (_dir, root) = table();
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    let child = holder(&root, "tied");
    assert_eq!(claim(&engine, "contender"), None, "alive");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    assert_eq!(claim(&engine, "contender"), None, "a stopped process is alive");
    let scan = engine.scan(ringfence_model::Space::Targets, None).unwrap();
    let before = ringfence_model::View {
        moment: scan.moment,
        writer: engine.view(&keys(), None).unwrap().writer,
        default_ttl: scan.default_ttl,
        entries: scan.entries,
    };
    kill(child);
    let token = claim(&engine, "contender").expect("over at once");
    assert!(token.fence() > before.highest_fence());
    assert!(change(&engine, token, true));
    drop(engine.tied(Children::DoNotCount).unwrap());
    assert_eq!(lives(&root), 0, "files of lives that nobody names are cleared away");
}

#[test]
fn a_life_that_counts_children_lasts_until_the_last_of_them_is_dead() {
    let (_dir, root) = table();
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    let (parent, words) = holder_and_words(&root, "parent");
    let child = words.split_once("child ").unwrap().1.split_once(' ').unwrap().0.to_owned();
    kill(parent);
    assert_eq!(claim(&engine, "contender"), None, "its child works on");
    assert!(Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    let mut granted = None;
    for _ in 0..6000 {
        granted = granted.or_else(|| claim(&engine, "contender"));
        if granted.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(granted.is_some(), "over with the last of them");
}

#[test]
fn a_lease_that_is_not_tied_outlives_its_process() {
    let (_dir, root) = table();
    kill(holder(&root, "loose"));
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    assert_eq!(claim(&engine, "contender"), None, "judged by its ttl");
    assert_eq!(lives(&root), 0);
}

#[test]
fn a_file_that_is_not_there_proves_nothing() {
    let (_dir, root) = table();
    kill(holder(&root, "tied"));
    for entry in std::fs::read_dir(root.join("lives")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    assert_eq!(claim(&engine, "contender"), None, "judged by its ttl");
}

#[test]
fn b40_from_another_pid_namespace_a_lease_is_judged_by_its_ttl_only() {
    let (_dir, root) = table();
    let elsewhere = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let child = holder(&root, "tied");
    assert!(!contend(&root, &elsewhere), "alive");
    kill(child);
    assert!(!contend(&root, &elsewhere), "gone, but not provably so from there");
    assert!(contend(&root, &[]), "over at once from here");
}

#[test]
fn whoever_renews_a_lease_last_decides_what_it_is_tied_to() {
    let (_dir, root) = table();
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    let tied = engine.tied(Children::DoNotCount).unwrap();
    let token = claim(&tied, "holder").unwrap();
    assert!(change(&engine, token, false), "renewed by a handle that is not tied");
    drop(tied);
    assert_eq!(claim(&engine, "contender"), None, "judged by its ttl");
    let tied = engine.tied(Children::DoNotCount).unwrap();
    assert!(change(&tied, token, false));
    drop(tied);
    assert_eq!(lives(&root), 1, "kept as the proof while a record names it");
    assert!(claim(&engine, "contender").is_some());
    drop(engine.tied(Children::DoNotCount).unwrap());
    assert_eq!(lives(&root), 0);
}
