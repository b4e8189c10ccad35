//! Moving a table to and from disks that are full, read-only or broken.

use std::ffi::OsStr;

use serde_json::json;

use crate::migrate::{assert_goes_on, bytes, fill, migrate, moved, names_beside, seen, table};
use crate::support::{Ran, in_mount_namespace, traced};

/// A disk with too little room, one that cannot be written, and another one with room.
#[test]
fn a_new_place_without_room_fails_with_the_old_one_in_use_and_another_disk_will_do() {
    const MOUNTED: &str = r#"
        dir=$1 option=$2; shift 2
        mount -t tmpfs -o "$option" none "$dir/disk"
        "$@" || code=$?
        ls -A "$dir/disk" > "$dir/left"
        cat "$dir/left" >&2
        exit ${code:-0}
    "#;
    for (engine, option, code) in [
        ("files", "size=1m", 125),
        ("journal", "nr_inodes=40", 125),
        ("files", "ro", 125),
        ("journal", "ro", 125),
        ("files", "size=64m", 0),
        ("journal", "size=64m", 0),
    ] {
        let table = table(engine);
        let filled = fill(&table);
        let (before, was) = (seen(&table.store), bytes(&table));
        std::fs::create_dir(table.beside("disk")).unwrap();
        let command = migrate(&table.store, &table.beside("disk/new"), &[]);
        let mut args: Vec<&OsStr> =
            vec![table.store.parent().unwrap().as_os_str(), option.as_ref()];
        args.push(command.get_program());
        args.extend(command.get_args());
        let ran = Ran::of(&mut in_mount_namespace(MOUNTED, &args));
        let answer = ran.json();
        assert_eq!(ran.code, code, "{engine} {option}: {ran:?}");
        let left = std::fs::read_to_string(table.beside("left")).unwrap();
        if code == 0 {
            assert_eq!(left, "new\n");
            continue;
        }
        assert_eq!((&answer["outcome"], &answer["restored"]), (&json!("failed"), &json!(true)));
        assert_eq!(left, "", "{engine} {option}");
        assert_eq!(seen(&table.store), before);
        assert!(bytes(&table) == was, "something was changed");
        table.assert_tidy();
        // The same once there is room.
        let answer = moved(&table.store, &table.beside("new"), &[]);
        assert_goes_on(&table.beside("new"), &filled, answer["fence_floor"].as_u64().unwrap());
    }
}

#[test]
fn a_disk_whose_syncs_fail_leaves_one_table_and_the_answer_says_which() {
    for engine in ["files", "journal"] {
        for call in ["fdatasync", "fsync"] {
            let table = table(engine);
            let filled = fill(&table);
            let before = seen(&table.store);
            let to = table.beside("new");
            let inject = format!("inject={call}:error=EIO:when=1+");
            let options = ["-e", &format!("trace={call}"), "-e", &inject];
            let command = migrate(&table.store, &to, &[]);
            let ran = Ran::of(&mut traced(&options, &table.beside("log"), &command));
            let answer = ran.json();
            let says = (ran.code, &answer["outcome"], &answer["restored"]);
            assert_eq!(says, (125, &json!("failed"), &json!(true)), "{ran:?}");
            assert_eq!(seen(&table.store), before);
            let answer = moved(&table.store, &to, &[]);
            assert_eq!(seen(&to), before);
            assert_goes_on(&to, &filled, answer["fence_floor"].as_u64().unwrap());
            assert_eq!(names_beside(&table), ["log", "new", "store"]);
        }
    }
}
