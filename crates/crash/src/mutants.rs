//! Each sync left out in turn: the layers must notice every one.
//!
//! On the weak file system a recording is edited: without the K-th sync the workload would have made
//! the same calls, because it was told that the sync was done.

mod needless;
mod syncs;

use std::collections::BTreeMap;
use std::time::Instant;

use crate::block;
use crate::context::{Context, Trouble};
use crate::opened::Mode;
use crate::report::Row;
use crate::states::Disk;
use crate::weak::{self, Found, Limits, Memo, Recording};
use crate::weakfs::Event;
use syncs::{Sync, syncs};

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let plan = if context.args.ci { "short" } else { "verbs" };
    let mut rows = Vec::new();
    let left = context.deadline.saturating_duration_since(Instant::now());
    let within = |share: u32| {
        let mut context = context.clone();
        // The short form is fixed, and one deadline is enough for all of it.
        if !context.args.ci {
            context.deadline = Instant::now() + left / share;
        }
        context
    };
    for mode in context.modes(&Mode::ALL) {
        let name = format!("each sync dropped, {}", mode.word());
        let recording = weak::record(context, mode, &[plan], "0")?;
        rows.push(on_weak(&within(5), &name, &recording)?);
        if mode != Mode::Record && !context.file_systems(&["xfs"]).is_empty() {
            // One recording for each mutant: a short one.
            let recording = weak::record(context, mode, &["short"], "0")?;
            rows.push(on_xfs(&within(3), mode, &name, &recording)?);
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
fn on_xfs(
    context: &Context,
    mode: Mode,
    name: &str,
    recording: &Recording,
) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut row =
        Row { layer: "mutants", fs: "xfs".to_owned(), workload: name.to_owned(), ..Row::default() };
    let step = match (context.args.ci, mode) {
        (true, Mode::Journal) => 2,
        (true, _) => 5,
        (false, _) => 1,
    };
    let mut masked: BTreeMap<String, u64> = BTreeMap::new();
    let mut most = 1;
    for (number, Sync { site, is_masked, .. }) in (1..).zip(syncs(recording)).step_by(step) {
        let (mut caught, mut seeds) = (false, Vec::new());
        for number_of in 0..if is_masked { 1 } else { RECORDINGS } {
            if caught || context.is_over() {
                break;
            }
            seeds.push(seed(context, number_of));
            let tried = once_on_xfs(context, mode, number, number_of)?;
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
        let tried = once_on_xfs(context, mode, 0, number_of)?;
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
             of that, and the weak file system notices each of these, or says why not:"
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
    mode: Mode,
    sync: u64,
    number_of: u64,
) -> Result<block::Tried, Trouble> {
    let mut context = context.clone();
    context.args.seed = seed(&context, number_of);
    let recorded = block::record(&context, "xfs", mode, &["short"], sync)?;
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
    let mut excused: BTreeMap<String, u64> = BTreeMap::new();
    for Sync { place, mut site, needless, .. } in syncs(recording) {
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
        let mut found = without(context, recording, &[place], cap, &mut memo)?;
        row.states += found.states;
        if found.violations.is_empty()
            && let Some(needless) = needless
        {
            // Then what does its work must be left out as well, and both be noticed.
            let (why, with) = (needless.why, [&[place], &needless.with[..]].concat());
            *excused.entry(format!("{site}: {why}")).or_default() += 1;
            if needless.with.is_empty() {
                continue;
            }
            site = format!("{site}, and what does its work");
            found = without(context, recording, &with, cap, &mut memo)?;
            row.states += found.states;
        }
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
            "{count} x {site}: not counted, nothing was pending (it had been made durable before, \
             which a caller cannot know)"
        ));
    }
    for (site, count) in excused {
        row.notes.push(format!("{count} x not counted alone: {site}"));
    }
    for (site, (caught, planted)) in sites {
        row.notes.push(format!("{caught}/{planted} {site}"));
    }
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// What the disks show where these syncs are missing, up to the first that is wrong.
fn without(
    context: &Context,
    recording: &Recording,
    places: &[usize],
    cap: usize,
    memo: &mut Memo,
) -> Result<Found, Trouble> {
    let mut mutant = recording.clone();
    for &place in places {
        // Places of marks stay what they are.
        mutant.log[place] = Event::Mark(Vec::new());
    }
    let mut found = Found::default();
    let from = places.iter().copied().min().unwrap_or(0);
    // First the disks on which it is likely to show, then any.
    let abouts = places.iter().filter_map(|&place| match recording.log[place] {
        Event::SyncFile { ino } | Event::SyncDir { ino } => Some(Some(ino)),
        _ => None,
    });
    for about in abouts.chain([None]) {
        let limits = Limits { cap, states: u64::MAX, first: true, kills: false, about, from };
        if found.violations.is_empty() {
            weak::walk(context, &mutant, &limits, memo, &mut found)?;
        }
    }
    Ok(found)
}
