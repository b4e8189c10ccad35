//! Every crash point of a call, times every disk that a power cut there may leave.
//!
//! A call is made on a quiet host, and the disk is kept before each of its mutating calls and after
//! the last. At each of these points
//! - the process is killed: the page cache stays, somebody who had the table open goes on;
//! - the power is cut: every reachable disk, then a restart;
//! - the power is cut, and cut again while the restarted host recovers;
//! - the process is killed, somebody makes the same call again, and after *that* was acknowledged
//!   the power is cut;
//! - the process is killed, and somebody who knows nothing of intents changes a member before the
//!   intent is met: that member is left alone and told of.
//!
//! After each of them the table must open, show each record old or new (in [`Mode::Group`] the group
//! wholly so), show what was acknowledged, take the next claim under a higher fence, and hold
//! nothing that nobody can explain.

mod look;
mod meddle;

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::Key;

use crate::case::{Act, Case, Ready};
use crate::crash::CrashModel;
use crate::disk::Disk;
use crate::faults::Chaos;
use crate::history::{Fate, History, State};
use crate::known;
use crate::machine::{Machine, Point};
use crate::rng::Rng;
use crate::setup::{Mode, Setup};
use crate::subject::Table;
use look::{DiskKey, Expected};

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// States per crash point.
    pub cap: usize,
    /// Recovered states in whose recovery the power is cut again, per case.
    pub depth2: usize,
    /// States per crash point of a recovery.
    pub cap2: usize,
    /// Whether calls that fail are cut short too, and how: each mutating call by itself.
    pub failures: bool,
    /// Stop a case at this many violations.
    pub enough: usize,
}

impl Limits {
    /// Small enough for `cargo test`.
    pub fn quick() -> Self {
        Self { cap: 96, depth2: 8, cap2: 12, failures: false, enough: 3 }
    }

    /// Everything.
    pub fn full() -> Self {
        Self { cap: 2048, depth2: 200, cap2: 32, failures: true, enough: 3 }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash points.
    pub points: usize,
    /// Disks looked at after one cut.
    pub states: usize,
    /// Disks looked at after a second cut.
    pub second: usize,
    /// Distinct ones among both.
    pub distinct: usize,
    /// Points at which not every reachable disk was looked at.
    pub sampled: usize,
    /// Kill points from which somebody went on.
    pub kills: usize,
    /// Calls made again after a kill that were acknowledged, and then cut.
    pub retries: usize,
    /// Intents that were met after a stranger had changed a member.
    pub meddled: usize,
    /// What was wrong, as far as it was counted.
    pub violations: Vec<String>,
    /// How often each known defect was met.
    pub known: BTreeMap<&'static str, usize>,
}

impl Report {
    /// Adds another report to this one.
    pub fn add(&mut self, other: Self) {
        self.points += other.points;
        self.states += other.states;
        self.second += other.second;
        self.distinct += other.distinct;
        self.sampled += other.sampled;
        self.kills += other.kills;
        self.retries += other.retries;
        self.meddled += other.meddled;
        self.violations.extend(other.violations);
        for (name, count) in other.known {
            *self.known.entry(name).or_default() += count;
        }
    }
}

struct Explorer<'a> {
    case: Case,
    setup: Setup,
    limits: Limits,
    ready: &'a Ready,
    report: Report,
    /// Disks that were looked at, by what was expected of them.
    seen: BTreeSet<DiskKey>,
    /// The same, for disks that a kill left.
    killed: BTreeSet<DiskKey>,
    rng: Rng,
}

/// Tries every crash point of one case.
pub fn explore(case: Case, setup: Setup, limits: Limits) -> Report {
    let ready = case.prepare(setup);
    let mut explorer = Explorer {
        case,
        setup,
        limits,
        ready: &ready,
        report: Report::default(),
        seen: BTreeSet::new(),
        killed: BTreeSet::new(),
        rng: Rng::new(11),
    };
    let calls = explorer.one_run("", Chaos::none());
    // A failure in the middle of several calls is none of the last one's.
    if limits.failures && case.act != Act::StaleIntent {
        for number in 1..=calls {
            for late in [false, true] {
                let label = format!("call {number} fails{} > ", if late { " late" } else { "" });
                explorer.one_run(&label, Chaos::fail_one(number, late, 5));
                let label =
                    format!("calls fail{} from {number} > ", if late { " late" } else { "" });
                explorer.one_run(&label, Chaos::fail_from(number, late, 28));
            }
        }
    }
    explorer.report
}

impl Explorer<'_> {
    fn is_enough(&self) -> bool {
        self.report.violations.len() >= self.limits.enough
    }

    fn wrong(&mut self, at: &str, what: impl AsRef<str>) {
        let violation = format!("{}: {at}: {}", self.case, what.as_ref());
        match known::name(&violation) {
            Some(name) => *self.report.known.entry(name).or_default() += 1,
            None => self.report.violations.push(violation),
        }
    }

    /// Makes the call once under some faults, and tries every crash point of it.
    fn one_run(&mut self, label: &str, chaos: Chaos) -> u64 {
        if self.is_enough() {
            return 0;
        }
        let machine = self.ready.machine.later(self.ready.machine.disk(), false);
        let engine = self.engine(&machine);
        let history = History::default();
        let struck = label.is_empty();
        machine.set_chaos(chaos);
        machine.start_recording();
        let fate = self.case.act(self.setup, self.ready, &machine, engine.as_deref(), &history);
        let calls = machine.mutating();
        machine.set_chaos(Chaos::none());
        let points = machine.stop_recording();
        if struck && fate != Fate::Done {
            self.wrong(label, format!("the call ended as {fate:?} though nothing failed"));
            return calls;
        }
        let last = points.len() - 1;
        let from = if self.case.act == Act::StaleIntent { last } else { 0 };
        // Up to its first fault a run is the one without faults, whose points were tried.
        let tried = if struck { None } else { machine.first_strike().or(Some(u64::MAX)) };
        let (mut were_new, mut turned) = (BTreeSet::new(), false);
        for (index, point) in points.iter().enumerate().skip(from) {
            let ended = (index == last).then_some(&fate);
            let mut expected = self.expected(&history, ended, point.step);
            turned |= self.setup.mode() == Mode::Group
                && self.is_put_back(&mut were_new, &point.disk, &expected);
            expected.restored |= turned;
            if Some(point.step) <= tried {
                continue;
            }
            let at = format!("{label}{index} {}", point.label);
            self.report.points += 1;
            if self.kill(&at, &machine, point, &expected) {
                self.meddle(&at, &machine, point, &expected);
            }
            self.cut(&at, &machine, &point.disk, &expected, true);
            if struck && index < last {
                self.kill_and_retry(&at, &machine, point, &history);
            }
            if self.is_enough() {
                break;
            }
        }
        if matches!(fate, Fate::Restored(_)) && self.case.act != Act::Init {
            self.nothing_left(label, &points[last].disk);
        }
        calls
    }

    /// Whether a record that had been changed is as it was: then the decision has turned, and no
    /// crash may turn it again.
    fn is_put_back(&self, were_new: &mut BTreeSet<Key>, disk: &Disk, expected: &Expected) -> bool {
        let changes = expected.clone().changes(&expected.old);
        let digest = |of: Option<&State>| of.map_or(0, |state| state.digest);
        let mut back = false;
        if expected.units.len() > 1 {
            // Of a batch one group may be put back while another stays as decided.
            return false;
        }
        for unit in &expected.units {
            // Removed, or stored anew.
            let is_changed = |key: &&Key| {
                changes.contains_key(*key)
                    || (expected.old.contains_key(*key) && !expected.new.contains_key(*key))
            };
            let changed: Vec<&Key> = unit.iter().filter(is_changed).collect();
            if changed.len() < 2 {
                // One record has no intent: until the call has returned it may be either.
                continue;
            }
            for key in changed {
                let Some(now) = self.setup.subject.stored(disk, *key) else { return false };
                let now = if now.is_empty() { 0 } else { State::digest_of(&now) };
                if now == digest(changes.get(key)) {
                    were_new.insert(*key);
                }
                back |= now == digest(expected.old.get(key)) && were_new.contains(key);
            }
        }
        back
    }

    fn engine(&self, machine: &Machine) -> Option<Box<dyn Table>> {
        let has_table = self.case.act != Act::Init;
        has_table
            .then(|| self.setup.open(&self.setup.world(machine, 0)).expect("opens on a quiet host"))
    }

    fn expected(&self, history: &History, ended: Option<&Fate>, step: u64) -> Expected {
        let old = self.ready.before.clone();
        let mut new = old.clone();
        let mut units = Vec::new();
        let mut fence = self.ready.fence;
        for op in history.calls() {
            for (index, state) in &op.wrote {
                new.insert(op.keys[*index], state.clone());
            }
            // Granted by the time of the crash, whether or not anybody was told.
            if let Some((at, token)) = &op.granted
                && at.step < step
            {
                fence = fence.max(token.fence());
            }
            units.push(op.keys);
        }
        new.retain(|_, state| state.digest != 0);
        Expected {
            old,
            new,
            units,
            acknowledged: ended == Some(&Fate::Done),
            restored: matches!(ended, Some(Fate::Restored(_))),
            retried: false,
            fence,
        }
    }

    /// The process dies, the host goes on: somebody who had the table open looks at it.
    /// `false` if all of this was seen before.
    fn kill(&mut self, at: &str, machine: &Machine, point: &Point, expected: &Expected) -> bool {
        if !self.killed.insert(expected.key(&point.disk)) {
            return false;
        }
        self.report.kills += 1;
        let later = machine.later(self.ready.machine.disk(), false);
        let engine = match self.engine(&later) {
            Some(engine) => {
                later.set_disk(point.disk.clone());
                engine
            }
            None => match self.setup.init(&self.setup.world(
                &{
                    later.set_disk(point.disk.clone());
                    later.clone()
                },
                0,
            )) {
                Ok(engine) => engine,
                Err(error) => {
                    self.wrong(&format!("{at} > kill"), error);
                    return true;
                }
            },
        };
        let looked = self.look(&later, &*engine, expected);
        if let Err(what) = looked {
            self.wrong(&format!("{at} > kill"), what);
        }
        true
    }

    fn cut(&mut self, at: &str, machine: &Machine, disk: &Disk, expected: &Expected, again: bool) {
        let cap = if again { self.limits.cap } else { self.limits.cap2 };
        let model = CrashModel { cap, ..CrashModel::default() };
        let states = disk.crash_states(&model, &mut self.rng);
        self.report.sampled += usize::from(!states.exhaustive);
        for (number, state) in states.disks.into_iter().enumerate() {
            if self.is_enough() {
                return;
            }
            let key = expected.key(&state);
            *(if again { &mut self.report.states } else { &mut self.report.second }) += 1;
            if !self.seen.insert(key) {
                continue;
            }
            self.report.distinct += 1;
            let at = format!("{at} > cut {number}");
            if let Err(what) = self.restart(machine, state.clone(), expected) {
                self.wrong(&at, what);
            } else if again && self.report.second < self.limits.depth2 * self.limits.cap2 {
                self.cut_in_recovery(&at, machine, state, expected);
            }
        }
    }

    /// The host restarts on what the power cut left.
    fn restart(&self, machine: &Machine, disk: Disk, expected: &Expected) -> Result<(), String> {
        let later = machine.later(disk, true);
        let world = self.setup.mended().world(&later, 0);
        let engine = match self.case.act {
            Act::Init if !expected.acknowledged => self.setup.mended().init(&world),
            _ => self.setup.mended().open(&world),
        };
        let engine = engine.map_err(|error| format!("does not open: {error}"))?;
        self.look(&later, &*engine, expected)
    }

    fn cut_in_recovery(&mut self, at: &str, machine: &Machine, disk: Disk, expected: &Expected) {
        let later = machine.later(disk, true);
        later.start_recording();
        let world = self.setup.world(&later, 0);
        if let Ok(engine) = self.setup.open(&world) {
            Self::meet(&later, &*engine, &self.ready.numbers);
        }
        for (index, point) in later.stop_recording().iter().enumerate() {
            let at = format!("{at} > recovery {index} {}", point.label);
            self.cut(&at, &later, &point.disk, expected, false);
        }
    }

    /// Somebody makes the same call after the kill; if it is acknowledged, it survives the power.
    fn kill_and_retry(&mut self, at: &str, machine: &Machine, point: &Point, first: &History) {
        let later = machine.later(self.ready.machine.disk(), false);
        let engine = self.engine(&later);
        later.set_disk(point.disk.clone());
        let history = History::default();
        later.start_recording();
        let fate = self.case.act(self.setup, self.ready, &later, engine.as_deref(), &history);
        self.cut_before_decision(at, &later, point, first, &history);
        if fate != Fate::Done {
            // What it met was finished first, and stays whole.
            let mut expected = self.expected(first, None, point.step);
            expected.new.extend(self.expected(&history, None, u64::MAX).changes(&expected.old));
            expected.retried = true;
            let disk = later.disk();
            let at = format!("{at} > kill, the same call refused");
            self.cut(&at, &later, &disk, &expected, true);
            return;
        }
        self.report.retries += 1;
        // What the acknowledged call saw and wrote is what must be found.
        let mut found = self.ready.before.clone();
        let mut fence = self.ready.fence;
        for op in history.calls() {
            let Some((_, seen)) = &op.decided else { continue };
            found.extend(op.keys.iter().copied().zip(seen.iter().cloned()));
            for (index, state) in &op.wrote {
                found.insert(op.keys[*index], state.clone());
            }
            fence = op.granted.map_or(fence, |(_, token)| fence.max(token.fence()));
        }
        found.retain(|_, state| state.digest != 0);
        let expected = Expected {
            old: found.clone(),
            new: found,
            units: Vec::new(),
            acknowledged: true,
            restored: false,
            retried: true,
            fence,
        };
        let disk = later.disk();
        self.cut(&format!("{at} > kill, the same call again"), &later, &disk, &expected, true);
    }

    /// Until the second caller has decided anything, only what the first one left is being finished.
    fn cut_before_decision(
        &mut self,
        at: &str,
        later: &Machine,
        killed: &Point,
        first: &History,
        second: &History,
    ) {
        let points = later.stop_recording();
        let decided = second.calls().first().and_then(|op| Some(op.decided.as_ref()?.0.step));
        let mut expected = self.expected(first, None, killed.step);
        expected.retried = true;
        for point in points.iter().filter(|point| Some(point.step) < decided) {
            let at = format!("{at} > kill, met at {}", point.label);
            self.cut(&at, later, &point.disk, &expected, false);
        }
    }
}
