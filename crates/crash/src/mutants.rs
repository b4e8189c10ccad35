//! Each sync left out in turn: the layers must notice every one.
//!
//! On the weak file system a recording is edited: without the K-th sync the workload would have made
//! the same calls, because it was told that the sync was done.

use std::collections::BTreeMap;
use std::time::Instant;

use ringfence::Durability;

use crate::block;
use crate::context::{Context, Trouble};
use crate::marks::Begin;
use crate::report::Row;
use crate::states::Disk;
use crate::weak::{self, Found, Limits, Memo, Recording};
use crate::weakfs::Event;

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let plan = if context.args.ci { "short" } else { "verbs" };
    let mut rows = Vec::new();
    let left = context.deadline.saturating_duration_since(Instant::now());
    let within = |share: u32| {
        let mut context = context.clone();
        context.deadline = Instant::now() + left / share;
        context
    };
    for (name, durability) in [
        ("each sync dropped, group", Durability::Group),
        ("each sync dropped, record", Durability::Record),
    ] {
        let recording = weak::record(context, durability, &[plan], "0")?;
        rows.push(on_weak(&within(4), name, &recording)?);
        if durability == Durability::Group && !context.file_systems(&["xfs"]).is_empty() {
            // One recording for each mutant: a short one.
            let recording = weak::record(context, durability, &["short"], "0")?;
            rows.push(on_xfs(&within(2), "short", &recording)?);
        }
    }
    Ok(rows)
}

/// A mutant that one recording does not show is recorded so often, in all.
const RECORDINGS: u64 = 6;

/// On xfs each mutant is recorded anew, by a process that leaves the sync out itself.
///
/// When the kernel writes back what was not synced, and together with what, is its own affair: one
/// recording may hold none of the disks that a missing sync allows, on a slow machine sooner than on
/// a fast one. So a mutant that survives is recorded again, with another seed and more states of each
/// epoch, up to [`RECORDINGS`] times. That makes no uncaught mutant a caught one: it is caught by a
/// disk that such a program really left and that the oracle refuses, and one such disk is proof
/// however many were fine before it. Nor does trying again make the oracle say more than it knows:
/// the same recordings of the program with all its syncs, as many as any mutant needed, must show
/// nothing. A mutant that survives them all counts as survived, and fails the run.
fn on_xfs(context: &Context, plan: &str, recording: &Recording) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut row = Row {
        layer: "mutants",
        fs: "xfs".to_owned(),
        workload: "each sync dropped, group".to_owned(),
        ..Row::default()
    };
    let step = if context.args.ci { 5 } else { 1 };
    let mut masked: BTreeMap<String, u64> = BTreeMap::new();
    let mut most = 1;
    for (number, Sync { site, is_masked, .. }) in (1..).zip(syncs(recording)).step_by(step) {
        let (mut caught, mut seeds) = (false, Vec::new());
        for number_of in 0..if is_masked { 1 } else { RECORDINGS } {
            if caught || context.is_over() {
                break;
            }
            seeds.push(seed(context, number_of));
            let tried = once_on_xfs(context, plan, number, number_of)?;
            row.states += tried.states;
            row.distinct += tried.distinct;
            caught = !tried.violations.is_empty();
        }
        if !caught && context.is_over() {
            row.notes.push(format!("the time ran out at sync {number}"));
            // The short form is fixed: what was not tried was not noticed.
            row.planted += u64::from(context.args.ci);
            break;
        }
        if !caught && is_masked {
            *masked.entry(site).or_default() += 1;
            continue;
        }
        row.planted += 1;
        row.caught += u64::from(caught);
        most = most.max(seeds.len() as u64);
        if !caught {
            row.notes.push(format!("survived: {site} (sync {number}, seeds {seeds:?})"));
        } else if seeds.len() > 1 {
            row.notes.push(format!("noticed late: {site} (sync {number}, seeds {seeds:?})"));
        }
    }
    for number_of in 0..most {
        if context.is_over() {
            row.notes.push("the time ran out before the program with all its syncs".to_owned());
            break;
        }
        let tried = once_on_xfs(context, plan, 0, number_of)?;
        row.states += tried.states;
        row.distinct += tried.distinct;
        row.violations.extend(tried.violations.into_iter().map(|(place, wrong)| {
            let seed = seed(context, number_of);
            format!("no sync was left out: {wrong} (after operation {place}, seed {seed})")
        }));
    }
    if !masked.is_empty() {
        row.notes.push(
            "not counted: xfs has one log for all directories, what is changed between two writes of \
             it survives together, and another sync of the same call writes it. POSIX promises none \
             of that, and the weak file system notices each of these:"
                .to_owned(),
        );
    }
    row.notes.extend(masked.into_iter().map(|(site, count)| format!("{count} x {site}")));
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// The seed of one of the recordings of a mutant.
fn seed(context: &Context, number_of: u64) -> u64 {
    context.args.seed.wrapping_add(number_of.wrapping_mul(1_000_003))
}

/// One recording without one of the syncs, and what its disks show, up to the first that is wrong.
fn once_on_xfs(
    context: &Context,
    plan: &str,
    sync: u64,
    number_of: u64,
) -> Result<block::Tried, Trouble> {
    let mut context = context.clone();
    context.args.seed = seed(&context, number_of);
    let recorded = block::record(&context, "xfs", Durability::Group, &[plan], sync)?;
    let cap = 64_usize << (2 * number_of).min(6);
    block::try_states(&context, &recorded, cap, true)
}

fn on_weak(context: &Context, name: &str, recording: &Recording) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut memo = Memo::new();
    let cap = context.args.states.map_or(64, |states| usize::try_from(states).unwrap_or(64));
    let mut row = Row {
        layer: "mutants",
        fs: "weakfs".to_owned(),
        workload: name.to_owned(),
        ..Row::default()
    };
    let mut sites: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut disk = Disk::new();
    let mut applied = 0;
    let mut idle: BTreeMap<String, u64> = BTreeMap::new();
    for Sync { place, site, .. } in syncs(recording) {
        recording.log[applied..place].iter().for_each(|event| disk.apply(event));
        applied = place;
        if !disk.narrows(&recording.log[place]) {
            *idle.entry(site).or_default() += 1;
            continue;
        }
        if context.is_over() {
            row.notes.push("the time ran out before the last sync".to_owned());
            // What was not tried was not noticed.
            row.planted += 1;
            break;
        }
        let mut mutant = recording.clone();
        // Places of marks stay what they are.
        mutant.log[place] = Event::Mark(Vec::new());
        let mut found = Found::default();
        // First the disks on which it is likely to show, then any.
        let ino = match recording.log[place] {
            Event::SyncFile { ino } | Event::SyncDir { ino } => Some(ino),
            _ => None,
        };
        for about in [ino, None] {
            let limits =
                Limits { cap, states: u64::MAX, first: true, kills: false, about, from: place };
            if found.violations.is_empty() {
                weak::walk(context, &mutant, &limits, &mut memo, &mut found)?;
            }
        }
        row.states += found.states;
        row.planted += 1;
        if found.violations.is_empty() && context.is_over() {
            row.notes.push(format!("the time ran out at {site} (event {place})"));
            break;
        }
        let (caught, planted) = sites.entry(site.clone()).or_default();
        *planted += 1;
        if found.violations.is_empty() {
            row.notes.push(format!("survived: {site} (event {place})"));
        } else {
            row.caught += 1;
            *caught += 1;
        }
    }
    row.distinct = memo.len() as u64;
    for (site, count) in idle {
        row.notes.push(format!(
            "{count} x {site}: not counted, nothing was pending (its name had been made durable \
             before, which a caller cannot know)"
        ));
    }
    for (site, (caught, planted)) in sites {
        row.notes.push(format!("{caught}/{planted} {site}"));
    }
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// A sync that a call of the workload made.
#[derive(Clone, Debug)]
struct Sync {
    place: usize,
    /// What it is for.
    site: String,
    /// Whether a file system with one log for everything hides that it is missing: another sync of the
    /// call writes the same log, or it is that of an intent, which such a log makes needless.
    is_masked: bool,
}

/// Every sync of a recording.
fn syncs(recording: &Recording) -> Vec<Sync> {
    let mut names = BTreeMap::new();
    let mut writes: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut verb = String::new();
    let mut found: Vec<Sync> = Vec::new();
    // Directory syncs of the call at hand, and those of them that no other sync followed.
    let (mut dirs, mut open): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for (place, event) in recording.log.iter().enumerate() {
        let line = weak::describe(event, &mut names);
        let in_call = place >= recording.start && !verb.is_empty();
        match event {
            Event::Mark(mark) => {
                if dirs.len() > 1 {
                    for &sync in &dirs {
                        found[sync].is_masked = true;
                    }
                }
                dirs.clear();
                open.clear();
                if mark.first() == Some(&b'B') {
                    verb = in_words(&mark[1..]);
                }
            }
            Event::Write { ino, at, bytes } => {
                writes.insert(*ino, (*at, bytes.len()));
            }
            Event::SyncFile { ino } if in_call => {
                let step = match writes.get(ino) {
                    Some((0, 512)) if line.contains("intents/") => "retire",
                    Some((512, _)) if line.contains("intents/") => "abort",
                    _ => "write",
                };
                if step != "retire" {
                    open.drain(..).for_each(|sync| found[sync].is_masked = true);
                }
                let site = format!("{verb}: {} ({step})", general(&line));
                let is_masked = step == "write" && line.contains("intents/");
                found.push(Sync { place, site, is_masked });
            }
            Event::SyncDir { .. } if in_call => {
                open.drain(..).for_each(|sync| found[sync].is_masked = true);
                open.push(found.len());
                dirs.push(found.len());
                let site = format!("{verb}: {}", general(&line));
                found.push(Sync { place, site, is_masked: false });
            }
            _ => {}
        }
    }
    found
}

/// The call of a mark.
fn in_words(mark: &[u8]) -> String {
    let begins: Vec<Begin> = serde_json::from_slice(mark).unwrap_or_default();
    begins.first().map_or(String::new(), |begin| {
        let many = if begins.len() > 1 { " (batch)" } else { "" };
        let size = if begin.items.len() > 1 { "a group" } else { "one" };
        format!("{:?} of {size}{many}", begin.verb)
    })
}

/// A line without the names that differ from call to call.
fn general(line: &str) -> String {
    let (what, path) = line.rsplit_once(' ').unwrap_or((line, ""));
    let name = path.rsplit('/').next().unwrap_or(path);
    let kind = match name.rsplit_once('.') {
        None if name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_digit()) => "a shard",
        Some((stem, "tmp")) if stem.starts_with("fence") => "the fence's temporary",
        Some((_, "tmp")) => "a record's temporary",
        Some((_, "slot")) => "a slot",
        _ => name,
    };
    format!("{what} {kind}")
}
