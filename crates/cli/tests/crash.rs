//! Contention and sudden death, between real processes.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Ran, Table, first, killed_at_rename, sleep, spawn};

const FIGHTER: &str = r#"
for i in $(seq 15); do
    answer=$("$1" claim "$2" --targets "$3" --owner "$4" --wait 30s --json -q) || exit 1
    token=$(printf %s "$answer" | sed 's/.*"token":"\([^"]*\)".*/\1/')
    mkdir "$5" || exit 2     # somebody else is inside
    "$1" heartbeat "$2" --targets "$3" --token "$token" > /dev/null || exit 3
    rmdir "$5"
    "$1" release "$2" --targets "$3" --token "$token" > /dev/null || exit 4
done
"#;

#[test]
fn two_shells_fighting_over_a_target_are_never_inside_at_once_and_both_get_through() {
    for table in Table::both() {
        let inside = table.beside("inside");
        let fighter = |targets: &str, owner: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", FIGHTER, "sh", env!("CARGO_BIN_EXE_ringfence")]).arg(&table.store);
            spawn(shell.args([targets, owner]).arg(&inside))
        };
        let (one, two) = (fighter("1,2,3,4", "one"), fighter("9,4,8,1", "two"));
        let ended = [Ran::wait(one), Ran::wait(two)];
        assert_eq!([ended[0].code, ended[1].code], [0, 0], "{ended:?}");
        assert_eq!(table.json("list", &[]).1["leases"], Value::Array(Vec::new()));
        table.assert_tidy();
    }
}

/// A sequence that looks random and is the same in every run.
struct Moments(u64);

impl Moments {
    fn next(&mut self, below: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        Duration::from_micros((self.0 >> 33) % below)
    }
}

#[test]
fn after_a_kill_at_any_moment_the_next_command_works_at_once_on_a_consistent_table() {
    for table in Table::both() {
        let group = "1,2,3,4,5,6,7,8";
        // So that kills fall on all of a call, and some come after it.
        let mut took = Vec::new();
        for _ in 0..3 {
            let claimed = table.run("claim", &["--targets", group, "--owner", "first", "--json"]);
            let token = claimed.json()["token"].as_str().unwrap().to_owned();
            table.run("release", &["--targets", group, "--token", &token]);
            took.push(claimed.took);
        }
        let mut whole = took.into_iter().min().unwrap();
        let mut moments = Moments(20_240_607);
        let (mut killed, mut now, mut last) = (0, 1000.0, String::new());
        for round in 0..60 {
            // The group is free, or held by what an earlier round left, which has run out by `now`.
            now += 120.0;
            let at = format!("{now}");
            let verb = ["claim", "heartbeat", "release"][round % 3];
            let mut held = String::new();
            let owner = format!("round-{round}");
            let args: Vec<&str> = if verb == "claim" {
                vec!["--targets", group, "--owner", &owner, "--now", &at]
            } else {
                held = table.claim(group, "holder", &["--now", &at]);
                vec!["--targets", group, "--token", &held, "--now", &at]
            };
            let mut victim = spawn(&mut table.command(verb, &args));
            sleep(moments.next(u64::try_from(whole.as_micros()).unwrap() * 3 / 2));
            victim.kill().unwrap();
            let ended = Ran::wait(victim);
            killed += usize::from(ended.code == 137);
            assert!([0, 137].contains(&ended.code), "round {round}: {ended:?}");

            let (code, listed) = table.json("list", &["--now", &at]);
            assert_eq!((code, &listed["consistent"]), (0, &true.into()), "round {round}");
            let leases = listed["leases"].as_array().unwrap();
            assert!(
                leases.iter().all(|lease| lease["state"] != "corrupt"),
                "round {round}: {listed}"
            );
            match (verb, ended.code) {
                ("claim" | "heartbeat", 0) => {
                    assert_eq!(leases.len(), 8, "round {round}: {listed}");
                }
                ("release", 0) => assert_eq!(leases.len(), 0, "round {round}: {listed}"),
                ("heartbeat", _) => {
                    let ours =
                        leases.iter().filter(|lease| lease["token"] == held.as_str()).count();
                    assert_eq!(ours, 8, "round {round}: a heartbeat loses no member: {listed}");
                }
                _ => {}
            }

            now += 120.0;
            let at = format!("{now}");
            let next = Ran::of(&mut table.command(
                "claim",
                &["--targets", group, "--owner", "next", "--now", &at, "--json"],
            ));
            assert_eq!(next.code, 0, "round {round}: {next:?}");
            // It was given no time to wait for anything: what it took was its own disk's and processor's.
            assert!(next.took < Duration::from_mins(1), "round {round}: {next:?}");
            // A machine that was busy at first may be quick now.
            whole = whole.min(next.took);
            let token = next.json()["token"].as_str().unwrap().to_owned();
            assert!(token > last && token > held, "round {round}: {token} after {last}, {held}");
            last = token;
            let (_, listed) = table.json("list", &["--now", &at]);
            let leases = listed["leases"].as_array().unwrap();
            assert_eq!(
                leases.iter().filter(|l| l["token"] == last.as_str()).count(),
                8,
                "{listed}"
            );
            if round % 2 == 0 {
                let args = ["--targets", group, "--token", &last];
                assert_eq!(table.run("release", &args).code, 0, "round {round}");
            }
        }
        assert!(killed >= 20, "only {killed} of 60 were killed in time");
        let repaired = table.run("check", &["--repair"]);
        assert_eq!(repaired.code, 0, "{repaired:?}");
        table.assert_tidy();
    }
}

/// On a table that keeps groups whole, a claim, a heartbeat or a release that is killed between two
/// of its records is finished by whoever comes next.
#[test]
fn a_group_that_a_kill_cut_in_two_is_whole_for_the_next_command() {
    let group = first(8);
    let mut finished = 0;
    for nth in [1, 2, 3, 6, 9] {
        for verb in ["claim", "heartbeat"] {
            let table = Table::files();
            let mut args = vec!["--targets", &group, "--now", "1000"];
            let token = if verb == "claim" {
                args.extend(["--owner", "me"]);
                String::new()
            } else {
                table.claim(&group, "me", &["--now", "990"])
            };
            if verb == "heartbeat" {
                args.extend(["--token", &token]);
            }
            let killed = killed_at_rename(nth, &table.command(verb, &args), &table.beside("log"));
            assert!([0, 137].contains(&killed.code), "{verb} {nth}: {killed:?}");
            let (_, checked) = table.json("check", &[]);
            let findings = checked["findings"].as_array().unwrap();
            let cut = findings.iter().filter(|finding| finding["kind"] == "intent").count();
            finished += cut;
            // A reader shows the decided state, whether or not anybody finished it yet.
            let (_, seen) = table.json("list", &["--now", "1000"]);
            assert_eq!(table.run("check", &["--repair"]).code, 0);
            let (_, listed) = table.json("list", &["--now", "1000"]);
            assert_eq!(seen["leases"], listed["leases"], "{verb} {nth}");
            let leases = listed["leases"].as_array().unwrap();
            let whole = leases.len() == 8 || verb == "claim" && leases.is_empty();
            assert!(whole, "{verb} {nth}: {listed}");
            let same = leases.iter().all(|lease| lease["updated"] == leases[0]["updated"]);
            assert!(same, "{verb} {nth}: two moments in one group: {listed}");
            table.claim(&group, "next", &["--now", "2000"]);
            table.assert_tidy();
        }
    }
    assert!(finished >= 6, "only {finished} calls were really cut in two");
}
