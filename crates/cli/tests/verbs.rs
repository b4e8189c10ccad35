//! Every verb for people: words, exit codes, and what is left behind.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{Ran, Table, damage, first, ringfence, run};

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

#[test]
fn a_claim_a_heartbeat_and_a_release_say_what_people_need() {
    for table in Table::both() {
        let claimed = table.run("claim", &["--targets", "77, 88", "--owner", "me", "--ttl", "5m"]);
        assert_eq!((claimed.code, claimed.err.as_str()), (0, ""));
        assert_says(&claimed.out, &["granted 2 targets under fence 1 for 300s", "token 0000"]);
        let token = claimed.out.lines().last().unwrap().strip_prefix("token ").unwrap();
        let both = ["--targets", "77,88", "--token", token];
        let renewed = table.run("heartbeat", &both);
        assert_eq!((renewed.code, renewed.out.as_str()), (0, "renewed for 300.0 s\n"));
        let released = table.run("release", &both);
        assert_eq!((released.code, released.out.as_str()), (0, "released\n"));
        let again = table.run("release", &both);
        assert_eq!(again.code, 79);
        assert_says(&again.err, &["lost", "targets 77,88: not held", "nothing was changed"]);
        let listed = table.run("list", &[]);
        assert_eq!((listed.code, listed.out.as_str()), (0, "nothing is held\n"));
    }
}

#[test]
fn every_refusal_names_targets_owner_worker_host_process_fence_time_and_token() {
    for table in Table::both() {
        let token = table.claim("7,8,9", "协调器-一", &["--worker", "12"]);
        let host = String::from_utf8(
            std::process::Command::new("uname").arg("-n").output().unwrap().stdout,
        )
        .unwrap();
        let names =
            ["targets 8,9", "协调器-一", "worker 12", host.trim(), "pid ", "fence 1", "s left"];
        let refused = table.run("claim", &["--targets", "8,9,10", "--owner", "you"]);
        assert_eq!((refused.code, refused.out.as_str()), (75, ""));
        assert_says(&refused.err, &names);
        assert_says(&refused.err, &["2 of 3", &token]);
        for verb in ["heartbeat", "release"] {
            let refused = table.run(verb, &["--targets", "8,9", "--token", "not-it"]);
            assert_eq!((refused.code, refused.out.as_str()), (79, ""), "{verb}");
            assert_says(&refused.err, &names);
            assert_says(&refused.err, &[verb, &token]);
        }
    }
}

#[test]
fn a_refused_verb_changes_no_byte() {
    for table in Table::both() {
        let token = table.claim("1,2,3", "me", &[]);
        let before = table.contents();
        for (code, verb, args) in [
            (75, "claim", vec!["--targets", "3,4,5", "--owner", "you"]),
            (79, "heartbeat", vec!["--targets", "1,2,3,4", "--token", &token]),
            (79, "release", vec!["--targets", "1,2,3,4", "--token", &token]),
            (79, "release", vec!["--targets", "1,2,3", "--token", "x"]),
            (79, "force-release", vec!["--targets", "1,4", "--token", &token, "--reason", "r"]),
            (80, "force-release", vec!["--targets", "5", "--token", &token, "--reason", "r"]),
            (64, "force-release", vec!["--targets", "1", "--token", &token, "--reason", " "]),
        ] {
            let ran = table.run(verb, &args);
            assert_eq!(ran.code, code, "{verb} {args:?}: {ran:?}");
            assert!(!ran.err.is_empty(), "{verb} {args:?}");
            assert!(table.contents() == before, "{verb} {args:?} changed something");
        }
        table.assert_tidy();
    }
}

/// cases B66: an unlock without an id, or one that reports failure after success.
#[test]
fn b66_force_release_needs_the_token_tells_a_second_try_apart_and_leaves_one_audit_line() {
    for table in Table::both() {
        let token = table.claim("7,8", "me", &[]);
        let forced = |token: &str| {
            let args = ["--targets", "7,8", "--token", token, "--reason", "its host\nlost power"];
            table.run("force-release", &args)
        };
        assert_eq!(run(&["force-release", "x", "--targets", "7", "--reason", "r"]).code, 64);
        let refused = table.run("claim", &["--targets", "8", "--owner", "you"]);
        assert_says(&refused.err, &[&token]);
        let before = table.contents();
        let wrong = forced("00000000000000000001-00000000000000000000000000000000");
        assert_eq!(wrong.code, 79, "{wrong:?}");
        assert_says(&wrong.err, &["targets 7,8: held by \"me\"", &token]);
        assert!(table.contents() == before);
        assert_eq!(forced(&token).code, 0);
        let second = forced(&token);
        assert_eq!(second.code, 80, "{second:?}");
        assert_says(&second.err, &["not held"]);
        let audit = std::fs::read_to_string(table.store.join("audit.log")).unwrap();
        assert_eq!(audit.lines().count(), 1, "{audit}");
        assert_says(&audit, &[&token, "its host\\nlost power", "[8,7]", "\"owner\":\"me\""]);
        table.claim("7,8", "you", &[]);
    }
}

#[test]
fn a_damaged_record_is_held_named_and_removed_only_by_its_digest() {
    let table = Table::files();
    table.claim("7", "me", &[]);
    damage(&table, 7);
    let refused = table.run("claim", &["--targets", "7,8", "--owner", "you", "--wait", "2m"]);
    assert_eq!(refused.code, 65, "{refused:?}");
    assert!(refused.took.as_secs() < 60, "waiting does not help: {refused:?}");
    let path = table.record(7).display().to_string();
    assert_says(&refused.err, &["target 7", &path, "empty", "token damaged-"]);
    assert_eq!(table.run("claim", &["--targets", "8", "--owner", "you"]).code, 0, "others work");
    assert_says(&table.run("list", &[]).out, &["corrupt", &path, "damaged-"]);
    let checked = table.run("check", &["--repair"]);
    assert_eq!(checked.code, 65);
    assert_says(&checked.out, &[&path, "an operator is needed"]);
    let (_, shown) = table.json("show", &["7"]);
    let digest = shown["lease"]["token"].as_str().unwrap();
    let args = ["--targets", "7", "--token", digest, "--reason", "disk was full"];
    assert_eq!(table.run("force-release", &args).code, 0);
    assert_eq!(table.run("check", &[]).code, 0);
    table.claim("7", "you", &[]);
}

#[test]
fn expired_leases_are_listed_and_taken_over() {
    for table in Table::both() {
        let old = table.claim("7,8", "me", &["--now", "1000", "--ttl", "30s"]);
        assert_eq!(
            table.run("claim", &["--targets", "8", "--owner", "you", "--now", "1029.9"]).code,
            75
        );
        assert_says(&table.run("list", &["--now", "1030"]).out, &["expired", "7,8", "2 of 2"]);
        assert_eq!(table.run("list", &["--expired", "--now", "1029"]).out, "nothing is held\n");
        assert_says(&table.run("list", &["--expired", "--now", "1030"]).out, &["expired", &old]);
        let new = table.claim("8", "you", &["--now", "1030"]);
        assert!(new > old, "token text rises");
        let late = table.run("heartbeat", &["--targets", "7,8", "--token", &old, "--now", "1031"]);
        assert_eq!(late.code, 79, "{late:?}");
        assert_says(&late.err, &["target 8: held by \"you\"", "fence 2"]);
        let shown = table.run("show", &["8", "--now", "1031"]).out;
        assert_says(&shown, &["target 8 is held", "steals    1", "before    me", "attempts  2"]);
        assert_says(&table.run("list", &["--now", "1031"]).out, &["1 of 2", "1 of 1"]);
    }
}

#[test]
fn a_list_is_one_aligned_row_per_grant() {
    for table in Table::both() {
        table.claim(&first(64), "a", &[]);
        table.claim("100", "协调器", &["--worker", "-5"]);
        let listed = table.run("list", &[]).out;
        let lines: Vec<&str> = listed.lines().collect();
        assert_eq!(lines.len(), 3, "{listed}");
        assert_says(lines[1], &["1,2,3,4,5,6,7,8,..", "64 of 64"]);
        let column = |line: &str, word: &str| {
            line.split(word)
                .next()
                .unwrap()
                .chars()
                .map(|c| 1 + usize::from(c > '\u{2000}'))
                .sum::<usize>()
        };
        let fence = column(lines[0], "FENCE");
        assert_eq!(fence, column(lines[1], "1      "), "{listed}");
        assert_eq!(
            column(lines[0], "TOKEN"),
            column(lines[2], "00000000000000000002-"),
            "{listed}"
        );
    }
}

#[test]
fn status_counts_and_check_repairs_idle_lock_files_only() {
    let table = Table::files();
    let token = table.claim("1,2,3", "me", &[]);
    table.claim("4", "me", &[]);
    table.run("release", &["--targets", "1,2,3", "--token", &token]);
    let stale = table.record(4).with_extension("json.1-2-ab.tmp");
    std::fs::write(&stale, "x").unwrap();
    let status = table.run("status", &[]).out;
    assert_says(&status, &["1 active", "4, of which 3 idle", "1 temporaries", "fence limit  1024"]);
    assert_eq!(table.run("check", &[]).code, 0);
    assert!(stale.exists(), "a check removes nothing");
    let repaired = table.run("check", &["--repair"]);
    assert_eq!(repaired.code, 0);
    assert_says(&repaired.out, &["4 leftovers removed", "1 valid records; 1 lock files"]);
    assert!(!stale.exists());
    assert_eq!(table.run("claim", &["--targets", "4", "--owner", "you"]).code, 75);
    table.claim("1,2,3", "you", &[]);
}

#[test]
fn a_table_that_is_no_table_or_not_ours_is_refused_before_any_effect() {
    let table = Table::new();
    let file = table.beside("file");
    std::fs::write(&file, "x").unwrap();
    let link = table.beside("link");
    std::os::unix::fs::symlink(&table.store, &link).unwrap();
    // As the directory for everybody's temporary files.
    let shared = table.beside("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    for (path, word) in [
        (table.beside("none"), "not a table"),
        (file, "not a directory"),
        (link, "a symbolic link"),
        (shared, "not safe to use"),
    ] {
        for verb in ["claim", "list"] {
            let mut command = ringfence();
            command.arg(verb).arg(&path);
            if verb == "claim" {
                command.args(["--targets", "1", "--owner", "me"]);
            }
            let ran = Ran::of(&mut command);
            assert_eq!(ran.code, 66, "{verb} {}: {ran:?}", path.display());
            assert_says(&ran.err, &[word]);
        }
    }
}

#[test]
fn help_the_version_and_completions_go_to_standard_output() {
    for verb in [
        "init",
        "claim",
        "heartbeat",
        "release",
        "run",
        "list",
        "show",
        "status",
        "check",
        "probe",
        "force-release",
        "race",
        "bench",
        "completions",
    ] {
        let ran = run(&[verb, "--help"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{verb}");
        assert_says(&ran.out, &["Examples:", "Exit codes:", &format!("ringfence {verb} ")]);
        assert!(ran.out.lines().all(|line| line.chars().count() <= 100), "{verb}: {}", ran.out);
    }
    let version = run(&["--version"]);
    assert_eq!(version.out, format!("ringfence {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0, "{shell}");
        assert_says(&ran.out, &["force-release", "heartbeat"]);
    }
    let bare = run(&[]);
    assert_eq!((bare.code, bare.out.as_str()), (64, ""));
}
