//! Coordinators that die, stop and come back; a supervisor that is killed.

use crate::stopping::stop_between_steps;
use crate::support::{Campaign, LONG, await_end, fake, pause, signal};

/// B31: a crash must not leave work stuck. No ttl passes in this test.
#[test]
fn what_a_killed_coordinator_held_is_taken_over_long_before_its_ttl() {
    let mut campaign = Campaign::new();
    let worker = campaign.marked(fake("--branches 64 --query-ms 100"));
    let flags = "--coordinators 2 --ttl 1h --hold 1:decide:1h --quiet";
    campaign.start(&format!("{LONG} {flags}"), &worker);
    let pid = campaign.coordinator(1);
    let staged = campaign.await_event(1, "staged", |_| true);
    let work = staged["work"].as_str().unwrap();
    let token = campaign.token_of(work).unwrap();
    let held: Vec<u64> = campaign.targets_under(&token);
    assert!(!held.is_empty());
    // Held as long as it lives: the other one goes about its own business.
    campaign.await_event(2, "committed", |_| true);
    assert_eq!(campaign.targets_under(&token), held);
    signal(pid, "KILL");

    campaign.await_superseded(2, work);
    assert_eq!(
        campaign.targets_under(&token),
        [0; 0],
        "nothing is left under the dead one's token"
    );
    let report = campaign.stop();
    assert_eq!(report["ended"][0]["how"], "signal: 9 (SIGKILL)", "{report:#}");
    assert_eq!(report["commits"]["twice"], 0, "{report:#}");
    campaign.assert_queue_is_dense();
    campaign.assert_nothing_is_left();
}

/// The same, with the next holder in sight: it is alone, and its fence is higher.
#[test]
fn whoever_takes_over_from_a_killed_coordinator_holds_the_group_alone_under_a_higher_fence() {
    let mut campaign = Campaign::new();
    let worker = campaign.marked(fake("--branches 64 --query-ms 20"));
    let flags = format!("{LONG} --coordinators 1 --ttl 1h --hold 1:decide:1h --quiet");
    campaign.start(&flags, &worker);
    let pid = campaign.coordinator(1);
    let staged = campaign.await_event(1, "staged", |_| true);
    let work = staged["work"].as_str().unwrap().to_owned();
    let dead = campaign.token_of(&work).unwrap();
    let held = campaign.targets_under(&dead);
    signal(pid, "KILL");
    let ended = campaign.wait();
    assert_eq!(ended.code, Some(1), "a coordinator that died is told: {}", ended.stderr);

    // Nobody was there to take over. The next run begins with what this one left.
    campaign.start(&flags, &worker);
    let taken = campaign.await_event(1, "granted", |e| e["work"] == work.as_str());
    assert_eq!(taken["takeover"], true, "{taken}");
    campaign.await_event(1, "staged", |e| e["work"] == work.as_str());
    let token = campaign.token_of(&work).unwrap();
    assert!(token > dead, "{token} after {dead}");
    assert_eq!(campaign.targets_under(&token), held);
    assert_eq!(campaign.targets_under(&dead), [0; 0]);
    let leased = campaign.leased();
    assert_eq!(leased.len(), held.len(), "one holder: {leased:?}");
    signal(campaign.coordinator(1), "KILL");
    assert_eq!(campaign.wait().code, Some(1));

    // Without the pause all of it comes to an end.
    campaign.start(&format!("{LONG} --coordinators 1 --ttl 1h --quiet"), &worker);
    campaign.await_superseded(1, &work);
    let report = campaign.stop();
    assert!(report["claims"]["takeovers"].as_u64().unwrap() >= 1, "{report:#}");
    campaign.assert_nothing_is_left();
}

/// A record in a file says nothing that another host could rely on: there it is the ttl that counts.
#[test]
fn on_files_a_killed_coordinators_job_is_taken_over_and_its_targets_are_free_after_the_ttl() {
    let mut campaign = Campaign::in_memory();
    let worker = campaign.marked(fake("--branches 64 --query-ms 250"));
    let flags = "--engine files --coordinators 2 --ttl 5s --quiet";
    campaign.start(&format!("{LONG} {flags}"), &worker);
    let (pid, work, dead) = campaign.stop_in_a_job(1);
    signal(pid, "KILL");
    let held = campaign.targets_under(&dead);
    assert!(!held.is_empty(), "the dead one's lease stands until its ttl");

    campaign.await_superseded(2, &work);
    assert_eq!(campaign.targets_under(&dead), [0; 0], "free after the ttl");
    let report = campaign.stop();
    assert_eq!(report["ended"][0]["how"], "signal: 9 (SIGKILL)", "{report:#}");
    assert_eq!(report["commits"]["twice"], 0, "{report:#}");
    assert_eq!(report["duplicates"]["by_target"], 0, "{report:#}");
    campaign.assert_queue_is_dense();
    campaign.assert_nothing_is_left();
}

/// B26, B27, B36: a coordinator that was stopped past its ttl and taken over comes back with a result.
#[test]
fn a_late_commit_is_refused_by_the_fence_and_publishes_nothing() {
    a_late_commit("journal");
}

#[test]
fn on_files_a_late_commit_is_refused_by_the_fence_and_publishes_nothing() {
    a_late_commit("files");
}

fn a_late_commit(engine: &str) {
    let mut campaign = Campaign::in_memory();
    // It is stopped in its pause, and taken over while it is.
    let flags = "--coordinators 2 --ttl 3s --hold 1:decide:8s --quiet";
    let flags = format!("{LONG} --engine {engine} {flags}");
    campaign.start(&flags, &fake("--branches 64 --query-ms 20"));
    let pid = campaign.coordinator(1);
    let staged = campaign.await_event(1, "staged", |_| true);
    let work = staged["work"].as_str().unwrap().to_owned();
    stop_between_steps(pid, &campaign.dir());
    campaign.await_superseded(2, &work);
    let staged_by_both = campaign.assert_queue_is_dense();
    signal(pid, "CONT");

    let refused = campaign.await_event(1, "fence-refused", |_| true);
    assert_eq!(refused["work"], work.as_str());
    assert_eq!(refused["step"], "begin-commit", "{refused}");
    let report = campaign.stop();
    assert_eq!(report["commits"]["twice"], 0, "{report:#}");
    assert_eq!(report["commits"]["fence_refused"]["begin-commit"], 1, "{report:#}");
    assert!(campaign.assert_queue_is_dense() >= staged_by_both);
    campaign.assert_nothing_is_left();
}

/// B36 (a): it slept past its ttl and nobody took over. What it had in hand is judged by the fence; at
/// most one job is dropped, and the run goes on.
#[test]
fn a_coordinator_that_slept_alone_goes_on() {
    let mut campaign = Campaign::in_memory();
    let flags = format!("{LONG} --coordinators 1 --ttl 3s --quiet");
    campaign.start(&flags, &fake("--branches 64 --query-ms 50"));
    let pid = campaign.coordinator(1);
    campaign.await_event(1, "granted", |_| true);
    stop_between_steps(pid, &campaign.dir());
    let before = campaign.events(1);
    for _ in 0..175 {
        pause();
    }
    signal(pid, "CONT");
    // Two more, of which one may have been done when it was stopped.
    campaign.await_more(1, "committed", &before, 2);
    let report = campaign.stop();
    assert_eq!(report["commits"]["twice"], 0, "{report:#}");
    assert!(report["commits"]["committed"].as_u64().unwrap() > 1, "{report:#}");
    campaign.assert_queue_is_dense();
    campaign.assert_nothing_is_left();
}

/// B30, B31: the commit was decided, and its coordinator died before anything was published.
#[test]
fn a_committing_item_is_finished_by_a_survivor() {
    let mut campaign = Campaign::new();
    let flags = format!("{LONG} --coordinators 2 --ttl 1h --hold 1:publish:1h --quiet");
    campaign.start(&flags, &fake("--branches 64 --query-ms 20"));
    let pid = campaign.coordinator(1);
    let committing = campaign.await_event(1, "committing", |_| true);
    let work = committing["work"].as_str().unwrap().to_owned();
    assert!(campaign.work().contains(&(work.clone(), "committing")));
    signal(pid, "KILL");

    let finished = campaign.await_event(2, "committed", |e| e["work"] == work.as_str());
    assert_eq!(finished["recovered"], true);
    assert!(campaign.work().contains(&(work.clone(), "done")));
    let report = campaign.stop();
    assert_eq!(report["ended"][0]["how"], "signal: 9 (SIGKILL)", "{report:#}");
    assert_eq!(report["commits"]["recovered"], 1, "{report:#}");
    assert_eq!(report["commits"]["twice"], 0, "{report:#}");
    campaign.assert_queue_is_dense();
    campaign.assert_nothing_is_left();
}

/// A commit whose coordinator is only slow: both publish, once.
#[test]
fn a_commit_that_a_survivor_finished_is_not_published_again_by_its_own_coordinator() {
    let mut campaign = Campaign::in_memory();
    // It is stopped in its pause, so that it is not done before the other however slow that is.
    let flags = format!("{LONG} --coordinators 2 --ttl 2s --hold 1:publish:8s --quiet");
    campaign.start(&flags, &fake("--branches 64 --query-ms 20"));
    let pid = campaign.coordinator(1);
    let committing = campaign.await_event(1, "committing", |_| true);
    let work = committing["work"].as_str().unwrap().to_owned();
    stop_between_steps(pid, &campaign.dir());
    let before = campaign.events(1);
    let finished = campaign.await_event(2, "committed", |e| e["work"] == work.as_str());
    assert_eq!(finished["recovered"], true);
    signal(pid, "CONT");
    // It writes that down once a second, and not before it has done its part of the commit.
    campaign.await_more(1, "usage", &before, 1);
    let report = campaign.stop();
    let own = campaign.events(1);
    assert!(!own.iter().any(|e| e["event"] == "committed" && e["work"] == work.as_str()));
    assert_eq!(report["commits"]["twice"], 0);
    campaign.assert_queue_is_dense();
    campaign.assert_nothing_is_left();
}

#[test]
fn a_killed_supervisor_takes_coordinators_and_workers_with_it() {
    let mut campaign = Campaign::new();
    let worker = campaign.marked(fake("--branches 64 --query-ms 500"));
    campaign.start(&format!("{LONG} --coordinators 2 --quiet"), &worker);
    let pids = [campaign.coordinator(1), campaign.coordinator(2)];
    campaign.await_event(1, "granted", |_| true);
    signal(campaign.supervisor(), "KILL");
    let ended = campaign.wait();
    assert_eq!(ended.signal, Some(9));
    for pid in pids {
        await_end(pid);
    }
    campaign.assert_no_process_is_left();
    // They were told in time to give everything back.
    assert_eq!(campaign.leased(), []);
}
