//! What may be found after a crash, judged from marks.
//!
//! Every call has a place where it began and one where it was acknowledged. At a crash between two
//! events of the log, a call that was acknowledged before has happened; one that had begun may have;
//! no other has. The calls that changed one record are in a known order: by the fence of their grant,
//! and within a grant as one process made them, its end last. So the tables that may be found are
//! known exactly, and in a table of durability `group` each must be found whole.

use std::collections::{BTreeMap, BTreeSet};

use ringfence::Durability;

use crate::marks::{Begin, End, Ending, Verb};
use crate::table::{Recovered, Seen, short};

/// One call of the workload.
#[derive(Clone, Debug)]
struct Call {
    begin: Begin,
    began: usize,
    end: Option<(usize, End)>,
}

/// All calls of a recording.
#[derive(Clone, Debug)]
pub(crate) struct History {
    calls: Vec<Call>,
    /// Per record, the calls that changed it or may have, in their order.
    changes: BTreeMap<u64, Vec<usize>>,
    /// The fence of each claim, by its number, where somebody tells it.
    fences: BTreeMap<u64, u64>,
    durability: Durability,
}

/// What a record must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Expected {
    of: u64,
    fence: Option<u64>,
    updated: Option<u64>,
    status: &'static str,
}

/// The tables that may be found at one crash point.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    tables: Vec<BTreeMap<u64, Expected>>,
    records: BTreeMap<u64, BTreeSet<Option<Expected>>>,
    fence: u64,
    audited: BTreeSet<u64>,
    durability: Durability,
    /// Calls in flight whose happening was not considered: there were too many.
    ignored: usize,
}

/// More calls than this in flight at once are not expected.
const MOST_IN_FLIGHT: usize = 14;

impl History {
    /// From the marks of a log, each with its place.
    pub(crate) fn new(
        marks: impl IntoIterator<Item = (usize, Vec<u8>)>,
        durability: Durability,
    ) -> Result<Self, String> {
        let mut calls: Vec<Call> = Vec::new();
        let mut by_id: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, mark) in marks {
            let (kind, body) = mark.split_first().ok_or("an empty mark")?;
            match kind {
                b'B' => {
                    let begins: Vec<Begin> = parsed(body)?;
                    for begin in begins {
                        by_id.insert(begin.id, calls.len());
                        calls.push(Call { begin, began: at, end: None });
                    }
                }
                b'A' => {
                    let ends: Vec<End> = parsed(body)?;
                    for end in ends {
                        let call = by_id.get(&end.id).ok_or("a call ended that never began")?;
                        calls[*call].end = Some((at, end));
                    }
                }
                _ => {}
            }
        }
        // A claim that failed says no fence, but whoever released it by force has seen one.
        let told = |call: &Call| {
            let fence = match call.begin.verb {
                Verb::Claim => call.end.as_ref()?.1.fence,
                _ => call.begin.fence,
            };
            Some((call.begin.of, fence?))
        };
        let fences = calls.iter().filter_map(told).collect();
        let changes = BTreeMap::new();
        Ok(Self { calls, changes, fences, durability }.ordered())
    }

    /// The same, told the fences that stand in a table which was found: a claim whose caller never
    /// learnt what became of it may have been taken over in part since, and only its fence tells that
    /// it came first.
    pub(crate) fn knowing(mut self, found: &BTreeMap<u64, Seen>) -> Self {
        for seen in found.values() {
            self.fences.entry(seen.of).or_insert(seen.fence);
        }
        self.ordered()
    }

    /// Puts the changes of each record in order.
    fn ordered(mut self) -> Self {
        self.changes.clear();
        for (index, call) in self.calls.iter().enumerate() {
            if call.end.as_ref().is_some_and(|(_, end)| end.ending == Ending::Nothing) {
                continue;
            }
            for &item in &call.begin.items {
                self.changes.entry(item).or_default().push(index);
            }
        }
        for order in self.changes.values_mut() {
            order.sort_by_key(|&index| {
                let call = &self.calls[index];
                let class = match call.begin.verb {
                    Verb::Claim => 0,
                    Verb::Heartbeat | Verb::BeginCommit | Verb::Complete => 1,
                    Verb::Release | Verb::ForceRelease => 2,
                };
                let fence = self.fences.get(&call.begin.of).copied().unwrap_or(u64::MAX);
                (fence, class, call.began)
            });
        }
        self
    }

    /// How many calls were acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        self.calls.iter().filter(|call| call.is_done(usize::MAX)).count()
    }

    /// How each call ended, for people.
    pub(crate) fn endings(&self) -> Vec<(Verb, Ending, Option<String>)> {
        let ending = |call: &Call| {
            let (_, end) = call.end.as_ref()?;
            Some((call.begin.verb, end.ending, end.error.clone()))
        };
        self.calls.iter().filter_map(ending).collect()
    }

    /// What is allowed when the log ended before place `place`.
    pub(crate) fn allowed(&self, place: usize) -> Allowed {
        let mut in_flight: Vec<usize> = (0..self.calls.len())
            .filter(|&index| self.calls[index].may_have_happened(place))
            .filter(|&index| !self.calls[index].is_done(place))
            .collect();
        let ignored = in_flight.len().saturating_sub(MOST_IN_FLIGHT);
        in_flight.truncate(MOST_IN_FLIGHT);
        let done: BTreeSet<usize> =
            (0..self.calls.len()).filter(|&index| self.calls[index].is_done(place)).collect();
        let mut tables = Vec::new();
        for choice in 0..1_u32 << in_flight.len() {
            let mut happened = done.clone();
            happened.extend(
                in_flight
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| choice >> bit & 1 == 1)
                    .map(|(_, c)| c),
            );
            tables.extend(self.table(&happened));
        }
        let mut records: BTreeMap<u64, BTreeSet<Option<Expected>>> = BTreeMap::new();
        for (&item, order) in &self.changes {
            let states = records.entry(item).or_default();
            let last = order.iter().rposition(|call| done.contains(call));
            states.insert(last.and_then(|last| self.state(order[last])));
            for &call in &order[last.map_or(0, |last| last + 1)..] {
                if !self.calls[call].may_have_happened(place) {
                    break;
                }
                states.insert(self.state(call));
            }
        }
        let fences = done.iter().filter_map(|&call| self.calls[call].end.as_ref()?.1.fence);
        let fence = fences.max().unwrap_or(0);
        let audited = done
            .iter()
            .map(|&call| &self.calls[call].begin)
            .filter(|begin| begin.verb == Verb::ForceRelease)
            .map(|begin| begin.id)
            .collect();
        Allowed { tables, records, fence, audited, durability: self.durability, ignored }
    }

    /// The table after exactly these calls; `None` if one of them could not have come without another.
    fn table(&self, happened: &BTreeSet<usize>) -> Option<BTreeMap<u64, Expected>> {
        let mut table = BTreeMap::new();
        for (&item, order) in &self.changes {
            // One that never returned may have come too late, to be refused.
            let counts = |call: &&usize| happened.contains(call) || self.calls[**call].returned();
            let order: Vec<usize> = order.iter().filter(counts).copied().collect();
            let count = order.iter().take_while(|call| happened.contains(call)).count();
            if order[count..].iter().any(|call| happened.contains(call)) {
                return None;
            }
            let grantless = |call: usize| {
                let grant = self.calls.iter().position(|grant| {
                    grant.begin.verb == Verb::Claim && grant.begin.id == self.calls[call].begin.of
                });
                grant.is_some_and(|grant| !happened.contains(&grant))
            };
            if order[..count].iter().any(|&call| grantless(call)) {
                return None;
            }
            if let Some(state) = count.checked_sub(1).and_then(|last| self.state(order[last])) {
                table.insert(item, state);
            }
        }
        Some(table)
    }

    /// What a call makes of each of its records.
    fn state(&self, call: usize) -> Option<Expected> {
        let call = &self.calls[call];
        let of = call.begin.of;
        let grant = self.calls.iter().find(|call| call.begin.id == of);
        let fence = grant.and_then(|grant| grant.end.as_ref()?.1.fence);
        let ended = call.end.as_ref().and_then(|(_, end)| end.updated);
        let state = |updated, status| Some(Expected { of, fence, updated, status });
        match call.begin.verb {
            Verb::Claim => state(ended, "leased"),
            Verb::Heartbeat => state(call.begin.updated, "leased"),
            Verb::BeginCommit => state(None, "committing"),
            Verb::Complete => state(None, "done"),
            Verb::Release | Verb::ForceRelease => None,
        }
    }
}

impl Call {
    fn is_done(&self, place: usize) -> bool {
        self.end.as_ref().is_some_and(|(at, end)| *at < place && end.ending == Ending::Done)
    }

    /// Whether its end is known.
    fn returned(&self) -> bool {
        self.end.as_ref().is_some_and(|(_, end)| end.ending != Ending::Unknown)
    }

    fn may_have_happened(&self, place: usize) -> bool {
        self.began < place && self.end.as_ref().is_none_or(|(_, end)| end.ending != Ending::Nothing)
    }
}

fn parsed<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, String> {
    serde_json::from_slice(body).map_err(|error| format!("a mark that is not one: {error}"))
}

impl Allowed {
    /// What is wrong with a disk that recovered like this; `None` is how it must be.
    pub(crate) fn judge(&self, found: &Recovered) -> Option<String> {
        if let Some(wrong) = found.wrong.first() {
            return Some(wrong.clone());
        }
        if found.next_fence <= self.fence {
            return Some(format!(
                "fence {} was acknowledged and the next grant got {}",
                self.fence, found.next_fence
            ));
        }
        if let Some(call) = self.audited.difference(&found.audited).next() {
            return Some(format!("the audit log does not tell of the force-release {call}"));
        }
        if self.durability == Durability::Group {
            if self.tables.iter().any(|table| same(table, &found.table)) {
                return None;
            }
            let closest = self.tables.first();
            let ignored = match self.ignored {
                0 => String::new(),
                count => format!(" ({count} calls in flight too many to be considered)"),
            };
            return Some(format!(
                "found {}, which is none of {} allowed tables{ignored}, such as {:?}",
                short(&found.table),
                self.tables.len(),
                closest
            ));
        }
        for (item, states) in &self.records {
            let seen = found.table.get(item);
            if !states.iter().any(|state| fits(state.as_ref(), seen)) {
                return Some(format!("record {item} is {seen:?}, allowed is {states:?}"));
            }
        }
        let strange = found.table.keys().find(|item| !self.records.contains_key(item));
        strange.map(|item| format!("record {item} is there, and nobody ever claimed it"))
    }
}

fn same(expected: &BTreeMap<u64, Expected>, found: &BTreeMap<u64, Seen>) -> bool {
    expected.len() == found.len()
        && expected.iter().all(|(item, state)| fits(Some(state), found.get(item)))
}

fn fits(state: Option<&Expected>, seen: Option<&Seen>) -> bool {
    match (state, seen) {
        (None, None) => true,
        (Some(state), Some(seen)) => {
            state.of == seen.of
                && state.status == seen.status
                && state.updated.is_none_or(|updated| updated == seen.updated)
                && state.fence.is_none_or(|fence| fence == seen.fence)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(of: u64, fence: u64, updated: u64) -> Seen {
        let token = String::new();
        Seen { of, updated, status: "leased", token, fence, group: vec![1, 2] }
    }

    fn found(table: &[(u64, Seen)]) -> Recovered {
        let table = table.iter().cloned().collect();
        Recovered { table, next_fence: 100, ..Recovered::default() }
    }

    /// A claim of 1 and 2 at places 1 to 5, its heartbeat at 7 to 9.
    fn history(durability: Durability) -> History {
        let begin = |id, verb, updated| {
            let begin = Begin { id, verb, items: vec![1, 2], of: 1, updated, fence: None };
            format!("B{}", serde_json::to_string(&[begin]).unwrap()).into_bytes()
        };
        let end = |id, fence, updated| {
            let end = End { id, ending: Ending::Done, fence, updated, error: None };
            format!("A{}", serde_json::to_string(&[end]).unwrap()).into_bytes()
        };
        let marks = [
            (1, begin(1, Verb::Claim, None)),
            (5, end(1, Some(7), Some(70))),
            (7, begin(2, Verb::Heartbeat, Some(80))),
            (9, end(2, None, None)),
        ];
        History::new(marks, durability).unwrap()
    }

    #[test]
    fn an_acknowledged_call_must_be_found_and_one_that_never_began_must_not() {
        for durability in [Durability::Group, Durability::Record] {
            let history = history(durability);
            let old = found(&[]);
            let claimed = found(&[(1, seen(1, 7, 70)), (2, seen(1, 7, 70))]);
            let renewed = found(&[(1, seen(1, 7, 80)), (2, seen(1, 7, 80))]);
            let verdicts = |place| {
                let allowed = history.allowed(place);
                [&old, &claimed, &renewed].map(|found| allowed.judge(found).is_none())
            };
            assert_eq!(verdicts(1), [true, false, false], "{durability:?}");
            assert_eq!(verdicts(2), [true, true, false]);
            assert_eq!(verdicts(6), [false, true, false]);
            assert_eq!(verdicts(8), [false, true, true]);
            assert_eq!(verdicts(10), [false, false, true]);
        }
    }

    /// Process 1 claims 1 and 2 and is told that the outcome is unknown; then process 2 is granted 2.
    /// What was found after injected EIO with five processes, and called wrong.
    #[test]
    fn a_claim_of_unknown_outcome_may_have_been_taken_over_in_part() {
        let begin = |id, items: &[u64]| {
            let begin = Begin {
                id,
                verb: Verb::Claim,
                items: items.into(),
                of: id,
                updated: None,
                fence: None,
            };
            format!("B{}", serde_json::to_string(&[begin]).unwrap()).into_bytes()
        };
        let end = |id, ending, fence| {
            let end = End { id, ending, fence, updated: fence.map(|_| 80), error: None };
            format!("A{}", serde_json::to_string(&[end]).unwrap()).into_bytes()
        };
        let marks = [
            (1, begin(1, &[1, 2])),
            (5, end(1, Ending::Unknown, None)),
            (7, begin(2, &[2])),
            (9, end(2, Ending::Done, Some(9))),
        ];
        let history = History::new(marks, Durability::Group).unwrap();
        let is_right = |table: &[(u64, Seen)]| {
            let found = found(table);
            history.clone().knowing(&found.table).allowed(usize::MAX).judge(&found).is_none()
        };
        let (unknown, done) = (|fence| seen(1, fence, 70), seen(2, 9, 80));
        assert!(is_right(&[(2, done.clone())]), "it did not happen");
        assert!(is_right(&[(1, unknown(7)), (2, done.clone())]), "it did, and ran out");
        assert!(!is_right(&[(1, unknown(7)), (2, unknown(7))]), "an acknowledged grant is gone");
        assert!(!is_right(&[(1, unknown(7))]));
        assert!(!is_right(&[(1, unknown(11)), (2, done)]), "it came later, and half of it is gone");
    }

    #[test]
    fn a_fence_that_somebody_saw_orders_a_claim_of_unknown_outcome() {
        let begin = |id, verb, of, fence| {
            let begin = Begin { id, verb, items: vec![1], of, updated: None, fence };
            format!("B{}", serde_json::to_string(&[begin]).unwrap()).into_bytes()
        };
        let end = |id, ending, fence| {
            let end = End { id, ending, fence, updated: fence.map(|_| 80), error: None };
            format!("A{}", serde_json::to_string(&[end]).unwrap()).into_bytes()
        };
        let marks = [
            (1, begin(1, Verb::Claim, 1, None)),
            (2, end(1, Ending::Unknown, None)),
            (3, begin(2, Verb::ForceRelease, 1, Some(7))),
            (4, end(2, Ending::Done, None)),
            (5, begin(3, Verb::Claim, 3, None)),
            (6, end(3, Ending::Done, Some(9))),
        ];
        let history = History::new(marks, Durability::Group).unwrap();
        let mut found = found(&[(1, seen(3, 9, 80))]);
        found.audited.insert(2);
        assert_eq!(history.allowed(usize::MAX).judge(&found), None);
        found.table.clear();
        assert!(history.allowed(usize::MAX).judge(&found).is_some());
    }

    #[test]
    fn half_a_group_is_wrong_only_where_groups_are_whole() {
        let half = found(&[(1, seen(1, 7, 70))]);
        assert!(history(Durability::Group).allowed(3).judge(&half).is_some());
        assert!(history(Durability::Record).allowed(3).judge(&half).is_none());
        let mixed = found(&[(1, seen(1, 7, 70)), (2, seen(1, 7, 80))]);
        assert!(history(Durability::Group).allowed(8).judge(&mixed).is_some());
        assert!(history(Durability::Record).allowed(8).judge(&mixed).is_none());
    }

    #[test]
    fn a_fence_that_does_not_rise_and_a_wrong_time_or_fence_are_noticed() {
        let history = history(Durability::Group);
        let claimed =
            |fence, updated| found(&[(1, seen(1, fence, updated)), (2, seen(1, fence, updated))]);
        assert!(history.allowed(6).judge(&claimed(7, 70)).is_none());
        assert!(history.allowed(6).judge(&claimed(7, 71)).is_some());
        assert!(history.allowed(6).judge(&claimed(8, 70)).is_some());
        let low = Recovered { next_fence: 7, ..claimed(7, 70) };
        assert!(history.allowed(6).judge(&low).is_some());
    }
}
