//! A real program, a real engine, a real fuzzer: lz4's frame decoder.
//!
//! Behind the feature `real-campaign`: `cargo xtask test --only campaign` builds what they need, says
//! where it is, and runs them.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Campaign, LONG, engine, enough, signal, until_enough};

struct Lz4 {
    dir: PathBuf,
    python: String,
}

impl Lz4 {
    fn find() -> Self {
        let var = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        Self { dir: var("CAMPAIGN_LZ4").into(), python: var("CAMPAIGN_PYTHON") }
    }

    fn campaign(&self) -> Campaign {
        Campaign::on(self.dir.join("seeds"))
    }

    fn worker(&self) -> Vec<String> {
        let image = self.dir.join("program.elf").display().to_string();
        vec![self.python.clone(), engine("triton_worker.py").display().to_string(), image]
    }
}

fn number(report: &Value, section: &str, field: &str) -> u64 {
    report[section][field].as_u64().unwrap_or_else(|| panic!("{section}.{field}: {report:#}"))
}

#[test]
fn on_lz4_group_leases_leave_no_duplicate_solve_and_their_absence_leaves_some() {
    let lz4 = Lz4::find();
    for arm in ["group", "none"] {
        until_enough(20, |seconds| {
            let mut campaign = lz4.campaign();
            let flags = format!("--seconds {seconds} --coordinators 2 --arm {arm} --quiet");
            let report = campaign.run(&flags, &lz4.worker());
            assert_eq!(number(&report, "commits", "twice"), 0, "{report:#}");
            let duplicates = ["by_target", "by_target_and_seed"];
            let duplicates = duplicates.map(|by| number(&report, "duplicates", by));
            if arm == "group" {
                assert_eq!(duplicates, [0, 0], "{report:#}");
            }
            campaign.assert_queue_is_dense();
            campaign.assert_nothing_is_left();
            let much = number(&report, "solves", "sat") > 0
                && number(&report, "published", "files") > 0
                && (arm == "group" || duplicates[0] > 0 && duplicates[1] > 0);
            enough(much, &report)
        });
    }
}

#[test]
fn on_lz4_a_killed_coordinators_job_is_taken_over_or_cleared_away() {
    let lz4 = Lz4::find();
    let mut campaign = lz4.campaign();
    campaign.start(&format!("{LONG} --coordinators 2 --quiet"), &lz4.worker());
    let (pid, work, _) = campaign.stop_in_a_job(1);
    assert!(campaign.work().contains(&(work.clone(), "leased")));
    signal(pid, "KILL");
    // What a survivor's own outputs reached meanwhile is not worth a take-over: then the item is
    // removed, and the rest comes up in other groups.
    campaign.await_superseded(2, &work);
    let report = campaign.stop();
    assert_eq!(number(&report, "commits", "twice"), 0, "{report:#}");
    assert_eq!(number(&report, "duplicates", "by_target"), 0, "{report:#}");
    campaign.assert_queue_is_dense();
    campaign.assert_nothing_is_left();
}

#[test]
fn on_lz4_the_live_fuzzer_looks_at_every_file_that_is_published() {
    let lz4 = Lz4::find();
    let program = lz4.dir.join("program.afl").display().to_string();
    until_enough(12, |seconds| {
        let mut campaign = lz4.campaign();
        let flags = format!("--program {program} --seconds {seconds} --coordinators 2 --quiet");
        campaign.start_with(&flags, &lz4.worker());
        let ended = campaign.wait();
        // The command itself compares the fuzzer's cursor with the number of files.
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let report = campaign.report();
        let published = campaign.assert_queue_is_dense() as u64;
        assert_eq!(number(&report, "imports", "cursor"), published, "{report:#}");
        assert_eq!(number(&report, "duplicates", "by_target"), 0, "{report:#}");
        campaign.assert_nothing_is_left();
        enough(published > 0 && number(&report, "imports", "executions") > 0, &report)
    });
}
