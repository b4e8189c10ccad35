//! Whether what real processes wrote down can have happened.
//!
//! 1. *Order.* For each round some order of its calls explains what each of them saw and what was found
//!    afterwards ([`crate::linear`]). A call without an end, or with an unknown one, may have happened
//!    or not, whole.
//! 2. *Fences.* None is put into a token twice; and a grant that began when another had ended is above
//!    it.

use std::collections::{BTreeMap, BTreeSet};

use crate::linear::{self, Ending, Unit, Verdict};
use crate::real::log::{Call, End};

/// The calls between two moments at which nobody was in one.
#[derive(Clone, Debug)]
pub struct Round {
    /// The table before; nothing is 0.
    pub before: BTreeMap<usize, u64>,
    /// Who did what.
    pub calls: Vec<Call>,
    /// The table after.
    pub after: BTreeMap<usize, u64>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Judge {
    /// What was wrong.
    pub violations: Vec<String>,
    /// Rounds that were too hard to decide.
    pub undecided: usize,
}

/// Judges all of it.
pub fn judge(rounds: &[Round]) -> Judge {
    let mut judge = Judge::default();
    for (number, round) in rounds.iter().enumerate() {
        let ending = Ending::Read(round.after.clone());
        match linear::explain(&round.before, &units(&round.calls), &ending) {
            Verdict::Explained => {}
            Verdict::Undecided => judge.undecided += 1,
            Verdict::Impossible(why) => {
                judge.violations.push(format!("no order explains round {number}: {why}"));
            }
        }
    }
    fences(rounds, &mut judge);
    judge
}

fn units(calls: &[Call]) -> Vec<Unit> {
    let mut units = Vec::new();
    for call in calls {
        let Some(reads) = &call.reads else { continue };
        let unit = Unit {
            name: format!("{} ({:?})", call.name, call.ended),
            began: call.began,
            ended: call.ended.map(|(at, _)| at),
            reads: reads.clone(),
            writes: call.writes.clone(),
            promised: false,
        };
        match call.ended.map(|(_, end)| end) {
            Some(End::Done) => units.push(Unit { promised: true, ..unit }),
            Some(End::Refused) => units.push(Unit { writes: Vec::new(), ..unit }),
            // What it saw may be gone before it was refused the exclusion.
            Some(End::Failed) => {}
            Some(End::Unknown) | None => units.push(Unit { ended: None, ..unit }),
        }
    }
    units
}

fn fences(rounds: &[Round], judge: &mut Judge) {
    let calls = || rounds.iter().flat_map(|round| &round.calls);
    let mut seen = BTreeSet::new();
    for call in calls() {
        for fence in &call.fences {
            if !seen.insert(*fence) {
                judge.violations.push(format!("{}: fence {fence} is there twice", call.name));
            }
        }
    }
    // By their begins, beside the highest fence of those that had ended before.
    let granted = calls().filter(|call| call.is_granted());
    let mut begins: Vec<&Call> = granted.clone().collect();
    begins.sort_by_key(|call| call.began);
    let mut ends: Vec<(u64, u64)> =
        granted.filter_map(|call| Some((call.ended?.0, *call.fences.last()?))).collect();
    ends.sort_unstable();
    let (mut ended, mut highest) = (ends.iter().peekable(), 0);
    for call in begins {
        while let Some((_, fence)) = ended.next_if(|(at, _)| *at < call.began) {
            highest = highest.max(*fence);
        }
        if call.fences.last().is_some_and(|fence| *fence <= highest) {
            let fences = &call.fences;
            judge.violations.push(format!("{}: fence {fences:?} after {highest}", call.name));
        }
    }
}
