//! What the kernel denies a single process: large files and many of them.
//!
//! Every verb under every limit of file size, with the signal that comes with it and without, and under
//! every small limit of open files. The signal kills, so that is judged like any kill.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use super::tally::Tally;
use crate::context::{Context, Trouble};
use crate::opened::Mode;
use crate::report::Row;
use crate::sweep::cases::{self, Case, Expect};
use crate::sweep::judge::Bench;
use crate::sweep::traced::{self, Runner};

/// A limit, as arguments before the program.
struct Limit {
    name: &'static str,
    words: Vec<String>,
}

fn limits(ci: bool) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut add = |name, line: String| {
        let words = line.split(' ').map(str::to_owned).collect();
        limits.push(Limit { name, words });
    };
    // Around the lengths of positions, records and slots.
    let sizes = (0..640).step_by(if ci { 211 } else { 47 });
    for size in sizes.chain((640..6_000).step_by(if ci { 2_111 } else { 701 })) {
        let ignored = "env --ignore-signal=XFSZ prlimit";
        add("file size, signal", format!("prlimit --fsize={size}:{size} --core=0"));
        add("file size, no signal", format!("{ignored} --fsize={size}:{size}"));
    }
    for files in (4..28_u32).step_by(if ci { 7 } else { 1 }) {
        add("open files", format!("prlimit --nofile={files}:{files}"));
    }
    limits
}

/// Every limit for every verb.
pub(super) fn run(context: &Context) -> Result<Row, Trouble> {
    let began = Instant::now();
    let judged = Mutex::new(HashSet::new());
    let dir = context.dir("limits")?;
    let bench =
        Bench { context, store: dir.join("table"), runner: Runner::new(dir), known: &judged };
    let mut tally = Tally::default();
    let mut late = 0;
    let modes = context.modes(&Mode::ALL);
    for &mode in &modes {
        let cases = cases::all(context, mode)?;
        let short = ["claim", "heartbeat", "release", "begin-commit", "check --repair"];
        let chosen = |case: &&Case| {
            // A wait only takes time, and makes no call that a claim does not make.
            case.prelude.is_none() && (!context.args.ci || short.contains(&case.name))
        };
        for case in cases.iter().filter(chosen) {
            let before = cases::prepare(context, case, &bench.store, None)?;
            let undisturbed = bench.again(case)?.answer().unwrap_or_default();
            for limit in limits(context.args.ci) {
                if context.is_over() {
                    late += 1;
                    continue;
                }
                one(&bench, case, &limit, &before.view, &undisturbed, &mut tally)?;
            }
        }
    }
    let mut row = tally.row("tmpfs", "limits of a process", began);
    if late > 0 {
        row.notes.push(format!("the time ran out before {late} of the calls"));
    }
    Ok(row)
}

fn one(
    bench: &Bench<'_>,
    case: &Case,
    limit: &Limit,
    shown: &crate::sweep::tree::View,
    undisturbed: &serde_json::Value,
    tally: &mut Tally,
) -> Result<(), Trouble> {
    let context = bench.context;
    let before = cases::prepare(context, case, &bench.store, Some(shown))?;
    let (program, words) =
        limit.words.split_first().ok_or_else(|| Trouble::Failed(String::new()))?;
    let mut args = words.to_vec();
    let tested = if case.own { &context.own } else { &context.binary };
    args.push(tested.to_string_lossy().into_owned());
    args.extend(case.args(&bench.store));
    let ran = traced::plain(Path::new(program), &args)?;
    // Too few files for the loader itself: the program never began.
    if ran.code == Some(127) && ran.err.contains("shared librar") {
        return Ok(());
    }
    let verdict = if ran.signal == Some(libc::SIGXFSZ) {
        bench.after_kill(case, &before, &ran)?
    } else if case.expect == Expect::Run && ran.code == Some(128 + libc::SIGXFSZ) {
        return Ok(());
    } else {
        bench.after_error(case, &before, None, &ran, undisturbed)?
    };
    let wrong = verdict
        .wrong
        .into_iter()
        .map(|wrong| format!("{}: {wrong} (it said: {})", limit.words.join(" "), ran.ending()));
    let what = format!("{}, {} ({})", limit.name, case.name, case.mode.word());
    tally.count(&what, verdict.ending, wrong.collect());
    Ok(())
}
