//! Whole runs.

use crate::support::{Campaign, LONG, TooLittle, enough, fake, signal, until_enough};

#[test]
fn with_group_leases_nothing_is_solved_twice_and_nothing_is_left() {
    nothing_twice("journal");
}

#[test]
fn on_files_nothing_is_solved_twice_and_nothing_is_left() {
    nothing_twice("files");
}

fn nothing_twice(engine: &str) {
    until_enough(4, |seconds| nothing_twice_in(engine, seconds));
}

/// Whether there was enough that could have been done twice.
fn nothing_twice_in(engine: &str, seconds: u32) -> Result<(), TooLittle> {
    let mut campaign = Campaign::new();
    // On files a claim alone is so many syncs that a slow disk needs longer for it than a short ttl lasts.
    let ttl = if engine == "files" { "10m" } else { "10s" };
    let flags = "--coordinators 3 --name made-up --quiet";
    let flags = format!("--engine {engine} --ttl {ttl} --seconds {seconds} {flags}");
    let report = campaign.run(&flags, &fake("--branches 64 --query-ms 10"));
    assert_eq!(report["engine"], engine);
    let beats = &report["heartbeats"];
    if engine == "journal" && beats["failed"] == 0 {
        assert!(beats["syncs"].as_u64() <= beats["batches"].as_u64(), "{report:#}");
    }
    assert_eq!(report["duplicates"]["by_target"], 0, "{report:#}");
    assert_eq!(report["duplicates"]["by_target_and_seed"], 0, "{report:#}");
    assert_eq!(report["duplicates"]["traces"], 0, "{report:#}");
    assert_eq!(report["commits"]["twice"], 0);
    assert_eq!(report["commits"]["committed"], report["claims"]["granted"], "{report:#}");
    let published = campaign.assert_queue_is_dense();
    assert_eq!(report["published"]["files"].as_u64(), Some(published as u64));
    campaign.assert_nothing_is_left();
    let coverage = &report["coverage"];
    let much = report["claims"]["granted"].as_u64().unwrap() >= 10
        && report["solves"]["sat"].as_u64().unwrap() >= 10
        && coverage["targets"].as_u64() > coverage["seeds"].as_u64()
        && published > 0;
    enough(much, &report)
}

#[test]
fn without_leases_the_same_is_solved_again_and_again() {
    for (arm, what) in [("none", "by_target_and_seed"), ("ledger", "by_target")] {
        until_enough(3, |seconds| {
            let mut campaign = Campaign::new();
            let flags = format!("--seconds {seconds} --coordinators 2 --arm {arm} --quiet");
            let report = campaign.run(&flags, &fake("--branches 64 --query-ms 20"));
            assert_eq!(report["commits"]["twice"], 0);
            campaign.assert_queue_is_dense();
            campaign.assert_nothing_is_left();
            enough(report["duplicates"][what].as_u64().unwrap() > 0, &report)
        });
    }
}

#[test]
fn two_workers_of_one_coordinator_never_share_a_target() {
    until_enough(3, |seconds| {
        let mut campaign = Campaign::new();
        let flags = "--coordinators 1 --workers 3 --arm ledger --quiet";
        let flags = format!("--seconds {seconds} {flags}");
        let report = campaign.run(&flags, &fake("--branches 64 --query-ms 20"));
        assert_eq!(report["duplicates"]["by_target"], 0, "{report:#}");
        assert_eq!(report["duplicates"]["by_target_and_seed"], 0, "{report:#}");
        campaign.assert_nothing_is_left();
        enough(report["claims"]["granted"].as_u64().unwrap() >= 6, &report)
    });
}

#[test]
fn a_second_run_goes_on_where_the_first_one_ended() {
    let mut campaign = Campaign::new();
    let worker = fake("--branches 48 --query-ms 5");
    let first = campaign.run("--seconds 2 --coordinators 2 --quiet", &worker);
    let second = campaign.run("--seconds 2 --coordinators 2 --quiet", &worker);
    assert_eq!(second["run"], 2);
    // The second run's queue begins with everything the first one published.
    let files = |report: &serde_json::Value| report["published"]["files"].as_u64();
    assert!(files(&second) >= files(&first), "{first:#} {second:#}");
    let reached = |report: &serde_json::Value| report["coverage"]["targets"].as_u64();
    assert!(reached(&second) >= reached(&first));
    assert_eq!(second["duplicates"]["by_target"], 0);
    campaign.assert_nothing_is_left();
}

#[test]
fn a_directory_of_another_build_arm_engine_or_ttl_is_refused_and_left_as_it_is() {
    let mut campaign = Campaign::new();
    campaign.run("--seconds 1 --coordinators 1 --quiet", &fake("--branches 32"));
    for (flags, worker, word) in [
        ("--seconds 1", fake("--branches 33"), "build-id"),
        ("--seconds 1 --arm none", fake("--branches 32"), "arm"),
        ("--seconds 1 --engine files", fake("--branches 32"), "engine is journal"),
        ("--seconds 1 --ttl 7s", fake("--branches 32"), "ttl"),
    ] {
        campaign.start(flags, &worker);
        let ended = campaign.wait();
        assert_eq!(ended.code, Some(66), "{}", ended.stderr);
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
        assert!(!campaign.dir().join("runs/002").exists());
    }
}

#[test]
fn an_interrupt_ends_everything_and_gives_everything_back() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut campaign = Campaign::new();
        let worker = campaign.marked(fake("--branches 64 --query-ms 200"));
        campaign.start(&format!("{LONG} --coordinators 2 --quiet"), &worker);
        campaign.await_event(1, "granted", |_| true);
        campaign.await_event(2, "granted", |_| true);
        signal(campaign.supervisor(), name);
        let ended = campaign.wait();
        assert_eq!((ended.code, ended.signal), (Some(code), None), "{}", ended.stderr);
        assert_eq!(campaign.report()["interrupted"], code - 128);
        campaign.assert_queue_is_dense();
        campaign.assert_nothing_is_left();
    }
}

#[test]
fn one_campaign_at_a_time_works_in_a_directory() {
    let mut campaign = Campaign::new();
    campaign.start(&format!("{LONG} --coordinators 1 --quiet"), &fake("--query-ms 50"));
    campaign.coordinator(1);
    let lock = campaign.dir().join("campaign.lock");
    assert!(lock.is_file());
    let seeds = campaign.dir().join("../seeds");
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_ringfence"));
    second.arg("campaign").arg("--dir").arg(campaign.dir()).arg("--seeds").arg(seeds);
    second.args(["--frozen", "--seconds", "1", "--quiet", "--"]).args(fake("--query-ms 50"));
    second.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = second.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("campaign.lock"), "{said}");
    signal(campaign.supervisor(), "TERM");
    campaign.wait();
}
