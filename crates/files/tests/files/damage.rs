//! Records that are no records, and names that are not ours.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ringfence_engine::{Engine as _, Failure};
use ringfence_env::fault::{Call, Effect, When};
use ringfence_files::Finding;
use ringfence_model::rules::ForceRefused;
use ringfence_model::{Entry, Space, Token};

use crate::table::{Table, Verbs as _, assert_no_lock_is_held, id, snapshot, temps};

/// Ways in which a record can be no record, each with a word of what is said about it.
const KINDS: [(&str, &str); 12] = [
    ("empty", "empty"),
    ("cut", "JSON"),
    ("nul", "NUL"),
    ("half nul", "JSON"),
    ("wrong id", "id"),
    ("schema 2", "schema 2"),
    ("trailing bytes", "JSON"),
    ("directory", "directory"),
    ("pipe", "pipe"),
    ("link", "link"),
    ("socket", "socket"),
    ("oversized", "bytes"),
];

fn is_opaque(kind: &str) -> bool {
    ["directory", "pipe", "link", "socket", "oversized"].contains(&kind)
}

fn spoil(table: &Table, kind: &str, target: u64) {
    let path = table.record(target);
    let _ = fs::remove_file(&path);
    let token = table.engine.grab("victim", &[target], Some(1000.0)).unwrap().unwrap();
    let good = fs::read(&path).unwrap();
    table.engine.free(&[target], token).unwrap().unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    match kind {
        "empty" => fs::write(&path, b"").unwrap(),
        "cut" => fs::write(&path, &good[..good.len() / 2]).unwrap(),
        "nul" => fs::write(&path, vec![0; good.len()]).unwrap(),
        "half nul" => {
            let mut bytes = good;
            let half = bytes.len() / 2;
            bytes[half..].fill(0);
            fs::write(&path, bytes).unwrap();
        }
        "wrong id" => {
            let other = id(target + 1).to_string();
            fs::write(&path, text.replace(&id(target).to_string(), &other)).unwrap();
        }
        "schema 2" => fs::write(&path, text.replace("\"schema\":1", "\"schema\":2")).unwrap(),
        "trailing bytes" => fs::write(&path, format!("{text}{text}")).unwrap(),
        "directory" => {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("inside"), b"kept").unwrap();
        }
        "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
        "link" => {
            let elsewhere = table.dir.path().join("elsewhere");
            fs::write(&elsewhere, &good).unwrap();
            symlink(&elsewhere, &path).unwrap();
        }
        // By hand: the path is too long for `bind`.
        "socket" => {
            let make = "import os, stat, sys; os.mknod(sys.argv[1], stat.S_IFSOCK | 0o600)";
            let made = Command::new("python3").args(["-c", make]).arg(&path).status().unwrap();
            assert!(made.success());
        }
        "oversized" => fs::write(&path, vec![b' '; 1024 * 1024 + 1]).unwrap(),
        _ => unreachable!(),
    }
}

fn damage_token(table: &Table, target: u64) -> Token {
    let scan = table.engine.scan(Space::Targets, None).unwrap();
    let found = scan.entries.into_iter().find(|(key, _)| key.id == id(target));
    match found.expect("listed").1 {
        Entry::Damaged(damage) => damage.digest,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_damage_is_held_named_listed_and_in_nobody_elses_way() {
    for (kind, word) in KINDS {
        let table = Table::new(8);
        spoil(&table, kind, 7);
        let before = table.snapshot();
        let refused = table.engine.grab("a", &[6, 7, 8], Some(9e9)).unwrap().unwrap_err();
        assert_eq!(refused.damaged.len(), 1, "{kind}");
        let damage = &refused.damaged[0].damage;
        assert_eq!(refused.damaged[0].target.get(), 7);
        assert_eq!(damage.location, table.record(7).display().to_string(), "{kind}");
        assert!(damage.reason.contains(word), "{kind}: {}", damage.reason);
        assert_eq!(table.snapshot(), before, "{kind}");
        let token = table.engine.grab("a", &[6, 8], None).unwrap().unwrap();
        table.engine.beat(&[6, 7, 8], token, None).unwrap().unwrap_err();
        table.engine.free(&[6, 7, 8], token).unwrap().unwrap_err();
        assert_eq!(snapshot(table.root())[&table.record(7)], before[&table.record(7)], "{kind}");
        assert_eq!(damage_token(&table, 7), damage.digest, "{kind}");
        let report = table.engine.check().unwrap();
        assert_eq!(report.records, 2, "{kind}");
        let named = report.findings.iter().any(
            |finding| matches!(finding, Finding::Damaged { path, .. } if *path == table.record(7)),
        );
        assert!(named, "{kind}: {report:?}");
        table.engine.free(&[6, 8], token).unwrap().unwrap();
    }
}

fn audit(table: &Table) -> String {
    fs::read_to_string(table.root().join("audit.log")).unwrap_or_default()
}

fn without_audit(table: &Table) -> crate::table::Snapshot {
    let mut all = table.snapshot();
    all.remove(&table.root().join("audit.log"));
    all
}

#[test]
fn force_release_takes_only_what_was_looked_at_and_leaves_one_line() {
    for (kind, _) in KINDS {
        let table = Table::new(8);
        spoil(&table, kind, 7);
        let before = table.snapshot();
        let digest = damage_token(&table, 7);
        let wrong = Token::new("damaged-0").unwrap();
        table.engine.force(&[7], &wrong).unwrap().unwrap_err();
        table.engine.force(&[6, 7], &digest).unwrap().unwrap_err();
        assert_eq!(table.snapshot(), before, "{kind}");
        table.engine.force(&[7], &digest).unwrap().unwrap();
        let line = audit(&table);
        assert_eq!(line.lines().count(), 1, "{kind}: {line}");
        for word in ["force-release", digest.as_str(), "[7]", "a test"] {
            assert!(line.contains(word), "{kind}: {line}");
        }
        let again = table.engine.force(&[7], &digest).unwrap().unwrap_err();
        assert_eq!(again, ForceRefused::NotHeld, "{kind}");
        assert_eq!(audit(&table), line, "{kind}");
        table.engine.grab("a", &[6, 7], None).unwrap().unwrap();
        let aside = table.record(7).with_extension("json.damaged-0");
        if is_opaque(kind) {
            assert!(fs::symlink_metadata(&aside).is_ok(), "{kind} is kept aside");
            if kind == "directory" {
                assert_eq!(fs::read(aside.join("inside")).unwrap(), b"kept");
            }
        } else {
            assert!(fs::symlink_metadata(&aside).is_err(), "{kind}");
        }
    }
}

#[test]
fn a_second_opaque_thing_under_one_name_does_not_replace_the_first_one_kept_aside() {
    let table = Table::new(8);
    for number in 0..3 {
        spoil(&table, "directory", 7);
        let digest = damage_token(&table, 7);
        table.engine.force(&[7], &digest).unwrap().unwrap();
        let aside = table.record(7).with_extension(format!("json.damaged-{number}"));
        assert_eq!(fs::read(aside.join("inside")).unwrap(), b"kept");
    }
}

#[test]
fn a_force_release_that_fails_is_undone_with_its_audit_line() {
    for (kind, _) in KINDS {
        let make = || {
            let table = Table::new(8);
            spoil(&table, kind, 7);
            let digest = damage_token(&table, 7);
            // One line stands already, so that taking back the wrong one would show.
            let token = table.engine.grab("x", &[9], None).unwrap().unwrap();
            table.engine.force(&[9], &token.into()).unwrap().unwrap();
            let before = table.snapshot();
            (table, digest, before)
        };
        let (mut table, mut digest, mut before) = make();
        for nth in 1.. {
            table.fs.arm(When::Nth(nth), Effect::Errno(5));
            let ended = table.engine.force(&[7], &digest);
            let fired = table.fs.fired();
            table.fs.disarm();
            assert_no_lock_is_held(table.root());
            match ended {
                Ok(done) => {
                    done.unwrap();
                    assert_eq!(audit(&table).lines().count(), 2, "{kind}");
                    if fired == 0 {
                        break;
                    }
                    // The failed call was one whose failure loses nothing.
                    (table, digest, before) = make();
                }
                Err(failure) => {
                    assert!(failure.restored(), "{kind}, call {nth}: {failure:?}");
                    assert_eq!(table.snapshot(), before, "{kind}, call {nth}: {failure:?}");
                }
            }
        }
        assert!(temps(table.root()).is_empty());
    }
}

#[test]
fn when_the_audit_line_cannot_be_taken_back_the_outcome_is_unknown_and_names_the_log() {
    let table = Table::new(8);
    let token = table.engine.grab("x", &[9], None).unwrap().unwrap();
    let log = table.root().join("audit.log").display().to_string();
    // The record fails and is put back, the line is not.
    table.fs.arm(When::NthOf(Call::Unlink, 1), Effect::Errno(5));
    table.fs.arm(When::NthOf(Call::SetLen, 1), Effect::Errno(5));
    let failure = table.engine.force(&[9], &token.into()).unwrap_err();
    table.fs.disarm();
    assert!(
        matches!(&failure, Failure::Unknown { members, .. } if *members == [log.clone()]),
        "{failure:?}"
    );
    assert_eq!(table.read(9).holder.token, token.into());
    // The line is there, its name may not last, and cutting it off fails.
    let before = without_audit(&table);
    table.fs.arm(When::NthOf(Call::SyncDir, 1), Effect::Errno(5));
    table.fs.arm(When::NthOf(Call::SetLen, 1), Effect::Errno(5));
    let failure = table.engine.force(&[9], &token.into()).unwrap_err();
    table.fs.disarm();
    assert!(
        matches!(&failure, Failure::Unknown { members, .. } if *members == [log.clone()]),
        "{failure:?}"
    );
    assert_eq!(without_audit(&table), before);
}

#[test]
fn stray_files_are_ignored_by_operations_and_listed_by_check() {
    let table = Table::new(8);
    let token = table.engine.grab("a", &[7], None).unwrap().unwrap();
    let shard = table.record(7).parent().unwrap().to_owned();
    let root = table.root().to_owned();
    let backup = format!("{}~", table.record(7).display());
    let strays = [
        shard.join(".nfs000000000012"),
        Path::new(&backup).to_owned(),
        shard.join("notes.txt"),
        shard.join("ab.json"),
        root.join(".nfs0001"),
        root.join("notes~"),
        root.join("work/odd"),
        root.join("008"),
    ];
    for stray in &strays {
        fs::write(stray, b"{}").unwrap();
    }
    for dir in [root.join("lost+found"), shard.join("lost+found")] {
        fs::create_dir(dir).unwrap();
    }
    let stale = [shard.join("x.tmp"), root.join("fence.1.tmp"), root.join("work/y.tmp")];
    for temp in &stale {
        fs::write(temp, b"half").unwrap();
    }
    table.engine.beat(&[7], token, None).unwrap().unwrap();
    assert_eq!(table.engine.scan(Space::Targets, None).unwrap().entries.len(), 1);
    let report = table.engine.check().unwrap();
    assert_eq!((report.records, report.lock_files, report.idle_lock_files), (1, 1, 0));
    for stray in strays.iter().chain([&root.join("lost+found"), &shard.join("lost+found")]) {
        assert!(report.findings.contains(&Finding::Stray(stray.clone())), "{stray:?}: {report:?}");
    }
    for temp in &stale {
        assert!(report.findings.contains(&Finding::Temporary(temp.clone())), "{temp:?}");
    }
    assert_eq!(report.findings.len(), strays.len() + 2 + stale.len(), "{report:?}");
    table.engine.free(&[7], token).unwrap().unwrap();
}
