//! Several coordinators on overlapping groups, while everything goes wrong.
//!
//! One seed decides the coordinators, what they call and when, who runs, who is stopped or killed,
//! when the power goes, and which calls fail. The same seed gives the same run.

mod aftermath;
mod coordinator;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_env::World;
use ringfence_model::{Key, TargetGroup, Token};

use crate::check::{self, Findings};
use crate::coverage::{Coverage, Event};
use crate::faults::Chaos;
use crate::history::{Fate, History};
use crate::known;
use crate::machine::{Ending, Machine};
use crate::rng::Rng;
use crate::setup::{Setup, blank};
use aftermath::aftermath;
use coordinator::Coordinator;

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides everything else.
    pub seed: u64,
    /// What is under test.
    pub setup: Setup,
    /// How many coordinators.
    pub procs: usize,
    /// How many targets they compete for.
    pub targets: u64,
    /// How many calls each of them makes.
    pub calls: u64,
    /// Whether they also take groups and work items as one.
    pub jobs: bool,
    /// Whether some leases are so large that two are more than a segment.
    pub large: bool,
    /// Every group is the whole of the targets.
    pub whole_groups: bool,
    /// What goes wrong.
    pub chaos: Chaos,
    /// How long a call waits for locks.
    pub patience: Duration,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64, setup: Setup) -> Self {
        let mut rng = Rng::new(seed).fork(3);
        let most = if rng.chance(300_000) { 7 } else { 3 };
        let most = rng.index(most);
        Self {
            seed,
            setup,
            procs: 2 + most,
            targets: rng.between(3, 7),
            calls: rng.between(8, 24),
            // Drawn apart: the other seeds do what they always did.
            jobs: Rng::new(seed).fork(11).chance(333_333),
            large: setup.subject.has_memory() && Rng::new(seed).fork(13).chance(125_000),
            whole_groups: false,
            chaos: Chaos::storm(seed),
            patience: Duration::from_secs(5),
        }
    }

    /// The same without anything going wrong but the order of things.
    #[must_use]
    pub fn calm(self) -> Self {
        Self { chaos: Chaos::turns(), patience: Duration::from_secs(20), ..self }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Calls into the world.
    pub steps: u64,
    /// A number for everything that happened.
    pub trace: u64,
    /// Power cuts.
    pub cuts: usize,
    /// Calls on the engine.
    pub calls: usize,
    /// Those that were acknowledged.
    pub done: usize,
    /// Those that never returned, or whose outcome is unknown.
    pub open: usize,
    /// Calls into the world that a fault struck.
    pub strikes: u64,
    /// Histories that were too hard to decide.
    pub undecided: usize,
    /// What came about.
    pub coverage: Coverage,
    /// What was wrong.
    pub violations: Vec<String>,
}

type Held = Vec<(TargetGroup, Token)>;
type Jobs = Vec<(TargetGroup, Key, Token)>;

/// What coordinators leave lying about for others and for their next life.
#[derive(Debug, Default)]
struct Shared {
    held: Vec<Mutex<Held>>,
    jobs: Vec<Mutex<Jobs>>,
    left: Vec<AtomicU64>,
    /// How often in a row each did not get the table open, over all of its lives: one that is broken
    /// for good must not keep the run from its end.
    unopened: Vec<AtomicU64>,
    /// Every token under which an item was ever seen.
    stale: Mutex<Vec<(Key, Token)>>,
    damage: Mutex<Vec<String>>,
}

/// Makes one run and checks it.
pub fn run(plan: &Plan) -> Outcome {
    run_logged(plan, false).0
}

/// The same; with `log`, every call is told.
pub fn run_logged(plan: &Plan, log: bool) -> (Outcome, Vec<String>) {
    let machine = Machine::new(plan.seed, blank(), 1, plan.procs, Chaos::none());
    plan.setup.mended().init(&machine.world(0)).expect("a new table");
    machine.set_disk(machine.disk().settled());
    machine.set_chaos(plan.chaos.clone());
    if log {
        machine.keep_log();
    }
    let history = History::default();
    let shared = Arc::new(Shared {
        held: (0..plan.procs).map(|_| Mutex::default()).collect(),
        jobs: (0..plan.procs).map(|_| Mutex::default()).collect(),
        left: (0..plan.procs).map(|_| AtomicU64::new(plan.calls)).collect(),
        unopened: (0..plan.procs).map(|_| AtomicU64::new(0)).collect(),
        stale: Mutex::default(),
        damage: Mutex::default(),
    });
    let procs = (0..plan.procs).map(|proc| {
        let coordinator = Coordinator {
            plan: plan.clone(),
            machine: machine.clone(),
            history: history.clone(),
            shared: Arc::clone(&shared),
            proc,
        };
        let body: Box<dyn Fn(World, u32) + Send> =
            Box::new(move |world, life| coordinator.live(&world, life));
        body
    });
    let endings = machine.run(procs.collect());
    let mut findings = Findings::default();
    for ending in endings {
        if let Ending::Panicked(text) = ending {
            findings.wrong(format!("a coordinator panicked: {text}"));
        }
    }
    for damage in shared.damage.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        findings.wrong(damage);
    }
    let strikes = machine.strikes();
    let (steps, trace) = (machine.steps(), machine.trace());
    machine.set_chaos(Chaos::none());
    let last = aftermath(plan, &machine, strikes > 0, &mut findings);
    let calls = history.calls();
    if let Some(last) = last {
        check::everything(plan.setup, &machine, &calls, &last, &mut findings);
    }
    let mut coverage = machine.coverage();
    coverage.note_calls(&calls);
    if coverage.count(Event::RecoverySyncsLost) > 0 {
        findings.mark(known::BELIEVED_SYNC);
    }
    let calm = plan.chaos.is_calm();
    if calm && let Some(op) = calls.iter().find(|op| op.fate == Fate::Busy) {
        findings.wrong(format!("nobody was stopped, yet {:?} never got its locks", op.verb));
    }
    let open = |op: &&crate::history::Op| matches!(op.fate, Fate::Never | Fate::Unknown(_));
    let outcome = Outcome {
        steps,
        trace,
        cuts: machine.cuts().len(),
        calls: calls.len(),
        done: calls.iter().filter(|op| op.fate == Fate::Done).count(),
        open: calls.iter().filter(open).count(),
        strikes,
        undecided: findings.undecided,
        coverage,
        violations: findings.violations,
    };
    (outcome, machine.log())
}

/// How many work items there are.
const ITEMS: u64 = 3;
