//! Making and opening: what is refused, what concurrent makers get, what readers leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::sync::{Arc, Barrier};

use ringfence_engine::{Engine as _, Failure};
use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{RealFs, World};
use ringfence_files::{FilesEngine, InitError, OpenError, Tuning};
use ringfence_model::Space;

use crate::child::{Other, command};
use crate::disk::{Mount, may_mount};
use crate::table::{
    SERIAL, Table, Verbs as _, group, keys, names_below, options, scratch, snapshot,
};

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

fn refused(root: &Path) -> String {
    let world = World::system();
    let before = names_below(root.parent().unwrap());
    let open = FilesEngine::open(&world, root, SERIAL).unwrap_err();
    let read = FilesEngine::open_read_only(&world, root).unwrap_err();
    let init = FilesEngine::init(&world, root, &options(8)).unwrap_err();
    for error in [&open, &read] {
        assert!(matches!(error, OpenError::Unsafe { .. }), "{error:?}");
    }
    assert!(matches!(init, InitError::Open(OpenError::Unsafe { .. })), "{init:?}");
    assert_eq!(names_below(root.parent().unwrap()), before, "something was left behind");
    open.to_string()
}

#[test]
fn a_root_of_another_user_or_that_others_may_write_in_is_refused() {
    let table = Table::new(8);
    let root = table.root();
    for bits in [0o720, 0o702, 0o777, 0o1777] {
        mode(root, bits);
        assert!(refused(root).contains("chmod go-w"), "{bits:o}");
    }
    mode(root, 0o755);
    FilesEngine::open(&table.world, root, SERIAL).unwrap();
    if table.world.host.uid == 0 {
        chown(root, Some(12345), None).unwrap();
        assert!(refused(root).contains("12345"));
    }
}

#[test]
fn a_root_that_is_a_link_is_refused_however_it_is_spelled() {
    let table = Table::new(8);
    let link = table.dir.path().join("link");
    symlink(table.root(), &link).unwrap();
    let text = link.display().to_string();
    for spelled in [text.clone(), format!("{text}/"), format!("{text}//"), format!("{text}/.")] {
        assert!(refused(Path::new(&spelled)).contains("symbolic link"), "{spelled}");
    }
    // The same spellings of a real directory are welcome.
    let text = table.root().display().to_string();
    for spelled in [format!("{text}/"), format!("{text}/.")] {
        FilesEngine::open(&table.world, Path::new(&spelled), SERIAL).unwrap();
    }
}

#[test]
fn parts_that_are_links_are_refused() {
    let table = Table::new(8);
    let shard = table.record(7).parent().unwrap().to_owned();
    let elsewhere = table.dir.path().join("elsewhere");
    fs::rename(&shard, &elsewhere).unwrap();
    symlink(&elsewhere, &shard).unwrap();
    let failure = table.engine.grab("a", &[7], None).unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    assert!(failure.storage().unwrap().to_string().contains("symbolic link"), "{failure:?}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    table.engine.scan(Space::Targets, None).unwrap_err();
    table.engine.check().unwrap_err();

    // The directory above the work shards is a part as well.
    let table = Table::new(8);
    let (work, elsewhere) = (table.root().join("work"), table.dir.path().join("elsewhere"));
    fs::rename(&work, &elsewhere).unwrap();
    symlink(&elsewhere, &work).unwrap();
    let error = FilesEngine::open(&table.world, table.root(), SERIAL).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    FilesEngine::open_read_only(&table.world, table.root()).unwrap_err();
}

#[test]
fn what_is_no_table_or_a_damaged_or_another_one_is_told_apart() {
    let table = Table::new(8);
    let (world, root) = (&table.world, table.root());
    let init = |options| FilesEngine::init(world, root, &options);
    assert_eq!(init(options(8)).unwrap().meta(), table.engine.meta(), "made alike: opened");
    assert!(matches!(init(options(9)).unwrap_err(), InitError::Differs { .. }));
    let ttl = ringfence_model::Ttl::from_seconds(61.0).unwrap();
    let other = ringfence_files::InitOptions { ttl, ..options(8) };
    assert!(matches!(init(other).unwrap_err(), InitError::Differs { .. }));

    let meta = root.join("table.json");
    let good = fs::read(&meta).unwrap();
    for damage in [&b""[..], b"{}", &[0; 40], &good[..30]] {
        fs::write(&meta, damage).unwrap();
        assert!(matches!(FilesEngine::open(world, root, SERIAL).unwrap_err(), OpenError::Meta(_)));
        assert!(init(options(8)).is_err(), "damage is never overwritten");
        assert_eq!(fs::read(&meta).unwrap(), damage);
    }
    fs::remove_file(&meta).unwrap();
    let error = FilesEngine::open(world, root, SERIAL).unwrap_err();
    assert!(matches!(error, OpenError::NotATable { .. }), "{error:?}");
    let none = root.with_file_name("none");
    let error = FilesEngine::open(world, &none, SERIAL).unwrap_err();
    assert!(matches!(error, OpenError::NotATable { .. }), "{error:?}");

    let full = root.with_file_name("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("thesis.tex"), b"").unwrap();
    let error = FilesEngine::init(world, &full, &options(8)).unwrap_err();
    assert!(matches!(&error, InitError::NotEmpty { name, .. } if name == "thesis.tex"));
    assert_eq!(names_below(&full).len(), 1);
}

#[test]
fn a_table_that_was_half_made_is_finished_by_the_next_maker() {
    let dir = scratch();
    let world = World::system();
    let counting = FaultFs::new(Arc::new(RealFs));
    let counted = world.with_fs(Arc::new(counting.clone()));
    FilesEngine::init(&counted, &dir.path().join("whole"), &options(3)).unwrap();
    let calls = counting.total();
    assert!(calls > 50);
    for nth in 1..=calls {
        let root = dir.path().join(format!("t{nth}"));
        let fs = FaultFs::new(Arc::new(RealFs));
        fs.arm(When::Nth(nth), Effect::Errno(28));
        let ended = FilesEngine::init(&world.with_fs(Arc::new(fs)), &root, &options(3));
        let engine = FilesEngine::init(&world, &root, &options(3));
        let engine = engine.unwrap_or_else(|again| panic!("call {nth}: {ended:?}, then {again}"));
        engine.grab("a", &[1, 2, 3], None).unwrap().unwrap();
        let strays: Vec<_> = engine
            .check()
            .unwrap()
            .findings
            .into_iter()
            .filter(|finding| !matches!(finding, ringfence_files::Finding::Temporary(_)))
            .collect();
        assert!(strays.is_empty(), "call {nth}: {strays:?}");
        fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn an_init_that_cannot_go_on_leaves_no_directory_of_its_own_making() {
    let dir = scratch();
    let root = dir.path().join("table");
    let fs = FaultFs::new(Arc::new(RealFs));
    fs.arm(When::FromOf(Call::SyncFile, 1), Effect::Errno(22));
    let world = World::system().with_fs(Arc::new(fs));
    FilesEngine::init(&world, &root, &options(8)).unwrap_err();
    assert!(!root.exists(), "{:?}", names_below(dir.path()));
}

/// Others put new directories in the place of empty ones, and take away what they could not finish.
#[test]
fn a_root_that_another_maker_takes_away_is_made_again() {
    for n in 1..4 {
        let dir = scratch();
        let root = dir.path().join("table");
        let fs = FaultFs::new(World::system().fs);
        let (taken, seen) = (root.clone(), std::sync::atomic::AtomicU32::new(0));
        fs.on_call(move |call, path| {
            let is_first = [Call::Mkdir, Call::OpenLock].contains(&call) && path != taken;
            if is_first && seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < n {
                let _ = fs::remove_dir(&taken);
            }
        });
        let world = World::system().with_fs(Arc::new(fs));
        FilesEngine::init(&world, &root, &options(8)).unwrap();
        let engine = FilesEngine::open(&World::system(), &root, Tuning::default()).unwrap();
        assert!(engine.check().unwrap().findings.is_empty());
        let names = names_below(dir.path());
        assert!(!names.iter().any(|name| name.to_string_lossy().ends_with(".tmp")), "{names:?}");
    }
    // A place that stays away is told.
    let nowhere = scratch().path().join("no/table");
    FilesEngine::init(&World::system(), &nowhere, &options(8)).unwrap_err();
}

#[test]
fn eight_threads_and_eight_processes_that_make_one_table_at_once_make_one_table() {
    for _ in 0..15 {
        let dir = scratch();
        let root = dir.path().join("table");
        let barrier = Barrier::new(8);
        let made: BTreeSet<String> = std::thread::scope(|scope| {
            let make = || {
                barrier.wait();
                let engine = FilesEngine::init(&World::system(), &root, &options(8)).unwrap();
                engine.meta().table.to_string()
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.len(), 1, "{made:?}");
    }
    let dir = scratch();
    let root = dir.path().join("table");
    let mut others: Vec<Other> = (0..8).map(|_| Other::start("init", &root)).collect();
    for other in &mut others {
        other.tell("go");
    }
    let made: BTreeSet<String> = others.iter_mut().map(Other::says).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(made.first().unwrap().len(), 32, "{made:?}");
    let engine = FilesEngine::open(&World::system(), &root, Tuning::default()).unwrap();
    let report = engine.check().unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
}

/// What a reader does, with a count of what it found.
pub(crate) fn read_everything(world: &World, root: &Path) -> String {
    let engine = match FilesEngine::open_read_only(world, root) {
        Ok(engine) => engine,
        Err(error) => return format!("error: {error}"),
    };
    let scan = engine.scan(Space::Targets, None).unwrap();
    let view = engine.view(&keys(&group(&[7, 1000])), None).unwrap();
    let report = engine.check().unwrap();
    assert!(engine.scan(Space::Work, None).unwrap().entries.is_empty());
    format!("{} {} {}", scan.entries.len(), view.entries.len(), report.records)
}

#[test]
fn readers_work_on_a_read_only_mount_and_create_nothing() {
    let table = Table::new(8);
    table.engine.grab("a", &[7, 8, 9], None).unwrap().unwrap();
    fs::write(table.record(10), b"damaged").unwrap();
    let calls = [Call::OpenWrite, Call::Mkdir, Call::Rename, Call::Unlink, Call::OpenLock];
    let counts = calls.map(|call| table.fs.count(call));
    assert_eq!(read_everything(&table.world, table.root()), "4 2 3");
    assert_eq!(calls.map(|call| table.fs.count(call)), counts, "no call that could write");
    let reader = FilesEngine::open_read_only(&table.world, table.root()).unwrap();
    let failure = reader.grab("b", &[20], None).unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    if !may_mount() {
        return;
    }
    let point = table.dir.path().join("ro");
    fs::create_dir(&point).unwrap();
    let mount = Mount::new(&["--bind", "-o", "ro", &table.root().display().to_string()], &point);
    let (before, names) = (snapshot(table.root()), names_below(table.root()));
    fs::write(point.join("x"), b"").expect_err("the mount is not read-only");
    assert_eq!(read_everything(&World::system(), &point), "4 2 3");
    let engine = FilesEngine::open(&World::system(), &point, SERIAL);
    if let Ok(engine) = engine {
        let failure = engine.grab("b", &[20], None).unwrap_err();
        assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    }
    assert_eq!((snapshot(table.root()), names_below(table.root())), (before, names));
    drop(mount);
}

#[test]
fn another_user_is_told_why_it_may_not_and_changes_nothing() {
    if World::system().host.uid != 0 {
        return;
    }
    let table = Table::new(8);
    table.engine.grab("a", &[7], None).unwrap().unwrap();
    mode(table.dir.path(), 0o755);
    mode(table.root(), 0o755);
    // The program has to be where the other user can reach it.
    let program = table.dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    mode(&program, 0o755);
    let before = table.snapshot();
    for role in ["read", "open", "init"] {
        let ours = command(role, table.root());
        let mut theirs = std::process::Command::new(&program);
        theirs.args(ours.get_args()).current_dir("/").uid(65534).gid(65534);
        theirs.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        for (name, value) in ours.get_envs() {
            theirs.env(name, value.unwrap());
        }
        let mut other = Other::spawn(&mut theirs);
        other.tell("go");
        let said = other.says();
        assert!(said.contains("user 0") && said.contains("user 65534"), "{role}: {said}");
        assert_eq!(table.snapshot(), before);
    }
}

#[test]
#[expect(unsafe_code, reason = "sets the mask of the child before it starts")]
fn modes_do_not_depend_on_the_callers_mask() {
    for mask in [0o000, 0o077, 0o277, 0o777] {
        let dir = scratch();
        let root = dir.path().join("table");
        let run = |role: &str, line: &str| {
            let mut command = command(role, &root);
            // SAFETY: `umask` is async-signal-safe.
            unsafe {
                command.pre_exec(move || {
                    libc::umask(mask);
                    Ok(())
                })
            };
            let mut other = Other::spawn(&mut command);
            other.tell(line);
            other.says()
        };
        assert_eq!(run("init", "go").len(), 32);
        assert!(run("claim a", "1,2,3").contains('-'));
        for path in names_below(&root).into_iter().chain([root.clone()]) {
            let meta = fs::metadata(&path).unwrap();
            let expected = if meta.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(meta.mode() & 0o7777, expected, "mask {mask:o}: {}", path.display());
        }
    }
}
