//! Every crash point of a call, times every disk that a power cut there may leave.
//!
//! A call is made on a quiet host, and the disk is kept before each of its mutating calls and after
//! the last. At each of these points
//! - the process is killed: the page cache stays, somebody who had the table open goes on;
//! - the power is cut: every reachable disk, then a restart;
//! - the power is cut, and cut again while the restarted host recovers;
//! - the process is killed, somebody makes the same call again (or, after a repair, a claim alone), and
//!   after *that* was acknowledged the power is cut;
//! - the process is killed, and somebody who knows nothing of intents changes a member before the
//!   intent is met: that member is left alone and told of.
//!
//! Where processes share memory ([`crate::subject::Subject::has_memory`]) there are crash points between the settings
//! of its words too, whoever goes on after a kill may also have opened the table only then, what the
//! file of the words holds after a power cut is what it held, what the words were, or anything, and a
//! sector that was being written may be spoilt. Recovery is part of the next call that stores
//! something: that call is cut short at each of its points. And whoever made the call goes on after it.
//!
//! After each of them the table must open, show each record old or new (in [`Mode::Group`] the group
//! wholly so), show what was acknowledged, take the next claim under a higher fence, and hold
//! nothing that nobody can explain.

mod look;
mod meddle;
mod recovery;
mod report;

use std::collections::BTreeSet;

use ringfence_model::Key;

use crate::case::{Act, Case, Ready};
use crate::crash::{CrashModel, MEMORIES};
use crate::disk::Disk;
use crate::faults::Chaos;
use crate::history::{Fate, History, State};
use crate::known;
use crate::machine::{Machine, Point, WORD};
use crate::rng::Rng;
use crate::setup::{Mode, Setup};
use crate::subject::Table;
use look::{DiskKey, Expected};
pub use report::{Failures, Limits, Report};

struct Explorer<'a> {
    case: Case,
    setup: Setup,
    limits: Limits,
    ready: &'a Ready,
    report: Report,
    /// Whether a sync failed: what it should have covered may be dropped later.
    may_drop: bool,
    /// What one failed sync should have covered is lost to every later one: whoever comes next must not
    /// build on it.
    lost: bool,
    /// Disks that were looked at, by what was expected of them.
    seen: BTreeSet<DiskKey>,
    /// The same, for disks that a kill left.
    killed: BTreeSet<(DiskKey, u64)>,
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
        may_drop: false,
        lost: false,
        seen: BTreeSet::new(),
        killed: BTreeSet::new(),
        rng: Rng::new(11),
    };
    let calls = explorer.one_run("", Chaos::none());
    // A failure in the middle of several calls is none of the last one's.
    let failures = if case.act == Act::StaleIntent { Failures::None } else { limits.failures };
    for (number, call) in (1..).zip(&calls).filter(|_| failures != Failures::None) {
        if failures == Failures::Disk && call.starts_with("SyncFile") {
            let label = format!("call {number} fails late > ");
            explorer.one_run(&label, Chaos::fail_one(number, true, 5));
        }
        if call.starts_with("SyncFile") && explorer.has_memory() {
            // Nor can anybody be told that it did.
            let label = format!("call {number} fails late, and the next > ");
            explorer.one_run(&label, Chaos::fail_two(number, 5));
        }
        if call.starts_with("Write") && explorer.has_memory() {
            explorer.one_run(&format!("call {number} is cut short > "), Chaos::fail_rest(number));
        }
    }
    if failures == Failures::All {
        for (number, call) in (1..).zip(&calls) {
            for late in [false, true] {
                explorer.lost = late && call.starts_with("Sync");
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
        match known::name(&violation, self.setup.subject) {
            Some(name) => *self.report.known.entry(name).or_default() += 1,
            None => self.report.violations.push(violation),
        }
    }

    /// Makes the call once under some faults, and tries every crash point of it. Says which calls into
    /// the file system may fail.
    fn one_run(&mut self, label: &str, chaos: Chaos) -> Vec<String> {
        if self.is_enough() {
            return Vec::new();
        }
        let machine = self.ready.machine.later(self.ready.machine.disk(), false);
        let engine = self.engine(&machine);
        let history = History::default();
        let struck = label.is_empty();
        self.may_drop = !struck && chaos.short_call.is_none();
        let lost = std::mem::take(&mut self.lost);
        machine.set_chaos(chaos);
        machine.start_recording();
        let fate = self.case.act(self.setup, self.ready, &machine, engine.as_deref(), &history);
        let mutating = machine.mutating();
        machine.set_chaos(Chaos::none());
        let points = machine.stop_recording();
        let labels = points.iter().map(|point| point.label.clone());
        let mut calls: Vec<String> = labels.filter(|label| !label.starts_with(WORD)).collect();
        // Calls of a probe may fail too, though no crash comes there.
        calls.resize(usize::try_from(mutating).unwrap_or(0), String::new());
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
            if (index < last || lost) && (struck || lost || self.has_memory()) {
                for case in self.case.retries() {
                    self.kill_and_retry(&at, case, &machine, point, &history, false);
                }
            }
            if index < last && self.has_memory() {
                self.kill_and_retry(&at, self.case, &machine, point, &history, true);
            }
            if self.is_enough() {
                break;
            }
        }
        if matches!(fate, Fate::Restored(_)) && self.case.act != Act::Init {
            self.nothing_left(label, &points[last].disk);
        }
        if let Some(engine) = engine.filter(|_| self.has_memory() && !self.is_enough()) {
            // Whoever made the call goes on.
            let mut expected = self.expected(&history, Some(&fate), u64::MAX);
            expected.restored |= turned;
            if let Err(what) = self.look(&machine, &*engine, &expected) {
                self.wrong(&format!("{label}and it goes on"), what);
            }
        }
        if struck && fate == Fate::Done && !self.is_enough() {
            self.damage(&machine, &points[last].disk);
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

    fn has_memory(&self) -> bool {
        self.setup.subject.has_memory()
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
            loose: BTreeSet::new(),
            fence,
        }
    }

    /// The process dies, the host goes on: somebody who had the table open looks at it.
    /// `false` if all of this was seen before.
    fn kill(&mut self, at: &str, machine: &Machine, point: &Point, expected: &Expected) -> bool {
        // Of those who go on after a kill the power is taken as well, where they have memory.
        let risk = if self.has_memory() { point.disk.risk() } else { 0 };
        if !self.killed.insert((expected.key(&point.disk), risk)) {
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
        if self.has_memory() && self.case.act != Act::Init {
            let later = machine.later(point.disk.clone(), false);
            let opened = self.setup.open(&self.setup.world(&later, 0));
            let looked = opened.and_then(|engine| self.look(&later, &*engine, expected));
            if let Err(what) = looked {
                self.wrong(&format!("{at} > kill, opened then"), what);
            }
        }
        true
    }

    fn cut(&mut self, at: &str, machine: &Machine, disk: &Disk, expected: &Expected, again: bool) {
        let cap = if again { self.limits.cap } else { self.limits.cap2 };
        let spoilt_sectors = self.has_memory();
        let model = CrashModel { cap, spoilt_sectors, ..CrashModel::default() };
        let states = disk.crash_states(&model, &mut self.rng);
        self.report.sampled += usize::from(!states.exhaustive);
        for (number, state) in states.disks.into_iter().enumerate() {
            // What the words say has nothing to do with which bytes survived.
            let memory = MEMORIES[self.rng.index(MEMORIES.len())];
            let state = state.with_memory_of(disk, memory, &mut self.rng);
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
        // Where recovery is what every call does, it is as broken as they are.
        let setup = if self.has_memory() { self.setup } else { self.setup.mended() };
        let world = setup.world(&later, 0);
        let engine = match self.case.act {
            Act::Init if !expected.acknowledged => setup.init(&world),
            _ => setup.open(&world),
        };
        let engine = engine.map_err(|error| format!("does not open: {error}"))?;
        self.look(&later, &*engine, expected)
    }

    fn cut_in_recovery(&mut self, at: &str, machine: &Machine, disk: Disk, expected: &Expected) {
        let later = machine.later(disk, true);
        if self.has_memory() {
            return self.cut_in_next_call(at, &later, expected);
        }
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

    /// Somebody makes the same call after the kill, or one that he makes without knowing of it; if it
    /// is acknowledged, it survives the power.
    fn kill_and_retry(
        &mut self,
        at: &str,
        case: Case,
        machine: &Machine,
        point: &Point,
        first: &History,
        opened_then: bool,
    ) {
        let before = if opened_then { point.disk.clone() } else { self.ready.machine.disk() };
        let later = machine.later(before, false);
        let engine = self.engine(&later);
        later.set_disk(point.disk.clone());
        let history = History::default();
        later.start_recording();
        let fate = case.act(self.setup, self.ready, &later, engine.as_deref(), &history);
        let call = if case.act == self.case.act { "the same call again" } else { "a claim" };
        self.cut_before_decision(at, &later, point, first, &history);
        if fate != Fate::Done {
            // What it met was finished first, and stays whole.
            let mut expected = self.expected(first, None, point.step);
            expected.new.extend(self.expected(&history, None, u64::MAX).changes(&expected.old));
            expected.retried = true;
            let disk = later.disk();
            let at = format!("{at} > kill, {call}, refused");
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
            loose: BTreeSet::new(),
            fence,
        };
        let disk = later.disk();
        self.cut(&format!("{at} > kill, {call}"), &later, &disk, &expected, true);
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
