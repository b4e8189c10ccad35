//! The same disks, recovered by the binary itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::Value;

use crate::context::{Context, Trouble};
use crate::states::Tree;
use crate::table::Recovered;
use crate::workload;

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// Disks that were given to the binary.
    pub(crate) runs: u64,
    /// Where it did not do what the library did.
    pub(crate) violations: Vec<String>,
}

/// Lists, repairs, lists and claims with the binary; compares with what the library found.
pub(crate) fn sample(
    context: &Context,
    disks: &[(Tree, Arc<Recovered>)],
) -> Result<Sampled, Trouble> {
    let most = if context.args.ci { 12 } else { 150 };
    let mut sampled = Sampled::default();
    let step = disks.len().div_ceil(most).max(1);
    let dir = context.scratch.path().join("binary");
    for (tree, expected) in disks.iter().step_by(step) {
        tree.write(&dir)?;
        sampled.runs += 1;
        if let Err(wrong) = check(context, &dir.join("table"), expected) {
            sampled.violations.push(format!("the binary: {wrong}"));
        }
    }
    Ok(sampled)
}

fn check(context: &Context, store: &Path, expected: &Recovered) -> Result<(), String> {
    let tokens: BTreeMap<u64, String> = expected
        .table
        .iter()
        .filter(|(item, _)| **item < crate::marks::WORK)
        .map(|(item, seen)| (*item, seen.token.clone()))
        .collect();
    let listed = listed(&ask(context, store, "list", &[])?)?;
    if listed != tokens {
        return Err(format!("list shows {listed:?}, the library found {tokens:?}"));
    }
    let repaired = ask(context, store, "check", &["--repair"])?;
    if repaired["healthy"] != Value::Bool(true) {
        return Err(format!("check --repair says {repaired}"));
    }
    let again = self::listed(&ask(context, store, "list", &[])?)?;
    if again != tokens {
        return Err(format!("after repair list shows {again:?} instead of {tokens:?}"));
    }
    let everything: Vec<String> = workload::targets().iter().map(u64::to_string).collect();
    let arguments = [
        "--targets",
        &everything.join(","),
        "--owner",
        "next",
        "--ttl",
        "1h",
        "--now",
        "4000000000",
    ];
    let claimed = ask(context, store, "claim", &arguments)?;
    let fence = claimed["fence"].as_u64().ok_or("a claim without a fence")?;
    match expected.table.values().find(|seen| seen.fence >= fence) {
        Some(seen) => Err(format!("the next claim got fence {fence}, {} was there", seen.fence)),
        None => Ok(()),
    }
}

fn listed(answer: &Value) -> Result<BTreeMap<u64, String>, String> {
    let leases = answer["leases"].as_array().ok_or("list without leases")?;
    leases
        .iter()
        .map(|lease| {
            let target = lease["target"].as_u64().ok_or_else(|| format!("list shows {lease}"))?;
            let token = lease["token"].as_str().ok_or("a lease without a token")?;
            Ok((target, token.to_owned()))
        })
        .collect()
}

/// Runs one verb of the binary; what it answers.
pub(crate) fn ask(
    context: &Context,
    store: &Path,
    verb: &str,
    flags: &[&str],
) -> Result<Value, String> {
    let done = Command::new(&context.binary)
        .arg(verb)
        .arg(store)
        .arg("--json")
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stdout);
        return Err(format!("{verb} ended with {}: {}", done.status, said.trim()));
    }
    serde_json::from_slice(&done.stdout).map_err(|error| format!("{verb}: {error}"))
}
