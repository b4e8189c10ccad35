//! Is there an order of the calls that explains everything that was seen?
//!
//! The calls between two power cuts are one *epoch*. Each call becomes a *unit*: what it read, what
//! it wrote, when it began and returned. A call that failed or never returned may have happened or
//! not. The search looks for an order that respects the times, in which every unit reads what is
//! there, and which ends with what was really found afterwards:
//!
//! - After a power cut, each record is what the last acknowledged call left, or what an
//!   unacknowledged one after it wrote. A unit of several records survives whole or not at all, and
//!   only together with every unit that it built on: one of whose records it read or replaced.
//! - At the end of a run, what is found is simply read.
//!
//! The search is exact within its budget of visits; a search that ran out of budget says so and
//! accuses nobody.

use std::collections::{BTreeMap, BTreeSet};

/// One call, or the part of it that survives by itself.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    /// For reports.
    pub name: String,
    /// When it began.
    pub began: u64,
    /// When it returned; `None` if it may not have happened.
    pub ended: Option<u64>,
    /// What it found, by record.
    pub reads: Vec<(usize, u64)>,
    /// What it stored, by record.
    pub writes: Vec<(usize, u64)>,
    /// Whether it was acknowledged: what it read and wrote is durable.
    pub promised: bool,
}

impl Unit {
    /// The records that it read or stored.
    fn touched(&self) -> impl Iterator<Item = usize> {
        self.reads.iter().chain(&self.writes).map(|(key, _)| *key)
    }
}

/// How an epoch ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// A power cut left these states.
    Cut(BTreeMap<usize, u64>),
    /// These states were read after everybody had stopped.
    Read(BTreeMap<usize, u64>),
}

/// What the search says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Explained,
    /// There is none.
    Impossible(String),
    /// Not decided within the budget.
    Undecided,
}

const BUDGET: usize = 400_000;

/// What was placed, what stands, and what is at risk.
type Visited = (Vec<u64>, Vec<(usize, u64)>, Vec<usize>);

struct Search<'a> {
    units: &'a [Unit],
    ending: &'a Ending,
    seen: BTreeSet<Visited>,
    visits: usize,
    best: usize,
    stuck_at: String,
}

#[derive(Clone)]
struct Place {
    done: Vec<u64>,
    now: BTreeMap<usize, u64>,
    /// The durable state of each record; absent means as at the start.
    base: BTreeMap<usize, u64>,
    /// Unacknowledged units that happened since, in order.
    tail: Vec<usize>,
}

impl Place {
    fn is_done(&self, unit: usize) -> bool {
        self.done[unit / 64] >> (unit % 64) & 1 == 1
    }
}

/// Looks for an order of `units` that leads from `start` to `ending`. Absent records are zero.
pub fn explain(start: &BTreeMap<usize, u64>, units: &[Unit], ending: &Ending) -> Verdict {
    let mut search = Search {
        units,
        ending,
        seen: BTreeSet::new(),
        visits: 0,
        best: 0,
        stuck_at: "nothing could be placed".into(),
    };
    let place = Place {
        done: vec![0; units.len().div_ceil(64)],
        now: start.clone(),
        base: start.clone(),
        tail: Vec::new(),
    };
    match search.go(place, 0) {
        Some(true) => Verdict::Explained,
        Some(false) => Verdict::Impossible(search.stuck_at),
        None => Verdict::Undecided,
    }
}

fn get(states: &BTreeMap<usize, u64>, key: usize) -> u64 {
    states.get(&key).copied().unwrap_or(0)
}

impl Search<'_> {
    fn go(&mut self, mut place: Place, mut placed: usize) -> Option<bool> {
        self.visits += 1;
        if self.visits > BUDGET {
            return None;
        }
        // A read that fits now can always be placed now: nothing is made impossible by it.
        let mut again = true;
        while again {
            again = false;
            for unit in self.candidates(&place) {
                let it = &self.units[unit];
                if it.ended.is_some() && it.writes.is_empty() && self.fits(&place, unit) {
                    place = self.after(place, unit);
                    placed += 1;
                    again = true;
                }
            }
        }
        let key = (
            place.done.clone(),
            place.now.iter().map(|(k, v)| (*k, *v)).collect(),
            place.tail.clone(),
        );
        if !self.seen.insert(key) {
            return Some(false);
        }
        let open = |unit: &usize| !place.is_done(*unit) && self.units[*unit].ended.is_some();
        let left: Vec<usize> = (0..self.units.len()).filter(open).collect();
        if left.is_empty() && self.ends(&place) {
            return Some(true);
        }
        if placed >= self.best {
            self.best = placed;
            self.stuck_at = if let Some(&unit) = left.first() {
                let it = &self.units[unit];
                let now: Vec<_> =
                    it.reads.iter().map(|(key, _)| (*key, get(&place.now, *key))).collect();
                format!(
                    "{} of {} calls explained; not {}: it read {:x?} where {now:x?} stood",
                    placed,
                    self.units.len(),
                    it.name,
                    it.reads
                )
            } else {
                let (base, tail) = (&place.base, &place.tail);
                let found = match self.ending {
                    Ending::Cut(found) | Ending::Read(found) => found,
                };
                let odd: Vec<_> = found
                    .iter()
                    .filter(|(key, value)| get(&place.now, **key) != **value)
                    .map(|(key, value)| (*key, *value, get(base, *key), get(&place.now, *key)))
                    .collect();
                let names: Vec<&str> =
                    tail.iter().map(|unit| self.units[*unit].name.as_str()).collect();
                format!(
                    "all calls explained, but not what was found afterwards: (record, found, \
                         durable, last) {odd:x?}; unacknowledged: {names:?}"
                )
            };
        }
        let mut candidates = self.candidates(&place);
        candidates.retain(|unit| self.fits(&place, *unit));
        // What certainly happened first: the rest is tried only where it is needed.
        candidates.sort_by_key(|unit| self.units[*unit].ended.is_none());
        for unit in candidates {
            let next = self.after(place.clone(), unit);
            match self.go(next, placed + usize::from(self.units[unit].ended.is_some())) {
                Some(false) => {}
                decided => return decided,
            }
        }
        Some(false)
    }

    /// Units that may be next by their times.
    fn candidates(&self, place: &Place) -> Vec<usize> {
        let open = (0..self.units.len()).filter(|unit| !place.is_done(*unit));
        let deadline = open.clone().filter_map(|unit| self.units[unit].ended).min();
        open.filter(|unit| deadline.is_none_or(|first| self.units[*unit].began <= first)).collect()
    }

    fn fits(&self, place: &Place, unit: usize) -> bool {
        self.units[unit].reads.iter().all(|(key, value)| get(&place.now, *key) == *value)
    }

    fn after(&self, mut place: Place, unit: usize) -> Place {
        let it = &self.units[unit];
        place.done[unit / 64] |= 1 << (unit % 64);
        for (key, value) in &it.writes {
            place.now.insert(*key, *value);
        }
        if it.promised {
            // What an acknowledged call built on is durable, with everything that came with it and
            // with what that was built on.
            let mut rests_on: BTreeSet<usize> = it.touched().collect();
            let mut fixed = BTreeSet::new();
            for tail in place.tail.iter().rev() {
                let earlier = &self.units[*tail];
                if earlier.writes.iter().any(|(key, _)| rests_on.contains(key)) {
                    rests_on.extend(earlier.touched());
                    fixed.insert(*tail);
                }
            }
            for tail in place.tail.iter().filter(|tail| fixed.contains(tail)) {
                place.base.extend(self.units[*tail].writes.iter().copied());
            }
            place.tail.retain(|tail| !fixed.contains(tail));
            for key in it.touched() {
                place.base.insert(key, get(&place.now, key));
            }
        } else if !it.writes.is_empty() {
            place.tail.push(unit);
        }
        place
    }

    fn ends(&self, place: &Place) -> bool {
        match self.ending {
            Ending::Read(found) => found.iter().all(|(key, value)| get(&place.now, *key) == *value),
            Ending::Cut(found) => self.survives(place, found),
        }
    }

    /// Whether some of the unacknowledged units, each whole, lead from what is durable to `found`.
    fn survives(&self, place: &Place, found: &BTreeMap<usize, u64>) -> bool {
        // A unit that stored what was not found was lost or overwritten; only orders of the rest
        // matter, and each can be decided by going through them once, newest first.
        let keys: BTreeSet<usize> = found.keys().chain(place.base.keys()).copied().collect();
        self.overlay(place, found, &keys, place.tail.len(), &Survived::default())
    }

    fn overlay(
        &self,
        place: &Place,
        found: &BTreeMap<usize, u64>,
        keys: &BTreeSet<usize>,
        upto: usize,
        newer: &Survived,
    ) -> bool {
        let Some(index) = upto.checked_sub(1) else {
            return keys
                .iter()
                .filter(|key| !newer.decided.contains(*key))
                .all(|key| get(found, *key) == get(&place.base, *key));
        };
        let unit = &self.units[place.tail[index]];
        // Newest first: if it survived, it decides its records unless something newer has.
        let agrees = unit
            .writes
            .iter()
            .filter(|(key, _)| !newer.decided.contains(key))
            .all(|(key, value)| get(found, *key) == *value);
        if agrees {
            let mut with = newer.clone();
            with.decided.extend(unit.writes.iter().map(|(key, _)| *key));
            with.rests_on.extend(unit.touched());
            if self.overlay(place, found, keys, index, &with) {
                return true;
            }
        }
        let is_needed = unit.writes.iter().any(|(key, _)| newer.rests_on.contains(key));
        !is_needed && self.overlay(place, found, keys, index, newer)
    }
}

/// What the units that survived a power cut say about those before them.
#[derive(Clone, Debug, Default)]
struct Survived {
    /// Records that one of them stored.
    decided: BTreeSet<usize>,
    /// Records that one of them read or stored: who stored them before survived too.
    rests_on: BTreeSet<usize>,
}

#[cfg(test)]
mod tests;
