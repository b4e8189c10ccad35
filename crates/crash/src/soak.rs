//! Power cuts for hours of use in minutes: one table lives through all of them.
//!
//! In each round several processes, of the library and of the binary, make random calls on overlapping
//! groups in a boot of their own. At a random moment the file system is cut off from its journal
//! (`GOINGDOWN` without a flush) and all of them are killed, or first killed and then cut off. Every
//! fourth recovery is cut off as well. Whoever comes next recovers, and the oracle judges:
//!
//! - what was acknowledged is there, by its last acknowledged state; what was refused changed nothing;
//! - groups are whole (`group`), records are whole (`record`);
//! - records that no call of the round was about are what they were, to the token;
//! - fences rise over all rounds, and within a round by real time over all processes;
//! - no call has an unknown outcome before the cut;
//! - after a repair nothing is left over.
//!
//! On xfs a directory's sync is answered with success after the file system was cut off, though what
//! it was for is lost. No process of a machine without power gets such an answer, so acknowledgements
//! that were written after the cut count as none there.
//!
//! The same with all syncs of files, or of directories, left out must be noticed. A table without
//! intents would not be: these two file systems keep their order, so that hardly a cut falls between
//! the records of a group. That is for the weak file system to show.

mod judge;
mod volume;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence::{TargetGroup, Token};
use ringfence_files::open::Tuning;

use crate::context::{Context, Trouble};
use crate::guard::Process;
use crate::lie::Syncs;
use crate::opened::{Mode, Opened};
use crate::report::Row;
use crate::rng::Rng;
use crate::table::{self, Recovered, Seen};
use crate::weak;
use crate::workload;
use judge::{Base, Round};
use volume::Volume;

/// File systems that know the ioctl, each with default mount options.
const KNOWN: [&str; 2] = ["ext4", "xfs"];
/// Processes at once; the last of them runs the binary.
const PROCESSES: u64 = 4;
/// The host of every process; its boots are numbered.
const HOST: &str = "soak";
/// Rounds that every row makes, whatever the time.
const LEAST: u64 = 5;
/// A planted bug that is not noticed in so many rounds is missed.
const CANARY_ROUNDS: u64 = 100;

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let mut rows = Vec::new();
    let systems = context.file_systems(&KNOWN);
    let (most, fewer) = if context.args.ci { (30, 15) } else { (500, 250) };
    for &fs in &systems {
        for mode in context.modes(&Mode::ALL) {
            let rounds = if mode == Mode::Record { fewer } else { most };
            let rounds = context.args.states.unwrap_or(rounds);
            let mut row = soak(context, fs, Plan { mode, without: None }, rounds)?;
            row.workload = format!("power cuts, {}", mode.word());
            rows.push(row);
        }
        // The names in a journal's directory change so seldom that hardly a cut falls between.
        let canaries = [
            ("no sync of a file, group", Mode::Group, Syncs::Files),
            ("no sync of a directory, group", Mode::Group, Syncs::Directories),
            ("no sync of a file, journal", Mode::Journal, Syncs::Files),
        ];
        let modes = context.modes(&Mode::ALL);
        for (name, mode, canary) in canaries.iter().filter(|(_, mode, _)| modes.contains(mode)) {
            let plan = Plan { mode: *mode, without: Some(*canary) };
            let mut row = soak(context, fs, plan, CANARY_ROUNDS)?;
            (*name).clone_into(&mut row.workload);
            row.planted = 1;
            row.caught = u64::from(!row.violations.is_empty());
            row.notes.extend(row.violations.drain(..).map(|seen| format!("noticed: {seen}")));
            rows.push(row);
        }
    }
    Ok(rows)
}

/// What a row is about.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// What is promised.
    mode: Mode,
    /// The planted bug: every sync of a kind is left out.
    without: Option<Syncs>,
}

/// Figures of a row.
#[derive(Debug, Default)]
struct Counts {
    rounds: u64,
    cut_recoveries: u64,
    acknowledged: usize,
    in_flight: usize,
    stood: u64,
}

fn soak(context: &Context, fs: &'static str, plan: Plan, rounds: u64) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut counts = Counts::default();
    let mut tables = HashSet::new();
    let mut row = Row { layer: "soak", fs: fs.to_owned(), ..Row::default() };
    let mut table = Table::new(context, fs, plan)?;
    for number in 1..=rounds {
        // A planted bug is looked for to the end: what was not tried was not noticed.
        if number > LEAST && context.is_over() && plan.without.is_none() {
            row.notes.push(format!("the time ran out before round {number} of {rounds}"));
            break;
        }
        match table.round(context, number, &mut counts)? {
            Ok(found) => {
                tables.insert(found);
            }
            Err(wrong) => {
                let kept = if plan.without.is_none() {
                    format!("; kept in {}", table.keep(context, &wrong)?.display())
                } else {
                    String::new()
                };
                row.violations.push(format!("{wrong} (round {number}{kept})"));
                break;
            }
        }
    }
    row.states = counts.rounds + counts.cut_recoveries;
    row.distinct = tables.len() as u64;
    row.notes.push(format!(
        "{} rounds, {} recoveries cut off; {} calls acknowledged, {} cut off; an intent stood {} \
         times",
        counts.rounds, counts.cut_recoveries, counts.acknowledged, counts.in_flight, counts.stood
    ));
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// The table of all rounds.
struct Table {
    volume: Volume,
    plan: Plan,
    marks: PathBuf,
    rng: Rng,
    base: Base,
    boots: u64,
    last: Vec<u8>,
    before: usize,
}

impl Table {
    fn new(context: &Context, fs: &'static str, plan: Plan) -> Result<Self, Trouble> {
        let volume = Volume::new(context, fs)?;
        table::make(&volume.store(), plan.mode).map_err(Trouble::Failed)?;
        volume.sync()?;
        let marks = context.dir("marks")?.join("marks");
        let rng = Rng::new(context.args.seed ^ (plan.mode as u64) << 32);
        let (base, last, before) = (Base::default(), Vec::new(), 0);
        Ok(Self { volume, plan, marks, rng, base, boots: 0, last, before })
    }

    fn boot(&mut self) -> String {
        self.boots += 1;
        format!("{HOST}@{}", self.boots)
    }

    /// One round; the outer error is that it could not be tried.
    fn round(
        &mut self,
        context: &Context,
        number: u64,
        counts: &mut Counts,
    ) -> Result<Result<String, String>, Trouble> {
        let before = self.work_until_the_cut(context, number)?;
        self.volume.copy()?;
        self.volume.mount()?;
        if self.rng.below(4) == 0 {
            counts.cut_recoveries += u64::from(self.cut_a_recovery(context)?);
        }
        let boot = self.boot();
        let found = table::recover(&self.volume.store(), &boot, &workload::targets());
        counts.rounds += 1;
        counts.stood += u64::from(found.stood);
        self.last = std::fs::read(&self.marks)?;
        self.before = before;
        let round = match Round::read(&self.last, before, self.volume.fs == "xfs") {
            Ok(round) => round,
            Err(wrong) => return Ok(Err(wrong)),
        };
        counts.acknowledged += round.acknowledged();
        counts.in_flight += round.unended();
        let judged = round
            .judge(&self.base, &found, self.plan.mode.durability())
            .and_then(|()| self.go_on(context, &boot, &found, number));
        Ok(match judged {
            Ok(table) => {
                let highest = round.highest_fence().max(found.next_fence);
                let text = table::short(&found.table);
                self.base = Base { table, highest };
                Ok(text)
            }
            Err(wrong) => Err(wrong),
        })
    }

    /// Returns how many bytes of marks were there before the cut.
    fn work_until_the_cut(&mut self, context: &Context, number: u64) -> Result<usize, Trouble> {
        std::fs::write(&self.marks, [])?;
        let boot = self.boot();
        let seed = context.args.seed.to_string();
        let mut running = Vec::new();
        for process in 0..PROCESSES {
            let plan = if process + 1 == PROCESSES { "soak-binary" } else { "soak" };
            let process = (number * PROCESSES + process).to_string();
            let mut arguments =
                vec!["--plan", plan, "--process", &process, "--seed", &seed, "--boot", &boot];
            arguments.extend(["--payload", self.plan.mode.payload()]);
            // The binary would make its syncs all the same.
            match self.plan.without {
                Some(_) if plan == "soak-binary" => continue,
                Some(Syncs::Files) => arguments.extend(["--without", "files"]),
                Some(Syncs::Directories) => {
                    arguments.extend(["--without", "directories"]);
                }
                None => {}
            }
            let store = self.volume.store();
            running.push(weak::start(context, &store, Some(&self.marks), &arguments, |command| {
                // What they start dies with them. After a cut they have a lot to say.
                std::os::unix::process::CommandExt::process_group(command, 0);
                command.stderr(std::process::Stdio::null());
            })?);
        }
        let patience = Instant::now() + Duration::from_secs(20);
        while std::fs::metadata(&self.marks)?.len() == 0 {
            if Instant::now() > patience {
                return Err(Trouble::Failed("no process of the soak began".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(self.rng.below(90_000)));
        let kill_first = self.rng.below(2) == 0;
        if kill_first {
            kill(&mut running);
        }
        let before = std::fs::metadata(&self.marks)?.len();
        self.volume.cut()?;
        if !kill_first {
            // They see that the disk is gone, and must not take it for anything else.
            std::thread::sleep(Duration::from_micros(self.rng.below(3_000)));
            kill(&mut running);
        }
        self.volume.unmount()?;
        usize::try_from(before).map_err(|_| Trouble::Failed("too many marks".to_owned()))
    }

    /// Cuts a recovery off; returns whether it was still at work.
    fn cut_a_recovery(&mut self, context: &Context) -> Result<bool, Trouble> {
        let boot = self.boot();
        let arguments = ["--plan", "recover", "--boot", &boot];
        let mut recovery =
            weak::start(context, &self.volume.store(), None, &arguments, |command| {
                std::os::unix::process::CommandExt::process_group(command, 0);
                command.stderr(std::process::Stdio::null());
            })?;
        std::thread::sleep(Duration::from_micros(1_000 + self.rng.below(15_000)));
        let at_work = recovery.child.try_wait()?.is_none();
        self.volume.cut()?;
        kill(std::slice::from_mut(&mut recovery));
        self.volume.unmount()?;
        self.volume.mount()?;
        Ok(at_work)
    }

    /// Clears up after the judge's own claim, and sees that nothing is left over.
    fn go_on(
        &mut self,
        context: &Context,
        boot: &str,
        found: &Recovered,
        number: u64,
    ) -> Result<BTreeMap<u64, Seen>, String> {
        let store = self.volume.store();
        let tuning = Tuning { sync_width: 1, ..Tuning::default() };
        let opened = Opened::open(&table::world(boot), &store, tuning)?;
        let held = table::look(&opened)?;
        let (_, own) = held.iter().find(|(_, seen)| seen.of == 0).ok_or("the judge's is gone")?;
        let group = TargetGroup::from_numbers(own.group.iter().copied()).map_err(table::chain)?;
        let token = Token::new(&own.token).map_err(table::chain)?;
        opened.targets().release(&group, &token, None).map_err(table::chain)?;
        // The lock files of some rounds stay, as they do in use.
        if number.is_multiple_of(8) {
            repair_by_the_binary(context, &store)?;
        } else if self.rng.below(2) == 0 {
            opened.repair()?;
            let left = opened.check()?.findings;
            if !left.is_empty() {
                return Err(format!("after a repair there is {left:?}"));
            }
        }
        let table = table::look(&opened)?;
        let lost = found
            .table
            .iter()
            .find(|(item, seen)| !own.group.contains(item) && table.get(item) != Some(seen));
        match lost {
            Some((item, seen)) => Err(format!("a release or a repair changed {item}: {seen:?}")),
            None => Ok(table),
        }
    }

    /// Keeps the disk as the cut left it, and what was acknowledged.
    fn keep(&self, context: &Context, wrong: &str) -> Result<PathBuf, Trouble> {
        let mode = self.plan.mode.word();
        let dir = context.keep.join(format!("soak-{}-{mode}", self.volume.fs));
        std::fs::create_dir_all(&dir)?;
        self.volume.keep(&dir.join("disk.img"))?;
        std::fs::write(dir.join("marks"), &self.last)?;
        std::fs::write(dir.join("base.txt"), table::short(&self.base.table))?;
        std::fs::write(
            dir.join("wrong.txt"),
            format!("{wrong}\nthe cut came after {} bytes of marks\n", self.before),
        )?;
        Ok(dir)
    }
}

/// Kills all at once, with what they started, and only then waits.
fn kill(running: &mut [Process]) {
    for process in &*running {
        let group = i32::try_from(process.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
    running.iter_mut().for_each(Process::kill);
}

fn repair_by_the_binary(context: &Context, store: &Path) -> Result<(), String> {
    let answer = crate::real::ask(context, store, "check", &["--repair"])?;
    let after = crate::real::ask(context, store, "check", &[])?;
    let left = after["findings"].as_array().is_none_or(|findings| !findings.is_empty());
    if left || after["healthy"] != serde_json::Value::Bool(true) {
        return Err(format!("check --repair says {answer}, and check after it {after}"));
    }
    Ok(())
}
