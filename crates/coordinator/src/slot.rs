//! One worker slot: a thread with a warm worker that does one task at a time.
//!
//! S1. A slot says that it is ready before it gets a task, so nothing is leased while a worker starts.
//! S2. A worker that fails is replaced after a pause that doubles with every failure in a row.
//! S3. Every task is answered once, whatever happens to the worker.
//! S4. What a worker answers is checked against the task before anybody sees it.
//!
//! ```text
//! Starting -[hello, build-id]-> Ready -[task]-> Busy -[answer]-> Ready
//!     ^--------[pause]-------------------------- \-[worker failed: answered so]
//! ```

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence_env::World;
use serde_json::json;

use crate::digest::Digest;
use crate::events::{Event, EventLog};
use crate::files;
use crate::job::Job;
use crate::ledger::ActionResult;
use crate::showmap::Showmap;
use crate::worker::{
    Hello, Launch, Outcome, Patience, SolveAnswer, TraceAnswer, VerifyAnswer, Worker, WorkerError,
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const SLICE: Duration = Duration::from_millis(50);
/// A replay is cut after a bounded number of instructions; this is longer than any of them takes.
const LONGEST_REPLAY: Duration = Duration::from_mins(2);

/// How a slot works.
#[derive(Clone, Debug)]
pub(crate) struct SlotConfig {
    pub(crate) index: usize,
    pub(crate) launch: Launch,
    pub(crate) build_id: String,
    pub(crate) objects: PathBuf,
    pub(crate) limit_ms: u64,
    pub(crate) max_models: u32,
    pub(crate) silence: Option<Duration>,
    pub(crate) showmap: Option<Showmap>,
}

/// What a slot can do.
#[derive(Debug)]
pub(crate) enum Task {
    Trace {
        seed: Digest,
    },
    /// Outputs are written to `out`; `watch` are targets whose reach is of interest.
    Solve {
        job: Job,
        out: PathBuf,
        watch: Vec<u64>,
    },
}

/// What a slot says.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) slot: usize,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Ready,
    Traced(Result<TraceAnswer, WorkerError>),
    Solved(Result<Findings, WorkerError>),
    /// The worker is of another build: no job of this campaign can be done with it.
    WrongBuild(String),
}

/// A solved job, checked.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) results: Vec<ActionResult>,
    pub(crate) outputs: Vec<Found>,
    pub(crate) cpu_s: f64,
}

/// One output of a job.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) digest: Digest,
    pub(crate) bytes: Vec<u8>,
    /// Which of the watched targets its own replay took.
    pub(crate) reached: Vec<u64>,
    /// The fuzzer's edges, where it can be asked.
    pub(crate) edges: Vec<u32>,
}

/// The coordinator's end of a slot.
#[derive(Debug)]
pub(crate) struct Slot {
    tasks: Option<Sender<Task>>,
    cancel: Arc<AtomicBool>,
    pid: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Slot {
    pub(crate) fn start(
        world: &World,
        config: SlotConfig,
        events: EventLog,
        messages: Sender<Message>,
    ) -> std::io::Result<Self> {
        let (tasks, receiver) = mpsc::channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let pid = Arc::new(AtomicU32::new(0));
        let inner = Inner {
            world: world.clone(),
            config,
            events,
            messages,
            tasks: receiver,
            cancel: Arc::clone(&cancel),
            pid: Arc::clone(&pid),
        };
        let thread =
            std::thread::Builder::new().name("worker".to_owned()).spawn(move || inner.run())?;
        Ok(Self { tasks: Some(tasks), cancel, pid, thread: Some(thread) })
    }

    /// Hands a ready slot its task.
    pub(crate) fn give(&self, task: Task) {
        self.cancel.store(false, Ordering::Relaxed);
        if let Some(tasks) = &self.tasks {
            // A slot that ended answers nothing more; its coordinator is ending too.
            let _ = tasks.send(task);
        }
    }

    /// Gives up the task in progress: it is answered so, and its worker is replaced.
    pub(crate) fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// The worker's process, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.tasks = None;
        self.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Inner {
    world: World,
    config: SlotConfig,
    events: EventLog,
    messages: Sender<Message>,
    tasks: Receiver<Task>,
    cancel: Arc<AtomicBool>,
    pid: Arc<AtomicU32>,
}

/// The coordinator has gone.
struct Over;

impl Inner {
    fn run(&self) {
        let mut failures = 0;
        while let Ok((worker, hello)) = self.bring_up(&mut failures) {
            self.pid.store(worker.pid(), Ordering::Relaxed);
            let served = self.serve(worker, &hello, &mut failures);
            self.pid.store(0, Ordering::Relaxed);
            if served.is_err() {
                return;
            }
        }
    }

    /// A worker of the right build, however many tries it takes.
    fn bring_up(&self, failures: &mut u32) -> Result<(Worker, Hello), Over> {
        // Only the end of the coordinator interrupts a start: a cancelled task is over by then.
        let never = AtomicBool::new(false);
        loop {
            self.pause(*failures)?;
            match Worker::start(&self.world, &self.config.launch, &never) {
                Ok((worker, hello)) if hello.build_id == self.config.build_id => {
                    self.note("started", &hello.engine);
                    return Ok((worker, hello));
                }
                Ok((_, hello)) => {
                    self.say(What::WrongBuild(hello.build_id))?;
                    return Err(Over);
                }
                Err(error) => {
                    *failures += 1;
                    self.note(error.word(), &error.to_string());
                }
            }
        }
    }

    fn pause(&self, failures: u32) -> Result<(), Over> {
        if failures == 0 {
            return Ok(());
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_PAUSE);
        let deadline = self.world.clock.deadline(pause);
        loop {
            let left = self.world.clock.left(deadline);
            if left.is_zero() {
                return Ok(());
            }
            // No task is sent to a slot that is not ready, so a closed channel is all there can be.
            if let Err(RecvTimeoutError::Disconnected) = self.tasks.recv_timeout(left.min(SLICE)) {
                return Err(Over);
            }
        }
    }

    /// Does tasks until the worker fails.
    fn serve(&self, mut worker: Worker, hello: &Hello, failures: &mut u32) -> Result<(), Over> {
        loop {
            self.say(What::Ready)?;
            let Ok(task) = self.tasks.recv() else {
                worker.shut_down();
                return Err(Over);
            };
            let (what, error) = match task {
                Task::Trace { seed } => {
                    let done = self.trace(&mut worker, hello, seed);
                    let error = done.as_ref().err().cloned();
                    (What::Traced(done), error)
                }
                Task::Solve { job, out, watch } => {
                    let done = self.solve(&mut worker, hello, &job, &out, &watch);
                    let error = done.as_ref().err().cloned();
                    (What::Solved(done), error)
                }
            };
            match error {
                Some(error) if !error.worker_lives() => {
                    self.note(error.word(), &error.to_string());
                    drop(worker);
                    if error != WorkerError::Cancelled {
                        *failures += 1;
                    }
                    return self.say(what);
                }
                _ => *failures = 0,
            }
            self.say(what)?;
        }
    }

    fn trace(
        &self,
        worker: &mut Worker,
        hello: &Hello,
        seed: Digest,
    ) -> Result<TraceAnswer, WorkerError> {
        let path = self.config.objects.join(seed.to_string());
        let fields = json!({ "seed": path });
        let patience = self.patience(hello, Duration::ZERO);
        let answer: TraceAnswer = worker.request("trace", fields, patience, &self.cancel)?;
        if answer.seed_sha256 != seed {
            return Err(wrong_seed());
        }
        Ok(answer)
    }

    fn solve(
        &self,
        worker: &mut Worker,
        hello: &Hello,
        job: &Job,
        out: &std::path::Path,
        watch: &[u64],
    ) -> Result<Findings, WorkerError> {
        let limit_ms = self.config.limit_ms.min(hello.limits.max_limit_ms);
        let max_models = self.config.max_models.min(hello.limits.max_models);
        let actions: Vec<_> = job.executed().copied().collect();
        let fields = json!({
            "seed": self.config.objects.join(job.seed.to_string()),
            "out_dir": out,
            "limit_ms": limit_ms,
            "max_models": max_models,
            "actions": actions,
        });
        let queries = u64::try_from(actions.len()).unwrap_or(1) * u64::from(max_models + 1);
        let queries = Duration::from_millis(limit_ms.saturating_mul(queries));
        let patience = self.patience(hello, queries);
        let answer: SolveAnswer = worker.request("solve", fields, patience, &self.cancel)?;
        if answer.seed_sha256 != job.seed {
            return Err(wrong_seed());
        }
        let asked = actions.iter().map(|action| (action.target, action.kind));
        if !asked.eq(answer.outcomes.iter().map(|solved| (solved.target, solved.action))) {
            return Err(WorkerError::Garbage("it answers for other targets".to_owned()));
        }
        let mut outputs = Vec::new();
        let mut read = BTreeSet::new();
        for output in answer.outcomes.iter().flat_map(|solved| &solved.outputs) {
            if read.insert(output.sha256) {
                outputs.push(self.check(worker, hello, out, output.sha256, watch)?);
            }
        }
        if let Some(showmap) = &self.config.showmap {
            let mut edges = showmap.edges(&self.world, out);
            for output in &mut outputs {
                output.edges = edges.remove(&output.digest).unwrap_or_default();
            }
        }
        let results = answer.outcomes.iter().map(|solved| {
            let own = |found: &&Found| solved.outputs.iter().any(|o| o.sha256 == found.digest);
            let taken = outputs.iter().filter(own).any(|o| o.reached.contains(&solved.target));
            // A claim that no replay bears out is no solution.
            let outcome = match solved.outcome {
                Outcome::Sat if !taken => Outcome::SatUnverified,
                other => other,
            };
            ActionResult { target: solved.target, action: solved.action, outcome }
        });
        Ok(Findings { results: results.collect(), outputs, cpu_s: answer.cpu_s })
    }

    /// Reads one output back, compares its digest and replays it.
    fn check(
        &self,
        worker: &mut Worker,
        hello: &Hello,
        out: &std::path::Path,
        digest: Digest,
        watch: &[u64],
    ) -> Result<Found, WorkerError> {
        let path = out.join(digest.to_string());
        let bytes = match files::read(&self.world, &path) {
            Ok(Some(bytes)) if Digest::of(&bytes) == digest => bytes,
            Ok(Some(_)) => {
                return Err(WorkerError::Garbage(format!("output {digest} has other bytes")));
            }
            Ok(None) => return Err(WorkerError::Garbage(format!("no output {digest}"))),
            Err(error) => return Err(WorkerError::Garbage(error.to_string())),
        };
        let fields = json!({ "input": path, "targets": watch });
        let patience = self.patience(hello, Duration::ZERO);
        let answer: VerifyAnswer = worker.request("verify", fields, patience, &self.cancel)?;
        if answer.input_sha256 != digest {
            return Err(WorkerError::Garbage("it replayed another output".to_owned()));
        }
        Ok(Found { digest, bytes, reached: answer.reached, edges: Vec::new() })
    }

    fn patience(&self, hello: &Hello, queries: Duration) -> Patience {
        // Four times the silence the protocol allows.
        let allowed = hello.limits.progress_ms.saturating_add(self.config.limit_ms);
        let silence = Duration::from_millis(allowed.saturating_mul(4));
        Patience {
            silence: self.config.silence.unwrap_or(silence),
            total: LONGEST_REPLAY.saturating_add(queries),
        }
    }

    fn note(&self, what: &str, detail: &str) {
        self.events.write(Event::Worker { what: what.to_owned(), detail: detail.to_owned() });
    }

    fn say(&self, what: What) -> Result<(), Over> {
        self.messages.send(Message { slot: self.config.index, what }).map_err(|_| Over)
    }
}

fn wrong_seed() -> WorkerError {
    WorkerError::Refused {
        kind: "io".to_owned(),
        message: "the seed on disk is not what its name says".to_owned(),
    }
}
