//! B34: a journal that is put back from a backup.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that copies tables and fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence_engine::{Engine as _, Outcome, Request};
use ringfence_env::fault::{Effect, FaultFs, When};
use ringfence_env::{HostIdentity, RealFs, World};
use ringfence_journal::{InitOptions, JournalEngine, OpenError};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Key, Owner, Payload, Space, TargetGroup, Token, Ttl};

fn shell(script: &str, paths: [&Path; 2]) {
    let done = Command::new("sh").args(["-ec", script, "sh"]).args(paths).status().unwrap();
    assert!(done.success(), "{script}");
}

/// Grants and releases; the last fence.
fn issue(engine: &JournalEngine, count: u64) -> u64 {
    let group = TargetGroup::from_numbers([1, 2]).unwrap();
    let keys: Vec<Key> = group.targets().map(Key::target).collect();
    let request = ClaimRequest {
        group: group.clone(),
        owner: Owner::new("a").unwrap(),
        worker: 0,
        payload: Payload::empty(),
        ttl: Ttl::from_seconds(600.0).unwrap(),
    };
    let ask = Request { keys: &keys, now: None, patience: Duration::from_secs(10) };
    let mut last = 0;
    for _ in 0..count {
        let done = engine.transact(&ask, &mut |view| rules::claim(view, &request).ok()).unwrap();
        let Outcome::Done(done) = done else { panic!("held") };
        let token = done.token.unwrap();
        last = token.fence().0;
        let token = Token::from(token);
        let free = |view: &_| rules::release(view, &group, &token).ok();
        assert!(matches!(engine.transact(&ask, &mut { free }).unwrap(), Outcome::Done(_)));
    }
    last
}

/// A table on a disk whose files keep their numbers, with five grants.
fn table(dir: &Path) -> (PathBuf, JournalEngine) {
    let root = dir.join("table");
    let engine = JournalEngine::init(&World::system(), &root, &InitOptions::default()).unwrap();
    let description = std::fs::read_to_string(root.join("table.json")).unwrap();
    assert!(description.contains("\"inode\":"), "not on a disk: {description}");
    issue(&engine, 5);
    (root, engine)
}

fn snapshot(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// The table is refused, is shown, and goes on above `issued` once its fences were raised.
fn refused_until_raised(how: &str, root: &Path, issued: u64, by: u64) {
    let world = World::system();
    let before = snapshot(root);
    let error = JournalEngine::open(&world, root).expect_err(how);
    assert!(matches!(error, OpenError::Restored { .. }), "{how}: {error:?}");
    assert!(error.to_string().contains("check STORE --repair --bump-fence N"), "{how}: {error}");
    let init = JournalEngine::init(&world, root, &InitOptions::default()).unwrap_err();
    assert!(init.to_string().contains("--bump-fence"), "{how}: {init}");
    let reader = JournalEngine::open_read_only(&world, root).unwrap();
    assert_eq!(reader.scan(Space::Targets, None).unwrap().entries.len(), 0, "{how}");
    assert!(snapshot(root) == before, "{how}: a refusal changes nothing");
    let raised = JournalEngine::raise_fences(&world, root, by.try_into().unwrap()).unwrap();
    assert!(issue(&raised, 1) > issued, "{how}: a fence was handed out twice");
    let audit = std::fs::read_to_string(root.join("audit.log")).unwrap();
    assert!(audit.contains("bump-fence"), "{how}: {audit}");
    let next = JournalEngine::open(&world, root).unwrap();
    assert!(issue(&next, 1) > issued + 1, "{how}");
}

/// Ways to make a copy `$2` of the directory `$1`.
const COPIES: [&str; 4] = [
    "cp -a \"$1\" \"$2\"",
    "mkdir -m 700 \"$2\"; tar -C \"$1\" -c . | tar -C \"$2\" -xp",
    "cp -r \"$1\" \"$2\"; chmod -R go-w \"$2\"",
    // Hard links: the very same files, in another directory.
    "cp -al \"$1\" \"$2\"",
];

#[test]
fn b34_a_copy_of_a_journal_is_refused_until_its_fences_were_raised_and_the_original_goes_on() {
    for how in COPIES {
        let dir = tempfile::tempdir().unwrap();
        let (root, engine) = table(dir.path());
        let copy = dir.path().join("copy");
        shell(how, [&root, &copy]);
        let issued = issue(&engine, 100);
        JournalEngine::open(&World::system(), &root).expect("the original");
        refused_until_raised(how, &copy, issued, 100);
    }
}

/// Ways to put the copy `$2` back where the table `$1` was.
const RESTORES: [&str; 3] = [
    "rm -rf \"$1\"; cp -a \"$2\" \"$1\"",
    "tar -C \"$2\" -c . | tar -C \"$1\" -xp --unlink-first --recursive-unlink",
    "mv \"$1\" \"$1.old\"; cp -a \"$2\" \"$1\"; rm -rf \"$1.old\"",
];

#[test]
fn b34_a_journal_that_was_put_back_is_refused_until_its_fences_were_raised() {
    for how in RESTORES {
        let dir = tempfile::tempdir().unwrap();
        let (root, engine) = table(dir.path());
        let backup = dir.path().join("backup");
        shell(COPIES[0], [&root, &backup]);
        let issued = issue(&engine, 300);
        drop(engine);
        shell(how, [&root, &backup]);
        refused_until_raised(how, &root, issued, 300);
    }
}

#[test]
fn what_is_no_copy_of_a_journal_is_never_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (root, engine) = table(dir.path());
    drop(engine);
    let moved = dir.path().join("moved");
    let mut last = 0;
    let mut goes_on = |what: &str, world: &World, root: &Path| {
        let engine = JournalEngine::open(world, root).unwrap_or_else(|e| panic!("{what}: {e}"));
        let fence = issue(&engine, 1);
        assert!(fence > last, "{what}");
        last = fence;
    };
    let system = World::system();
    shell("mv \"$1\" \"$2\"", [&root, &moved]);
    goes_on("a table that was renamed", &system, &moved);
    shell("touch \"$1\"/*; chmod 0700 \"$1\"; chmod 0600 \"$1\"/table.json", [&moved, &moved]);
    goes_on("times and modes that were set", &system, &moved);
    shell("cp -a \"$1\" \"$2\"; rm -rf \"$2\"", [&moved, &root]);
    goes_on("a backup that was made and removed", &system, &moved);
    let boot = HostIdentity { boot: Some("another".into()), ..(*system.host).clone() };
    goes_on("a restart", &World { host: Arc::new(boot), ..system.clone() }, &moved);
}

/// Whoever raises the fences and fails at any call leaves a table that is refused still, or goes on above.
#[test]
fn a_table_that_is_described_anew_while_others_open_it_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (root, engine) = table(dir.path());
    let made = std::fs::read_to_string(root.join("table.json")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                JournalEngine::init(&World::system(), &root, &InitOptions::default()).unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            JournalEngine::open(&World::system(), &root).unwrap();
        }
    });
    assert_ne!(std::fs::read_to_string(root.join("table.json")).unwrap(), made, "described anew");
    assert_eq!(issue(&engine, 1), 6);
    assert!(!root.join("table.tmp").exists());
}

#[test]
fn a_raise_that_fails_at_any_call_puts_no_fence_into_a_token_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (root, engine) = table(dir.path());
    let backup = dir.path().join("backup");
    shell(COPIES[0], [&root, &backup]);
    let issued = issue(&engine, 50);
    drop(engine);
    let (mut refused, mut nth) = (0, 0);
    loop {
        nth += 1;
        shell("rm -rf \"$1\"; cp -a \"$2\" \"$1\"", [&root, &backup]);
        let faults = FaultFs::new(Arc::new(RealFs));
        faults.arm(When::From(nth), Effect::Errno(libc::EIO));
        let world = World::system().with_fs(Arc::new(faults.clone()));
        let ended = JournalEngine::raise_fences(&world, &root, 50.try_into().unwrap()).map(drop);
        let fired = faults.fired();
        match JournalEngine::open(&World::system(), &root) {
            Err(OpenError::Restored { .. }) => {
                refused += 1;
                assert!(ended.is_err(), "call {nth}");
            }
            Err(other) => panic!("call {nth}: {other:?}"),
            Ok(engine) => assert!(issue(&engine, 1) > issued, "call {nth}: {ended:?}"),
        }
        let raised = JournalEngine::raise_fences(&World::system(), &root, 50.try_into().unwrap());
        assert!(issue(&raised.unwrap(), 1) > issued, "call {nth}");
        if fired == 0 {
            break assert!(ended.is_ok(), "{ended:?}");
        }
    }
    assert!(refused > 20, "{refused} of {nth}");
}
