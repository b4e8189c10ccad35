//! Signals that processes send.

use super::{Bed, Log, spawn, until};
use crate::support::{Ran, signal, sleep};
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
                let child = spawn(&mut bed.run(&[], &["python3", &script, log.path(), "0.3"]));
                log.wait(1);
                signal(&child, name);
                let wrapper = child.id();
                log.wait(2);
                assert_eq!(bed.contend(), 75, "{name}: held while the command lives");
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
    let child = spawn(&mut bed.run(&[], &["python3", &script, log.path(), "0.5"]));
    log.wait(1);
    for sent in 1..=5 {
        signal(&child, "USR1");
        log.wait(1 + sent);
    }
    assert_eq!(Ran::wait(child).code, 7);
    assert_eq!(log.lines().len(), 6, "{:?}", log.lines());
}

#[test]
fn b58_a_signal_ends_the_wait_at_once_and_leaves_nothing() {
    let bed = Bed::new();
    assert_eq!(bed.contend(), 0);
    let before = bed.records();
    let mark = bed.path("started");
    for (name, number) in ALL {
        let child = spawn(&mut bed.run(&["--wait", "60s"], &["touch", mark.to_str().unwrap()]));
        // Long enough to be waiting, and told so.
        sleep(Duration::from_millis(if number == 1 { 900 } else { 200 }));
        signal(&child, name);
        let ran = Ran::wait(child);
        assert_eq!(ran.code, 128 + number, "{name}: {ran:?}");
        assert!(ran.took < Duration::from_secs(2), "{name}: {ran:?}");
        assert!(number != 1 || ran.err.contains("waiting for"), "{ran:?}");
    }
    assert!(!mark.exists());
    assert_eq!(bed.records(), before);
}

#[test]
fn b61_the_lease_is_kept_until_the_command_is_dead_however_long_that_takes() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let slow = "import signal, sys, time\n\
                log = open(sys.argv[1], 'a', buffering=1)\n\
                def term(*_):\n    log.write('term\\n'); time.sleep(2.5); sys.exit(9)\n\
                signal.signal(signal.SIGTERM, term)\n\
                log.write('ready\\n')\n\
                time.sleep(30)\n";
    let child = spawn(&mut bed.run(&["--ttl", "1s"], &["python3", "-c", slow, log.path()]));
    log.wait(1);
    signal(&child, "TERM");
    log.wait(2);
    for _ in 0..4 {
        assert_eq!(bed.contend(), 75);
        sleep(Duration::from_millis(450));
    }
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
    let child = spawn(nohup.arg(run.get_program()).args(run.get_args()));
    log.wait(1);
    signal(&child, "HUP");
    assert_eq!(Ran::wait(child).code, 4);
    bed.assert_free();
}

#[test]
fn a_stop_signal_stops_both_and_a_continue_wakes_both() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!("echo $$ > {}; sleep 0.3; exit 6", log.path());
    // A group of its own below a parent in the same session: in an orphaned group, which this test
    // may have been started in, the kernel ignores stops.
    let mut run = bed.run(&["--ttl", "30s"], &["sh", "-c", &script]);
    let child = spawn(run.process_group(0));
    let pid = log.wait(1)[0].clone();
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").map(|(_, rest)| rest[..1].to_owned())
    };
    let wrapper = child.id().to_string();
    signal(&child, "TSTP");
    until("both to stop", || [&pid, &wrapper].iter().all(|p| state(p).as_deref() == Some("T")));
    signal(&child, "CONT");
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 6, "{ran:?}");
    bed.assert_free();
}

/// As below `docker exec` and `nsenter`: the process group began outside and has the number 0.
#[test]
fn in_a_namespace_that_its_group_came_to_from_outside_a_signal_is_passed_on_too() {
    let bed = Bed::new();
    let (script, log) = bed.counter();
    let run = bed.run(&[], &["python3", &script, log.path(), "0.3"]);
    let inside = "\"$@\" & pid=$!\n\
                  until grep -q ready $LOG 2>/dev/null; do sleep 0.05; done\n\
                  ps -o pgid= -p $pid >$LOG.group; kill -USR1 $pid; wait $pid";
    let mut outer = std::process::Command::new("unshare");
    outer.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", inside, "sh"]);
    let ran = Ran::of(outer.arg(run.get_program()).args(run.get_args()).env("LOG", log.path()));
    assert_eq!(ran.code, 7, "{ran:?}");
    let group = std::fs::read_to_string(format!("{}.group", log.path())).unwrap();
    assert_eq!(group.trim(), "0", "the group was to come from outside");
    assert_eq!(log.lines().len(), 2, "{:?}", log.lines());
    bed.assert_free();
}
