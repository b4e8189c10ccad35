//! Readers write nothing.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use ringfence::{Owner, Payload, Store};
use serde_json::Value;

use crate::support::{Ran, Table, damage, in_mount_namespace, traced};

const READERS: [(&str, &[&str]); 5] = [
    ("list", &["--json"]),
    ("list", &["--expired", "--json"]),
    ("show", &["1", "--json"]),
    ("status", &["--json"]),
    ("check", &["--json"]),
];

fn busy(table: Table) -> Table {
    table.claim("1,2,3", "me", &[]);
    table.claim("4", "me", &["--now", "1000"]);
    let work = Store::open(&table.store).unwrap().work();
    let lease = work.claim(&Payload::empty(), &Owner::new("me").unwrap(), 0, None, None).unwrap();
    work.begin_commit(lease.id, &lease.token, &Payload::empty(), None).unwrap();
    // As on a host that has not probed the directory since boot: a reader does not do it either. A
    // journal remembers nothing of the kind.
    let _ = std::fs::remove_file(table.store.join("probe.json"));
    table
}

/// The parts of an answer that do not move with the clock.
fn still(mut answer: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("now");
                fields.remove("expires_in");
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut answer);
    answer
}

/// cases B53: readers that need a write.
#[test]
fn b53_readers_work_on_a_read_only_mount_and_a_claim_fails_with_nothing_changed() {
    for table in Table::both().map(busy) {
        let read_only = |args: &[&str]| {
            let mut all =
                vec![table.store.as_os_str(), OsStr::new(env!("CARGO_BIN_EXE_ringfence"))];
            all.extend(args.iter().map(OsStr::new));
            let script = "s=$1; shift; mount --bind \"$s\" \"$s\"; mount -o remount,bind,ro \"$s\"; \
                          exec \"$@\"";
            Ran::of(&mut in_mount_namespace(script, &all))
        };
        let store = table.store.to_str().unwrap();
        for (verb, args) in READERS {
            let writable = table.run(verb, args);
            let ran = read_only(&[&[verb, store], args].concat());
            assert_eq!(ran.code, 0, "{verb} {args:?}: {ran:?}");
            assert_eq!(still(ran.json()), still(writable.json()), "{verb} {args:?}");
        }
        let before = table.contents();
        let ran = read_only(&["claim", store, "--targets", "9", "--owner", "me", "--json"]);
        assert_eq!(ran.code, 125, "{ran:?}");
        let answer = ran.json();
        assert_eq!((&answer["outcome"], &answer["restored"]), (&"failed".into(), &true.into()));
        assert!(table.contents() == before);
        table.claim("9", "me", &[]);
    }
}

#[test]
fn b53_readers_work_on_a_full_disk_and_a_claim_fails_with_nothing_left() {
    let table = Table::new();
    let disk = table.beside("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=256k,mode=700 none \"$1\"; r=$2; s=$1/s
        \"$r\" init \"$s\" --engine files >&2; \"$r\" claim \"$s\" --targets 1,2 --owner me >&2
        cat /dev/zero > \"$1/fill\" 2>/dev/null || true
        \"$r\" claim \"$s\" --targets 3,4,5 --owner me --json && exit 1 || echo \"exit $?\"
        \"$r\" list \"$s\" --json; \"$r\" show \"$s\" 1 --json >&2; \"$r\" status \"$s\" --json >&2
        find \"$s\" -name '*.tmp'
        rm \"$1/fill\"; \"$r\" claim \"$s\" --targets 3,4,5 --owner me --json";
    let args = [disk.as_os_str(), OsStr::new(env!("CARGO_BIN_EXE_ringfence"))];
    let ran = Ran::of(&mut in_mount_namespace(script, &args));
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    let [failed, "exit 125", listed, granted] = lines[..] else { panic!("{ran:?}") };
    let [failed, listed, granted] =
        [failed, listed, granted].map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!((&failed["outcome"], &failed["restored"]), (&"failed".into(), &true.into()));
    assert!(failed["error"].as_str().unwrap().contains("No space left"), "{failed}");
    let held: Vec<_> = listed["leases"].as_array().unwrap().iter().map(|l| &l["target"]).collect();
    assert_eq!(held, [1, 2]);
    assert_eq!(granted["outcome"], "granted");
}

#[test]
fn b53_readers_create_rename_remove_and_open_for_writing_nothing() {
    let [journal, files] = Table::both().map(busy);
    damage(&files, 3);
    for table in [journal, files] {
        let log = table.beside("log");
        let before = table.contents();
        for (verb, args) in READERS {
            let ran = Ran::of(&mut traced(&["-e", "trace=all"], &log, &table.command(verb, args)));
            assert!([0, 65].contains(&ran.code), "{verb}: {ran:?}");
            let text = std::fs::read_to_string(&log).unwrap();
            assert!(text.contains("openat(") && text.contains("table.json"), "{verb}: {text}");
            for line in text.lines() {
                // A shared lock on a file that is open for reading excludes nobody and is not waited for.
                let locks = line.contains(" flock(");
                let shares = line.contains("LOCK_SH|LOCK_NB") || line.contains("LOCK_UN");
                assert!(!locks || shares, "{verb}: {line}");
                let opens = line.contains("open");
                let writes = ["O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND"];
                assert!(!opens || !writes.iter().any(|flag| line.contains(flag)), "{verb}: {line}");
                for call in [
                    "rename",
                    "unlink",
                    "mkdir",
                    "rmdir",
                    "link",
                    "fsync",
                    "fdatasync",
                    "chmod",
                    "fchmod",
                    "utime",
                    "truncate",
                    "mknod",
                ] {
                    let called =
                        line.split_whitespace().nth(1).is_some_and(|c| c.starts_with(call));
                    assert!(!called, "{verb}: {line}");
                }
            }
        }
        assert!(table.contents() == before);
    }
}

/// cases B50: a store that another user made.
#[test]
fn b50_a_store_of_another_user_is_refused_before_any_effect() {
    let table = Table::new();
    let mine = std::fs::metadata(&table.store).unwrap().uid();
    // Who is not root cannot give a directory away, but has one of root's at hand.
    let foreign = if mine == 0 {
        std::os::unix::fs::chown(&table.store, Some(65534), None).unwrap();
        table.store.clone()
    } else {
        "/".into()
    };
    for (verb, args) in [("list", &["--json"][..]), ("claim", &["--json", "-t", "1", "-o", "me"])] {
        let mut command = crate::support::ringfence();
        let ran = Ran::of(command.arg(verb).arg(&foreign).args(args));
        assert_eq!((ran.code, &ran.json()["outcome"]), (66, &"unsafe".into()), "{ran:?}");
        assert!(ran.err.contains("belongs to user"), "{ran:?}");
    }
}

#[test]
fn b50_everything_in_a_store_belongs_to_its_user_alone_whatever_the_umask() {
    let table = Table::new();
    for engine in ["journal", "files"] {
        let store = table.beside(engine);
        let script = "umask 000; \"$1\" init \"$2\" --engine $3 && \"$1\" claim \"$2\" --targets 1 --owner me";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-ec", script, "sh", env!("CARGO_BIN_EXE_ringfence")]).arg(&store).arg(engine);
        assert_eq!(Ran::of(&mut shell).code, 0);
        let mut stack = vec![store];
        while let Some(path) = stack.pop() {
            let meta = std::fs::symlink_metadata(&path).unwrap();
            assert_eq!(meta.permissions().mode() & 0o077, 0, "{}", path.display());
            if meta.is_dir() {
                stack.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }
}
