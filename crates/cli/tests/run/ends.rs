//! The wrapper's own death.

use std::time::Duration;

use super::{Bed, Log, PATIENCE, lives, spawn, until, until_done};
use crate::support::{Ran, sleep};

#[test]
fn b63_the_command_dies_with_its_wrapper() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    // With a wait the claim runs on a thread that is gone before the command starts: its end must
    // not count as ours.
    let script = format!("sleep 0.3; echo $$ > {}; exec sleep 600", log.path());
    let mut child = spawn(&mut bed.run(&["--wait", "5s"], &["sh", "-c", &script]));
    let pid = log.wait(1, &mut child)[0].clone();
    assert!(lives(&pid));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the command to die", || !lives(&pid));
}

/// By default the lease goes with the wrapper: nobody waits for the ttl.
#[test]
fn the_lease_is_over_when_its_wrapper_is_killed() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!("echo $$ > {}; exec sleep 600", log.path());
    let mut child = spawn(&mut bed.run(&["--ttl", "1h"], &["sh", "-c", &script]));
    let pid = log.wait(1, &mut child)[0].clone();
    assert_eq!(bed.contend(), 75, "held while the wrapper lives");
    child.kill().unwrap();
    child.wait().unwrap();
    // Whatever the command started has worked under the lease too: it is over with the last of them.
    until_done("the lease to be over", || match bed.contend() {
        0 => {
            assert!(!lives(&pid), "over while the command was alive");
            Ok(())
        }
        code => Err(format!("{code}; the command lives: {}", lives(&pid))),
    });
}

/// A record in a file says nothing that another host could rely on.
#[test]
fn on_files_the_lease_of_a_killed_wrapper_stands_until_its_ttl() {
    let bed = Bed::files();
    let log = Log(bed.path("log"));
    let script = format!("echo $$ > {}; exec sleep 600", log.path());
    let mut child = spawn(&mut bed.run(&["--ttl", "1h"], &["sh", "-c", &script]));
    let pid = log.wait(1, &mut child)[0].clone();
    child.kill().unwrap();
    child.wait().unwrap();
    until("the command to die", || !lives(&pid));
    assert_eq!(bed.contend(), 75);
}

/// Nor does `claim` tie its lease to anything: its process has ended when its caller begins to work.
#[test]
fn a_lease_that_was_claimed_alone_stands_until_its_ttl() {
    for bed in Bed::both() {
        let claim = ["--targets", "1,2", "--owner", "a", "--ttl", "1h"];
        assert_eq!(Ran::of(&mut bed.command("claim", &claim)).code, 0);
        for _ in 0..3 {
            assert_eq!(bed.contend(), 75);
        }
    }
}

#[test]
fn b63_a_wrapper_killed_around_the_fork_leaves_no_command_behind() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!("echo $$ >> {}; exec sleep 600", log.path());
    let mut started = 0;
    // The fork comes some milliseconds after the start, on a busy machine many more: the kills go on
    // until they fell on both sides of it.
    let mut apart = Duration::from_micros(1500);
    let mut begun = 0;
    while begun == 0 {
        assert!(apart < PATIENCE / 24, "not one of them comes to its command");
        for step in 0..24 {
            started += 1;
            let target = (100 + started).to_string();
            let mut command =
                bed.command("run", &["-t", &target, "-o", "a", "--", "sh", "-c", &script]);
            let mut child = spawn(&mut command);
            sleep(apart * step);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        sleep(Duration::from_millis(200));
        until("every command to die", || log.lines().iter().all(|pid| !lives(pid)));
        begun = log.lines().len();
        apart *= 2;
    }
    assert!(begun < started, "the kills fell on both sides of the fork: {begun}");
}

#[test]
fn without_die_with_parent_the_command_lives_on_and_the_lease_runs_out() {
    Bed::on_both(|bed| {
        let log = Log(bed.path("log"));
        let script = format!("echo $$ > {}; exec sleep 600", log.path());
        let options = ["--no-die-with-parent", "--ttl", "5s"];
        let mut child = spawn(&mut bed.run(&options, &["sh", "-c", &script]));
        let pid = log.wait(1, &mut child)[0].clone();
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = bed.updated(2);
        bed.until_contended();
        let since = bed.updated(2) - killed;
        let lived = lives(&pid);
        let ended = std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
        assert!(lived && ended.success());
        assert!(since >= 5.0, "not before its ttl: {since}");
    });
}

#[test]
fn a_command_that_left_a_process_behind_is_done_all_the_same() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!("sleep 600 >/dev/null 2>&1 & echo $! > {}; exit 5", log.path());
    let child = spawn(&mut bed.run(&[], &["sh", "-c", &script]));
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 5, "{ran:?}");
    bed.assert_free();
    let pid = log.lines()[0].clone();
    let lived = lives(&pid);
    let _ = std::process::Command::new("kill").args(["-KILL", &pid]).status();
    assert!(lived, "it is nobody's business but its own");
}

#[test]
fn a_child_signal_that_was_ignored_at_the_start_does_not_hide_the_commands_end() {
    let bed = Bed::new();
    let run = bed.run(&[], &["sh", "-c", "exit 8"]);
    let script = "import os, signal, sys\n\
                  signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                  os.execv(sys.argv[1], sys.argv[1:])\n";
    let mut python = std::process::Command::new("python3");
    let child = spawn(python.args(["-c", script]).arg(run.get_program()).args(run.get_args()));
    assert_eq!(Ran::wait(child).code, 8);
    bed.assert_free();
}
