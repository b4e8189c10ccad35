//! B34: a backup that is put back moves no fence back.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ringfence_engine::{Engine as _, Failure};
use ringfence_env::fault::{Effect, When};
use ringfence_env::{HostIdentity, World};
use ringfence_files::fence::FenceCounter;
use ringfence_files::layout::Layout;
use ringfence_files::{CheckError, FilesEngine, Finding, OpenError, Repair, Restored};
use ringfence_model::{Fence, Space};

use crate::disk::{Mount, may_mount};
use crate::table::{
    PATIENCE, SERIAL, Table, Verbs as _, assert_no_lock_is_held, on_disk, options, snapshot,
};

/// Runs `script` with the paths as `$1`, `$2`.
fn shell(script: &str, paths: [&Path; 2]) {
    let done = Command::new("sh").args(["-ec", script, "sh"]).args(paths).status().unwrap();
    assert!(done.success(), "{script}");
}

/// Hands out `count` fences, the last with a grant; that one is returned.
fn issue(engine: &FilesEngine, count: u64) -> u64 {
    let counter = FenceCounter::new(&Layout::new(engine.root(), engine.meta()));
    let world = World::system();
    for _ in 1..count {
        counter.next(&world, Fence(0), world.clock.deadline(PATIENCE)).unwrap();
    }
    let token = engine.grab("a", &[1], None).unwrap().unwrap();
    engine.free(&[1], token).unwrap().unwrap();
    token.fence().0
}

fn bump(by: u64) -> Repair {
    Repair { bump_fence: by.try_into().ok() }
}

fn repair(root: &Path, repair: Repair) -> Result<ringfence_files::CheckReport, CheckError> {
    FilesEngine::open_to_repair(&World::system(), root).unwrap().repair_with(repair)
}

/// The table is refused, is shown, and goes on above `issued` once its fences were raised.
fn refused_until_raised(how: &str, root: &Path, issued: u64, by: u64) {
    let world = World::system();
    let before = snapshot(root);
    let error = FilesEngine::open(&world, root, SERIAL).expect_err(how);
    assert!(matches!(error, OpenError::Restored(_)), "{how}: {error:?}");
    assert!(error.to_string().contains("check STORE --repair --bump-fence N"), "{how}: {error}");
    let init = FilesEngine::init(&world, root, &options(8)).unwrap_err();
    assert!(init.to_string().contains("--bump-fence"), "{how}: {init}");
    let error = repair(root, Repair::default()).unwrap_err();
    assert!(matches!(error, CheckError::Restored(_)), "{how}: {error:?}");
    let reader = FilesEngine::open_read_only(&world, root).unwrap();
    assert!(reader.scan(Space::Targets, None).unwrap().consistent, "{how}");
    let found = reader.check().unwrap().findings;
    assert!(found.iter().any(|f| matches!(f, Finding::Restored(_))), "{how}: {found:?}");
    assert_eq!(snapshot(root), before, "{how}: a refusal changes nothing");

    let report = repair(root, bump(by)).unwrap();
    assert!(report.fence_limit.unwrap() >= by, "{how}: {report:?}");
    assert!(report.findings.is_empty(), "{how}: {report:?}");
    let audit = std::fs::read_to_string(root.join("audit.log")).unwrap();
    assert!(audit.contains("bump-fence"), "{how}: {audit}");
    let engine = FilesEngine::open(&world, root, SERIAL).unwrap();
    assert!(issue(&engine, 1) > issued, "{how}: a fence was handed out twice");
}

/// Ways to make a copy `$2` of the directory `$1`.
const COPIES: [&str; 4] = [
    "cp -a \"$1\" \"$2\"",
    "mkdir -m 700 \"$2\"; tar -C \"$1\" -c . | tar -C \"$2\" -xp",
    "cp -r \"$1\" \"$2\"",
    // Hard links: the very same files, in another directory.
    "cp -al \"$1\" \"$2\"",
];

#[test]
fn b34_a_copy_of_a_table_is_refused_until_its_fences_were_raised_and_the_original_goes_on() {
    for how in COPIES {
        let table = Table::on_disk();
        issue(&table.engine, 5);
        let copy = table.dir.path().join("copy");
        shell(how, [table.root(), &copy]);
        let issued = issue(&table.engine, 100);
        if !how.contains("-al") {
            // The position is shared by the links, and so are the numbers.
            FilesEngine::open(&World::system(), table.root(), SERIAL).expect("the original");
        }
        refused_until_raised(how, &copy, issued, 100);
    }
}

/// Ways to put the copy `$2` back where the table `$1` was.
const RESTORES: [&str; 4] = [
    "rm -rf \"$1\"; cp -a \"$2\" \"$1\"",
    "rm -rf \"$1\"; mkdir -m 700 \"$1\"; tar -C \"$2\" -c . | tar -C \"$1\" -xp",
    "tar -C \"$2\" -c . | tar -C \"$1\" -xp --unlink-first --recursive-unlink",
    "mv \"$1\" \"$1.old\"; cp -a \"$2\" \"$1\"; rm -rf \"$1.old\"",
];

#[test]
fn b34_a_table_that_was_put_back_is_refused_until_its_fences_were_raised() {
    for how in RESTORES {
        // Within one block of the limit, and over several.
        for grants in [100, 2500] {
            let table = Table::on_disk();
            issue(&table.engine, 5);
            let backup = table.dir.path().join("backup");
            shell(COPIES[0], [table.root(), &backup]);
            let issued = issue(&table.engine, grants);
            shell(how, [table.root(), &backup]);
            // A process that had the table open all the time is told as well.
            let failure = table.engine.grab("a", &[1], None).unwrap_err();
            let Failure::Untouched(error) = &failure else { panic!("{how}: {failure:?}") };
            let inner = error.source.get_ref().and_then(|inner| inner.downcast_ref::<Restored>());
            assert!(inner.is_some(), "{how}: {error:?}");
            refused_until_raised(how, table.root(), issued, grants);
        }
    }
}

/// Files overwritten where they stand keep their numbers: then either the limit had been raised since,
/// and is refused, or it had not, and the position that was put back is not believed.
#[test]
fn b34_a_table_that_was_overwritten_in_place_hands_no_fence_out_twice() {
    for grants in [1, 100, 2500] {
        let table = Table::on_disk();
        issue(&table.engine, 5);
        let backup = table.dir.path().join("backup");
        shell(COPIES[0], [table.root(), &backup]);
        let issued = issue(&table.engine, grants);
        shell("cp -a \"$2/.\" \"$1/\"", [table.root(), &backup]);
        if grants > 1024 {
            refused_until_raised("cp -a onto it", table.root(), issued, grants);
        }
        let engine = FilesEngine::open(&World::system(), table.root(), SERIAL).unwrap();
        assert!(issue(&engine, 1) > issued, "after {grants} grants a fence was handed out twice");
    }
}

#[test]
fn what_is_no_copy_is_never_refused() {
    let table = Table::on_disk();
    let mut last = issue(&table.engine, 5);
    let root = table.root().to_owned();
    let moved = table.dir.path().join("moved");
    let mut goes_on = |what: &str, world: &World, root: &Path| {
        let engine =
            FilesEngine::open(world, root, SERIAL).unwrap_or_else(|e| panic!("{what}: {e}"));
        let fence = issue(&engine, 1);
        assert!(fence > last, "{what}");
        assert!(engine.check().unwrap().findings.is_empty(), "{what}");
        last = fence;
    };
    let system = World::system();
    shell("mv \"$1\" \"$2\"", [&root, &moved]);
    goes_on("a table that was renamed", &system, &moved);
    shell("touch \"$1\"/*; chmod 0700 \"$1\"; chmod 0600 \"$1\"/fence*", [&moved, &moved]);
    goes_on("times and modes that were set", &system, &moved);
    shell("cp -a \"$1\" \"$2\"; rm -rf \"$2\"", [&moved, &root]);
    goes_on("a backup that was made and removed", &system, &moved);
    let boot = HostIdentity { boot: Some("another".into()), ..(*system.host).clone() };
    goes_on("a restart", &World { host: Arc::new(boot), ..system.clone() }, &moved);
    // Written by hand: an operator has seen to it.
    std::fs::write(moved.join("fence"), "{\"limit\":50000}\n").unwrap();
    goes_on("a limit that an operator wrote", &system, &moved);
}

#[test]
fn a_table_is_no_copy_after_its_file_system_was_mounted_again_and_checked() {
    if !may_mount() {
        return;
    }
    let dir = on_disk();
    let (image, point) = (dir.path().join("image"), dir.path().join("point"));
    std::fs::create_dir(&point).unwrap();
    for make in ["mkfs.ext4 -q -F", "mkfs.xfs -q -f", "mkfs.btrfs -q -f"] {
        let size = if make.contains("ext4") { "16M" } else { "320M" };
        shell(&format!("rm -f \"$1\"; truncate -s {size} \"$1\"; {make} \"$1\""), [&image, &image]);
        let from = image.display().to_string();
        let mount = || Mount::new(&["-o", "loop", &from], &point);
        let mounted = mount();
        let root = point.join("table");
        let engine = FilesEngine::init(&World::system(), &root, &options(8)).unwrap();
        let fence = issue(&engine, 3);
        drop(mounted);
        if make.contains("ext4") {
            // 1: errors were corrected, which a forced check of a clean one need not find.
            shell("e2fsck -fy \"$1\" >/dev/null 2>&1 || [ $? = 1 ]", [&image, &image]);
        }
        let mounted = mount();
        let engine = FilesEngine::open(&World::system(), &root, SERIAL).expect(make);
        assert!(issue(&engine, 1) > fence, "{make}");
        let copy = point.join("copy");
        shell(COPIES[0], [&root, &copy]);
        let error = FilesEngine::open(&World::system(), &copy, SERIAL).expect_err(make);
        assert!(matches!(error, OpenError::Restored(_)), "{make}: {error:?}");
        drop(mounted);
    }
}

/// The counter's own calls, each failed once: no number twice, and the next call works.
#[test]
fn a_failed_call_of_a_bound_counter_costs_a_number_at_most() {
    let table = Table::on_disk();
    let mut last = issue(&table.engine, 1);
    for raise in [false, true] {
        for nth in 1.. {
            if raise {
                std::fs::remove_file(table.root().join("fence.next")).unwrap();
            }
            table.fs.arm(When::Nth(nth), Effect::Errno(5));
            let ended = table.engine.grab("a", &[1], None);
            let fired = table.fs.fired();
            table.fs.disarm();
            assert_no_lock_is_held(table.root());
            let token = match ended {
                Ok(granted) => granted.unwrap(),
                Err(failure) => {
                    assert!(failure.restored(), "call {nth}: {failure:?}");
                    table.engine.grab("a", &[1], None).unwrap().unwrap()
                }
            };
            assert!(token.fence().0 > last, "call {nth}: {token} after {last}");
            last = token.fence().0;
            table.engine.free(&[1], token).unwrap().unwrap();
            FilesEngine::open(&World::system(), table.root(), SERIAL).unwrap();
            if fired == 0 {
                break;
            }
        }
    }
}

/// A repair that dies at any call leaves a table that is refused still, or goes on above.
#[test]
fn a_bump_that_fails_at_any_call_hands_no_fence_out_twice() {
    let table = Table::on_disk();
    issue(&table.engine, 3);
    let backup: PathBuf = table.dir.path().join("backup");
    shell(COPIES[0], [table.root(), &backup]);
    let issued = issue(&table.engine, 100);
    for nth in 1.. {
        shell("rm -rf \"$1\"; cp -a \"$2\" \"$1\"", [table.root(), &backup]);
        let engine = FilesEngine::open_to_repair(&table.world, table.root()).unwrap();
        table.fs.arm(When::From(nth), Effect::Errno(5));
        let ended = engine.repair_with(bump(100));
        let fired = table.fs.fired();
        table.fs.disarm();
        match FilesEngine::open(&World::system(), table.root(), SERIAL) {
            Err(OpenError::Restored(_)) => assert!(ended.is_err(), "call {nth}"),
            Err(other) => panic!("call {nth}: {other:?}"),
            Ok(engine) => assert!(issue(&engine, 1) > issued, "call {nth}: {ended:?}"),
        }
        repair(table.root(), bump(100)).unwrap();
        if fired == 0 {
            break;
        }
    }
}
