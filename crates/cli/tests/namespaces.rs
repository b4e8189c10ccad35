//! Holders that a contender cannot see, or sees somebody else instead of: B39, B40.
//!
//! A pid or a host name is shown to people and is never evidence: a holder is judged by its ttl alone.
//! Tables stand in memory where the machine offers that: a ttl is to be kept by renewals, and a sync there
//! takes no time.

use std::process::{Child, Command, Stdio};

use crate::run::until_done;
use crate::support::{Ran, Table};

/// Runs a script in a PID and UTS namespace of its own, under another host name. Everything in it
/// dies with the child.
fn in_namespace(host: &str, script: &str, table: &Table, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--uts", "--fork", "--mount-proc", "--kill-child", "sh", "-ec"]);
    command.arg(format!("hostname {host}; {script}")).arg("sh");
    command.arg(env!("CARGO_BIN_EXE_ringfence")).arg(&table.store).args(args);
    command.stdin(Stdio::null());
    command
}

/// Holds targets 1 to 4 under a ttl of some seconds, renewing, until it is killed.
const HOLD: &str = "exec \"$1\" run \"$2\" --targets 1,2,3,4 --owner holder --ttl 5s -- sleep 1000";

struct Killed(Child);

impl Killed {
    fn now(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.now();
    }
}

fn holder(table: &Table) -> serde_json::Value {
    let (_, listed) = table.json("list", &[]);
    listed["leases"][0].clone()
}

fn until_held(table: &Table) -> serde_json::Value {
    until_done("the lease to be held", || {
        let lease = holder(table);
        if lease["state"] == "active" { Ok(lease) } else { Err(lease.to_string()) }
    })
}

/// Does the same on tables of each kind, side by side: most of it is waiting.
fn on_each(kinds: &[&str], test: impl Fn(&str, &Table) + Sync) {
    std::thread::scope(|scope| {
        for kind in kinds {
            scope.spawn(|| test(kind, &Table::in_memory(&kind.split(' ').collect::<Vec<_>>())));
        }
    });
}

/// B40: neither the holder's pid nor its host name means anything to the contender.
#[test]
fn b40_a_live_holder_in_another_namespace_is_never_robbed_and_a_dead_one_is_passed_after_its_ttl() {
    on_each(&["--engine journal", "--engine files", "--durability record"], |kind, table| {
        let mut held = Killed(in_namespace("one", HOLD, table, &[]).spawn().unwrap());
        let lease = until_held(table);
        assert_eq!(lease["host"], "one", "{lease}");
        let claim = "exec \"$1\" claim \"$2\" --targets 4,5 --owner other --wait \"$3\" -q --json";
        // Longer than the ttl, in which the holder renews.
        let ran = Ran::of(&mut in_namespace("two", claim, table, &["7s"]));
        assert_eq!(ran.code, 75, "{kind}: {ran:?}");
        assert_eq!(ran.json()["conflicts"][0]["host"], "one", "{ran:?}");
        let now = until_held(table);
        assert_eq!(now["token"], lease["token"], "{kind}: the same grant all the time");
        assert!(now["updated"].as_f64() > lease["updated"].as_f64(), "{kind}: it renewed");

        held.now();
        let last = holder(table);
        let ran = Ran::of(&mut in_namespace("two", claim, table, &["2m"]));
        assert_eq!(ran.code, 0, "{kind}: {ran:?}");
        let granted = ran.json();
        assert!(granted["fence"].as_u64() > last["fence"].as_u64(), "{granted}");
        // Not before the last renewal's ttl was over.
        let taken = table.json("show", &["4"]).1["lease"]["updated"].as_f64().unwrap();
        assert!(taken >= last["expires_at"].as_f64().unwrap(), "{kind}: {taken} {last}");
    });
}

/// B39: the holder is killed, and its pid belongs to another process that lives.
#[test]
fn b39_a_pid_that_was_given_to_another_process_neither_keeps_a_lease_nor_frees_one() {
    // The pids of a namespace of its own can be told which comes next.
    let script = "\
        \"$1\" run \"$2\" --targets 1,2 --owner holder --ttl 8s -- sleep 1000 & pid=$!\n\
        until \"$1\" show \"$2\" 1 | grep -q 'is held'; do sleep 0.05; done\n\
        \"$1\" show \"$2\" 1 | grep -qx \"pid       $pid\"\n\
        kill -9 $pid; wait $pid || true\n\
        echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid; sleep 1000 & [ $! = $pid ]\n\
        kill -0 $pid\n\
        code=0; \"$1\" claim \"$2\" --targets 2 --owner early --json || code=$?\n\
        [ $code = 75 ]; kill -0 $pid\n\
        \"$1\" claim \"$2\" --targets 2 --owner late --wait 2m -q\n\
        kill -0 $pid";
    // Where the end of a process can be proven, it is: of that other tests tell.
    let kinds = ["group", "record"].map(|d| format!("--engine files --durability {d}"));
    on_each(&kinds.each_ref().map(String::as_str), |durability, table| {
        let mut command = in_namespace("one", script, table, &[]);
        let ran = Ran::of(&mut command);
        assert_eq!(ran.code, 0, "{durability}: {ran:?}");
        assert!(ran.out.contains("\"outcome\":\"busy\""), "{durability}: {ran:?}");
        let (_, shown) = table.json("show", &["2"]);
        assert_eq!(shown["lease"]["owner"], "late", "{durability}: {shown}");
        assert_eq!(shown["lease"]["steals"], 1, "{durability}: {shown}");
        // The other half of the group was nobody's business.
        assert_eq!(table.json("show", &["1"]).1["lease"]["owner"], "holder", "{durability}");
    });
}
