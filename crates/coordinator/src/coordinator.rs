//! One coordinator: the loop from seeds to published results.
//!
//! O1. No job begins after the run's end, after a signal, or once its leases are lost.
//! O2. A finished job goes to the work fence, even if a lease was lost meanwhile: the fence alone
//!     judges results.
//! O3. When it ends, in whatever way it can act on, nothing is held and no worker is left.
//!
//! ```text
//! Running -[end of the run, signal]-> Draining -[all slots idle, or patience over]-> Ended
//! ```

mod assign;
mod finish;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use ringfence::RecordId;
use ringfence_env::World;
use rustix::process::Signal;

use crate::admit::Admitted;
use crate::config::RunConfig;
use crate::context::Context;
use crate::digest::Digest;
use crate::error::Error;
use crate::events::Event;
use crate::exec::{self, Reexec};
use crate::files;
use crate::knowledge::Knowledge;
use crate::ledger::{Growing, ResultRecord, TraceRecord};
use crate::propose::Rules;
use crate::recover;
use crate::seeds::{Intake, Promise};
use crate::showmap::Showmap;
use crate::slot::{Message, Slot, SlotConfig, What};
use crate::usage;
use crate::worker::Launch;

/// How long a coordinator without a free group waits at least and at most before it looks again.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);
const LONGEST_BACKOFF: Duration = Duration::from_millis(200);
/// How often a busy coordinator looks at its flags.
const SLICE: Duration = Duration::from_millis(50);
/// How often it writes its CPU seconds down.
const USAGE_PERIOD: Duration = Duration::from_secs(1);
/// How often the fuzzer's queue is listed.
const QUEUE_PERIOD: Duration = Duration::from_millis(300);
/// How long cancelled tasks may take to be answered.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// Runs coordinator `index` of the run described by the file `config`, until the run ends.
///
/// `parent` is the supervisor: when it ends, this process is told by SIGTERM.
pub fn coordinate(
    config: &std::path::Path,
    index: u32,
    parent: u32,
    reexec: &Reexec,
) -> Result<(), Error> {
    let world = World::system();
    let start_error = |source| Error::Start { program: "a coordinator".to_owned(), source };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(start_error)?;
    }
    exec::die_with(parent, Signal::TERM).map_err(start_error)?;
    let config = RunConfig::read(&world, config)?;
    let context = Context::open(&world, config, index)?;
    context.events.write(Event::Start { pid: std::process::id() });
    let mut coordinator = Coordinator::new(context, reexec)?;
    let ended = coordinator.run(&stop);
    coordinator.end();
    ended
}

/// What a slot is doing.
#[derive(Debug)]
pub(crate) enum Activity {
    Starting,
    Ready,
    Tracing { seed: Digest, lease: Option<TraceLease>, since: Duration },
    Solving { admitted: Box<Admitted>, since: Duration, told: bool },
}

/// The lease under which a seed is traced.
#[derive(Debug)]
pub(crate) struct TraceLease {
    pub(crate) work: ringfence::WorkLease,
    pub(crate) number: u64,
}

struct Coordinator {
    context: Context,
    shared: Shared,
    trace_dir: PathBuf,
    slots: Vec<(Slot, Activity)>,
    messages: Receiver<Message>,
    trace_next: bool,
    misses: u32,
    next_recovery: Duration,
    next_usage: Duration,
    expired: Vec<crate::job::Job>,
    /// How many workers each execution cost this coordinator.
    failures: BTreeMap<RecordId, u32>,
    idle: Duration,
}

/// What is read from shared directories, and the rules applied to it.
struct Shared {
    know: Knowledge,
    rules: Rules,
    intake: Intake,
    traces: Growing,
    ledger: Growing,
    edges: BTreeSet<u32>,
    next_queue: Duration,
}

impl Coordinator {
    fn new(context: Context, reexec: &Reexec) -> Result<Self, Error> {
        let world = &context.world;
        let own = context.run.coordinator(context.index);
        let trace_dir =
            if context.config.arm.shares() { context.layout.traces() } else { own.join("traces") };
        let (sender, messages) = mpsc::channel();
        let mut slots = Vec::new();
        for index in 0..usize::try_from(context.config.workers).unwrap_or(1) {
            let showmap = context.config.program.as_ref().map(|program| Showmap {
                reexec: reexec.clone(),
                program: program.clone(),
                scratch: own.join(format!("edges-{index}")),
            });
            let config = SlotConfig {
                index,
                launch: Launch { reexec: reexec.clone(), argv: context.config.worker.clone() },
                build_id: context.config.build_id.clone(),
                objects: context.layout.objects(),
                limit_ms: context.config.limit_ms,
                max_models: context.config.max_models,
                silence: context.config.silence_ms.map(Duration::from_millis),
                showmap,
            };
            files::mkdir(world, &own.join(format!("out-{index}")))?;
            let slot = Slot::start(world, config, context.events.clone(), sender.clone())
                .map_err(|source| Error::Start { program: "a thread".to_owned(), source })?;
            slots.push((slot, Activity::Starting));
        }
        let rules = Rules {
            group_cap: context.config.group_cap,
            attempts_cap: context.config.attempts_cap,
        };
        let now = world.clock.monotonic();
        Ok(Self {
            shared: Shared {
                know: Knowledge::default(),
                rules,
                intake: Intake::default(),
                traces: Growing::new(trace_dir.clone()),
                ledger: Growing::new(context.layout.ledger()),
                edges: BTreeSet::new(),
                next_queue: now,
            },
            trace_dir,
            slots,
            messages,
            trace_next: true,
            misses: 0,
            // What an earlier run left is finished first.
            next_recovery: now,
            next_usage: now,
            expired: Vec::new(),
            failures: BTreeMap::new(),
            idle: Duration::ZERO,
            context,
        })
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let config = &self.context.config;
        let ends = Duration::from_millis(config.ends_at_ms);
        let drained = ends.saturating_add(Duration::from_millis(config.drain_ms));
        let (seeds, objects) = (config.seeds.clone(), self.context.layout.objects());
        self.shared.intake.read_dir(&self.context.world, &seeds, &objects, false)?;
        let outcome = loop {
            let now = self.now();
            let stopped = stop.load(Ordering::Relaxed);
            if stopped || now >= ends {
                let busy = self.slots.iter().any(|(_, activity)| is_busy(activity));
                if stopped || now >= drained || !busy {
                    break Ok(());
                }
            } else {
                self.refresh_and_assign();
            }
            self.housekeeping(now);
            if let Err(error) = self.wait() {
                break Err(error);
            }
            self.tell_lost();
        };
        self.cancel_all();
        outcome
    }

    /// What cannot be read now may be read later: trouble with a directory costs time, not the run.
    fn refresh_and_assign(&mut self) {
        match self.shared.refresh(&self.context) {
            Ok(()) => self.assign_all(),
            Err(error) => {
                self.misses = self.misses.saturating_add(1);
                self.context.events.write(Event::Trouble { what: error.to_string() });
            }
        }
    }

    /// Takes in one message, waiting for it as long as makes sense now.
    fn wait(&mut self) -> Result<(), Error> {
        let idle = self.slots.iter().filter(|(_, a)| matches!(a, Activity::Ready)).count();
        let patience = if idle > 0 { self.backoff() } else { SLICE };
        let before = self.now();
        let message = self.messages.recv_timeout(patience);
        let waited = self.now().saturating_sub(before);
        self.idle += waited * u32::try_from(idle).unwrap_or(1);
        match message {
            Ok(message) => {
                self.take(message)?;
                // Whatever else has come in is older than what the flags will say.
                while let Ok(message) = self.messages.try_recv() {
                    self.take(message)?;
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Worker("every slot ended".to_owned()))
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<(), Error> {
        let Some((_, activity)) = self.slots.get_mut(message.slot) else { return Ok(()) };
        match message.what {
            What::Ready => *activity = Activity::Ready,
            What::WrongBuild(found) => {
                let ours = &self.context.config.build_id;
                return Err(Error::Worker(format!("it is for build-id {found}, not {ours}")));
            }
            What::Traced(answer) => {
                let before = std::mem::replace(activity, Activity::Starting);
                if let Activity::Tracing { seed, lease, since } = before {
                    self.finish_trace(seed, lease, since, answer);
                }
            }
            What::Solved(answer) => {
                let before = std::mem::replace(activity, Activity::Starting);
                if let Activity::Solving { admitted, since, .. } = before {
                    self.finish_job(&admitted, since, answer);
                }
            }
        }
        Ok(())
    }

    fn housekeeping(&mut self, now: Duration) {
        if now >= self.next_recovery {
            self.next_recovery = now.saturating_add(recover::period(&self.context));
            recover::finish_commits(&self.context);
            let (context, traces) = (&self.context, &self.trace_dir);
            let (know, rules) = (&self.shared.know, &self.shared.rules);
            self.expired = recover::expired_jobs(
                context,
                &mut |job| crate::propose::is_current(know, rules, job),
                &|seed| files::exists(&context.world, &TraceRecord::path(traces, seed)),
            );
        }
        if now >= self.next_usage {
            self.next_usage = now.saturating_add(USAGE_PERIOD);
            self.write_usage();
        }
    }

    fn write_usage(&self) {
        let world = &self.context.world;
        let own = usage::of_self(world);
        let alive = self.slots.iter().filter_map(|(slot, _)| slot.pid());
        let alive: f64 = alive
            .filter_map(|pid| usage::of_process(world, pid))
            .map(|cpu| cpu.own_s + cpu.reaped_s)
            .sum();
        self.context.flush_refused();
        self.context.events.write(Event::Usage {
            own_s: own.own_s,
            workers_s: own.reaped_s + alive,
            idle_s: self.idle.as_secs_f64(),
        });
    }

    /// Stops work whose leases are lost. What has been answered already goes to the fence.
    fn tell_lost(&mut self) {
        for (slot, activity) in &mut self.slots {
            if let Activity::Solving { admitted, told, .. } = activity
                && !*told
                && admitted.lost.load(Ordering::Relaxed)
            {
                *told = true;
                slot.cancel();
            }
        }
    }

    fn cancel_all(&mut self) {
        let deadline = self.context.world.clock.deadline(CANCEL_PATIENCE);
        for (slot, activity) in &self.slots {
            if is_busy(activity) {
                slot.cancel();
            }
        }
        while self.slots.iter().any(|(_, activity)| is_busy(activity))
            && !self.context.world.clock.left(deadline).is_zero()
        {
            if let Ok(message) = self.messages.recv_timeout(SLICE) {
                let _ = self.take(message);
            }
        }
    }

    fn end(&mut self) {
        // The threads end their workers and wait for them, so their CPU seconds are in the sum.
        self.slots.clear();
        self.write_usage();
        self.context.events.write(Event::Stop);
    }

    /// A pause that doubles while nothing is granted, spread out by chance.
    fn backoff(&self) -> Duration {
        let pause = FIRST_BACKOFF.saturating_mul(1 << self.misses.min(8)).min(LONGEST_BACKOFF);
        let mut byte = [128];
        // Without randomness every coordinator pauses equally long: slower, not wrong.
        let _ = self.context.world.entropy.fill(&mut byte);
        pause.mul_f64(0.5 + f64::from(byte[0]) / 256.0)
    }

    fn now(&self) -> Duration {
        self.context.world.clock.monotonic()
    }

    /// What this coordinator itself has under way.
    fn reserved(&self) -> BTreeMap<u64, usize> {
        let mut reserved = BTreeMap::new();
        for (index, (_, activity)) in self.slots.iter().enumerate() {
            if let Activity::Solving { admitted, .. } = activity {
                for action in admitted.job.executed() {
                    reserved.insert(action.target, index);
                }
            }
        }
        reserved
    }
}

impl Shared {
    /// Reads what others, and this one, have published since.
    fn refresh(&mut self, context: &Context) -> Result<(), Error> {
        let world = &context.world;
        let shares = context.config.arm.shares();
        for record in self.ledger.read::<ResultRecord>(world)? {
            if !shares && record.by != context.owner.as_str() {
                continue;
            }
            for result in &record.results {
                self.know.add_result(record.seed, result.target, result.action, result.outcome);
            }
            self.know.add_reached(&record.reached);
            self.edges.extend(record.edges);
            for output in record.outputs {
                self.intake.add(output, 0, Promise::Solved);
            }
        }
        for record in self.traces.read::<TraceRecord>(world)? {
            self.intake.done(record.seed);
            if record.error.is_none() {
                self.know.add_trace(record.seed, &record.taken, &record.opposites);
            }
        }
        let now = world.clock.monotonic();
        if context.config.live && now >= self.next_queue {
            self.next_queue = now.saturating_add(QUEUE_PERIOD);
            let (queue, objects) = (context.run.fuzzer_queue(), context.layout.objects());
            self.intake.read_dir(world, &queue, &objects, true)?;
        }
        Ok(())
    }
}

fn is_busy(activity: &Activity) -> bool {
    matches!(activity, Activity::Tracing { .. } | Activity::Solving { .. })
}
