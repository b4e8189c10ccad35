//! What must be true of a table after a crash.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::field::Fields;
use ringfence_model::{Fence, Key, Token, WorkStatus};

use super::Explorer;
use crate::case::{Act, verbs};
use crate::disk::Disk;
use crate::history::{Fate, History, State};
use crate::machine::Machine;
use crate::setup::{LONG, Mode, read_all, target};
use crate::subject::{Oddity, Table};
use crate::verbs::{group, request, work};

/// A target that somebody else claims.
pub(super) const BYSTANDER: u64 = 9000;

/// A disk's digest, and what is expected of it: acknowledged, restored, retried, loose.
pub(super) type DiskKey = (u64, [bool; 4]);

/// What must be found.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) old: BTreeMap<Key, State>,
    pub(super) new: BTreeMap<Key, State>,
    /// The keys that change together.
    pub(super) units: Vec<Vec<Key>>,
    /// The call was acknowledged: all new.
    pub(super) acknowledged: bool,
    /// The call failed and said that the old state was put back: all old.
    pub(super) restored: bool,
    /// The call was made again after a kill.
    pub(super) retried: bool,
    /// Records of another call that was not acknowledged: each is old or new, whatever else is said.
    pub(super) loose: BTreeSet<Key>,
    /// No fence up to this one may be granted again.
    pub(super) fence: Fence,
}

impl Expected {
    /// What tells two disks apart, and what is expected of them.
    pub(super) fn key(&self, disk: &Disk) -> DiskKey {
        let loose = !self.loose.is_empty();
        (disk.digest(), [self.acknowledged, self.restored, self.retried, loose])
    }

    /// The records whose new state is not the old one.
    pub(super) fn changes(self, old: &BTreeMap<Key, State>) -> BTreeMap<Key, State> {
        let mut new = self.new;
        new.retain(|key, state| old.get(key) != Some(state));
        new
    }
}

impl Explorer<'_> {
    /// Everything that must be true of a table after a crash.
    pub(super) fn look(
        &self,
        machine: &Machine,
        engine: &dyn Table,
        expected: &Expected,
    ) -> Result<(), String> {
        let found: BTreeMap<Key, State> = read_all(engine)?.into_iter().collect();
        self.compare(&found, expected)?;
        let found = self.meets_what_was_read(machine, engine, found, expected)?;
        if self.case.act == Act::MakeShard {
            // What somebody removed, an operator must have made again before anybody goes on.
            engine.tidy()?;
        }
        self.next_calls(machine, engine, &found, expected)?;
        for oddity in engine.oddities()? {
            match oddity {
                Oddity::Temporary(_) => {}
                Oddity::Unfinished if self.setup.mode() == Mode::Group => {}
                other => return Err(format!("check finds {other:?}")),
            }
        }
        // Repair removes what a killed writer left.
        engine.tidy()?;
        self.survives(machine, engine)?;
        match engine.oddities()?.iter().find(|oddity| !oddity.may_stay()) {
            Some(oddity) => Err(format!("repair left {oddity:?}")),
            None => Ok(()),
        }
    }

    /// What a reader was shown is what whoever meets the group makes of it. Where a sync failed, it may
    /// have been shown what is dropped then; nobody was told that it was done.
    fn meets_what_was_read(
        &self,
        machine: &Machine,
        engine: &dyn Table,
        found: BTreeMap<Key, State>,
        expected: &Expected,
    ) -> Result<BTreeMap<Key, State>, String> {
        Self::meet(machine, engine, &self.ready.numbers);
        let mut now: BTreeMap<Key, State> = read_all(engine)?.into_iter().collect();
        if self.has_memory() {
            // Whoever stores something brings in order what was left.
            let (mut fate, _) = Self::store(machine, engine, BYSTANDER);
            // Of a sync that failed, everybody may be told once for each file that he has open.
            for _ in 0..2 {
                if matches!(fate, Fate::Restored(_)) {
                    fate = Self::store(machine, engine, BYSTANDER).0;
                }
            }
            if fate != Fate::Done {
                return Err(format!("a claim of something else ended as {fate:?}"));
            }
            now = read_all(engine)?.into_iter().collect();
            now.remove(&Key::target(target(BYSTANDER)));
            if self.may_drop {
                self.compare(&now, expected)?;
                return Ok(now);
            }
        }
        let odd = now.keys().chain(found.keys()).find(|key| now.get(key) != found.get(key));
        match odd {
            Some(key) => Err(format!("a reader was shown another state of {key:?}")),
            None => Ok(found),
        }
    }

    /// Claims a target that nothing else is about.
    pub(super) fn store(machine: &Machine, engine: &dyn Table, number: u64) -> (Fate, History) {
        let history = History::default();
        let verbs = verbs("bystander", machine, &history, engine, None);
        let fate = verbs.claim(&request("bystander", &[number], 1e6)).fate;
        (fate, history)
    }

    /// Meets every member and changes none: no such token was ever granted.
    pub(super) fn meet(machine: &Machine, engine: &dyn Table, numbers: &[u64]) {
        let history = History::default();
        let verbs = verbs("finder", machine, &history, engine, None);
        let stale = Token::new("nobody's").expect("a token");
        let _ = verbs.heartbeat(&group(numbers), &stale);
    }

    pub(super) fn compare(
        &self,
        found: &BTreeMap<Key, State>,
        expected: &Expected,
    ) -> Result<(), String> {
        let state = |states: &BTreeMap<Key, State>, key: &Key| {
            states.get(key).map_or(0, |state| state.digest)
        };
        let all: BTreeSet<&Key> =
            found.keys().chain(expected.old.keys()).chain(expected.new.keys()).collect();
        for key in all {
            let (now, old, new) =
                (state(found, key), state(&expected.old, key), state(&expected.new, key));
            if let Some(State { damage: Some(damage), .. }) = found.get(key) {
                return Err(format!("the record {key:?} is torn: {damage}"));
            }
            if (now == old || now == new) && expected.loose.contains(key) {
                continue;
            }
            if expected.acknowledged && now != new {
                return Err(format!("an acknowledged state of {key:?} is lost"));
            }
            if self.ready.fading.get(key).is_some_and(|state| state.digest == now)
                && !expected.acknowledged
            {
                continue;
            }
            if expected.restored && now != old {
                return Err(format!("the call said that {key:?} was put back, and it was not"));
            }
            if now != old && now != new {
                return Err(format!("the record {key:?} is neither old nor new"));
            }
        }
        if self.setup.mode() == Mode::Group {
            for unit in &expected.units {
                let changed: Vec<&Key> = unit
                    .iter()
                    .filter(|key| state(&expected.old, key) != state(&expected.new, key))
                    .collect();
                let is_new = |key: &&&Key| state(found, key) == state(&expected.new, key);
                let news = changed.iter().filter(is_new).count();
                if news != 0 && news != changed.len() {
                    return Err(format!("{news} of {} members are new", changed.len()));
                }
            }
        }
        Ok(())
    }

    /// Whoever comes next gets everything that has run out, under a higher fence.
    fn next_calls(
        &self,
        machine: &Machine,
        engine: &dyn Table,
        found: &BTreeMap<Key, State>,
        expected: &Expected,
    ) -> Result<(), String> {
        let fences = found.values().filter_map(|state| state.token.as_ref()?.fence());
        let highest = fences.max().unwrap_or(Fence(0)).max(expected.fence);
        machine.advance(LONG * 24 * 365);
        let history = History::default();
        let verbs = verbs("finder", machine, &history, engine, None);
        let numbers = group(&self.ready.numbers);
        let claimed = verbs.claim(&request("finder", &self.ready.numbers, 5.0));
        let Some(token) = claimed.token else {
            return Err(format!("what has run out cannot be claimed: {:?}", claimed.fate));
        };
        if token.fence() <= Some(highest) {
            return Err(format!("fence {:?} was granted after {highest}", token.fence()));
        }
        let item = work("finder", 1, 5.0);
        let key = Key::work(item.id());
        match found.get(&key).and_then(|state| Some((state.status?, state.token.clone()?))) {
            Some((WorkStatus::Committing, token)) => {
                let completed = verbs.complete(key, &token).fate;
                if completed != Fate::Done {
                    return Err(format!("a committing item cannot be finished: {completed:?}"));
                }
            }
            Some((WorkStatus::Done, _)) => {}
            _ => {
                let claimed = verbs.claim_work(&item);
                if claimed.token.is_none() {
                    return Err(format!("the item cannot be claimed: {:?}", claimed.fate));
                }
            }
        }
        let forced = verbs.force_release(&numbers, &token).fate;
        if forced != Fate::Done {
            return Err(format!("a force-release ended as {forced:?}"));
        }
        self.audit(machine, &token, "the next")?;
        let acknowledged = self.case.act == Act::ForceRelease && expected.acknowledged;
        match (&self.ready.token, acknowledged) {
            (Some(token), true) => self.audit(machine, token, "an acknowledged"),
            _ => Ok(()),
        }
    }

    /// All that was acknowledged is there after one more power cut. That an item is done which somebody
    /// else has completed was acknowledged to nobody, where he was killed.
    fn survives(&self, machine: &Machine, engine: &dyn Table) -> Result<(), String> {
        let before: BTreeMap<Key, State> = read_all(engine)?.into_iter().collect();
        let later = machine.later(machine.disk().barest(), true);
        let engine = self.setup.mended().open(&self.setup.mended().world(&later, 0));
        let engine = engine.map_err(|error| format!("does not open after all: {error}"))?;
        let after: BTreeMap<Key, State> = read_all(&*engine)?.into_iter().collect();
        let told = |key: &&Key| {
            let is_done = before.get(*key).is_some_and(|it| it.status == Some(WorkStatus::Done));
            self.has_memory() || !is_done
        };
        let mut odd = before.keys().chain(after.keys()).filter(told);
        let odd = odd.find(|key| before.get(key) != after.get(key));
        odd.map_or(Ok(()), |key| {
            Err(format!("after all, an acknowledged state of {key:?} is lost"))
        })
    }

    /// Every acknowledged force-release has a line of its own that can be read.
    fn audit(&self, machine: &Machine, token: &Token, which: &str) -> Result<(), String> {
        let bytes = self.setup.subject.audit(&machine.disk());
        let told = bytes.split(|byte| *byte == b'\n').any(|line| {
            let is_json = Fields::parse(line).is_ok();
            is_json && String::from_utf8_lossy(line).contains(token.as_str())
        });
        if told { Ok(()) } else { Err(format!("{which} force-release has no readable audit line")) }
    }

    pub(super) fn nothing_left(&mut self, label: &str, disk: &Disk) {
        let left = disk.tree().into_keys().find(|path| {
            let path = path.to_string_lossy();
            path.contains(".tmp") && !path.contains(".probe-")
        });
        if let Some(path) = left {
            // Removing a temporary can fail as well, when everything does.
            if !label.contains("calls fail") {
                self.wrong(label, format!("a failed call left {}", path.display()));
            }
        }
    }
}
