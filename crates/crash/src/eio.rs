//! A device that fails a write-back or a flush, under real file systems.
//!
//! After a failed sync the kernel may call the pages clean: a second sync succeeds, a buffered read
//! shows bytes that are not on the medium. So the program must not acknowledge the call, neither at
//! once nor after trying again, and what it says to have put back must be on the medium. A second
//! process goes on on the same mount and reads what the first one left; then the medium alone decides.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::block::{self, Bench, Mounted};
use crate::blockdev::{Fault, Op};
use crate::context::{Context, Trouble};
use crate::image::Image;
use crate::marks::Ending;
use crate::opened::Mode;
use crate::oracle::History;
use crate::report::Row;
use crate::weak;

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let mut rows = Vec::new();
    let systems = context.file_systems(&block::KNOWN);
    let modes = context.modes(&[Mode::Group, Mode::Journal]);
    // Frames of several processes share a sync only in a journal.
    let plans = [(Mode::Group, "short"), (Mode::Journal, "short"), (Mode::Journal, "mixed")];
    let plans: Vec<_> = plans.iter().filter(|(mode, _)| modes.contains(mode)).collect();
    let mut runs = systems.len() * plans.len();
    for (mode, plan) in plans {
        for &fs in &systems {
            let context = context.with_share(runs);
            runs -= 1;
            rows.push(on(&context, Setting { fs, mode: *mode, plan })?);
        }
    }
    Ok(rows)
}

/// What is run, and where.
#[derive(Clone, Copy, Debug)]
struct Setting {
    fs: &'static str,
    mode: Mode,
    plan: &'static str,
}

impl Setting {
    /// Runs the processes to their end. A process may end with an error: a file system that has
    /// stopped cannot even be opened.
    fn work(self, context: &Context, mounted: &Mounted, retry: bool) -> Result<(), Trouble> {
        let control = mounted.device.control();
        let seed = context.args.seed.to_string();
        let start = |number: u64| {
            let number = number.to_string();
            let mut arguments = vec!["--plan", self.plan, "--process", &number, "--seed", &seed];
            arguments.extend(["--calls", "15", "--payload", self.mode.payload()]);
            if retry {
                arguments.push("--retry-sync");
            }
            weak::work(context, &mounted.store(), Some(&control), &arguments)
        };
        if self.plan == "mixed" {
            let mut running = (0..4).map(start).collect::<Result<Vec<_>, _>>()?;
            for process in &mut running {
                let _ = process.wait()?;
            }
            // One that comes after them, and reads what they left.
            let _ = start(4)?.wait()?;
        } else {
            let _ = start(0)?.wait()?;
            let _ = start(1)?.wait()?;
        }
        Ok(())
    }
}

fn on(context: &Context, setting: Setting) -> Result<Row, Trouble> {
    let Setting { fs, mode, plan } = setting;
    let began = Instant::now();
    let mut row = Row {
        layer: "eio",
        fs: fs.to_owned(),
        workload: format!(
            "{plan}, {} processes, {}",
            if plan == "mixed" { 5 } else { 2 },
            mode.word()
        ),
        ..Row::default()
    };
    let mut bench = Bench::new(context, fs)?;
    let mut endings: BTreeMap<String, u64> = BTreeMap::new();
    let step = match (context.args.ci, mode) {
        (true, Mode::Journal) => 6,
        (true, _) => 37,
        (false, Mode::Journal) => 1,
        (false, _) => 3,
    };
    let mut open: Vec<Kind> =
        vec![("write", Fault::Write), ("flush", Fault::Flush), ("device gone", Fault::Everything)];
    let mut number = if mode == Mode::Journal { 1 } else { 2 };
    while !open.is_empty() {
        let mut still = Vec::new();
        for (kind, make) in open {
            if context.is_over() {
                row.notes.push(format!("the time ran out before {kind} {number}"));
                continue;
            }
            let fault = make(number);
            let Some(run) = one(context, setting, &mut bench, fault, false)? else { continue };
            still.push((kind, make));
            row.states += 1;
            row.distinct += 1;
            for ending in run.endings {
                *endings.entry(format!("{kind}: {ending}")).or_default() += 1;
            }
            if let Some(wrong) = run.wrong {
                row.violations.push(format!("{fault:?}: {wrong}"));
            }
        }
        open = still;
        number += step;
    }
    // The canary: a program that syncs again after a failure and believes the answer. Not on btrfs,
    // which keeps small files in its trees and stops altogether when it cannot write those.
    let canary = u64::from(fs != "btrfs" && plan == "short");
    row.planted = canary;
    // Which write matters is the kernel's affair. It is looked for to the end, whatever the time: what
    // was not tried was not noticed.
    let numbers = (2..80).step_by(2).chain((3..80).step_by(2)).chain(80..160);
    for number in numbers.take_while(|_| canary > 0) {
        let run = one(context, setting, &mut bench, Fault::Write(number), true)?;
        row.states += 1;
        if run.is_some_and(|run| run.wrong.is_some()) {
            row.caught = 1;
            break;
        }
    }
    for (ending, count) in endings {
        row.notes.push(format!("{count} x {ending}"));
    }
    if row.states == 0 {
        row.violations.push("no fault was ever met".to_owned());
    }
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// A kind of fault, by the number of the operation that fails.
type Kind = (&'static str, fn(u64) -> Fault);

struct Run {
    endings: Vec<String>,
    wrong: Option<String>,
}

/// One workload with one fault; `None` if the workload ended before the fault came.
fn one(
    context: &Context,
    setting: Setting,
    bench: &mut Bench,
    fault: Fault,
    retry: bool,
) -> Result<Option<Run>, Trouble> {
    let mut mounted = Mounted::new(context, setting.fs, setting.mode)?;
    mounted.device.start();
    mounted.device.arm(Some(fault));
    setting.work(context, &mounted, retry)?;
    let (fired, _, _) = mounted.device.fired();
    if fired == 0 {
        return Ok(None);
    }
    if matches!(fault, Fault::Everything(_)) {
        // The power goes with the device: nothing that the kernel still holds reaches the medium.
        mounted.device.arm(Some(Fault::Everything(0)));
    } else {
        mounted.device.arm(None);
    }
    mounted.unmount();
    let log = mounted.device.stop();
    let image = Image::new(&mounted.device.image());
    let marks = log.iter().enumerate().filter_map(|(at, op)| match op {
        Op::Mark(mark) => Some((at, mark.clone())),
        _ => None,
    });
    let history = History::new(marks, setting.mode.durability()).map_err(Trouble::Failed)?;
    let found = bench.recover(&image);
    let history = history.knowing(&found.table);
    let wrong = history.allowed(usize::MAX).judge(&found);
    let endings = history
        .endings()
        .into_iter()
        .filter_map(|(verb, ending, error)| {
            let error = error?;
            // A refusal by a rule is no failure.
            let word = match ending {
                Ending::Unknown => "unknown",
                Ending::Nothing if error.contains("put back") => "put back",
                Ending::Nothing if error.contains("nothing was changed:") => "untouched",
                _ => return None,
            };
            Some(format!("{verb:?} {word}"))
        })
        .collect();
    Ok(Some(Run { endings, wrong }))
}
