//! Several coordinators on overlapping groups, while everything goes wrong.
//!
//! One seed decides the coordinators, what they call and when, who runs, who is stopped or killed,
//! when the power goes, and which calls fail. The same seed gives the same run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_env::World;
use ringfence_files::{FilesEngine, Finding};
use ringfence_model::{Key, TargetGroup, Token, WorkStatus};

use crate::check::{self, Findings};
use crate::faults::Chaos;
use crate::history::{Caller, Fate, History, State};
use crate::machine::{Ending, Machine};
use crate::rng::Rng;
use crate::setup::{LONG, Setup, blank, open, read_all};
use crate::verbs::{Verbs, group, keys, manifest, request, work};

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
    /// What was wrong.
    pub violations: Vec<String>,
}

type Held = Vec<(TargetGroup, Token)>;

/// What coordinators leave lying about for others and for their next life.
#[derive(Debug, Default)]
struct Shared {
    held: Vec<Mutex<Held>>,
    left: Vec<AtomicU64>,
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
        left: (0..plan.procs).map(|_| AtomicU64::new(plan.calls)).collect(),
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
        violations: findings.violations,
    };
    (outcome, machine.log())
}

/// After everybody has stopped: the table opens, what has run out can be claimed, nothing is left.
fn aftermath(
    plan: &Plan,
    machine: &Machine,
    struck: bool,
    findings: &mut Findings,
) -> Option<Vec<(Key, State)>> {
    let held = machine.held_locks();
    if held > 0 {
        findings.wrong(format!("{held} kernel locks are held by nobody"));
    }
    let engine = match open(&machine.world(0)) {
        Ok(engine) => engine,
        Err(error) => {
            findings.wrong(format!("at last, the table does not open: {error}"));
            return None;
        }
    };
    let last = match read_all(&engine) {
        Ok(last) => last,
        Err(error) => {
            findings.wrong(format!("at last, the table does not read: {error}"));
            return None;
        }
    };
    for (key, state) in &last {
        if let Some(damage) = &state.damage {
            findings.wrong(format!("at last, the record {key:?} is torn: {damage}"));
        }
    }
    // On a copy, so that what is found here is not part of the history.
    let later = machine.later(machine.disk(), false);
    later.advance(LONG * 24 * 365);
    later.set_skew(0);
    match open(&later.world(0)) {
        Ok(engine) => claim_all(plan, &later, &engine, &last, findings),
        Err(error) => findings.wrong(format!("much later, the table does not open: {error}")),
    }
    if let Err(error) = tidy(&engine, struck || !machine.cuts().is_empty() || plan.chaos.kills()) {
        findings.wrong(error);
    }
    Some(last)
}

fn claim_all(
    plan: &Plan,
    machine: &Machine,
    engine: &dyn Engine,
    last: &[(Key, State)],
    findings: &mut Findings,
) {
    let history = History::default();
    let caller = Caller { machine, proc: 0, history: &history, engine, patience: LONG };
    let verbs = Verbs { caller, name: "finder", wrong: None };
    for number in 1..=plan.targets {
        let answer = verbs.claim(&request("finder", &[number], 5.0));
        if answer.token.is_none() {
            let fate = answer.fate;
            findings.wrong(format!("target {number} has run out and is not to be had: {fate:?}"));
        }
    }
    for item in 0..ITEMS {
        let asked = work("finder", item, 5.0);
        let key = Key::work(asked.id());
        let found = last.iter().find(|(at, _)| *at == key).map(|(_, state)| state.clone());
        let fate = match found.and_then(|state| Some((state.status?, state.token?))) {
            Some((WorkStatus::Done, _)) => Fate::Done,
            Some((WorkStatus::Committing, token)) => verbs.complete(key, &token).fate,
            _ => verbs.claim_work(&asked).fate,
        };
        if fate != Fate::Done {
            findings.wrong(format!("item {item} cannot go on: {fate:?}"));
        }
    }
}

/// Only lock files stay behind, and what killed writers left, which repair removes.
fn tidy(engine: &FilesEngine, excused: bool) -> Result<(), String> {
    let report = engine.check().map_err(|error| error.to_string())?;
    for finding in &report.findings {
        match finding {
            Finding::Temporary(_) if excused => {}
            other => return Err(format!("at last, check finds {other:?}")),
        }
    }
    engine.repair().map_err(|error| error.to_string())?;
    let report = engine.check().map_err(|error| error.to_string())?;
    let odd = report.findings.iter().find(|finding| match finding {
        // A probe that was killed leaves its directory; nobody removes it.
        Finding::Temporary(path) => !path.to_string_lossy().contains(".probe-"),
        _ => true,
    });
    odd.map_or(Ok(()), |finding| Err(format!("repair leaves {finding:?}")))
}

const ITEMS: u64 = 3;

struct Coordinator {
    plan: Plan,
    machine: Machine,
    history: History,
    shared: Arc<Shared>,
    proc: usize,
}

impl Coordinator {
    fn live(&self, world: &World, life: u32) {
        let mut rng = Rng::new(self.plan.seed).fork(1000 + self.proc as u64 * 64 + u64::from(life));
        let world = self.plan.setup.spoil(world.clone(), self.proc);
        let Some(engine) = Self::open(&world, &mut rng) else { return };
        // Half of those that restart remember what they held: zombies, or careful ones.
        if rng.chance(500_000) {
            self.held(Held::clear);
        }
        let name = format!("c{}", self.proc);
        while self.has_calls_left() {
            let caller = Caller {
                machine: &self.machine,
                proc: self.proc,
                history: &self.history,
                engine: &engine,
                patience: self.plan.patience,
            };
            let verbs = Verbs { caller, name: &name, wrong: self.plan.setup.wrong };
            self.one_call(&verbs, &world, &mut rng);
            world.clock.sleep(Duration::from_micros(rng.below(3_000_000)));
        }
    }

    fn has_calls_left(&self) -> bool {
        let left = &self.shared.left[self.proc];
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn open(world: &World, rng: &mut Rng) -> Option<FilesEngine> {
        for _ in 0..100 {
            match open(world) {
                Ok(engine) => return Some(engine),
                Err(_) => world.clock.sleep(Duration::from_millis(rng.between(1, 2000))),
            }
        }
        None
    }

    fn held<T>(&self, see: impl FnOnce(&mut Held) -> T) -> T {
        see(&mut self.shared.held[self.proc].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn some_group(&self, rng: &mut Rng) -> Vec<u64> {
        let mut numbers: Vec<u64> = (1..=self.plan.targets).collect();
        if self.plan.whole_groups {
            return numbers;
        }
        let len = 1 + rng.index(numbers.len().min(4));
        (0..len).map(|_| numbers.swap_remove(rng.index(numbers.len()))).collect()
    }

    fn one_call(&self, verbs: &Verbs<'_>, world: &World, rng: &mut Rng) {
        let one = self.held(|held| {
            let index = (!held.is_empty()).then(|| rng.index(held.len()));
            index.map(|index| held[index].clone())
        });
        match (rng.below(100), one) {
            (0..=24, _) | (25..=74, None) => self.claim(verbs, world, rng),
            (25..=39, Some((group, token))) => {
                if verbs.heartbeat(&group, &token).fate == Fate::Refused {
                    self.forget(&token);
                }
            }
            (40..=49, _) => {
                // Units of one batch must not share a record: each would wait for the other.
                let mut batch: Held = Vec::new();
                for (group, token) in self.held(|held| held.clone()) {
                    let mine = keys(&group);
                    if !batch.iter().any(|(other, _)| keys(other).iter().any(|k| mine.contains(k)))
                    {
                        batch.push((group, token));
                    }
                }
                let fates = verbs.heartbeat_each(&batch);
                for ((_, token), fate) in batch.iter().zip(fates) {
                    if fate == Fate::Refused {
                        self.forget(token);
                    }
                }
            }
            (50..=68, Some((group, token))) => {
                let fate = verbs.release(&group, &token).fate;
                if matches!(fate, Fate::Done | Fate::Refused) {
                    self.forget(&token);
                }
            }
            (69..=74, Some((group, token))) => {
                let _ = verbs.force_release(&group, &token);
            }
            (75..=79, _) => self.look(verbs),
            _ => self.work(verbs, rng),
        }
    }

    fn forget(&self, token: &Token) {
        self.held(|held| held.retain(|(_, mine)| mine != token));
    }

    fn claim(&self, verbs: &Verbs<'_>, world: &World, rng: &mut Rng) {
        let numbers = self.some_group(rng);
        let seconds = [1.0, 3.0, 10.0, 30.0][rng.index(4)];
        let asked = request(verbs.name, &numbers, seconds);
        let tries = if rng.chance(300_000) { rng.between(2, 12) } else { 1 };
        for _ in 0..tries {
            let answer = verbs.claim(&asked);
            if let Some(token) = answer.token {
                self.held(|held| held.push((group(&numbers), token)));
                return;
            }
            world.clock.sleep(Duration::from_millis(rng.between(20, 2000)));
        }
    }

    fn look(&self, verbs: &Verbs<'_>) {
        let numbers: Vec<u64> = (1..=self.plan.targets).collect();
        if let Ok(view) = verbs.caller.engine.view(&keys(&group(&numbers)), None) {
            for (key, entry) in &view.entries {
                if let Some(damage) = State::seen(entry).damage {
                    let what = format!("a reader sees a torn record {key:?}: {damage}");
                    self.shared.damage.lock().unwrap_or_else(PoisonError::into_inner).push(what);
                }
            }
        }
    }

    /// The item's token, or now and then one that it had before: a zombie's.
    fn token_of(&self, key: Key, token: Token, rng: &mut Rng) -> Token {
        let mut stale = self.shared.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if !stale.iter().any(|(_, known)| *known == token) {
            stale.push((key, token.clone()));
        }
        let mine: Vec<_> = stale.iter().filter(|(of, _)| *of == key).collect();
        if rng.chance(150_000) { mine[rng.index(mine.len())].1.clone() } else { token }
    }

    /// Goes on with an item wherever it stands, as any coordinator may.
    fn work(&self, verbs: &Verbs<'_>, rng: &mut Rng) {
        let asked = work(verbs.name, rng.below(ITEMS), [2.0, 8.0][rng.index(2)]);
        let key = Key::work(asked.id());
        let Ok(view) = verbs.caller.engine.view(&[key], None) else { return };
        let state = State::seen(&view.entries[0].1);
        let token = state.token.clone().map(|token| self.token_of(key, token, rng));
        match (state.status, token, rng.below(6)) {
            (Some(WorkStatus::Leased), Some(token), 0) => drop(verbs.heartbeat_work(key, &token)),
            (Some(WorkStatus::Leased), Some(token), 1) => drop(verbs.abandon(key, &token)),
            // Also a second time: whoever takes over cannot know that it was decided.
            (Some(WorkStatus::Leased), Some(token), 2 | 3)
            | (Some(WorkStatus::Committing), Some(token), 0) => {
                drop(verbs.begin_commit(key, &token, &manifest(1)));
            }
            (Some(WorkStatus::Committing), Some(token), _) => drop(verbs.complete(key, &token)),
            _ => drop(verbs.claim_work(&asked)),
        }
    }
}
