//! Huge, odd and wrong arguments: exit code 64, before anything is touched.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use crate::support::{Ran, Table, first, run};

/// Runs `claim` with the usual flags and these.
fn claim(table: &Table, targets: &str, more: &[&str]) -> Ran {
    let mut args = vec!["--json", "--targets", targets];
    args.extend(more);
    if !more.contains(&"--owner") {
        args.extend(["--owner", "me"]);
    }
    table.run("claim", &args)
}

#[test]
fn wrong_arguments_are_refused_with_64_one_json_object_and_no_effect() {
    let table = Table::new();
    let before = table.contents();
    let long = "x".repeat(300);
    let huge = "9".repeat(5000);
    let sixty_five = first(65);
    let control = "a\tb";
    let cases: Vec<(&str, Vec<&str>, &str)> = vec![
        ("", vec![], "at least one target"),
        (" ", vec![], "at least one target"),
        ("0", vec![], "target 0"),
        ("-5", vec![], "positive decimal"),
        ("1,,2", vec![], "positive decimal"),
        ("1,2,", vec![], "positive decimal"),
        ("1;2", vec![], "positive decimal"),
        ("0x10", vec![], "positive decimal"),
        ("1e3", vec![], "positive decimal"),
        ("７", vec![], "positive decimal"),
        ("7,7", vec![], "twice"),
        ("18446744073709551616", vec![], "64 bits"),
        (&huge, vec![], "64 bits"),
        (&sixty_five, vec![], "at most 64"),
        ("1", vec!["--now", "NaN"], "finite"),
        ("1", vec!["--now", "inf"], "finite"),
        ("1", vec!["--now", "-inf"], "finite"),
        ("1", vec!["--now", "1e400"], "finite"),
        ("1", vec!["--now", "-1"], "negative"),
        ("1", vec!["--now", "1e15"], "9999"),
        ("1", vec!["--now", "soon"], "Unix seconds"),
        ("1", vec!["--ttl", "0s"], "out of range"),
        ("1", vec!["--ttl", "-5s"], "a number and a unit"),
        ("1", vec!["--ttl", "60"], "60s for seconds"),
        ("1", vec!["--ttl", "20000d"], "out of range"),
        ("1", vec!["--ttl", "NaNs"], "a number and a unit"),
        ("1", vec!["--wait", "1e400s"], "a number and a unit"),
        ("1", vec!["--wait", "5"], "5s for seconds"),
        ("1", vec!["--worker", "9223372036854775808"], "--worker"),
        ("1", vec!["--worker", "1.5"], "--worker"),
        ("1", vec!["--owner", ""], "empty"),
        ("1", vec!["--owner", control], "control character"),
        ("1", vec!["--owner", &long], "over the limit"),
        ("1", vec!["--payload", ""], "not JSON"),
        ("1", vec!["--payload", "{"], "not JSON"),
        ("1", vec!["--payload", "[1]"], "not a JSON object"),
        ("1", vec!["--payload", "{\"x\":NaN}"], "not JSON"),
        ("1", vec!["--payload", "{\"x\":1e400}"], "out of range"),
        ("1", vec!["--payload", "@/does/not/exist"], "No such file"),
        ("1", vec!["--payload", "@/tmp"], "Is a directory"),
        ("1", vec!["--payload", "@/proc/self/mem"], "cannot read"),
        ("1", vec!["--payload", "@/dev/zero"], "over the limit"),
        ("1", vec!["--payload", "@"], "cannot read"),
        ("1", vec!["--unknown"], "--unknown"),
    ];
    for (targets, more, word) in &cases {
        let ran = claim(&table, targets, more);
        assert_eq!(ran.code, 64, "{targets:.80} {more:?}: {ran:?}");
        let answer = ran.json();
        assert_eq!(answer["outcome"], "usage", "{answer}");
        let said = answer["error"].as_str().unwrap();
        assert!(said.contains(word), "{word:?} is missing in {said:.300}");
        assert!(ran.err.contains(word), "people are told too: {:.300}", ran.err);
    }
    assert!(table.contents() == before, "something was touched");
    for args in [
        &["heartbeat", "x", "--targets", "1", "--token", ""][..],
        &["release", "x", "--targets", "1", "--token", "a\nb"],
        &["release", "x", "--targets", "1"],
        &["show", "x", "-3"],
        &["show", "x"],
        &["init"],
        &["init", "x", "--shards", "0"],
        &["init", "x", "--shards", "1001"],
        &["init", "x", "--shards", "-1"],
        &["init", "x", "--ttl", "11y"],
        &["init", "x", "--engine", "etcd"],
        &["init", "x", "--engine", "journal", "--durability", "record"],
        &["frobnicate"],
        &["completions", "cmd"],
        &["--json"],
    ] {
        assert_eq!(run(args).code, 64, "{args:?}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_and_paths_that_are_not_work() {
    let table = Table::new();
    let bad = || OsString::from_vec(b"a\xffb".to_vec());
    let mut owner = table.command("claim", &["--targets", "1", "--owner"]);
    assert_eq!(Ran::of(owner.arg(bad())).code, 64);
    let store = table.beside("x").with_file_name(bad());
    let mut init = crate::support::ringfence();
    let made = Ran::of(init.arg("init").arg(&store).arg("--json"));
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.json()["store"].as_str().unwrap().ends_with("a\u{fffd}b"));
}

#[test]
fn the_largest_of_everything_is_taken_and_read_back() {
    let table = Table::new();
    let owner = "协".repeat(85);
    let file = table.beside("payload.json");
    let text =
        format!("{{\"x\":\"{}\", \"n\":123456789012345678901234567890}}", "y".repeat(60_000));
    std::fs::write(&file, &text).unwrap();
    let payload = format!("@{}", file.display());
    let most = "18446744073709551615,9007199254740993,1";
    let flags = ["--worker", "-9223372036854775808", "--payload", &payload, "--ttl", "3652d"];
    table.claim(most, &owner, &flags);
    let shown = table.run("show", &["18446744073709551615", "--json"]);
    let lease = &shown.json()["lease"];
    assert_eq!(lease["owner"], owner.as_str());
    assert_eq!(lease["worker"], i64::MIN);
    assert_eq!(lease["target"], u64::MAX);
    assert!(shown.out.contains("9007199254740993"), "no digit is lost");
    assert!(shown.out.contains("\"n\":123456789012345678901234567890"), "of the payload neither");
    assert_eq!(lease["payload"]["x"].as_str().unwrap().len(), 60_000);
}

#[test]
fn a_payload_comes_from_a_file_or_from_standard_input() {
    let table = Table::new();
    let mut command =
        table.command("claim", &["--targets", "1", "--owner", "me", "--payload", "@-"]);
    let mut child = crate::support::spawn(command.stdin(std::process::Stdio::piped()));
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"{ \"b\" : 1 }\n").unwrap();
    drop(stdin);
    assert_eq!(Ran::wait(child).code, 0);
    assert_eq!(table.json("show", &["1"]).1["lease"]["payload"], serde_json::json!({"b": 1}));
}

#[test]
fn names_that_could_play_with_a_terminal_are_shown_escaped() {
    let table = Table::files();
    table.claim("1", "me", &[]);
    let record = table.record(1);
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, text.replace("\"owner\":\"me\"", "\"owner\":\"\\u001b[2Jroot\""))
        .unwrap();
    for args in [&["list"][..], &["show"], &["claim"]] {
        let more: &[&str] = match args[0] {
            "show" => &["1"],
            "claim" => &["--targets", "1", "--owner", "you"],
            _ => &[],
        };
        let ran = table.run(args[0], more);
        let all = ran.out + &ran.err;
        assert!(all.contains("[2Jroot") && !all.contains('\u{1b}'), "{all:?}");
    }
}
