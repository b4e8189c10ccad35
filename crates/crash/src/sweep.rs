//! Every system call of every verb of the real program, killed on entry and failed.
//!
//! A first run under strace says which calls a verb makes and how often. Then each call is struck at
//! each of its places, on a table in a known state, until a run ends without having been struck:
//! strace counts per call and thread, so nothing else says where the end is. Calls of the loader and
//! those that only concern memory, threads and signals are left out: they neither read nor change a
//! table.

pub(crate) mod call;
mod canary;
pub(crate) mod cases;
pub(crate) mod judge;
pub(crate) mod outcome;
mod reproduce;
pub(crate) mod traced;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::context::{Context, Trouble};
use crate::opened::Mode;
use crate::report::Row;
use crate::rng::Rng;
use cases::Case;
use judge::{Bench, Verdict};
use traced::{Blow, Place, Ran, Runner};

/// Calls that have nothing to do with a table.
const LEFT_OUT: [&str; 34] = [
    "arch_prctl",
    "brk",
    "clock_nanosleep",
    "execve",
    "exit",
    "futex",
    "getcwd",
    "getegid",
    "geteuid",
    "getgid",
    "getpid",
    "getppid",
    "getuid",
    "gettid",
    "madvise",
    "mlock",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "poll",
    "ppoll",
    "prctl",
    "prlimit64",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "uname",
];

/// Calls that change a table or make a change durable.
const CHANGES: [&str; 11] = [
    "exit_group",
    "fdatasync",
    "fsync",
    "ftruncate",
    "mkdir",
    "pwrite64",
    "rename",
    "renameat2",
    "rmdir",
    "unlink",
    "write",
];

const ERRORS: [&str; 6] = ["EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR", "EMFILE"];

/// All places of one call of one verb, for one kind of blow.
struct Job {
    case: usize,
    call: String,
    /// What strikes, one at each place, by turns.
    blows: Vec<Blow>,
    /// The first place, after those of the loader.
    first: u64,
    /// Every how manyeth place is struck.
    step: u64,
}

/// What is known of a case before anything is struck.
struct Known {
    counts: BTreeMap<String, (u64, u64)>,
    unpromised: BTreeSet<u64>,
    answer: Value,
    shown: tree::View,
}

impl Known {
    /// Whether no sync is struck that anybody relies on.
    fn only_notes(&self, place: &Place) -> bool {
        let all = self.counts.get("fsync").map_or(0, |(all, _)| *all);
        let last = if matches!(place.blow, Blow::FailOn(_)) { all } else { place.when };
        (place.when..=last).all(|number| self.unpromised.contains(&number))
    }
}

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let mut rows = Vec::new();
    // The whole sweep has an end of its own; the deadline is for machines that are much slower.
    let modes = context.modes(&Mode::ALL);
    let each = if context.args.ci { 45 } else { 300 };
    let runs = u32::try_from(modes.len()).unwrap_or(1).max(1);
    let share = context
        .args
        .seconds
        .map_or(Duration::from_secs(each), |seconds| Duration::from_secs(seconds) / runs);
    for mode in modes {
        let context = Context { deadline: Instant::now() + share, ..context.clone() };
        rows.extend(sweep(&context, mode)?);
    }
    rows.push(canary::run(context)?);
    Ok(rows)
}

/// Figures of one verb.
#[derive(Clone, Debug, Default)]
struct Figures {
    runs: u64,
    endings: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Tally {
    verbs: BTreeMap<&'static str, Figures>,
    shapes: BTreeSet<u64>,
    violations: Vec<String>,
    /// How often each kind of violation was found.
    kinds: BTreeMap<String, u64>,
    unfinished: u64,
}

fn sweep(context: &Context, mode: Mode) -> Result<Vec<Row>, Trouble> {
    let cases = cases::all(context, mode)?;
    let judged = Mutex::new(HashSet::new());
    let bench = bench(context, &judged)?;
    let mut known = Vec::new();
    for case in &cases {
        known.push(undisturbed(&bench, case)?);
    }
    let mut rows = Vec::new();
    for kills in [true, false] {
        let began = Instant::now();
        let jobs = jobs(context, &cases, &known, kills);
        let left = context.deadline.saturating_duration_since(Instant::now());
        let deadline = Instant::now() + if kills { left / 2 } else { left };
        let context = Context { deadline, ..context.clone() };
        let tally = strike(&context, &cases, &known, jobs, &judged)?;
        rows.push(row(mode.word(), kills, tally, began));
    }
    Ok(rows)
}

fn bench<'c>(context: &'c Context, judged: &'c Mutex<HashSet<u64>>) -> Result<Bench<'c>, Trouble> {
    let dir = context.dir("sweep")?;
    Ok(Bench { context, store: dir.join("table"), runner: Runner::new(dir), known: judged })
}

fn program<'c>(context: &'c Context, case: &Case) -> &'c PathBuf {
    if case.own { &context.own } else { &context.binary }
}

/// A run that nothing strikes: what calls it makes, and that it does what it is expected to.
fn undisturbed(bench: &Bench<'_>, case: &Case) -> Result<Known, Trouble> {
    let context = bench.context;
    let before = cases::prepare(context, case, &bench.store, None)?;
    let ran = bench.runner.traced(&[], program(context, case), &case.args(&bench.store))?;
    let wanted = if case.expect == cases::Expect::Busy { 75 } else { 0 };
    let failed = |why: &str| Trouble::Failed(format!("{}, undisturbed: {why}", case.name));
    if ran.code != Some(wanted) {
        return Err(failed(&ran.ending()));
    }
    let verdict = bench.after_kill(case, &before, &ran)?;
    if let Some(wrong) = verdict.wrong.first() {
        return Err(failed(wrong));
    }
    let answer = ran.answer().unwrap_or(Value::Null);
    let (counts, unpromised) = (traced::counts(&ran.log), traced::unpromised(&ran.log));
    Ok(Known { counts, unpromised, answer, shown: before.view })
}

fn jobs(context: &Context, cases: &[Case], known: &[Known], kills: bool) -> Vec<Job> {
    let ci = context.args.ci;
    let mut jobs = Vec::new();
    for (index, (case, known)) in cases.iter().zip(known).enumerate() {
        for (call, &(all, loader)) in &known.counts {
            if LEFT_OUT.contains(&call.as_str()) {
                continue;
            }
            let changes = CHANGES.contains(&call.as_str());
            // A table is made of hundreds of like directories.
            let many = (all / 40).max(1);
            let step = many
                * match (ci, changes) {
                    (false, _) => 1,
                    (true, true) => 3,
                    (true, false) => 15,
                };
            // The short form begins elsewhere in each sweep.
            let first = loader + 1 + (index + call.len()) as u64 % (step / many);
            let mut add = |blows: Vec<Blow>| {
                jobs.push(Job { case: index, call: call.clone(), blows, first, step });
            };
            // An end does not fail. And by `recvfrom` the standard library hears from a child that it
            // made, on a socket of its own whose failure it takes for impossible.
            // A `close` that strace fails has not closed, as it would have: a pipe to a child never ends.
            let runs = case.expect == cases::Expect::Run;
            let fails = call != "exit_group" && call != "recvfrom" && (call != "close" || !runs);
            let by_turns = || ERRORS.map(Blow::Fail).to_vec();
            if kills {
                add(vec![Blow::Kill]);
            } else if ci && fails {
                add(by_turns());
                if changes {
                    add(vec![Blow::Fail("EIO")]);
                }
            } else if changes && fails {
                for error in ERRORS {
                    add(vec![Blow::Fail(error)]);
                }
                add(vec![Blow::FailOn("EIO")]);
                add(vec![Blow::FailOn("ENOSPC")]);
            } else if call == "openat" {
                add(by_turns());
                add(vec![Blow::Fail("EMFILE"), Blow::Fail("EIO"), Blow::Fail("ENOSPC")]);
            } else if fails {
                add(by_turns());
            }
        }
    }
    // If the time runs out it does so for all verbs alike.
    let mut rng = Rng::new(context.args.seed);
    for last in (1..jobs.len()).rev() {
        jobs.swap(last, rng.index(last + 1));
    }
    jobs
}

fn strike(
    context: &Context,
    cases: &[Case],
    known: &[Known],
    jobs: Vec<Job>,
    judged: &Mutex<HashSet<u64>>,
) -> Result<Tally, Trouble> {
    let mut benches = Vec::new();
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    for _ in 0..workers {
        benches.push(bench(context, judged)?);
    }
    let next = Mutex::new(jobs.into_iter());
    let tally = Mutex::new(Tally::default());
    let trouble = Mutex::new(None);
    std::thread::scope(|scope| {
        for bench in benches {
            let (next, tally, trouble) = (&next, &tally, &trouble);
            scope.spawn(move || {
                loop {
                    let job = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(job) = job else { return };
                    let (case, known) = (&cases[job.case], &known[job.case]);
                    if let Err(error) = all_places(&bench, case, known, &job, tally) {
                        trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                }
            });
        }
    });
    match trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(trouble) => Err(trouble),
        None => Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Strikes place after place until a run was not struck.
fn all_places(
    bench: &Bench<'_>,
    case: &Case,
    known: &Known,
    job: &Job,
    tally: &Mutex<Tally>,
) -> Result<(), Trouble> {
    let context = bench.context;
    for when in (job.first..).step_by(usize::try_from(job.step).unwrap_or(1)) {
        if context.is_over() {
            tally.lock().unwrap_or_else(PoisonError::into_inner).unfinished += 1;
            return Ok(());
        }
        let turn = (when + job.case as u64) % job.blows.len() as u64;
        let blow = job.blows[usize::try_from(turn).unwrap_or(0)].clone();
        let place = Place { blow, call: job.call.clone(), when };
        let Some((ran, verdict)) = one(bench, case, known, &place)? else { return Ok(()) };
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = tally.verbs.entry(case.name).or_default();
        figures.runs += 1;
        *figures.endings.entry(verdict.ending).or_default() += 1;
        tally.shapes.insert(hash(&(case.name, verdict.ending, &verdict.shape)));
        let Some(wrong) = verdict.wrong.first() else { continue };
        let count = tally.kinds.entry(kind_of(wrong)).or_default();
        *count += 1;
        // Each kind once.
        if *count == 1 {
            let number = tally.kinds.len();
            let how = reproduce::reproduce(bench, case, &place, number)?;
            let more = verdict.wrong.len();
            let said = ran.ending();
            tally.violations.push(format!(
                "{}: {place}: {wrong} ({more} in all; it said: {said}); {how}",
                case.name
            ));
        }
    }
    Ok(())
}

/// What is wrong without names and numbers.
pub(crate) fn kind_of(wrong: &str) -> String {
    let words =
        wrong.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.take(8).collect::<Vec<_>>().join(" ")
}

/// One run with a blow, judged; none if the blow did not strike.
fn one(
    bench: &Bench<'_>,
    case: &Case,
    known: &Known,
    place: &Place,
) -> Result<Option<(Ran, Verdict)>, Trouble> {
    let context = bench.context;
    let before = cases::prepare(context, case, &bench.store, Some(&known.shown))?;
    let args = case.args(&bench.store);
    let places = std::slice::from_ref(place);
    let ran = bench.runner.traced(places, program(context, case), &args)?;
    if !ran.struck() {
        return Ok(None);
    }
    let verdict = if ran.signal == Some(9) && !ran.hung {
        bench.after_kill(case, &before, &ran)?
    } else {
        let only_a_note = place.call == "fsync" && known.only_notes(place);
        let place = Some(place).filter(|_| !only_a_note);
        bench.after_error(case, &before, place, &ran, &known.answer)?
    };
    Ok(Some((ran, verdict)))
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn row(mode: &str, kills: bool, tally: Tally, began: Instant) -> Row {
    let mut row = Row {
        layer: "sweep",
        fs: "tmpfs".to_owned(),
        workload: format!("{}, {mode}", if kills { "kills" } else { "errors" }),
        states: tally.verbs.values().map(|figures| figures.runs).sum(),
        distinct: tally.shapes.len() as u64,
        violations: tally.violations,
        seconds: began.elapsed().as_secs_f64(),
        ..Row::default()
    };
    for (kind, count) in tally.kinds.iter().filter(|(_, count)| **count > 1) {
        row.notes.push(format!("{count} times: {kind}"));
    }
    for (verb, figures) in &tally.verbs {
        let endings: Vec<String> =
            figures.endings.iter().map(|(ending, count)| format!("{count} {ending}")).collect();
        row.notes.push(format!("{verb}: {} runs: {}", figures.runs, endings.join(", ")));
    }
    if tally.unfinished > 0 {
        row.notes.push(format!("the time ran out in {} of the sweeps", tally.unfinished));
    }
    if row.states == 0 {
        row.violations.push("no call was ever struck".to_owned());
    }
    row
}
