//! The whole tool, small: every embedded contender does every work, and the syncs that it counts are
//! those that the kernel sees.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

use std::process::{Command, Output};

use serde_json::Value;

const EMBEDDED: &str =
    "journal,files-group,files-record,f325,sqlite,sqlite-fair,lmdb,redb,redb-multi";

fn bench(arguments: &[&str]) -> (Output, Value) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence-bench"));
    let output =
        command.args(arguments).arg("--json").arg("--on").arg(dir.path()).output().unwrap();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let answer = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, answer)
}

/// What `work` gave for `contender`.
fn row<'a>(answer: &'a Value, work: &str, contender: &str) -> &'a Value {
    let tables = answer["works"].as_array().unwrap();
    let table = tables.iter().find(|table| table["work"] == work).unwrap();
    let rows = table["rows"].as_array().unwrap();
    rows.iter().find(|row| row["contender"] == contender).unwrap_or(&Value::Null)
}

#[test]
fn every_embedded_contender_does_every_work_and_no_target_has_two_holders() {
    let (output, answer) = bench(&["--quick", "--peer", EMBEDDED]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{answer}");
    assert_eq!(
        (&answer["outcome"], answer["troubles"].as_array().unwrap().len()),
        (&"quick".into(), 0)
    );
    let works = ["solo64", "solo8", "solo1", "eight8", "eight64", "overlap8", "heartbeat"];
    for work in works {
        for contender in EMBEDDED.split(',') {
            if contender == "redb" && ["eight8", "eight64", "overlap8"].contains(&work) {
                continue;
            }
            let row = row(&answer, work, contender);
            assert!(row["cycles"].as_u64().unwrap() > 0, "{contender} did nothing at {work}");
            assert_eq!(row["violations"], 0, "{contender} at {work}");
        }
    }
}

#[test]
fn syncs_are_counted_as_the_protocols_promise_them() {
    let (output, answer) = bench(&["--quick", "--work", "solo8,heartbeat", "--peer", EMBEDDED]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let syncs =
        |work, contender| row(&answer, work, contender)["syncs_per_cycle"]["median"].as_f64();
    // Exactly one per call for the floor; a B-tree's page may need one more now and then.
    assert_eq!((syncs("solo8", "floor"), syncs("heartbeat", "floor")), (Some(2.0), Some(1.0)));
    for contender in ["journal", "sqlite", "redb"] {
        let counted = syncs("solo8", contender).unwrap();
        assert!((2.0..4.0).contains(&counted), "{contender}: {counted}");
    }
    // LMDB writes its meta page through a descriptor of its own that syncs every write.
    assert!(syncs("solo8", "lmdb").unwrap() >= 4.0);
    assert!(syncs("solo8", "f325").unwrap() >= 8.0);
}

#[test]
fn what_is_preloaded_counts_every_sync_that_the_kernel_sees() {
    let dir = tempfile::tempdir().unwrap();
    let (library, counter) = (dir.path().join("shim.so"), dir.path().join("count"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/shim.c");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", source, "-ldl", "-o"]);
    assert!(compile.arg(&library).status().unwrap().success());
    std::fs::write(&counter, [0; 64]).unwrap();
    let place = dir.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let table = dir.path().join("table");
    let mut strace = Command::new("/usr/bin/strace");
    strace.args(["-f", "-c", "-e", "trace=fsync,fdatasync,syncfs,msync", "-o"]).arg(&table);
    strace.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
    strace.arg("-E").arg(format!("RINGFENCE_BENCH_COUNT={}", counter.display()));
    strace.arg(env!("CARGO_BIN_EXE_ringfence-bench"));
    strace.args(["--quick", "--work", "solo8,eight8", "--peer", "journal,f325,sqlite,redb-multi"]);
    // Without a compiler the tool preloads nothing by itself, so that all its processes count here.
    let output = strace.arg("--on").arg(&place).env("PATH", &place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = std::fs::read_to_string(&table).unwrap();
    let calls = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let sync = ["fsync", "fdatasync", "syncfs", "msync"].contains(words.last()?);
        sync.then(|| words[3].parse::<u64>().unwrap())
    };
    let seen: u64 = table.lines().filter_map(calls).sum();
    let counted = std::fs::read(&counter).unwrap();
    let counted = u64::from_le_bytes(counted[..8].try_into().unwrap());
    assert!(seen > 100, "{table}");
    assert_eq!(counted, seen, "{table}");
}

#[test]
fn a_slow_sync_makes_the_floor_slow() {
    let arguments = ["--quick", "--peer", "floor", "--work", "solo8", "--slow-sync", "20ms"];
    let (output, answer) = bench(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Two syncs, each 20 ms longer: no measurement, the library was preloaded or it was not.
    assert!(row(&answer, "solo8", "floor")["p50_ms"]["min"].as_f64().unwrap() >= 40.0);
}

#[test]
fn a_peer_that_does_not_exist_is_refused() {
    let (output, _) = bench(&["--quick", "--peer", "berkeleydb"]);
    assert_eq!(output.status.code(), Some(2));
}
