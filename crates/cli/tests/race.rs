//! `ringfence race` and `ringfence bench` for real, in small.

use serde_json::Value;

use crate::support::{Ran, ringfence, signal, sleep, spawn};

fn is_empty(dir: &std::path::Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn ten_rounds_have_exactly_one_winner_each_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ran =
        Ran::of(ringfence().args(["race", "--rounds", "10", "--json", "--dir"]).arg(dir.path()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let report = ran.json();
    assert_eq!(report["single_winner_rounds"], 10, "{report}");
    let wins = report["wins_a"].as_u64().unwrap() + report["wins_b"].as_u64().unwrap();
    assert_eq!(wins, 10, "{report}");
    for none in ["partial_publications", "leftover_records", "leftover_temporaries", "hangs"] {
        assert_eq!(report[none], 0, "{none}: {report}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn a_race_that_is_interrupted_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let child = spawn(ringfence().args(["race", "--rounds", "10000", "--dir"]).arg(dir.path()));
    super::run::until("the race to begin", || !is_empty(dir.path()));
    sleep(std::time::Duration::from_millis(300));
    signal(&child, "TERM");
    assert_eq!(Ran::wait(child).code, 143);
    assert!(is_empty(dir.path()));
}

#[test]
fn a_bench_counts_two_directory_syncs_per_target_or_per_touched_shard() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = ringfence();
    bench.args(["bench", "--targets", "12", "--shards", "1,4", "--rounds", "1", "--json", "--dir"]);
    let ran = Ran::of(bench.arg(dir.path()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let report = ran.json();
    for table in report["tables"].as_array().unwrap() {
        let touched = table["touched"].as_u64().unwrap();
        assert!(touched >= 1 && touched <= table["shards"].as_u64().unwrap());
        let arms = table["arms"].as_array().unwrap();
        let of = |field: &str, kind: &str| -> Vec<u64> {
            arms.iter().map(|arm| arm[field][kind].as_u64().unwrap()).collect()
        };
        let batched = 2 * touched;
        assert_eq!(of("counts", "directory_syncs"), [24, batched, batched, batched, batched]);
        // Scalar, then batch and overlapped, each without and with an intent: one data sync more to
        // write it and one to retire it.
        assert_eq!(of("claim_syncs", "files"), [12, 12, 14, 12, 14], "{table}");
        assert_eq!(of("release_syncs", "files"), [0, 0, 2, 0, 2], "{table}");
        assert_eq!(of("claim_syncs", "directories")[1..], [touched; 4], "{table}");
        for (number, arm) in arms.iter().enumerate() {
            assert_eq!(arm["counts"]["file_syncs"], arm["file_syncs_promised"], "{arm}");
            assert!(arm["cycle_ms"]["median"].as_f64().unwrap() > 0.0, "{arm}");
            let group = [2, 4].contains(&number);
            assert_eq!(arm["durability"], if group { "group" } else { "record" });
            assert_eq!(arm["of_record"].as_f64().is_some_and(|ratio| ratio > 0.0), group, "{arm}");
        }
        assert!(table["floor_ms"]["median"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(report["outcome"], Value::from("measured"));
    assert!(is_empty(dir.path()));
}

#[test]
fn a_bench_beside_peers_is_told_where_it_is() {
    let ran = Ran::of(ringfence().args(["bench", "--peers", "--json"]));
    assert_eq!((ran.code, &ran.json()["outcome"]), (64, &Value::from("usage")));
    assert!(ran.json()["error"].as_str().unwrap().contains("cargo xtask bench --peers"));
}

#[test]
fn a_bench_on_an_image_of_its_own_takes_it_away_when_it_is_interrupted() {
    assert!(rustix::process::geteuid().is_root(), "mounting an image needs root");
    let dir = tempfile::tempdir().unwrap();
    let mut bench = ringfence();
    let child =
        spawn(bench.args(["bench", "--ext4", "--rounds", "100000", "--dir"]).arg(dir.path()));
    super::run::until("the measurement to begin", || {
        let loops = std::fs::read_dir("/sys/block").unwrap();
        loops.map(Result::unwrap).any(|device| {
            let file = device.path().join("loop/backing_file");
            std::fs::read_to_string(file)
                .is_ok_and(|name| name.starts_with(dir.path().to_str().unwrap()))
        })
    });
    sleep(std::time::Duration::from_millis(300));
    signal(&child, "INT");
    assert_eq!(Ran::wait(child).code, 130);
    assert!(is_empty(dir.path()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
}
