//! Workers that hang, die, or answer what is no answer: the job is given up, the lease goes back, the
//! worker is replaced, and the campaign goes on.

use std::path::Path;

use serde_json::Value;

use crate::support::{Campaign, engine, enough, fake, until_enough};

fn bad(how: &str, times: u32) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/campaign/bad_worker.py");
    let dir = engine("").display().to_string();
    let script = script.display().to_string();
    vec!["python3".to_owned(), script, dir, how.to_owned(), times.to_string()]
}

fn count(report: &Value, field: &str, word: &str) -> u64 {
    report[field][word].as_u64().unwrap_or(0)
}

#[test]
fn a_worker_that_dies_costs_its_job_and_is_replaced() {
    until_enough(4, |seconds| {
        let mut campaign = Campaign::new();
        let report = campaign.run(
            &format!("--seconds {seconds} --coordinators 2 --quiet"),
            &fake("--branches 48 --query-ms 5 --die-at 30"),
        );
        assert_eq!(report["duplicates"]["by_target"], 0, "{report:#}");
        campaign.assert_queue_is_dense();
        campaign.assert_nothing_is_left();
        let much = count(&report, "workers", "died") >= 2
            && count(&report, "workers", "started") > 2
            && report["commits"]["committed"].as_u64().unwrap() > 2;
        enough(much, &report)
    });
}

#[test]
fn a_worker_that_is_silent_for_too_long_is_killed() {
    until_enough(5, |seconds| {
        let mut campaign = Campaign::new();
        // A busy machine may keep one silent that hangs at nothing.
        let flags = format!("--seconds {seconds} --coordinators 1 --silence 1500ms --quiet");
        let worker = campaign.marked(bad("hangs", 0));
        let report = campaign.run(&flags, &worker);
        assert_eq!(report["commits"]["committed"], 0, "{report:#}");
        campaign.assert_nothing_is_left();
        let much =
            count(&report, "workers", "silent") >= 2 && count(&report, "dropped", "silent") >= 2;
        enough(much, &report)
    });
}

#[test]
fn a_worker_is_believed_only_as_far_as_it_can_be_checked() {
    for how in ["garbage", "wrong-id", "other-targets", "wrong-digest"] {
        until_enough(2, |seconds| {
            let mut campaign = Campaign::new();
            let flags = format!("--seconds {seconds} --coordinators 1 --quiet");
            let report = campaign.run(&flags, &bad(how, 0));
            assert_eq!(count(&report, "dropped", "garbage"), count(&report, "workers", "garbage"));
            assert_eq!(report["commits"]["committed"], 0, "{how}: {report:#}");
            assert_eq!(report["published"]["files"], 0, "{how}: {report:#}");
            campaign.assert_nothing_is_left();
            enough(count(&report, "workers", "garbage") >= 1, &report)
        });
    }
}

#[test]
fn a_job_that_ends_worker_after_worker_is_set_aside() {
    until_enough(6, |seconds| {
        let mut campaign = Campaign::new();
        let flags = format!("--seconds {seconds} --coordinators 1 --quiet");
        campaign.run(&flags, &bad("garbage", 0));
        let mut tries = std::collections::BTreeMap::new();
        for event in campaign.events(1) {
            if event["event"] == "granted" {
                *tries.entry(event["work"].as_str().unwrap().to_owned()).or_insert(0) += 1;
            }
        }
        assert!(tries.values().all(|tries| *tries <= 2), "{tries:?}");
        campaign.assert_nothing_is_left();
        // It went on to other jobs.
        enough(tries.len() >= 2, &tries)
    });
}

#[test]
fn a_worker_that_never_starts_ends_the_campaign_before_it_begins() {
    let mut campaign = Campaign::new();
    campaign.start("--seconds 5 --coordinators 1", &["false".to_owned()]);
    let ended = campaign.wait();
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("worker"), "{}", ended.stderr);
    assert!(!campaign.dir().exists());
}
