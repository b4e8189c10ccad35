//! `ringfence-sim`: crash points, random runs, planted bugs; every line of it can be replayed.
//!
//! ```text
//! ringfence-sim --exhaustive [--quick [--failures]] [--mode record|group|journal] [--act NAME]
//! ringfence-sim --random RUNS [--from SEED] [--mode ..]
//! ringfence-sim --seed SEED [--log] [--mode ..]
//! ringfence-sim --canaries
//! ringfence-sim --processes ROUNDS [--from SEED] [--mode group|journal]
//! ```
//! Without `--mode` all three are tried. The exit code is 1 if anything was wrong.

#![allow(clippy::expect_used, reason = "a tool of the developers'; nothing shipped depends on it")]

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use ringfence_env::{Clock as _, Entropy as _, Fs as _, RealFs, SystemClock, SystemEntropy};
use ringfence_sim::canary;
use ringfence_sim::case::{Act, Case, Shape};
use ringfence_sim::coverage::Coverage;
use ringfence_sim::exhaustive::{Failures, Limits, Report, explore};
use ringfence_sim::known;
use ringfence_sim::random::{Plan, run, run_logged};
use ringfence_sim::real;
use ringfence_sim::setup::Kept;

/// What was asked for.
#[derive(Debug)]
struct Asked {
    what: What,
    modes: Vec<Kept>,
    quick: bool,
    failures: bool,
    log: bool,
    from: Option<u64>,
    act: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Exhaustive,
    Random(u64),
    Seed(u64),
    Canaries,
    Processes(u64),
}

const USAGE: &str = "usage: ringfence-sim --exhaustive [--quick [--failures]] [--act NAME] | --random RUNS \
                     [--from SEED] | --seed SEED [--log] | --canaries | --processes ROUNDS [--from SEED]   [--mode record|group|journal]";

fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let (mut what, mut modes) = (None, Kept::ALL.to_vec());
    let (mut quick, mut failures, mut log, mut from, mut act) = (false, false, false, None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match arg.as_str() {
            "--exhaustive" => what = Some(What::Exhaustive),
            "--canaries" => what = Some(What::Canaries),
            "--processes" => what = Some(What::Processes(number(value()?)?)),
            "--random" => what = Some(What::Random(number(value()?)?)),
            "--seed" => what = Some(What::Seed(number(value()?)?)),
            "--from" => from = Some(number(value()?)?),
            "--act" => act = Some(value()?),
            "--quick" => quick = true,
            "--failures" => failures = true,
            "--log" => log = true,
            "--mode" => {
                modes = match value()?.as_str() {
                    "record" => vec![Kept::Record],
                    "group" => vec![Kept::Group],
                    "journal" => vec![Kept::Journal],
                    other => return Err(format!("{other} is no mode")),
                }
            }
            other => return Err(format!("{other} is not known")),
        }
    }
    let what = what.ok_or("say what to do")?;
    Ok(Asked { what, modes, quick, failures, log, from, act })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == "--worker"
    {
        return match real::worker::main(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                say(&why);
                ExitCode::FAILURE
            }
        };
    }
    let asked = match parse(arguments.into_iter()) {
        Ok(asked) => asked,
        Err(why) => {
            say(&format!("{why}\n{USAGE}"));
            return ExitCode::from(64);
        }
    };
    let fine = match asked.what {
        What::Exhaustive => exhaustive(&asked),
        What::Random(runs) => random(&asked, runs),
        What::Seed(seed) => seed_once(&asked, seed),
        What::Canaries => canaries(),
        What::Processes(rounds) => processes(&asked, rounds),
    };
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A closed pipe is no reason to panic.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn since(began: Duration) -> f64 {
    SystemClock.monotonic().saturating_sub(began).as_secs_f64()
}

fn shapes(act: Act, kept: Kept, quick: bool) -> Vec<Shape> {
    let shape = |(members, shards)| Shape { members, shards };
    if !act.has_shape() {
        return vec![shape((2, 2))];
    }
    if kept == Kept::Journal {
        // It has no shards, and a call is one frame, however large its group is.
        let all = [(2, 1), (1, 1), (3, 1), (4, 1)];
        return all.into_iter().take(if quick { 1 } else { all.len() }).map(shape).collect();
    }
    let all = [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 1), (4, 3)];
    all.into_iter().take(if quick { 3 } else { all.len() }).map(shape).collect()
}

fn exhaustive(asked: &Asked) -> bool {
    let mut fine = true;
    for &mode in &asked.modes {
        say(&format!(
            "{mode:?}: {:22} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>7} {:>7} {:>6} {:>5}",
            "case",
            "points",
            "states",
            "2nd cut",
            "distinct",
            "sampled",
            "kills",
            "retries",
            "meddled",
            "wrong",
            "s"
        ));
        let mut total = Report::default();
        let all = SystemClock.monotonic();
        for &act in mode.setup().subject.acts() {
            if asked.act.as_ref().is_some_and(|name| !format!("{act:?}").eq_ignore_ascii_case(name))
            {
                continue;
            }
            for shape in shapes(act, mode, asked.quick) {
                let began = SystemClock.monotonic();
                let limits = match (asked.quick, asked.failures) {
                    (true, true) => {
                        Limits { failures: Failures::All, ..Limits::quick_of(mode, act) }
                    }
                    (true, false) => Limits::quick_of(mode, act),
                    (false, _) => Limits::full(),
                };
                let case = Case { act, shape };
                let report = explore(case, mode.setup(), limits);
                row(mode, &case.to_string(), &report, since(began));
                for violation in &report.violations {
                    say(&format!("WRONG {violation}"));
                }
                total.add(report);
            }
        }
        row(mode, "all", &total, since(all));
        for (name, count) in &total.known {
            say(&format!("known, {count} times: {name}"));
        }
        fine &= total.violations.is_empty();
    }
    fine
}

fn row(mode: Kept, name: &str, report: &Report, seconds: f64) {
    say(&format!(
        "{mode:?}: {name:22} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>7} {:>7} {:>6} {seconds:>5.1}",
        report.points,
        report.states,
        report.second,
        report.distinct,
        report.sampled,
        report.kills,
        report.retries,
        report.meddled,
        report.violations.len(),
    ));
}

fn random(asked: &Asked, runs: u64) -> bool {
    let first = first_seed(asked);
    let mut fine = true;
    for &mode in &asked.modes {
        let began = SystemClock.monotonic();
        let mut coverage = Coverage::default();
        let (mut calls, mut cuts, mut open, mut strikes) = (0, 0, 0, 0);
        let (mut undecided, mut known_ones, mut wrong) = (0, 0, 0);
        for seed in first..first.saturating_add(runs) {
            let outcome = run(&Plan::of(seed, mode.setup()));
            calls += outcome.calls;
            cuts += outcome.cuts;
            open += outcome.open;
            strikes += outcome.strikes;
            undecided += outcome.undecided;
            coverage.add(&outcome.coverage);
            let (old, new): (Vec<_>, Vec<_>) = outcome
                .violations
                .iter()
                .partition(|text| known::name(text, mode.setup().subject).is_some());
            if let Some(name) = old.first().and_then(|text| known::name(text, mode.setup().subject))
            {
                known_ones += 1;
                say(&format!("known, seed {seed}: {name}"));
            }
            if !new.is_empty() {
                wrong += 1;
                let mode = format!("{mode:?}").to_lowercase();
                say(&format!("WRONG replay with: ringfence-sim --seed {seed} --mode {mode} --log"));
                for violation in new {
                    say(&format!("      {violation}"));
                }
            }
        }
        let seconds = since(began);
        say(&format!(
            "{mode:?}: seeds {first}..{}: {runs} runs, {calls} calls, {open} of them unknown, \
             {cuts} power cuts, {strikes} errors, {undecided} undecided, {known_ones} known, {wrong} wrong, \
             {seconds:.1} s",
            first.saturating_add(runs)
        ));
        say(&coverage.to_string());
        fine &= wrong == 0;
    }
    fine
}

/// Real processes in a directory of their own; it is removed if nothing was wrong.
fn processes(asked: &Asked, rounds: u64) -> bool {
    let seed = first_seed(asked);
    let mut fine = true;
    for &kept in asked.modes.iter().filter(|kept| **kept != Kept::Record) {
        let began = SystemClock.monotonic();
        let dir = std::env::temp_dir().join(format!("ringfence-{kept:?}-{seed}"));
        let program = std::env::current_exe().expect("the name of this program");
        let plan = real::Plan { program, dir, kept, seed, rounds, calls: 6, lie: None };
        let outcome = RealFs
            .mkdir(&plan.dir, 0o700)
            .map_err(|error| error.to_string())
            .and_then(|()| real::run(&plan));
        let dir = plan.dir.display();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(why) => {
                say(&format!("WRONG {kept:?}: {why}; see {dir}"));
                fine = false;
                continue;
            }
        };
        for violation in &outcome.judged.violations {
            say(&format!("WRONG {violation}"));
        }
        let (calls, granted) = outcome.counts();
        let (wrong, undecided) = (outcome.judged.violations.len(), outcome.judged.undecided);
        let (kills, open, seconds) = (outcome.kills, outcome.in_a_call, since(began));
        say(&format!(
            "{kept:?}: processes from {seed}: {rounds} rounds, {calls} calls, {granted} grants, \
             {kills} kills, {open} in a call, {undecided} undecided, {wrong} wrong, {seconds:.1} s"
        ));
        if wrong == 0 {
            let cleared = real::clear(&plan.dir).and_then(|()| RealFs.rmdir(&plan.dir));
            if let Err(error) = cleared {
                say(&format!("{dir} stays: {error}"));
            }
        } else {
            say(&format!("see {dir}"));
        }
        fine &= wrong == 0;
    }
    fine
}

/// The seed that was asked for, or a new one.
fn first_seed(asked: &Asked) -> u64 {
    asked.from.unwrap_or_else(|| {
        let nonce = SystemEntropy.nonce().expect("randomness");
        u64::try_from(nonce >> 96).unwrap_or(0)
    })
}

fn seed_once(asked: &Asked, seed: u64) -> bool {
    let mut fine = true;
    for &mode in &asked.modes {
        let plan = Plan::of(seed, mode.setup());
        let (outcome, log) = run_logged(&plan, asked.log);
        for line in &log {
            say(line);
        }
        let again = run(&plan);
        say(&format!("{mode:?}: {outcome:#?}"));
        if (again.trace, again.steps) != (outcome.trace, outcome.steps) {
            say("WRONG the same seed made another run");
            fine = false;
        }
        fine &= outcome.violations.is_empty();
    }
    fine
}

fn canaries() -> bool {
    let mut fine = true;
    for canary in canary::all() {
        let began = SystemClock.monotonic();
        let caught = canary.catch();
        fine &= caught.is_some();
        let seen = caught.map_or("SURVIVED".to_owned(), |seen| format!("caught: {seen}"));
        let seen: String = seen.chars().take(150).collect();
        let mode = format!("{:?}", canary.mode);
        let (name, part) = (canary.name, canary.part());
        say(&format!("{name:58} {mode:6} {:>5.1} s  by {part:28} {seen}", since(began)));
    }
    fine
}
