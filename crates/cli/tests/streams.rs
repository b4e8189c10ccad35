//! Standard output that is closed, full, or read by nobody.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Ran, Table, first, ringfence};

fn nobody_reads() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full_disk() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_of_every_verb_and_never_a_panic() {
    let table = Table::new();
    let token = table.claim("1,2", "me", &[]);
    let held = ["--targets", "1,2", "--token", &token];
    for stdout in [nobody_reads as fn() -> Stdio, full_disk] {
        for json in [false, true] {
            for (verb, args) in [
                ("init", &[][..]),
                ("list", &[]),
                ("show", &["1"]),
                ("status", &[]),
                ("check", &[]),
                ("heartbeat", &held),
                ("probe", &[]),
            ] {
                let mut command = table.command(verb, args);
                command.args(json.then_some("--json")).stdout(stdout());
                let ran = Ran::of(&mut command);
                assert_eq!(ran.code, 125, "{verb}: {ran:?}");
                assert!(ran.err.contains("cannot write the answer"), "{verb}: {ran:?}");
            }
        }
        for args in [&["--help"][..], &["--version"], &["claim", "--help"], &["completions", "zsh"]]
        {
            let ran = Ran::of(ringfence().args(args).stdout(stdout()));
            assert_eq!(ran.code, 125, "{args:?}: {ran:?}");
        }
    }
}

#[test]
fn a_claim_whose_answer_nobody_got_is_given_back() {
    for table in Table::both() {
        for stdout in [nobody_reads as fn() -> Stdio, full_disk] {
            for json in [false, true] {
                let mut claim = table.command("claim", &["--targets", "1,2,3", "--owner", "me"]);
                let ran = Ran::of(claim.args(json.then_some("--json")).stdout(stdout()));
                assert_eq!(ran.code, 125, "{ran:?}");
                assert!(ran.err.contains("cannot write the answer"), "{ran:?}");
                assert_eq!(table.json("list", &[]).1["leases"], json!([]));
            }
        }
        table.assert_tidy();
    }
}

#[test]
fn a_refusal_keeps_its_exit_code_where_nobody_reads_it() {
    for table in Table::both() {
        table.claim("1", "me", &[]);
        let claim = ["--targets", "1", "--owner", "you", "--json"];
        for (verb, args, code) in [
            ("claim", &claim[..], 75),
            ("release", &["--targets", "1", "--token", "x", "--json"], 79),
        ] {
            let mut command = table.command(verb, args);
            let ran = Ran::of(command.stdout(nobody_reads()).stderr(full_disk()));
            assert_eq!(ran.code, code, "{verb}");
        }
        let usage = Ran::of(ringfence().arg("--json").stdout(full_disk()).stderr(nobody_reads()));
        assert_eq!(usage.code, 64);
    }
}

#[test]
fn closed_descriptors_and_a_pipe_into_head_end_quietly() {
    let table = Table::new();
    table.claim(&first(64), "me", &[]);
    let shell = |script: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash", env!("CARGO_BIN_EXE_ringfence")]).arg(&table.store);
        Ran::of(&mut bash)
    };
    // A descriptor that was closed before the start cannot be told from /dev/null.
    let closed = shell("\"$1\" list \"$2\" --json >&-");
    assert_eq!((closed.code, closed.err.as_str()), (0, ""), "{closed:?}");
    let closed = shell("\"$1\" claim \"$2\" -t 1 -o me <&- >&- 2>&-");
    assert_eq!(closed.code, 75, "{closed:?}");
    let head = shell("for i in 1 2 3 4 5; do \"$1\" list \"$2\" --json | head -c 0; done");
    assert!(!head.err.contains("panicked"), "{head:?}");
    let head = shell("set -o pipefail; \"$1\" list \"$2\" --json | head -c 10");
    assert!([0, 125].contains(&head.code), "{head:?}");
}
