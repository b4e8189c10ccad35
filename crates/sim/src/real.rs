//! Real processes on a real table, killed at random: does some order of their calls explain it all?
//!
//! Eight processes claim, wait, renew, release and look, on overlapping groups of few targets. Each
//! writes down every call before it begins and after it has ended, by the clock that all of them share,
//! and what its rule saw and stored ([`log`]). They work in rounds, and in each round some of them are
//! killed in the middle; between two rounds nobody is in a call, so each round is judged by itself
//! ([`judge`]), from the table as it was read before to the table as it is read after: a history of any
//! length takes time in proportion to it.

pub mod judge;
pub mod log;
pub mod worker;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_env::{Clock as _, Fs as _, RealFs, SystemClock, World};
use ringfence_files::FilesEngine;
use ringfence_journal::JournalEngine;
use ringfence_model::{Space, Ttl};

use crate::history::State;
use crate::real::judge::{Judge, Round};
use crate::real::log::Call;
use crate::real::worker::Lie;
use crate::rng::Rng;
use crate::setup::Kept;

/// As many processes at once.
pub const PROCESSES: usize = 8;
/// Their targets are the numbers from 1 to this.
pub const TARGETS: u64 = 9;
/// What is left by the dead runs out after this long.
const TTL_SECONDS: f64 = 0.1;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// This program, which also is that of the workers.
    pub program: PathBuf,
    /// A directory that is there, for the table and the logs.
    pub dir: PathBuf,
    /// How the table is kept; not [`Kept::Record`], which does not keep groups whole.
    pub kept: Kept,
    /// Decides what they do, and who is killed when.
    pub seed: u64,
    /// How many rounds.
    pub rounds: u64,
    /// Calls of a process in a round.
    pub calls: u64,
    /// What the workers do wrong on purpose.
    pub lie: Option<Lie>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every call, round by round.
    pub rounds: Vec<Round>,
    /// Processes that were killed.
    pub kills: u64,
    /// Of these, in the middle of a call.
    pub in_a_call: u64,
    /// What was wrong, and could not be judged.
    pub judged: Judge,
}

impl Outcome {
    /// Calls that came to an end, and grants among them.
    pub fn counts(&self) -> (usize, usize) {
        let calls = || self.rounds.iter().flat_map(|round| &round.calls);
        let ended = calls().filter(|call| call.ended.is_some()).count();
        (ended, calls().filter(|call| call.is_granted()).count())
    }
}

/// The engine of a table.
fn open(kept: Kept, root: &Path, write: bool) -> Result<Arc<dyn Engine>, String> {
    let world = World::system();
    Ok(match (kept, write) {
        (Kept::Journal, true) => {
            Arc::new(JournalEngine::open(&world, root).map_err(|error| error.to_string())?)
        }
        (Kept::Journal, false) => Arc::new(
            JournalEngine::open_read_only(&world, root).map_err(|error| error.to_string())?,
        ),
        (_, true) => {
            let tuning = ringfence_files::Tuning::default();
            Arc::new(FilesEngine::open(&world, root, tuning).map_err(|error| error.to_string())?)
        }
        (_, false) => {
            Arc::new(FilesEngine::open_read_only(&world, root).map_err(|error| error.to_string())?)
        }
    })
}

fn make(kept: Kept, root: &Path) -> Result<(), String> {
    let world = World::system();
    let ttl = Ttl::from_seconds(TTL_SECONDS).map_err(|error| error.to_string())?;
    if kept == Kept::Journal {
        // Small segments: kills fall into checkpoints and changes of segments as well.
        let options =
            ringfence_journal::InitOptions { ttl, segment_bytes: 64 * 1024, ..Default::default() };
        return JournalEngine::init(&world, root, &options)
            .map(drop)
            .map_err(|error| error.to_string());
    }
    let options = ringfence_files::InitOptions { ttl, ..Default::default() };
    FilesEngine::init(&world, root, &options).map(drop).map_err(|error| error.to_string())
}

/// The whole table, by a process that has nothing in memory.
fn read(kept: Kept, root: &Path) -> Result<BTreeMap<usize, u64>, String> {
    let engine = open(kept, root, false)?;
    let scan = engine.scan(Space::Targets, None).map_err(|error| error.to_string())?;
    let keys = worker::keys_of_all();
    let mut found: BTreeMap<usize, u64> = (0..keys.len()).map(|at| (at, 0)).collect();
    for (key, entry) in &scan.entries {
        let at = keys.iter().position(|known| known == key).ok_or("a record of no target")?;
        found.insert(at, State::seen(entry).digest);
    }
    Ok(found)
}

/// One process at work.
struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
    /// How much of its log was judged already.
    seen: usize,
}

impl Worker {
    fn start(plan: &Plan, number: u64) -> Result<Self, String> {
        let log = plan.dir.join(format!("log.{number}"));
        let mut command = Command::new(&plan.program);
        command.arg("--worker").arg(plan.dir.join("table")).arg(&log);
        command.arg(format!("{:?}", plan.kept)).arg((plan.seed ^ number << 20).to_string());
        command.arg(plan.lie.map_or("honest", Lie::name));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut worker = Self { child, orders, answers: BufReader::new(answers), log, seen: 0 };
        worker.answer("ready").map(|()| worker)
    }

    /// Waits for what it says; an error if it ended.
    fn answer(&mut self, expected: &str) -> Result<(), String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        if read > 0 && line.trim_end() == expected {
            return Ok(());
        }
        let ended = self.child.wait().map_err(|error| error.to_string())?;
        Err(format!("a worker ended by itself: {ended}, {line:?}"))
    }

    /// The calls that it has written down since the last time.
    fn calls(&mut self, of: usize) -> Result<Vec<Call>, String> {
        let text = std::fs::read_to_string(&self.log).map_err(|error| error.to_string())?;
        let new = text.get(self.seen..).unwrap_or_default();
        self.seen = text.len();
        Ok(log::parse(new, of))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the plan and judges it.
///
/// # Panics
/// If this process cannot have pipes.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    let root = plan.dir.join("table");
    make(plan.kept, &root)?;
    let mut rng = Rng::new(plan.seed);
    let mut outcome = Outcome::default();
    let mut numbers = 1..;
    let mut start = || Worker::start(plan, numbers.next().unwrap_or(0));
    let mut workers = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    let mut before = read(plan.kept, &root)?;
    // About as long as a round takes, so that kills fall into calls.
    let mut usual = Duration::from_millis(2);
    for _ in 0..plan.rounds {
        let began = SystemClock.monotonic();
        for worker in &mut workers {
            writeln!(worker.orders, "go {}", plan.calls).map_err(|error| error.to_string())?;
        }
        let mut dead = Vec::new();
        for _ in 0..rng.below(4) {
            SystemClock.sleep(usual.mul_f64(rng.between(0, 300) as f64 / 1000.0));
            let victim = rng.index(PROCESSES);
            if !dead.contains(&victim) {
                workers[victim].child.kill().map_err(|error| error.to_string())?;
                dead.push(victim);
            }
        }
        let mut calls = Vec::new();
        for (at, worker) in workers.iter_mut().enumerate() {
            if dead.contains(&at) {
                worker.child.wait().map_err(|error| error.to_string())?;
            } else {
                worker.answer("done")?;
            }
            calls.extend(worker.calls(at)?);
        }
        usual = (usual + SystemClock.monotonic().saturating_sub(began)) / 2;
        outcome.kills += dead.len() as u64;
        outcome.in_a_call += calls.iter().filter(|call| call.ended.is_none()).count() as u64;
        let after = read(plan.kept, &root)?;
        outcome.rounds.push(Round { before, calls, after: after.clone() });
        before = after;
        for at in dead {
            workers[at] = start()?;
        }
    }
    drop(workers);
    outcome.judged = judge::judge(&outcome.rounds);
    Ok(outcome)
}

/// Removes what a run has left in its directory.
pub fn clear(dir: &Path) -> std::io::Result<()> {
    for name in RealFs.list(dir)? {
        let path = dir.join(&name.name);
        if name.kind == ringfence_env::FileKind::Dir {
            clear(&path)?;
            RealFs.rmdir(&path)?;
        } else {
            RealFs.unlink(&path)?;
        }
    }
    Ok(())
}
