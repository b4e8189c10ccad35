//! `cargo xtask fuzz`: the readers of the journal's format under libFuzzer, on the stable toolchain.
//!
//! The same targets run in `cargo xtask test` on what is kept in `fuzz/corpus` and on small changes of
//! it, without a fuzzer (`crates/journal/tests/fuzz`).

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::args::FuzzOptions;
use crate::crash::failed;
use crate::packages;
use crate::process;
use crate::target_dir;

/// libFuzzer is built from C++.
const PACKAGES: &[&str] = &["g++"];

/// The targets, in the order in which they run; each is a file in `fuzz/fuzz_targets`.
pub(crate) const TARGETS: [&str; 6] =
    ["frame", "checkpoint", "segment", "replay", "hints", "table"];

/// Runs the targets one after the other, each for the same time.
pub(crate) fn fuzz(repo: &Path, options: &FuzzOptions) -> ExitCode {
    let FuzzOptions { seconds, targets } = options;
    let chosen: Vec<&str> = match &targets[..] {
        [] => TARGETS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let found = target_dir(repo).join("fuzz");
    let missing = packages::missing(PACKAGES);
    let names = missing.as_deref().unwrap_or_default().join(" ");
    println!("cargo xtask fuzz will");
    let none = "install no Debian package: every one is here".to_owned();
    println!("  {}", if names.is_empty() { none } else { format!("install {names}") });
    println!("  install cargo-fuzz with cargo, if it is not here");
    println!("  run {} for {seconds} s each; inputs go to {}", chosen.join(" "), found.display());
    match missing.and_then(|missing| packages::install(&missing)) {
        Err(error @ packages::Error::NotDebian(_)) => println!("  note: {error}"),
        Err(error) => return failed(&error.to_string()),
        Ok(()) => {}
    }
    let prepared = install().and_then(|()| seeds(repo, &found));
    if let Err(reason) = prepared {
        return failed(&reason);
    }
    let mut fine = true;
    for target in chosen {
        match run(repo, &found, target, *seconds) {
            Ok(passed) => fine &= passed,
            Err(reason) => return failed(&reason),
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(command: Command, what: &str) -> Result<(), String> {
    let status = process::show(command).map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}")) }
}

/// cargo-fuzz is no part of the toolchain.
fn install() -> Result<(), String> {
    let there = Command::new("cargo").args(["fuzz", "--version"]).output();
    if there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let mut command = Command::new("cargo");
    command.args(["install", "cargo-fuzz", "--locked"]);
    show(command, "cargo install cargo-fuzz")
}

/// What the targets begin with, from the tables of the fixtures.
fn seeds(repo: &Path, found: &Path) -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--example", "seeds", "--manifest-path"]);
    command.arg(repo.join("fuzz/Cargo.toml")).arg("--").arg(found.join("inputs"));
    command.env("CARGO_TARGET_DIR", found.join("target"));
    show(command, "the seeds")
}

/// Whether nothing was found that breaks a promise.
fn run(repo: &Path, found: &Path, target: &str, seconds: u32) -> Result<bool, String> {
    let mut command = Command::new("cargo");
    // A sanitizer would need another toolchain, and there is nothing unsafe to watch.
    command.args(["fuzz", "run", "--sanitizer", "none", "--fuzz-dir"]).arg(repo.join("fuzz"));
    command.arg(target).arg(found.join("inputs").join(target));
    command.arg(repo.join("fuzz/corpus").join(target));
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    command.args(["-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1"]);
    command.env("CARGO_TARGET_DIR", found.join("target")).current_dir(repo);
    let status = process::show(command).map_err(|error| error.to_string())?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_a_file_and_has_inputs_that_are_kept() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        let names = |folder: &str| {
            let entries = std::fs::read_dir(fuzz.join(folder)).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().path().file_stem().unwrap().display().to_string())
                .collect();
            names.sort();
            names
        };
        let mut expected = TARGETS;
        expected.sort_unstable();
        assert_eq!(names("fuzz_targets"), expected);
        assert_eq!(names("corpus"), expected);
    }
}
