//! `cargo xtask test`: says what it will do, installs, runs every suite, counts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::packages;
use crate::process::{self, Finished, Limits, StartError};
use crate::tally::Tally;

/// One part of `cargo xtask test`. A new part is one more entry in the list of suites.
pub(crate) struct Suite {
    /// What `--only` calls it.
    pub(crate) name: &'static str,
    /// What it does, in a few words.
    pub(crate) about: &'static str,
    /// Debian packages it cannot do without.
    pub(crate) packages: &'static [&'static str],
    /// Wall time after which a command of it counts as hung.
    pub(crate) limit: Duration,
    /// Does it.
    pub(crate) run: fn(&Context) -> Outcome,
}

/// What a suite works in.
pub(crate) struct Context {
    /// The root of the clone.
    pub(crate) repo: PathBuf,
    limits: Limits,
}

/// How a suite ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What it counted.
    pub(crate) tally: Tally,
    /// What it printed; shown only when something failed.
    pub(crate) output: String,
    /// Why nothing was tried, where that is no failure.
    pub(crate) skipped: Option<String>,
}

/// With this a tool says that the machine lacks what it needs. In CI it fails instead.
const EXIT_SKIPPED: i32 = 77;

/// How a test program of Rust ends that has no test.
const NO_TEST: &str = "test result: ok. 0 passed; 0 failed; 0 ignored";

impl Context {
    /// A command that starts in the root of the clone.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.repo);
        // What cargo told this process of its own package is not meant for others.
        for (name, _) in std::env::vars_os() {
            let told = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
            if told.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs a command that is one check: it passes when it exits with 0.
    pub(crate) fn check(&self, command: Command) -> Outcome {
        self.count(command, |_| Tally::PASS)
    }

    /// Runs a command and lets `count` read from its output how many tests passed and failed.
    pub(crate) fn count(&self, command: Command, count: fn(&str) -> Tally) -> Outcome {
        counted(process::run(command, &self.limits), count)
    }

    /// Does the same with several commands, so many at once; what each printed stays together.
    pub(crate) fn count_side_by_side(
        &self,
        commands: Vec<Command>,
        at_once: usize,
        count: fn(&str) -> Tally,
    ) -> Outcome {
        let mut whole = Outcome::default();
        for ended in process::run_side_by_side(commands, at_once, &self.limits) {
            whole += match &ended {
                // A program without a test has not failed, as `cargo test` sees it.
                Ok(finished) if finished.exited_well() && finished.output.contains(NO_TEST) => {
                    Outcome { tally: count(&finished.output), ..Outcome::default() }
                }
                _ => counted(ended, count),
            };
        }
        whole
    }
}

/// What came of a command, with the tests that `count` reads from its output.
fn counted(ended: Result<Finished, StartError>, count: fn(&str) -> Tally) -> Outcome {
    match ended {
        Ok(finished) if finished.exited_well() => {
            let tally = count(&finished.output).checked(true);
            Outcome { tally, output: finished.output, skipped: None }
        }
        Ok(finished) if finished.code() == Some(EXIT_SKIPPED) => {
            let last = finished.output.lines().last().unwrap_or("it says nothing");
            Outcome { skipped: Some(last.to_owned()), ..Outcome::default() }
        }
        Ok(finished) => {
            let counted = count(&finished.output);
            // A single check that exits badly has not passed, whatever it printed.
            let counted = if counted == Tally::PASS { Tally::default() } else { counted };
            let tally = counted.checked(false);
            let output = format!("{}\n[{}]\n", finished.output.trim_end(), finished.verdict());
            Outcome { tally, output, skipped: None }
        }
        Err(error) => Outcome::failed(error.to_string()),
    }
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.tally += other.tally;
        self.output.push_str(&other.output);
        self.skipped = self.skipped.take().or(other.skipped);
    }
}

impl Outcome {
    /// One failure, with its reason.
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self { tally: Tally::FAIL, output: reason.into(), skipped: None }
    }
}

/// Prints every suite and the packages it needs.
pub(crate) fn list(suites: &[Suite]) {
    for suite in suites {
        println!("{:<12} {}", suite.name, suite.about);
        if !suite.packages.is_empty() {
            println!("{:<12}   packages: {}", "", suite.packages.join(" "));
        }
    }
}

/// Runs `suites`, or the one called `only`; the last line printed is the sum.
pub(crate) fn test(repo: &Path, suites: &[Suite], only: Option<&str>) -> ExitCode {
    let chosen: Vec<&Suite> =
        suites.iter().filter(|suite| only.is_none_or(|name| name == suite.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = suites.iter().map(|suite| suite.name).collect();
        eprintln!(
            "xtask: no suite is called {}; there are: {}",
            only.unwrap_or(""),
            names.join(" ")
        );
        return ExitCode::from(crate::args::EXIT_USAGE);
    }
    let total = prepare_and_run(repo, &chosen);
    println!("{total}");
    if total.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn prepare_and_run(repo: &Path, chosen: &[&Suite]) -> Tally {
    let mut total = Tally::default();
    let wanted: Vec<&str> =
        chosen.iter().flat_map(|suite| suite.packages.iter().copied()).collect();
    let missing = packages::missing(&wanted);
    announce(chosen, &missing);
    // Without its packages a suite fails by itself and says more than a package's name can.
    match missing.and_then(|missing| packages::install(&missing)) {
        Ok(()) => {}
        Err(error @ packages::Error::NotDebian(_)) => println!("  note: {error}"),
        Err(error) => {
            println!("  packages: FAILED\n{error}");
            total += Tally::FAIL;
        }
    }
    println!();
    let mut failed = Vec::new();
    for suite in chosen {
        let (tally, fine) = run_one(repo, suite);
        if !fine {
            failed.push(suite.name);
        }
        total += tally;
    }
    for name in failed {
        println!("to see this failure alone: cargo xtask test --only {name}");
    }
    total
}

fn announce(chosen: &[&Suite], missing: &Result<Vec<String>, packages::Error>) {
    println!("cargo xtask test will");
    match missing {
        Ok(names) if names.is_empty() => println!("  install nothing: every package is here"),
        Ok(names) => println!("  install the Debian packages {}", names.join(" ")),
        Err(_) => println!("  install nothing"),
    }
    for suite in chosen {
        println!("  run {}: {}", suite.name, suite.about);
    }
}

/// What it counted, and whether all is well.
fn run_one(repo: &Path, suite: &Suite) -> (Tally, bool) {
    println!("{} ..", suite.name);
    let started = Instant::now();
    let context = Context { repo: repo.to_path_buf(), limits: Limits { time: suite.limit } };
    let Outcome { tally, output, skipped } = (suite.run)(&context);
    let seconds = started.elapsed().as_secs_f64();
    if let Some(reason) = skipped {
        println!("{:<12} {reason}", suite.name);
        return (tally, true);
    }
    if tally.is_success() {
        println!("{:<12} ok      {:>5} passed  {seconds:>7.1} s", suite.name, tally.passed);
    } else {
        println!("{output}");
        println!("{:<12} FAILED  {tally}  {seconds:>7.1} s", suite.name);
    }
    (tally, tally.is_success())
}
