//! Waiting: one deadline, a notice, and signals.

use std::process::{Child, Command};
use std::time::Duration;

use serde_json::json;

use crate::support::{KernelLock, Ran, Table, first, signal, spawn, told};

/// The end of a wait that had two minutes to go is prompt by then, on the slowest machine.
const SOON: Duration = Duration::from_mins(1);

/// cases B5: a wait that is applied to each member.
#[test]
fn b5_one_wait_is_for_the_whole_group() {
    for table in Table::both() {
        let all = first(64);
        table.claim(&all, "me", &[]);
        let ran = table.run("claim", &["--targets", &all, "--owner", "you", "--wait", "2s"]);
        assert_eq!(ran.code, 75, "{ran:?}");
        // Once for each member were two minutes.
        assert!((2.0..30.0).contains(&ran.took.as_secs_f64()), "{:?}", ran.took);
        assert!(ran.err.contains("64 of 64 targets are held (waited 2s)"), "{}", ran.err);
    }
}

/// cases B10: a wait that ran out and was taken for success.
#[test]
fn b10_a_wait_that_ran_out_is_busy() {
    for table in Table::both() {
        let token = table.claim("1", "me", &[]);
        for wait in ["0.1s", "0s", "1ms"] {
            let args = ["--targets", "1,2", "--owner", "you", "--wait", wait];
            let (code, answer) = table.json("claim", &args);
            assert_eq!((code, &answer["outcome"]), (75, &json!("busy")));
            assert_eq!(answer["conflicts"][0]["token"], token.as_str());
            assert!(answer.get("token").is_none(), "nothing that looks like a grant: {answer}");
        }
        assert_eq!(table.json("list", &[]).1["leases"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn who_is_waited_for_is_told_within_a_second_and_not_to_the_quiet() {
    for table in Table::both() {
        table.claim("1,2", "协调器", &["--worker", "7"]);
        let wait = |time| ["--targets", "2,3", "--owner", "you", "--wait", time];
        let mut child = spawn(&mut table.command("claim", &wait("2m")));
        let line = told(&mut child);
        assert_eq!(line, "ringfence: waiting for 1 of 2 targets\n");
        signal(&child, "INT");
        assert_eq!(Ran::wait(child).code, 130, "it still waited when it told");
        let args = wait("1500ms");
        let quiet = table.run("claim", &[&args[..], &["-q"]].concat());
        assert!(!quiet.err.contains("waiting"), "{}", quiet.err);
        assert!(quiet.err.contains("busy: 1 of 2"), "{}", quiet.err);
    }
}

#[test]
fn a_wait_ends_with_the_grant_once_the_group_is_free() {
    for table in Table::both() {
        let token = table.claim("1,2", "me", &[]);
        let args = ["--targets", "2,3", "--owner", "you", "--wait", "2m", "--json"];
        let mut child = spawn(&mut table.command("claim", &args));
        told(&mut child);
        assert_eq!(table.run("release", &["--targets", "1,2", "--token", &token]).code, 0);
        let ran = Ran::wait(child);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(ran.json()["targets"], json!([2, 3]));
        assert!(ran.took < SOON, "{ran:?}");
    }
}

/// The end of a wait names who is in the way then, not who was at its beginning.
#[test]
fn the_end_of_a_wait_names_the_present_holder() {
    let table = Table::files();
    let token = table.claim("1,2", "first", &[]);
    let args = ["--targets", "2", "--owner", "you", "--wait", "5s", "--now", "1000", "--json"];
    let mut child = spawn(&mut table.command("claim", &args));
    told(&mut child);
    let record = std::fs::read_to_string(table.record(2)).unwrap();
    let renamed = record.replace("\"first\"", "\"second\"");
    let temp = table.record(2).with_extension("json.x.tmp");
    std::fs::write(&temp, renamed).unwrap();
    std::fs::rename(&temp, table.record(2)).unwrap();
    let answer = Ran::wait(child).json();
    assert_eq!(answer["conflicts"][0]["owner"], "second", "{answer}");
    assert_eq!(answer["conflicts"][0]["token"], token.as_str());
}

fn waiter(table: &Table) -> Child {
    let args = ["--targets", "2,1,3", "--owner", "you", "--wait", "2m", "--json"];
    let mut child = spawn(&mut table.command("claim", &args));
    told(&mut child);
    child
}

/// cases B58: signals ignored while waiting.
#[test]
fn b58_a_signal_ends_a_wait_promptly_and_leaves_nothing() {
    for table in Table::both() {
        // Longer than anybody waits here.
        table.claim("1", "me", &["--ttl", "1h"]);
        let before = table.contents();
        for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
            let child = waiter(&table);
            signal(&child, name);
            let ran = Ran::wait(child);
            assert_eq!(ran.code, 128 + number, "{name}: {ran:?}");
            assert!(ran.took < SOON, "{name}: {ran:?}");
            assert_eq!(ran.json()["signal"], number);
            assert!(table.contents() == before, "{name}");
            table.assert_tidy();
        }
        let child = waiter(&table);
        signal(&child, "INT");
        signal(&child, "TERM");
        let ran = Ran::wait(child);
        assert!([130, 143].contains(&ran.code), "{ran:?}");
        assert!(table.contents() == before);
        table.assert_tidy();
        table.claim("2,3", "somebody else", &[]);
    }
}

#[test]
fn b58_a_signal_ends_a_wait_for_kernel_locks_too() {
    for table in Table::both() {
        let token = table.claim("1", "me", &[]);
        table.run("release", &["--targets", "1", "--token", &token]);
        let held = KernelLock::hold(&table.lock(1));
        let child = waiter(&table);
        signal(&child, "TERM");
        let ran = Ran::wait(child);
        drop(held);
        assert_eq!(ran.code, 143, "{ran:?}");
        assert!(ran.took < SOON, "{ran:?}");
        assert_eq!(table.json("list", &[]).1["leases"], json!([]));
        table.assert_tidy();
    }
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    for table in Table::both() {
        table.claim("1", "me", &[]);
        let script = "trap '' HUP; exec \"$1\" claim \"$2\" -t 1 -o you --wait 2s";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_ringfence")]).arg(&table.store);
        let mut child = spawn(&mut shell);
        told(&mut child);
        signal(&child, "HUP");
        assert_eq!(Ran::wait(child).code, 75);
    }
}

/// cases B41: a process that was stopped inside the kernel lock.
#[test]
fn b41_a_kernel_lock_that_stays_taken_is_busy_by_the_deadline() {
    for table in Table::both() {
        table.claim("1", "me", &["--now", "1000"]);
        let held = KernelLock::hold(&table.lock(1));
        let args = ["--targets", "1,2", "--owner", "you", "--wait", "0.2s"];
        let (code, answer) = table.json("claim", &args);
        assert_eq!((code, &answer["conflicts"]), (75, &json!([])), "{answer}");
        let locked = answer["locked"].as_str().unwrap();
        assert_eq!(locked, table.lock(1).to_str().unwrap(), "{answer}");
        drop(held);
        table.claim("1,2", "you", &[]);
    }
}
