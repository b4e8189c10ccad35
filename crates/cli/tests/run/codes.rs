//! Exit codes, environment, standard input, limits of the machine.

use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use super::{Bed, Log, spawn};
use crate::support::Ran;

#[test]
fn b54_the_exit_code_is_the_commands_own_and_the_lease_is_released_each_time() {
    let bed = Bed::new();
    let plain = bed.path("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let plain = plain.to_str().unwrap();
    for (child, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["/nonexistent/program"], 127),
        (&["no-such-program-on-the-path"], 127),
        (&[plain], 126),
        (&["/"], 126),
    ] {
        let ran = Ran::of(&mut bed.run(&[], child));
        assert_eq!(ran.code, code, "{child:?}: {ran:?}");
        assert_eq!(ran.out, "", "{child:?}");
        bed.assert_free();
    }
}

#[test]
fn a_held_group_gives_75_or_what_e_says_and_the_command_never_starts() {
    let bed = Bed::new();
    assert_eq!(bed.contend(), 0);
    let mark = bed.path("started");
    let mark = mark.to_str().unwrap();
    let before = bed.records();
    for (options, code) in
        [(&[][..], 75), (&["-E", "0"], 0), (&["-E", "255"], 255), (&["--wait", "100ms"], 75)]
    {
        let ran = Ran::of(&mut bed.run(options, &["touch", mark]));
        assert_eq!(ran.code, code, "{options:?}: {ran:?}");
        assert!(ran.err.contains("held by \"b\""), "{ran:?}");
        assert!(!bed.path("started").exists());
    }
    assert_eq!(bed.records(), before);
    assert_eq!(Ran::of(&mut bed.run(&["-E", "256"], &["true"])).code, 64);
}

#[test]
fn b5_one_wait_is_for_the_whole_group_and_not_for_each_member() {
    let bed = Bed::new();
    let all = crate::support::first(64);
    let held = Ran::of(&mut bed.command("claim", &["--targets", &all, "--owner", "b"]));
    assert_eq!(held.code, 0, "{held:?}");
    let mut command = bed.command("run", &["--targets", &all, "--owner", "a", "--wait", "2s"]);
    let ran = Ran::of(command.args(["--", "true"]));
    assert_eq!(ran.code, 75, "{ran:?}");
    // Once for each member were two minutes.
    assert!((2.0..30.0).contains(&ran.took.as_secs_f64()), "{ran:?}");
}

#[test]
fn b10_a_wait_that_ends_without_the_lease_starts_nothing_and_one_that_gets_it_does() {
    let bed = Bed::new();
    let log = Log(bed.path("log"));
    let script = format!(
        "echo ready > {}; until test -e {}; do sleep 0.02; done",
        log.path(),
        log.end_path().display()
    );
    let mut other = bed.command("run", &["--targets", "2", "--owner", "b", "--"]);
    let mut other = spawn(other.args(["sh", "-c", &script]));
    log.wait(1, &mut other);
    let mark = bed.path("started");
    let touch = ["touch", mark.to_str().unwrap()];
    assert_eq!(Ran::of(&mut bed.run(&["--wait", "100ms"], &touch)).code, 75);
    assert!(!mark.exists());
    let waiting = spawn(&mut bed.run(&["--wait", "60s"], &touch));
    bed.until_waited_for();
    assert!(!mark.exists());
    log.end();
    let ran = Ran::wait(waiting);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(mark.exists());
    let other = Ran::wait(other);
    assert_eq!(other.code, 0, "{other:?}");
    bed.assert_free();
}

#[test]
fn b65_the_inner_lease_wins_in_the_environment_and_standard_input_reaches_the_command() {
    let bed = Bed::new();
    let echo = "echo $RINGFENCE_TARGETS $RINGFENCE_FENCE $RINGFENCE_OWNER $RINGFENCE_TOKEN \
                $RINGFENCE_EXPIRES_AT $RINGFENCE_STORE";
    let script = format!(
        "{echo}; {} run {} -t 9,4,5 -o inner -- sh -c '{echo}'",
        env!("CARGO_BIN_EXE_ringfence"),
        bed.store().display()
    );
    let mut outer = bed.run(&[], &["sh", "-c", &script]);
    let began = super::now();
    let ran = Ran::of(outer.env("RINGFENCE_TOKEN", "inherited").env("RINGFENCE_FENCE", "999"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split(' ').collect()).collect();
    let [outer, inner] = lines.as_slice() else { panic!("{ran:?}") };
    assert_eq!((outer[0], outer[1], outer[2]), ("1,2", "1", "a"));
    assert_eq!((inner[0], inner[1], inner[2]), ("9,4,5", "2", "inner"));
    assert!(outer[3].starts_with("00000000000000000001-"), "{outer:?}");
    assert!(inner[3].starts_with("00000000000000000002-"), "{inner:?}");
    let expires: f64 = inner[4].parse().unwrap();
    assert!((began + 60.0..super::now() + 61.0).contains(&expires), "{inner:?}");
    assert_eq!(inner[5], bed.store().to_str().unwrap());

    let mut cat =
        bed.run(&[], &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut cat.stdin.take().unwrap(), b"hi\n").unwrap();
    assert_eq!(Ran::wait(cat).out, "hi\n");
    bed.assert_free();
}

#[test]
fn b21_without_a_thread_for_the_heartbeats_the_lease_is_given_back_and_nothing_starts() {
    // A user of its own, because root is exempt from this limit.
    const NOBODY: u32 = 54_321;
    let root = rustix::process::geteuid().is_root();
    let bed = Bed::new();
    let mark = bed.path("started");
    let script = format!(
        "ulimit -u 1; exec {} run {} -t 1,2 -o a -- touch {}",
        env!("CARGO_BIN_EXE_ringfence"),
        bed.store().display(),
        mark.display()
    );
    let mut limited = std::process::Command::new("bash");
    limited.args(["-c", &script]);
    let give_to = |user: u32| {
        let mut chown = std::process::Command::new("chown");
        let chown = chown.args(["-R", &user.to_string()]).arg(bed.dir.path()).status();
        assert!(chown.unwrap().success());
    };
    if root {
        give_to(NOBODY);
        limited.uid(NOBODY);
    }
    let ran = Ran::of(&mut limited);
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.err.contains("keep-alive thread"), "{ran:?}");
    assert!(!mark.exists());
    if root {
        give_to(0);
    }
    bed.assert_free();
    // The lease was granted first and then given back: the counter has moved on.
    let table = ringfence::Store::open(bed.store()).unwrap().targets();
    let group = ringfence::TargetGroup::from_numbers([1]).unwrap();
    let next = table.claim(&group, &ringfence::Claim::by("b").unwrap()).unwrap();
    assert!(next.fence().0 > 1, "{}", next.fence());
}

#[test]
fn a_grace_that_would_end_after_expiry_is_refused_before_anything_is_touched() {
    let bed = Bed::new();
    let before = bed.records();
    let ran = Ran::of(&mut bed.run(&["--ttl", "3s", "--grace", "2s"], &["true"]));
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.err.contains("at most 1.25s"), "{ran:?}");
    assert_eq!(bed.records(), before);
}
