//! The weak file system: every disk that POSIX allows, and every kill.
//!
//! A recording holds all operations of all processes in one order. At every crash point every disk is
//! written out, recovered by the product's own code in the next boot, and judged. After a kill of all
//! processes the volatile disk is recovered in the same boot. Disks in which an intent stands are
//! recovered once more on a weak file system, and that recovery is cut off in turn.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use crate::context::{Context, Trouble};
use crate::guard::{Held, Process, Resource};
use crate::opened::Mode;
use crate::oracle::{Allowed, History};
use crate::real;
use crate::report::Row;
use crate::rng::Rng;
use crate::states::{Disk, Tree};
use crate::table::{self, Recovered};
use crate::weakfs::{Event, WeakFs};
use crate::workload;

/// A recording with what was acknowledged in it.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    /// Everything that happened.
    pub(crate) log: Vec<Event>,
    /// Where the table had been made and was durable.
    pub(crate) start: usize,
    /// What the calls were.
    pub(crate) history: History,
}

/// Recovered disks by digest and boot: equal disks recover alike.
pub(crate) type Memo = HashMap<(u128, &'static str), Arc<Recovered>>;

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let mut rows = Vec::new();
    let ci = context.args.ci;
    let calls = if ci { "20" } else { "60" };
    // The quick ones first: the others share what time they leave.
    let plans = [
        ("binary, 1 at a time", Mode::Journal, &["binary"][..]),
        ("verbs, 1 process", Mode::Journal, &["verbs"][..]),
        ("mixed, 4 processes", Mode::Journal, &["mixed"; 4][..]),
        ("binary, 1 at a time", Mode::Group, &["binary"][..]),
        ("verbs, 1 process", Mode::Group, &["verbs"][..]),
        ("verbs, 1 process", Mode::Record, &["verbs"][..]),
        ("mixed, 4 processes", Mode::Group, &["mixed"; 4][..]),
        ("mixed, 4 processes", Mode::Record, &["mixed"; 4][..]),
    ];
    let modes = context.modes(&Mode::ALL);
    let plans: Vec<_> = plans.into_iter().filter(|(_, mode, _)| modes.contains(mode)).collect();
    for (number, (name, mode, processes)) in plans.iter().enumerate() {
        let context = context.with_share(plans.len() - number);
        let (mode, processes) = (*mode, *processes);
        let recording = record(&context, mode, processes, calls)?;
        rows.push(explore(&context, &format!("{name}, {}", mode.word()), &recording)?);
    }
    Ok(rows)
}

/// Records the workload's processes on a table of its own.
pub(crate) fn record(
    context: &Context,
    mode: Mode,
    plans: &[&str],
    calls: &str,
) -> Result<Recording, Trouble> {
    let dir = context.dir("weakfs")?;
    let fs = WeakFs::mount(&dir, &Tree::default())?;
    let mount = Held::new(Resource::Mount(dir.clone()));
    let store = dir.join("table");
    let init = ["--plan", "init", "--mode", mode.word()];
    finish(&mut [work(context, &store, None, &init)?])?;
    fs.settle();
    let start = fs.log().len();
    let control = WeakFs::control(&dir);
    let seed = context.args.seed.to_string();
    let mut running = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let number = number.to_string();
        let mut arguments =
            vec!["--plan", plan, "--process", &number, "--seed", &seed, "--calls", calls];
        arguments.extend(["--payload", mode.payload()]);
        running.push(work(context, &store, Some(&control), &arguments)?);
    }
    finish(&mut running)?;
    let log = fs.log();
    // The kernel first, so that the server's own unmount finds nothing left to do.
    drop(mount);
    drop(fs);
    let marks = log.iter().enumerate().filter_map(|(at, event)| match event {
        Event::Mark(mark) => Some((at, mark.clone())),
        _ => None,
    });
    let history = History::new(marks, mode.durability()).map_err(Trouble::Failed)?;
    if history.acknowledged() == 0 {
        return Err(Trouble::Failed("the workload did nothing".to_owned()));
    }
    Ok(Recording { log, start, history })
}

/// Starts one process of a workload.
pub(crate) fn work(
    context: &Context,
    store: &Path,
    control: Option<&Path>,
    arguments: &[&str],
) -> Result<Process, Trouble> {
    start(context, store, control, arguments, |_| ())
}

/// The same, in a way that the caller may change.
pub(crate) fn start(
    context: &Context,
    store: &Path,
    control: Option<&Path>,
    arguments: &[&str],
    how: impl FnOnce(&mut Command),
) -> Result<Process, Trouble> {
    let mut command = Command::new(&context.own);
    command.arg("work").arg("--store").arg(store).args(arguments).stdin(Stdio::null());
    command.arg("--binary").arg(&context.binary);
    if let Some(control) = control {
        command.arg("--control").arg(control);
    }
    how(&mut command);
    Ok(Process::start(&mut command)?)
}

/// Waits for all of them.
pub(crate) fn finish(running: &mut [Process]) -> Result<(), Trouble> {
    let mut failed = false;
    for process in running {
        failed |= !process.wait()?.success();
    }
    if failed {
        Err(Trouble::Failed("a process of the workload failed".to_owned()))
    } else {
        Ok(())
    }
}

/// A disk that was left, where, and in which boot it is recovered.
struct Case {
    tree: Tree,
    digest: u128,
    boot: &'static str,
}

/// What was found on the way.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) states: u64,
    pub(crate) violations: Vec<(usize, String, Tree)>,
    pub(crate) standing: Vec<(usize, Tree)>,
    pub(crate) sampled_points: u64,
    pub(crate) points: u64,
    pub(crate) kills: u64,
    samples: Vec<(Tree, Arc<Recovered>)>,
}

/// More violations than this are only counted.
const KEEP: usize = 5;

/// How much of the space is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Disks per crash point.
    pub(crate) cap: usize,
    /// Disks in all.
    pub(crate) states: u64,
    /// Stop at the first violation.
    pub(crate) first: bool,
    /// Try kills as well.
    pub(crate) kills: bool,
    /// Only disks that tell whether this inode's pending changes matter.
    pub(crate) about: Option<u64>,
    /// Judge no crash before this place.
    pub(crate) from: usize,
}

fn explore(context: &Context, name: &str, recording: &Recording) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut memo = Memo::new();
    let limits = Limits {
        cap: if context.args.ci { 96 } else { 4096 },
        states: context.args.states.unwrap_or(u64::MAX),
        first: false,
        kills: true,
        about: None,
        from: recording.start,
    };
    let mut found = Found::default();
    let everything = walk(context, recording, &limits, &mut memo, &mut found)?;
    let nested = nested(context, recording, &mut memo, &mut found)?;
    let binary = real::sample(context, &found.samples)?;
    let mut violations = Vec::new();
    for (number, (place, wrong, tree)) in found.violations.iter().take(KEEP).enumerate() {
        let kept = keep(context, name, number, *place, wrong, tree, recording)?;
        violations
            .push(format!("{wrong} (crash before event {place}; kept in {})", kept.display()));
    }
    violations.extend((KEEP..found.violations.len()).map(|_| "like the others".to_owned()));
    violations.extend(binary.violations);
    let mut notes = vec![
        format!(
            "{} calls acknowledged, {} events",
            recording.history.acknowledged(),
            recording.log.len()
        ),
        format!(
            "{} crash points, {} of them sampled; {} kills; {} states in {} cut-off recoveries; {} runs of the binary",
            found.points, found.sampled_points, found.kills, nested.0, nested.1, binary.runs
        ),
    ];
    if !everything {
        notes.push("the time or the states ran out before the end of the log".to_owned());
    }
    Ok(Row {
        layer: "weak",
        fs: "weakfs".to_owned(),
        workload: name.to_owned(),
        states: found.states,
        distinct: memo.len() as u64,
        violations,
        notes,
        seconds: began.elapsed().as_secs_f64(),
        ..Row::default()
    })
}

/// Tries every crash point of a recording; returns whether the end was reached.
pub(crate) fn walk(
    context: &Context,
    recording: &Recording,
    limits: &Limits,
    memo: &mut Memo,
    found: &mut Found,
) -> Result<bool, Trouble> {
    let mut disk = Disk::new();
    let mut rng = Rng::new(context.args.seed);
    let mut changed = true;
    let mut last: Vec<Case> = Vec::new();
    let end = recording.log.len();
    for place in 0..=end {
        let event = recording.log.get(place);
        if place >= limits.from {
            let is_point =
                event.is_none_or(|event| disk.narrows(event) || matches!(event, Event::Mark(_)));
            if is_point {
                if changed {
                    last.clear();
                    let mut digests = std::collections::HashSet::new();
                    let visit = |tree: Tree| {
                        let digest = tree.digest();
                        if digests.insert(digest) {
                            last.push(Case { tree, digest, boot: table::AFTER });
                        }
                    };
                    let whole = match limits.about {
                        Some(ino) => {
                            disk.about(ino, limits.cap, &mut rng, visit);
                            false
                        }
                        None => disk.each(limits.cap, &mut rng, visit),
                    };
                    found.sampled_points += u64::from(!whole);
                    changed = false;
                }
                found.points += 1;
                judge(context, &recording.history.allowed(place), place, &last, memo, found)?;
            }
            if limits.kills && event.is_some_and(|event| !matches!(event, Event::Mark(_))) {
                let tree = disk.volatile();
                let mut cases = Vec::new();
                // What processes share in memory is a hint: without it a table goes on.
                if found.kills.is_multiple_of(4)
                    && let Some(tree) = tree.with_zeros("table/hints")
                {
                    cases.push(Case { digest: tree.digest(), tree, boot: table::RECORDED });
                }
                cases.push(Case { digest: tree.digest(), tree, boot: table::RECORDED });
                found.kills += 1;
                judge(context, &recording.history.allowed(place), place, &cases, memo, found)?;
            }
            let over = found.states >= limits.states || context.is_over();
            if (limits.first && !found.violations.is_empty()) || (over && place < end) {
                return Ok(false);
            }
        }
        if let Some(event) = event {
            disk.apply(event);
            changed |= !matches!(event, Event::Mark(_));
        }
    }
    Ok(true)
}

/// Recovers what was not met before, and judges all of it.
fn judge(
    context: &Context,
    allowed: &Allowed,
    place: usize,
    cases: &[Case],
    memo: &mut Memo,
    found: &mut Found,
) -> Result<(), Trouble> {
    const WORKERS: usize = 3;
    let fresh: Vec<&Case> =
        cases.iter().filter(|case| !memo.contains_key(&(case.digest, case.boot))).collect();
    let everything = workload::targets();
    let share = fresh.len().div_ceil(WORKERS).max(8);
    let results: Vec<std::io::Result<Vec<Arc<Recovered>>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = fresh
            .chunks(share)
            .enumerate()
            .map(|(worker, cases)| {
                let everything = &everything;
                scope.spawn(move || {
                    let dir = context.scratch.path().join(format!("state-{worker}"));
                    cases
                        .iter()
                        .map(|case| {
                            case.tree.write(&dir)?;
                            let root = dir.join("table");
                            Ok(Arc::new(table::recover(&root, case.boot, everything)))
                        })
                        .collect()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    let mut recovered = Vec::with_capacity(fresh.len());
    for result in results {
        recovered.extend(result?);
    }
    for (case, recovered) in fresh.iter().zip(recovered) {
        // A few of the disks also go to the binary.
        if case.boot == table::AFTER && memo.len().is_multiple_of(97) {
            found.samples.push((case.tree.clone(), Arc::clone(&recovered)));
        }
        if case.boot == table::AFTER && recovered.stood && found.standing.len() < 400 {
            found.standing.push((place, case.tree.clone()));
        }
        memo.insert((case.digest, case.boot), recovered);
    }
    for case in cases {
        found.states += 1;
        let recovered = &memo[&(case.digest, case.boot)];
        if let Some(wrong) = allowed.judge(recovered) {
            let wrong =
                if case.boot == table::RECORDED { format!("killed: {wrong}") } else { wrong };
            let tree =
                if found.violations.len() < KEEP { case.tree.clone() } else { Tree::default() };
            found.violations.push((place, wrong, tree));
        }
    }
    Ok(())
}

/// Recovers disks with standing intents on a weak file system and cuts that off; returns how many
/// states came of how many recoveries.
fn nested(
    context: &Context,
    recording: &Recording,
    memo: &mut Memo,
    found: &mut Found,
) -> Result<(u64, u64), Trouble> {
    let most = if context.args.ci { 6 } else { 60 };
    let standing = std::mem::take(&mut found.standing);
    let step = (standing.len() / most).max(1);
    let (mut states, mut recoveries) = (0, 0);
    for (place, tree) in standing.iter().step_by(step) {
        let dir = context.dir("weakfs")?;
        let fs = WeakFs::mount(&dir, tree)?;
        let mount = Held::new(Resource::Mount(dir.clone()));
        let start = fs.log().len();
        finish(&mut [work(context, &dir.join("table"), None, &["--plan", "recover"])?])?;
        let log = fs.log();
        drop(mount);
        drop(fs);
        recoveries += 1;
        let allowed = recording.history.allowed(*place);
        let mut disk = Disk::new();
        let mut rng = Rng::new(context.args.seed);
        for (at, event) in log.iter().enumerate() {
            if at >= start && disk.narrows(event) {
                let mut cases = Vec::new();
                disk.each(256, &mut rng, |tree| {
                    cases.push(Case { digest: tree.digest(), tree, boot: table::LATER });
                });
                cases.dedup_by_key(|case| case.digest);
                states += cases.len() as u64;
                judge(context, &allowed, *place, &cases, memo, found)?;
            }
            disk.apply(event);
        }
    }
    Ok((states, recoveries))
}

/// Keeps a disk that was judged wrong, with the log that led to it.
fn keep(
    context: &Context,
    name: &str,
    number: usize,
    place: usize,
    wrong: &str,
    tree: &Tree,
    recording: &Recording,
) -> Result<PathBuf, Trouble> {
    let slug: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let dir = context.keep.join(format!("weak-{slug}-{number}"));
    tree.write(&dir.join("disk"))?;
    let mut text = format!("{wrong}\ncrash before event {place}\n\n");
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    for (at, event) in recording.log.iter().enumerate().take(place + 1) {
        let line = describe(event, &mut names);
        if at >= recording.start.saturating_sub(1) {
            let _ = writeln!(text, "{at:6} {line}");
        }
    }
    std::fs::write(dir.join("log.txt"), text)?;
    Ok(dir)
}

/// One event in words, by the name that its inode had last.
pub(crate) fn describe(event: &Event, names: &mut BTreeMap<u64, String>) -> String {
    let name = |names: &BTreeMap<u64, String>, ino: u64| {
        names.get(&ino).cloned().unwrap_or_else(|| format!("#{ino}"))
    };
    match event {
        Event::Make { dir, name: new, ino, is_dir, .. } => {
            let path = format!("{}/{new}", name(names, *dir));
            names.insert(*ino, path.clone());
            format!("{} {path}", if *is_dir { "mkdir" } else { "create" })
        }
        Event::Remove { dir, name: old } => format!("remove {}/{old}", name(names, *dir)),
        Event::Rename { name: old, to, new, ino, .. } => {
            let path = format!("{}/{new}", name(names, *to));
            names.insert(*ino, path.clone());
            format!("rename {old} to {path}")
        }
        Event::Write { ino, at, bytes } => {
            format!("write {} at {at}, {} bytes", name(names, *ino), bytes.len())
        }
        Event::Memory { ino, at, bytes } => {
            format!("memory of {} at {at}, {} bytes", name(names, *ino), bytes.len())
        }
        Event::Truncate { ino, len } => format!("truncate {} to {len}", name(names, *ino)),
        Event::SyncFile { ino } => format!("sync file {}", name(names, *ino)),
        Event::SyncDir { ino } => format!("sync directory {}", name(names, *ino)),
        Event::Settle => "everything is durable".to_owned(),
        Event::Mark(mark) => String::from_utf8_lossy(mark).trim_end().to_owned(),
    }
}
