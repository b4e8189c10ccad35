//! The probe, on file systems that are broken on purpose: preloaded C shims stand in for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{HostIdentity, RealFs, World};
use ringfence_files::{FilesEngine, ProbeStep, Verdict, probe};

use crate::child::{Other, command};
use crate::table::{PATIENCE, SERIAL, Table, Verbs as _, names_below, options, scratch};

fn shim(dir: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shims").join(name);
    let library = dir.join(format!("{name}.so"));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(built.success(), "{name}");
    library
}

/// What opening and making say, with a shim between this program and the kernel.
fn under(name: &str) -> Vec<(String, Duration)> {
    let table = Table::new(8);
    let library = shim(table.dir.path(), name);
    fs::remove_file(table.root().join("probe.json")).unwrap();
    let fresh = table.root().with_file_name("fresh");
    let before = names_below(table.root());
    let said = [("open", table.root()), ("init", &*fresh)].map(|(role, root)| {
        let started = Instant::now();
        let mut other = Other::spawn(command(role, root).env("LD_PRELOAD", &library));
        other.tell("go");
        (other.says(), started.elapsed())
    });
    assert_eq!(names_below(table.root()), before, "the probe left something behind");
    assert!(!fresh.exists(), "a table was begun on a disk that cannot carry it");
    said.into()
}

#[test]
fn a_lock_that_excludes_nobody_is_refused() {
    for (said, _) in under("flock_excludes_nobody.c") {
        assert!(said.starts_with("error") && said.contains("lock-excludes"), "{said}");
        assert!(said.contains("got a lock that was held"), "{said}");
    }
}

/// B48: the lock call hangs for ever.
#[test]
fn a_lock_call_that_never_returns_is_refused_within_its_deadline() {
    for (said, took) in under("flock_never_returns.c") {
        assert!(said.starts_with("error") && said.contains("did not return"), "{said}");
        assert!(took < PATIENCE, "{took:?}");
    }
}

/// B48: no locks here at all; B43: syncs that fail.
#[test]
fn missing_locks_and_failing_syncs_are_refused_with_their_step() {
    for (name, step) in [
        ("flock_enolck.c", "lock-answers"),
        ("fsync_fails.c", "file-sync"),
        ("fsync_of_directories_fails.c", "directory-sync"),
    ] {
        for (said, _) in under(name) {
            assert!(said.starts_with("error") && said.contains(step), "{name}: {said}");
        }
    }
}

#[test]
fn a_probe_of_a_good_directory_says_what_works_and_what_was_not_tried_and_leaves_nothing() {
    let dir = scratch();
    let probe = probe::run(&World::system(), dir.path()).unwrap();
    assert!(probe.usable());
    assert!(!probe.mount.is_empty());
    for (step, verdict) in &probe.steps {
        let expected = match step {
            ProbeStep::CrossHostExclusion => Verdict::NotVerified,
            _ => Verdict::Works,
        };
        assert_eq!(*verdict, expected, "{step}");
    }
    assert_eq!(probe.steps.len(), 8);
    assert_eq!(names_below(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_probe_that_fails_at_any_call_is_not_usable_and_leaves_nothing_that_it_could_remove() {
    let dir = scratch();
    for nth in 1.. {
        let fs = FaultFs::new(Arc::new(RealFs));
        let world = World::system().with_fs(Arc::new(fs.clone()));
        let last: Arc<std::sync::Mutex<Vec<Call>>> = Arc::default();
        fs.on_call({
            let last = Arc::clone(&last);
            move |call, _| last.lock().unwrap().push(call)
        });
        fs.arm(When::Nth(nth), Effect::Errno(5));
        let probe = probe::run(&world, dir.path());
        if fs.fired() == 0 {
            assert!(probe.unwrap().usable());
            assert!(nth > 20);
            break;
        }
        let failed = last.lock().unwrap()[usize::try_from(nth).unwrap() - 1];
        let cleans = matches!(failed, Call::Rmdir | Call::Unlink);
        if let Ok(probe) = probe {
            assert!(cleans || !probe.usable(), "call {nth}, {failed:?}: {probe:?}");
            let tried = probe.steps.values().filter(|v| matches!(v, Verdict::Failed(_))).count();
            assert!(tried <= 1, "the rest is not verified");
        }
        assert_eq!(names_below(dir.path()), Vec::<PathBuf>::new(), "call {nth}, {failed:?}");
    }
}

#[test]
fn a_success_is_remembered_for_this_boot_of_this_host_only() {
    let table = Table::new(8);
    let probes = || table.fs.count(Call::LockInChild);
    let before = probes();
    FilesEngine::open(&table.world, table.root(), SERIAL).unwrap();
    assert_eq!(probes(), before, "remembered");
    let with = |change: fn(&mut HostIdentity)| {
        let mut host = (*table.world.host).clone();
        change(&mut host);
        World { host: Arc::new(host), ..table.world.clone() }
    };
    for world in [
        with(|host| host.boot = Some("another boot".into())),
        with(|host| host.name = "another host".into()),
        with(|host| host.boot = None),
    ] {
        let before = probes();
        FilesEngine::open(&world, table.root(), SERIAL).unwrap();
        assert_eq!(probes(), before + 3, "probed again");
    }
    let before = probes();
    fs::write(table.root().join("probe.json"), b"{\"hosts\":").unwrap();
    FilesEngine::open(&table.world, table.root(), SERIAL).unwrap();
    assert_eq!(probes(), before + 3, "a damaged memory is no memory");
    FilesEngine::open(&table.world, table.root(), SERIAL).unwrap();
    assert_eq!(probes(), before + 3);
}

#[test]
fn a_success_that_cannot_be_remembered_is_a_success() {
    let table = Table::new(8);
    let cache = table.root().join("probe.json");
    fs::remove_file(&cache).unwrap();
    table.fs.on_call(|_, _| {});
    // The probe's own replacement comes first, the description's second, the memory's third.
    table.fs.arm(When::NthOf(Call::Rename, 3), Effect::Errno(28));
    let engine = FilesEngine::open(&table.world, table.root(), SERIAL).unwrap();
    assert_eq!(table.fs.fired(), 1);
    table.fs.disarm();
    assert!(!cache.exists());
    engine.grab("a", &[1], None).unwrap().unwrap();
    assert!(engine.check().unwrap().findings.is_empty());
}

#[test]
fn tables_opened_at_once_by_many_threads_do_not_disturb_each_others_probes() {
    // Each probe forks; a child of one may inherit a descriptor of another's lock for a moment.
    let dir = scratch();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let dir = &dir;
            scope.spawn(move || {
                for round in 0..10 {
                    let root = dir.path().join(format!("{number}-{round}"));
                    FilesEngine::init(&World::system(), &root, &options(1)).unwrap();
                }
            });
        }
    });
}
