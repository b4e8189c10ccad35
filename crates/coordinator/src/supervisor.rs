//! The processes of one run.
//!
//! V1. One supervisor works in a campaign directory at a time; a directory belongs to one build of one
//!     program, one arm, one engine and one ttl, and refuses others.
//! V2. Coordinators end by themselves at the end of the run; those that do not are killed.
//! V3. When the supervisor returns, every process it started has ended and was reaped, and so has what
//!     those left behind. When it is killed, the kernel tells the coordinators and the fuzzer.
//! V4. The numbers come from what is on disk, so those of a killed coordinator count.
//!
//! ```text
//! Prepared -[start]-> Running -[end of time, signal]-> Ending -[all reaped]-> Reported
//! ```

mod prepare;

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_env::{Deadline, World};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::config::{Arm, Hold, RunConfig, StoreEngine};
use crate::error::Error;
use crate::exec::Reexec;
use crate::fuzzer;
use crate::layout::{Layout, RunLayout};
use crate::publish::Publisher;
use crate::report::{self, Ended, Report};
use crate::usage;

/// What a campaign is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the report calls the program.
    pub name: String,
    /// The campaign directory; made if missing.
    pub dir: PathBuf,
    /// The argv of a worker.
    pub worker: Vec<String>,
    /// The fuzzer's program.
    pub program: Option<PathBuf>,
    /// The directory of first seeds.
    pub seeds: PathBuf,
    /// Whether a fuzzer runs beside the coordinators.
    pub live: bool,
    /// How long jobs are begun.
    pub time: Duration,
    /// Number of coordinator processes.
    pub coordinators: u32,
    /// Workers of each.
    pub workers: u32,
    /// How they keep out of each other's way.
    pub arm: Arm,
    /// What keeps the leases.
    pub engine: StoreEngine,
    /// How long a lease lasts without a heartbeat.
    pub ttl: Duration,
    /// The most targets of a group, at most 64.
    pub group_cap: usize,
    /// How often a target is tried over all seeds.
    pub attempts_cap: u32,
    /// The solver's time per target.
    pub limit: Duration,
    /// The most inputs of one `sample`.
    pub max_models: u32,
    /// How long a worker may be silent; by default four times what it announces.
    pub silence: Option<Duration>,
    /// How long jobs under way may take to finish after the end of the run.
    pub drain: Duration,
    /// Shards of a new store's target table.
    pub shards: u16,
    /// For tests: time to be stopped or killed in.
    pub hold: Option<Hold>,
    /// Whether progress is told on standard error.
    pub progress: bool,
}

const POLL: Duration = Duration::from_millis(50);
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);
/// How long coordinators may take to give everything back after their drain.
const GRACE: Duration = Duration::from_secs(8);
/// How much longer than the coordinators the fuzzer may run to look at their last results. It looks
/// every half a minute.
const FUZZER_EXTRA: Duration = Duration::from_secs(45);

/// Runs a campaign to its end and reports.
///
/// Returns early, with everything ended, after SIGINT, SIGTERM or SIGHUP; the report says so.
pub fn supervise(options: &Options, reexec: &Reexec) -> Result<Report, Error> {
    let world = World::system();
    let stop = Arc::new(AtomicUsize::new(0));
    let start_error = |source| Error::Start { program: "the campaign".to_owned(), source };
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        let number = usize::try_from(signal).unwrap_or(0);
        signal_hook::flag::register_usize(signal, Arc::clone(&stop), number)
            .map_err(start_error)?;
    }
    // Orphans of killed coordinators come here and are reaped here.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| start_error(errno.into()))?;
    let prepared = prepare::prepare(&world, options, reexec)?;
    let layout = prepared.config.layout();
    let run = layout.run(prepared.config.run);
    let mut running = Running {
        world: world.clone(),
        config: prepared.config.clone(),
        layout,
        run,
        coordinators: Vec::new(),
        fuzzer: None,
        ended: Vec::new(),
        fuzzer_s: 0.0,
        progress: options.progress,
    };
    let outcome = running.start(options, reexec).map(|()| running.watch(options, &stop));
    running.end_all();
    outcome?;
    let facts = report::Facts {
        interrupted: i32::try_from(stop.load(Ordering::Relaxed)).ok().filter(|number| *number != 0),
        coordinators: options.coordinators,
        seconds: options.time.as_secs_f64(),
        ended: std::mem::take(&mut running.ended),
        fuzzer_s: running.fuzzer_s,
        reexec: reexec.clone(),
    };
    let report = report::make(&world, &prepared.config, facts)?;
    drop(prepared);
    Ok(report)
}

struct Running {
    world: World,
    config: RunConfig,
    layout: Layout,
    run: RunLayout,
    coordinators: Vec<(u32, Child)>,
    fuzzer: Option<Child>,
    ended: Vec<Ended>,
    fuzzer_s: f64,
    progress: bool,
}

impl Running {
    fn start(&mut self, options: &Options, reexec: &Reexec) -> Result<(), Error> {
        if let (true, Some(program)) = (self.config.live, &self.config.program) {
            let time = options.time + options.drain + GRACE + FUZZER_EXTRA;
            let seeds = &self.config.seeds;
            let child = fuzzer::start(&self.world, reexec, &self.run, seeds, program, time)?;
            self.fuzzer = Some(child);
        }
        for index in 1..=options.coordinators {
            let mut command = Command::new(&reexec.program);
            command.arg(reexec.coordinator).arg(self.run.config()).arg(index.to_string());
            command.arg(std::process::id().to_string());
            command.stdin(Stdio::null()).stdout(Stdio::null());
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            let child = command
                .spawn()
                .map_err(|source| Error::Start { program: "a coordinator".to_owned(), source })?;
            self.coordinators.push((index, child));
        }
        Ok(())
    }

    /// Waits until every coordinator has ended, then the fuzzer.
    fn watch(&mut self, options: &Options, stop: &AtomicUsize) {
        let clock = Arc::clone(&self.world.clock);
        let mut deadline = clock.deadline(options.time + options.drain + GRACE);
        let mut told = false;
        let mut next_progress = clock.deadline(PROGRESS_PERIOD);
        while self.some_coordinator_lives() {
            if stop.load(Ordering::Relaxed) != 0 && !told {
                told = true;
                deadline = clock.deadline(GRACE);
                self.tell_coordinators(Signal::TERM);
            }
            if clock.left(deadline).is_zero() {
                self.tell_coordinators(Signal::KILL);
            }
            if self.progress && clock.left(next_progress).is_zero() {
                next_progress = clock.deadline(PROGRESS_PERIOD);
                report::progress(&self.world, &self.config, options.coordinators);
            }
            clock.sleep(POLL);
        }
        let deadline = clock.deadline(FUZZER_EXTRA);
        let published = Publisher::new(&self.world, &self.layout, &self.run).index();
        let published = published.map_or(0, |index| index.len() as u64);
        while self.fuzzer_lives()
            && fuzzer::imports(&self.world, &self.run).cursor < published
            && !clock.left(deadline).is_zero()
            // Interrupted, nobody waits for its last imports.
            && stop.load(Ordering::Relaxed) == 0
        {
            clock.sleep(POLL * 4);
        }
    }

    fn some_coordinator_lives(&mut self) -> bool {
        let mut alive = Vec::new();
        for (index, mut child) in self.coordinators.drain(..) {
            match child.try_wait() {
                Ok(None) => alive.push((index, child)),
                Ok(Some(status)) => self.ended.push(Ended { index, how: how(status) }),
                Err(error) => self.ended.push(Ended { index, how: error.to_string() }),
            }
        }
        self.coordinators = alive;
        !self.coordinators.is_empty()
    }

    fn fuzzer_lives(&mut self) -> bool {
        let Some(child) = &mut self.fuzzer else { return false };
        // The kernel adds its time, and that of what it waited for, to ours when it is reaped.
        let before = usage::of_self(&self.world).reaped_s;
        if matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        self.fuzzer_s = usage::of_self(&self.world).reaped_s - before;
        self.fuzzer = None;
        false
    }

    fn tell_coordinators(&self, signal: Signal) {
        for (_, child) in &self.coordinators {
            tell(child, signal);
            if signal != Signal::KILL {
                // A stopped process acts on a signal only once it runs again.
                tell(child, Signal::CONT);
            }
        }
    }

    /// V3: whatever is left is ended, at once if it must be.
    fn end_all(&mut self) {
        let clock = Arc::clone(&self.world.clock);
        for signal in [Signal::TERM, Signal::KILL] {
            if let Some(child) = &self.fuzzer {
                tell(child, signal);
            }
            self.tell_coordinators(signal);
            let deadline = clock.deadline(Duration::from_secs(2));
            while (self.some_coordinator_lives() | self.fuzzer_lives()) && !over(&*clock, deadline)
            {
                clock.sleep(POLL);
            }
        }
        // What killed coordinators left: their workers, handed to us.
        for _ in 0..200 {
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
            let left = usage::children_of_self(&self.world);
            if left.is_empty() {
                break;
            }
            for pid in left {
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
            clock.sleep(Duration::from_millis(10));
        }
        prepare::sweep(&self.world, &self.layout);
    }
}

fn over(clock: &dyn ringfence_env::Clock, deadline: Deadline) -> bool {
    clock.left(deadline).is_zero()
}

/// Sends a signal to a child that was not reaped, so the number is still its own.
fn tell(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn how(status: ExitStatus) -> String {
    if status.success() { "ended".to_owned() } else { status.to_string() }
}
