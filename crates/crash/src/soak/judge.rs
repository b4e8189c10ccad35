//! What may be found after one round, over what the rounds before have left.

use std::collections::{BTreeMap, BTreeSet};

use ringfence::Durability;

use crate::marks::{Begin, End, Ending, Verb};
use crate::oracle::History;
use crate::table::{Recovered, Seen, short};

/// What a round begins with.
#[derive(Debug, Default)]
pub(super) struct Base {
    /// Every record.
    pub(super) table: BTreeMap<u64, Seen>,
    /// The highest fence that was ever granted.
    pub(super) highest: u64,
}

/// The calls of one round.
#[derive(Debug)]
pub(super) struct Round {
    marks: Vec<Mark>,
    /// How many of the marks were there before the cut.
    before: usize,
}

#[derive(Clone, Debug)]
enum Mark {
    Begin(Vec<Begin>),
    End(Vec<End>),
}

/// Places of the marks that stand for the base are below this.
const PLACE: usize = 2;
/// Numbers of calls that were never made, but would have led to the base.
const MADE_UP: u64 = 1 << 48;

impl Round {
    /// From the bytes of the marks, of which `before` were there before the cut.
    ///
    /// Where a sync that comes after the cut may be answered with success, an acknowledgement that came
    /// after it is none.
    pub(super) fn read(bytes: &[u8], before: usize, lies_after: bool) -> Result<Self, String> {
        let mut round = Self { marks: Vec::new(), before: 0 };
        let mut at = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            at += line.len();
            // A process that is killed while it writes leaves a part, which others then continue.
            let mut starts = (0..line.len()).filter(|&start| matches!(line[start], b'A' | b'B'));
            let Some(mark) = starts.find_map(|start| Mark::parse(&line[start..])) else {
                if line.ends_with(b"\n") && line.starts_with(b"A") {
                    return Err(format!("no mark: {}", String::from_utf8_lossy(line)));
                }
                continue;
            };
            round.marks.push(mark);
            if at <= before {
                round.before = round.marks.len();
            } else if let (true, Some(Mark::End(ends))) = (lies_after, round.marks.last_mut()) {
                for end in ends.iter_mut().filter(|end| end.ending == Ending::Done) {
                    end.ending = Ending::Unknown;
                }
            }
        }
        Ok(round)
    }

    fn ends(&self) -> impl Iterator<Item = &End> {
        self.marks.iter().flat_map(|mark| match mark {
            Mark::End(ends) => ends.as_slice(),
            Mark::Begin(_) => &[],
        })
    }

    fn begins(&self) -> impl Iterator<Item = &Begin> {
        self.marks.iter().flat_map(|mark| match mark {
            Mark::Begin(begins) => begins.as_slice(),
            Mark::End(_) => &[],
        })
    }

    /// How many calls were acknowledged.
    pub(super) fn acknowledged(&self) -> usize {
        self.ends().filter(|end| end.ending == Ending::Done).count()
    }

    /// How many calls never returned, or returned without knowing.
    pub(super) fn unended(&self) -> usize {
        let known = self.ends().filter(|end| end.ending != Ending::Unknown).count();
        self.begins().count() - known
    }

    /// The highest fence that was acknowledged.
    pub(super) fn highest_fence(&self) -> u64 {
        self.ends().filter_map(|end| end.fence).max().unwrap_or(0)
    }

    /// What is wrong with the table that was found.
    pub(super) fn judge(
        &self,
        base: &Base,
        found: &Recovered,
        durability: Durability,
    ) -> Result<(), String> {
        self.no_unknown_before_the_cut()?;
        self.fences_rise(base)?;
        if let Some(wrong) = found.wrong.first() {
            return Err(wrong.clone());
        }
        if found.next_fence <= base.highest {
            let (next, last) = (found.next_fence, base.highest);
            return Err(format!("fence {last} was granted before, and the next grant got {next}"));
        }
        let touched: BTreeSet<u64> =
            self.begins().flat_map(|begin| begin.items.iter().copied()).collect();
        let apart = |table: &BTreeMap<u64, Seen>, is: bool| -> BTreeMap<u64, Seen> {
            let chosen = table.iter().filter(|(item, _)| touched.contains(item) == is);
            chosen.map(|(item, seen)| (*item, seen.clone())).collect()
        };
        let (was, is) = (apart(&base.table, false), apart(&found.table, false));
        if was != is {
            let (was, is) = (short(&was), short(&is));
            return Err(format!("nobody touched {was}, and there is {is}"));
        }
        let mut events = led_to(&apart(&base.table, true));
        events.extend(self.settled(&found.table));
        let events = events.iter().enumerate().map(|(at, mark)| (at + PLACE, mark.bytes()));
        let history = History::new(events, durability)?;
        let rest = Recovered { table: apart(&found.table, true), ..found.clone() };
        match history.allowed(usize::MAX).judge(&rest) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// A disk that is well leaves no call in doubt.
    fn no_unknown_before_the_cut(&self) -> Result<(), String> {
        for mark in &self.marks[..self.before] {
            let Mark::End(ends) = mark else { continue };
            if let Some(end) = ends.iter().find(|end| end.ending == Ending::Unknown) {
                return Err(format!(
                    "call {} had an unknown end before the cut: {:?}",
                    end.id, end.error
                ));
            }
        }
        Ok(())
    }

    /// Every grant is above all that were acknowledged before it was asked for.
    fn fences_rise(&self, base: &Base) -> Result<(), String> {
        let mut highest = base.highest;
        let mut asked: BTreeMap<u64, u64> = BTreeMap::new();
        let mut all = BTreeSet::new();
        for mark in &self.marks {
            match mark {
                Mark::Begin(begins) => {
                    asked.extend(begins.iter().map(|begin| (begin.id, highest)));
                }
                Mark::End(ends) => {
                    for end in ends {
                        let Some(fence) = end.fence else { continue };
                        let floor = asked.get(&end.id).copied().unwrap_or(u64::MAX);
                        if fence <= floor {
                            return Err(format!("{fence} was granted after fence {floor}"));
                        }
                        if !all.insert(fence) {
                            return Err(format!("fence {fence} was granted twice"));
                        }
                        highest = highest.max(fence);
                    }
                }
            }
        }
        Ok(())
    }

    /// The marks, in which each claim that did not return has the fence that it got: the table shows
    /// it, or somebody who removed it by force. If neither does, then whatever it did is gone by what
    /// others did later, and it may as well not have been made.
    fn settled(&self, found: &BTreeMap<u64, Seen>) -> Vec<Mark> {
        let ended: BTreeSet<u64> =
            self.ends().filter(|end| end.ending != Ending::Unknown).map(|end| end.id).collect();
        let mut marks = Vec::new();
        for mark in &self.marks {
            marks.push(match mark {
                Mark::Begin(begins) => Mark::Begin(begins.clone()),
                Mark::End(ends) => {
                    let ends = ends.iter().filter(|end| ended.contains(&end.id));
                    Mark::End(ends.cloned().collect())
                }
            });
        }
        for call in self.begins().filter(|call| !ended.contains(&call.id)) {
            let told = self.ends().find(|end| end.id == call.id).and_then(|end| end.fence);
            let seen = found.values().find(|seen| seen.of == call.id).map(|seen| seen.fence);
            let forced = || {
                let mut others = self.begins().filter(|other| other.of == call.id);
                others.find_map(|other| other.fence)
            };
            let fence = told.or(seen).or_else(forced);
            let nothing = call.verb == Verb::Claim && fence.is_none();
            let ending = if nothing { Ending::Nothing } else { Ending::Unknown };
            marks.push(Mark::End(vec![End {
                id: call.id,
                ending,
                fence,
                updated: None,
                error: None,
            }]));
        }
        marks
    }
}

/// Calls that would have led to this table.
fn led_to(table: &BTreeMap<u64, Seen>) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut next = MADE_UP;
    for (&item, seen) in table {
        let mut call = |id: u64, verb: Verb, fence: Option<u64>| {
            let begin =
                Begin { id, verb, items: vec![item], of: seen.of, updated: None, fence: None };
            let updated = fence.map(|_| seen.updated);
            marks.push(Mark::Begin(vec![begin]));
            marks.push(Mark::End(vec![End {
                id,
                ending: Ending::Done,
                fence,
                updated,
                error: None,
            }]));
        };
        // Of one call as many as it has records here: each may have been renewed at another time.
        call(seen.of, Verb::Claim, Some(seen.fence));
        for (verb, status) in [(Verb::BeginCommit, "committing"), (Verb::Complete, "done")] {
            if seen.status == status || (seen.status == "done" && verb == Verb::BeginCommit) {
                next += 1;
                call(next, verb, None);
            }
        }
    }
    marks
}

impl Mark {
    fn parse(line: &[u8]) -> Option<Self> {
        let (kind, body) = line.split_first()?;
        match kind {
            b'B' => serde_json::from_slice(body).ok().map(Self::Begin),
            b'A' => serde_json::from_slice(body).ok().map(Self::End),
            _ => None,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Begin(begins) => (b'B', serde_json::to_vec(begins)),
            Self::End(ends) => (b'A', serde_json::to_vec(ends)),
        };
        let mut bytes = vec![kind];
        bytes.extend(body.expect("a mark is plain data"));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: &str = r#"B[{"id":7,"verb":"Claim","items":[1,2],"of":7,"updated":null}]"#;
    const GRANTED: &str = r#"A[{"id":7,"ending":"Done","fence":9,"updated":5,"error":null}]"#;
    const FORCED: &str =
        r#"B[{"id":8,"verb":"ForceRelease","items":[1,2],"of":7,"updated":null,"fence":9}]"#;

    fn seen(of: u64, fence: u64) -> Seen {
        let (token, group) = (format!("token-{of}"), vec![1, 2]);
        Seen { of, updated: 5, status: "leased", token, fence, group }
    }

    fn base(highest: u64) -> Base {
        Base { table: BTreeMap::from([(3, seen(4, 2))]), highest }
    }

    /// The verdict when these records are found beside that of the base.
    fn judge(marks: &[&str], highest: u64, records: &[(u64, Seen)]) -> Result<(), String> {
        let bytes = format!("{}\n", marks.join("\n")).into_bytes();
        let mut table = base(highest).table;
        table.extend(records.iter().cloned());
        let found = Recovered { table, next_fence: 100, ..Recovered::default() };
        let round = Round::read(&bytes, bytes.len(), false)?;
        round.judge(&base(highest), &found, Durability::Group)
    }

    #[test]
    fn a_claim_that_never_returned_is_there_as_a_whole_or_not_at_all() {
        let both = [(1, seen(7, 9)), (2, seen(7, 9))];
        assert_eq!(judge(&[CLAIM], 3, &both), Ok(()));
        assert_eq!(judge(&[CLAIM], 3, &[]), Ok(()));
        assert!(judge(&[CLAIM], 3, &both[..1]).is_err());
        assert_eq!(judge(&[CLAIM, GRANTED], 3, &both), Ok(()));
        assert!(judge(&[CLAIM, GRANTED], 3, &[]).is_err());
    }

    #[test]
    fn a_removal_that_never_returned_may_have_been_refused() {
        let renewed = [(1, seen(7, 9)), (2, seen(7, 9))];
        assert_eq!(judge(&[CLAIM, GRANTED, FORCED], 3, &renewed), Ok(()));
        assert_eq!(judge(&[CLAIM, GRANTED, FORCED], 3, &[]), Ok(()));
        assert!(judge(&[CLAIM, GRANTED, FORCED], 3, &renewed[..1]).is_err());
        let taken = r#"B[{"id":9,"verb":"Claim","items":[1],"of":9,"updated":null}]"#;
        let over = r#"A[{"id":9,"ending":"Done","fence":11,"updated":5,"error":null}]"#;
        let both = [(1, seen(9, 11)), (2, seen(7, 9))];
        assert_eq!(judge(&[CLAIM, GRANTED, taken, over, FORCED], 3, &both), Ok(()));
    }

    #[test]
    fn fences_that_do_not_rise_are_noticed() {
        let both = [(1, seen(7, 9)), (2, seen(7, 9))];
        assert!(judge(&[CLAIM, GRANTED], 9, &both).is_err());
        assert_eq!(judge(&[CLAIM, GRANTED], 8, &both), Ok(()));
    }

    #[test]
    fn what_nobody_touched_must_be_as_it_was() {
        assert_eq!(judge(&[], 3, &[]), Ok(()));
        assert!(judge(&[], 3, &[(3, seen(4, 3))]).is_err());
        assert!(judge(&[], 3, &[(1, seen(4, 2))]).is_err());
    }

    #[test]
    fn a_mark_that_a_kill_cut_short_is_none_and_spoils_no_other() {
        let bytes = format!("{CLAIM}\n{}{GRANTED}\n", &FORCED[..20]).into_bytes();
        let round = Round::read(&bytes, bytes.len(), false).unwrap();
        assert_eq!((round.begins().count(), round.acknowledged()), (1, 1));
    }

    #[test]
    fn after_the_cut_an_acknowledgement_may_count_as_none() {
        let bytes = format!("{CLAIM}\n{GRANTED}\n").into_bytes();
        let read = |lies| Round::read(&bytes, CLAIM.len() + 1, lies).unwrap();
        assert_eq!(read(false).acknowledged(), 1);
        assert_eq!((read(true).acknowledged(), read(true).unended()), (0, 1));
    }
}
