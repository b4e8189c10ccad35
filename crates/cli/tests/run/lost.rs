//! Leases that cannot be kept.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Bed, Log, lives, now, spawn, until, until_done};
use crate::stopping::stop_between_steps;
use crate::support::{Ran, signal, sleep, told};

/// Ignores TERM, logs when it came, and logs every 10 ms that it lives.
const STUBBORN: &str = "import signal, sys, time\n\
    log = open(sys.argv[1], 'a', buffering=1)\n\
    signal.signal(signal.SIGTERM, lambda *_: log.write(f'term {time.time()}\\n'))\n\
    log.write('ready\\n')\n\
    while True:\n    log.write(f'alive {time.time()}\\n'); time.sleep(0.01)\n";

fn times(log: &Log, word: &str) -> Vec<f64> {
    let lines = log.lines();
    lines.iter().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

#[test]
fn b60_when_the_store_fails_the_command_is_dead_before_the_next_holders_starts() {
    assert!(
        rustix::process::geteuid().is_root(),
        "a store that fails for one process only needs root"
    );
    // The wrapper sees the store through a mount of its own, which becomes read-only for it alone:
    // its contender can claim at the very moment of expiry. A journal's files stay open, and with them
    // the mount cannot become read-only.
    let bed = Bed::files();
    let log = Log(bed.path("log"));
    let store = bed.store();
    let wrapper =
        bed.run(&["--ttl", "12s", "--grace", "3s"], &["python3", "-c", STUBBORN, log.path()]);
    let mut private = Command::new("unshare");
    private.args(["--mount", "--propagation", "private", "--", "sh", "-c"]);
    private.arg("mount --bind \"$0\" \"$0\" && exec \"$@\"").arg(&store);
    private.arg(wrapper.get_program()).args(wrapper.get_args()).stdin(Stdio::null());
    let mut child = spawn(&mut private);
    log.wait(1, &mut child);
    let started = bed.path("other-started");
    let stamp = format!("date +%s.%N > {}", started.display());
    let mut other = bed.command("run", &["-t", "2,3", "-o", "b", "--wait", "2m"]);
    let mut other = spawn(other.args(["--", "sh", "-c", &stamp]));
    let waits = told(&mut other);
    assert!(waits.contains("waiting for"), "{waits}");
    until_done("the wrapper's store to be read-only", || {
        let mut remount = Command::new("nsenter");
        remount.args(["-t", &child.id().to_string(), "-m", "mount", "-o", "remount,bind,ro"]);
        let ran = Ran::of(remount.arg(&store));
        if ran.code == 0 { Ok(()) } else { Err(format!("{ran:?}")) }
    });
    let failing = now();
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 79, "{ran:?}");
    assert_eq!(ran.err.matches("lease lost").count(), 1, "lost exactly once: {ran:?}");
    assert!(ran.err.contains("heartbeat 1 failed"), "{ran:?}");
    let other = Ran::wait(other);
    assert_eq!(other.code, 0, "{other:?}");

    let term = times(&log, "term");
    let last_alive = *times(&log, "alive").last().unwrap();
    let next: f64 = std::fs::read_to_string(&started).unwrap().trim().parse().unwrap();
    let [term] = term.as_slice() else { panic!("one TERM: {term:?}") };
    assert!(*term > failing, "kept while it could be");
    assert!(last_alive - term > 1.5, "it had its grace: {}", last_alive - term);
    assert!(last_alive < next, "overlap of {} s", last_alive - next);
    // The ttl began at the last renewal, at most a ttl before the next holder's start.
    assert!(next - term > 2.0, "TERM came a margin before expiry: {}", next - term);
    // Member 1 could not be given back and nobody wanted it; it ran out like member 2.
    assert_eq!(bed.records().len(), 1);
}

#[test]
fn b20_a_store_that_fails_for_a_while_costs_a_warning_and_not_the_lease() {
    let bed = Bed::files();
    let log = Log(bed.path("log"));
    let script = format!(
        "echo ready > {}; until test -e {}; do sleep 0.02; done; exit 3",
        log.path(),
        log.end_path().display()
    );
    let mut child = spawn(&mut bed.run(&["--ttl", "12s"], &["sh", "-c", &script]));
    log.wait(1, &mut child);
    let renewed = bed.updated(2);
    std::fs::rename(bed.store(), bed.path("away")).unwrap();
    let warning = told(&mut child);
    std::fs::rename(bed.path("away"), bed.store()).unwrap();
    assert!(warning.contains("heartbeat 1 failed"), "{warning}");
    until("a renewal after the failed one", || bed.updated(2) > renewed);
    assert_eq!(bed.contend(), 75);
    log.end();
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(!ran.err.contains("lease lost"), "{ran:?}");
    bed.assert_free();
}

#[test]
fn everything_the_command_started_is_dead_when_a_lost_lease_is_reported() {
    let bed = Bed::files();
    let log = Log(bed.path("log"));
    // One grandchild hears TERM, one ignores it in a session of its own; their parent ends at TERM.
    let script = format!(
        "sh -c 'trap \"echo term >> {0}.term; exit\" TERM; echo $$ >> {0}; \
         while :; do sleep 0.01; done' & \
         setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 600' & echo $$ >> {0}; wait",
        log.path()
    );
    let options = ["--ttl", "5s", "--grace", "2s"];
    let mut child = spawn(&mut bed.run(&options, &["sh", "-c", &script]));
    let pids = log.wait(3, &mut child);
    std::fs::rename(bed.store(), bed.path("away")).unwrap();
    let ran = Ran::wait(child);
    std::fs::rename(bed.path("away"), bed.store()).unwrap();
    assert_eq!(ran.code, 79, "{ran:?}");
    for pid in &pids {
        assert!(!lives(pid), "{pid} lives");
    }
    assert_eq!(Log(bed.path("log.term")).lines(), ["term"]);
}

#[test]
fn a_full_standard_error_that_nobody_reads_does_not_keep_a_lost_command_alive() {
    let bed = Bed::files();
    let log = Log(bed.path("log"));
    let fill = "dd if=/dev/zero bs=65536 count=1 status=none >&2";
    let script = format!("{fill}; echo $$ > {}; exec sleep 600", log.path());
    let mut child = spawn(&mut bed.run(&["--ttl", "5s"], &["sh", "-c", &script]));
    let pid = log.wait(1, &mut child)[0].clone();
    std::fs::rename(bed.store(), bed.path("away")).unwrap();
    until("the command to die", || !lives(&pid));
    std::fs::rename(bed.path("away"), bed.store()).unwrap();
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 79);
    assert!(ran.err.len() > 65_536);
}

#[test]
fn b36_a_wrapper_that_was_stopped_past_expiry_is_lost_if_nobody_took_over() {
    Bed::on_both(|bed| {
        let log = Log(bed.path("log"));
        let script = format!("echo $$ > {}; exec sleep 600", log.path());
        let mut child = spawn(&mut bed.run(&["--ttl", "5s"], &["sh", "-c", &script]));
        let pid = log.wait(1, &mut child)[0].clone();
        signal(&child, "STOP");
        sleep(Duration::from_millis(5500));
        signal(&child, "CONT");
        let ran = Ran::wait(child);
        assert_eq!(ran.code, 79, "{ran:?}");
        assert_eq!(ran.err.matches("lease lost").count(), 1, "{ran:?}");
        assert!(!lives(&pid));
        // Still under its own token, so it could be given back: nobody has to wait any longer.
        bed.assert_free();
    });
}

#[test]
fn b36_a_wrapper_that_was_stopped_and_taken_over_stops_its_command_and_writes_nothing() {
    Bed::on_both(|bed| {
        let log = Log(bed.path("log"));
        let stubborn = ["python3", "-c", STUBBORN, log.path()];
        let mut child = spawn(&mut bed.run(&["--ttl", "5s"], &stubborn));
        log.wait(1, &mut child);
        stop_between_steps(child.id(), &bed.store());
        bed.until_contended();
        let before = bed.records();
        // Member 1 was not taken over.
        assert_eq!(before.len(), 3);
        signal(&child, "CONT");
        let ran = Ran::wait(child);
        assert_eq!(ran.code, 79, "{ran:?}");
        assert_eq!(bed.records(), before);
        let count = log.lines().len();
        sleep(Duration::from_millis(100));
        assert_eq!(log.lines().len(), count, "the command is dead");
    });
}

#[test]
fn a_lease_that_is_removed_by_force_ends_the_command_at_once() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!("echo $RINGFENCE_TOKEN > {}; exec sleep 600", log.path());
    let mut child = spawn(&mut bed.run(&["--ttl", "9s"], &["sh", "-c", &script]));
    let token = log.wait(1, &mut child)[0].clone();
    let args = ["--targets", "1,2", "--token", &token, "--reason", "test"];
    let forced = Ran::of(&mut bed.command("force-release", &args));
    assert_eq!(forced.code, 0, "{forced:?}");
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 79, "{ran:?}");
    // Not because it ran out, and nobody waits for a command that may no longer work.
    assert!(ran.err.contains("target 2 is not held"), "{ran:?}");
    assert!(ran.err.contains("gets KILL after 0.0ns"), "{ran:?}");
}

#[test]
fn b22_heartbeats_are_never_more_than_half_a_ttl_apart_under_load() {
    let bed = Bed::new();
    let load: Vec<_> = (0..3)
        .map(|_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
        .collect();
    let mut child = spawn(&mut bed.run(&["--ttl", "6s"], &["sleep", "11"]));
    let mut moments: Vec<f64> = Vec::new();
    let mut looked = Instant::now();
    // What a machine does to this process it does to the other.
    let mut stall = Duration::ZERO;
    while child.try_wait().unwrap().is_none() {
        stall = stall.max(looked.elapsed());
        looked = Instant::now();
        for record in bed.records().into_iter().take(1) {
            let updated = record.holder.updated.seconds();
            if moments.last() != Some(&updated) {
                moments.push(updated);
            }
        }
        sleep(Duration::from_millis(20));
    }
    for mut process in load {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    let ran = Ran::wait(child);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(moments.len() >= 3, "{moments:?}");
    let gaps = moments.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.fold(0.0, f64::max);
    assert!(longest <= 3.0 + stall.as_secs_f64(), "a gap of {longest} s; stalled for {stall:?}");
}
