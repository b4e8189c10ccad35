//! Signals that processes send.

use super::{Bed, Log, PATIENCE, last_words, now, spawn, until_done};
use crate::support::{Ran, signal, sleep, told};
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

const ALL: [(&str, i32); 6] =
    [("HUP", 1), ("INT", 2), ("QUIT", 3), ("TERM", 15), ("USR1", 10), ("USR2", 12)];

#[test]
fn b56_each_signal_reaches_the_command_once_which_is_reaped_before_the_release() {
    std::thread::scope(|scope| {
        for (name, number) in ALL {
            scope.spawn(move || {
                let bed = Bed::new();
                let (script, log) = bed.counter();
                let mut child = spawn(&mut bed.run(&[], &["python3", &script, log.path()]));
                log.wait(1, &mut child);
                signal(&child, name);
                let wrapper = child.id();
                log.wait(2, &mut child);
                assert_eq!(bed.contend(), 75, "{name}: held while the command lives");
                log.end();
                let ran = Ran::wait(child);
                // The wrapper is the sender: the signal was passed on, once.
                let expected = format!("{number} 0 {wrapper}");
                assert_eq!(log.lines(), ["ready".to_owned(), expected], "{name}");
                assert_eq!(ran.code, 7, "{name}: {ran:?}");
                bed.assert_free();
            });
        }
    });
}

#[test]
fn signals_sent_one_after_another_are_each_passed_on_once() {
    let bed = Bed::new();
    let (script, log) = bed.counter();
    let mut child = spawn(&mut bed.run(&[], &["python3", &script, log.path()]));
    log.wait(1, &mut child);
    for sent in 1..=5 {
        signal(&child, "USR1");
        log.wait(1 + sent, &mut child);
    }
    log.end();
    assert_eq!(Ran::wait(child).code, 7);
    assert_eq!(log.lines().len(), 6, "{:?}", log.lines());
}

#[test]
fn b58_a_signal_ends_the_wait_at_once_and_leaves_nothing() {
    let bed = Bed::new();
    // Longer than anybody waits here.
    let held = ["--targets", "2,3", "--owner", "b", "--ttl", "1h"];
    assert_eq!(Ran::of(&mut bed.command("claim", &held)).code, 0);
    let before = bed.records();
    let mark = bed.path("started");
    for (name, number) in ALL {
        let mut child = spawn(&mut bed.run(&["--wait", "2m"], &["touch", mark.to_str().unwrap()]));
        bed.until_waited_for();
        if number == 1 {
            let told = told(&mut child);
            assert!(told.contains("waiting for"), "{told}");
        }
        signal(&child, name);
        let ran = Ran::wait(child);
        assert_eq!(ran.code, 128 + number, "{name}: {ran:?}");
        assert!(ran.took < PATIENCE, "{name}: {ran:?}");
    }
    assert!(!mark.exists());
    assert_eq!(bed.records(), before);
}

#[test]
fn b61_the_lease_is_kept_until_the_command_is_dead_however_long_that_takes() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    // Waited for and not caught: a handler runs only between two steps of the script, and could be late
    // for the call that sleeps.
    let slow = "import os, signal, sys, time\n\
                log = open(sys.argv[1], 'a', buffering=1)\n\
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n\
                log.write('ready\\n')\n\
                signal.sigwait({signal.SIGTERM})\n\
                log.write('term\\n')\n\
                while not os.path.exists(sys.argv[1] + '.end'): time.sleep(0.02)\n\
                sys.exit(9)\n";
    let mut child = spawn(&mut bed.run(&["--ttl", "5s"], &["python3", "-c", slow, log.path()]));
    log.wait(1, &mut child);
    signal(&child, "TERM");
    log.wait(2, &mut child);
    let told = now();
    while now() < told + 6.0 {
        let code = bed.contend();
        assert_eq!(code, 75, "{:?}; it said {:?}", log.lines(), last_words(&mut child));
        sleep(Duration::from_millis(200));
    }
    log.end();
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 9, "{ran:?}");
    bed.assert_free();
    assert_eq!(bed.contend(), 0);
}

#[test]
fn b64_under_nohup_a_hang_up_ends_nothing() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!("echo ready > {}; sleep 0.6; exit 4", log.path());
    let run = bed.run(&[], &["sh", "-c", &script]);
    let mut nohup = std::process::Command::new("nohup");
    let mut child = spawn(nohup.arg(run.get_program()).args(run.get_args()));
    log.wait(1, &mut child);
    signal(&child, "HUP");
    assert_eq!(Ran::wait(child).code, 4);
    bed.assert_free();
}

#[test]
fn a_stop_signal_stops_both_and_a_continue_wakes_both() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!(
        "echo $$ > {}; until test -e {}; do sleep 0.02; done; exit 6",
        log.path(),
        log.end_path().display()
    );
    // A group of its own below a parent in the same session: in an orphaned group, which this test
    // may have been started in, the kernel ignores stops.
    let mut run = bed.run(&["--ttl", "1h"], &["sh", "-c", &script]);
    let mut child = spawn(run.process_group(0));
    let pid = log.wait(1, &mut child)[0].clone();
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").map(|(_, rest)| rest[..1].to_owned())
    };
    let wrapper = child.id().to_string();
    signal(&child, "TSTP");
    until_done("both to stop", || {
        let states = [&pid, &wrapper].map(|pid| state(pid));
        let stopped = states.iter().all(|state| state.as_deref() == Some("T"));
        if stopped { Ok(()) } else { Err(format!("{states:?}")) }
    });
    signal(&child, "CONT");
    log.end();
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 6, "{ran:?}");
    bed.assert_free();
}

/// As below `docker exec` and `nsenter`: the process group began outside and has the number 0.
#[test]
fn in_a_namespace_that_its_group_came_to_from_outside_a_signal_is_passed_on_too() {
    let bed = Bed::new();
    let (script, log) = bed.counter();
    let run = bed.run(&[], &["python3", &script, log.path()]);
    let inside = "\"$@\" & pid=$!\n\
                  until grep -q ready $LOG 2>/dev/null; do sleep 0.05; done\n\
                  ps -o pgid= -p $pid >$LOG.group; kill -USR1 $pid\n\
                  for i in $(seq 1200); do\n\
                      [ $(wc -l <$LOG) -ge 2 ] && break; sleep 0.05\n\
                  done\n\
                  touch $LOG.end; wait $pid";
    let mut outer = std::process::Command::new("unshare");
    outer.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", inside, "sh"]);
    let ran = Ran::of(outer.arg(run.get_program()).args(run.get_args()).env("LOG", log.path()));
    assert_eq!(ran.code, 7, "{ran:?}");
    let group = std::fs::read_to_string(format!("{}.group", log.path())).unwrap();
    assert_eq!(group.trim(), "0", "the group was to come from outside");
    assert_eq!(log.lines().len(), 2, "{:?}", log.lines());
    bed.assert_free();
}
