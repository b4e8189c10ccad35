//! Bugs planted on purpose, each of which the checks must notice.
//!
//! A canary that survives is a hole in the checks, whatever else they say. One bug is missing on
//! purpose: that recovery does not lock the records. It changes nothing as long as everybody knows
//! intents (`tests/protocol/checks.rs` says why, and shows it in every order of the steps).

mod files;
mod journal;

use std::time::Duration;

use crate::case::{Act, Case, Shape};
use crate::exhaustive::{Failures, Limits, explore};
use crate::faults::Chaos;
use crate::known;
use crate::random::{Plan, run};
use crate::sabotage::{PAIR, Sabotage};
use crate::setup::{Kept, Setup};
use crate::verbs::WrongRule;

/// A planted bug and where to look for it.
#[derive(Clone, Copy, Debug)]
pub struct Canary {
    /// What is wrong.
    pub name: &'static str,
    /// The table that it is in.
    pub mode: Kept,
    bug: Bug,
    hunt: Hunt,
}

#[derive(Clone, Copy, Debug)]
enum Bug {
    Below(Sabotage),
    Above(WrongRule),
}

#[derive(Clone, Copy, Debug)]
enum Hunt {
    /// Every crash point of one call.
    Crash(Act, usize, u16),
    /// The same, and of the call failing at each of its own calls.
    Failure(Act, usize, u16),
    /// The same, and of each sync of a file failing for good, and each write by halves.
    Disk(Act, usize, u16),
    /// Random runs in which everything goes wrong.
    Storm,
    /// Random runs in which whoever is half done is killed, and the rest race to finish it.
    Finishers,
    /// Random runs in which only barriers fail.
    Barriers,
    /// Random runs in which only the order is random.
    Calm,
    /// The same with two coordinators that want the same two targets.
    Duel,
}

const fn below(name: &'static str, mode: Kept, bug: Sabotage, hunt: Hunt) -> Canary {
    Canary { name, mode, bug: Bug::Below(bug), hunt }
}

const fn above(name: &'static str, mode: Kept, bug: WrongRule, hunt: Hunt) -> Canary {
    Canary { name, mode, bug: Bug::Above(bug), hunt }
}

/// Every planted bug.
pub fn all() -> impl Iterator<Item = &'static Canary> {
    files::CANARIES.iter().chain(journal::CANARIES)
}

/// Seeds that a hunt may use.
const SEEDS: u64 = 1500;

use Hunt::{Barriers, Calm, Crash, Disk, Duel, Failure, Finishers, Storm};

impl Canary {
    fn setup(&self) -> Setup {
        let honest = self.mode.setup();
        match self.bug {
            Bug::Below(kind) => Setup { sabotage: Some(kind), ..honest },
            Bug::Above(rule) => Setup { wrong: Some(rule), ..honest },
        }
    }

    /// The part of the suite that is to notice it.
    pub fn part(&self) -> String {
        let case = |act, members, shards| Case { act, shape: Shape { members, shards } };
        match self.hunt {
            Crash(act, members, shards) => format!("crash points, {}", case(act, members, shards)),
            Failure(act, members, shards) => format!("failures, {}", case(act, members, shards)),
            Disk(act, members, shards) => {
                format!("the disk fails, {}", case(act, members, shards))
            }
            Storm => "random, storm".into(),
            Finishers => "random, finishers".into(),
            Barriers => "random, barriers fail".into(),
            Calm => "random, calm".into(),
            Duel => "random, duel".into(),
        }
    }

    /// Looks for the bug; says what was seen of it, or `None` if nothing was.
    pub fn catch(&self) -> Option<String> {
        match self.hunt {
            Crash(act, members, shards)
            | Failure(act, members, shards)
            | Disk(act, members, shards) => {
                let failures = match self.hunt {
                    Failure(..) => Failures::All,
                    Disk(..) => Failures::Disk,
                    _ => Failures::None,
                };
                let limits = Limits { failures, enough: 1, ..Limits::quick() };
                let case = Case { act, shape: Shape { members, shards } };
                explore(case, self.setup(), limits).violations.into_iter().next()
            }
            _ => (1..=SEEDS).find_map(|seed| {
                // What the engine does wrong anyway shows nothing of the planted bug.
                let is_new = |text: &String| known::name(text, self.mode.setup().subject).is_none();
                let found = run(&self.plan(seed)).violations.into_iter().find(is_new)?;
                Some(format!("seed {seed}: {found}"))
            }),
        }
    }

    fn plan(&self, seed: u64) -> Plan {
        let plan = Plan::of(seed, self.setup());
        match self.hunt {
            Calm => plan.calm(),
            Barriers => {
                Plan { chaos: Chaos::barriers(seed), patience: Duration::from_secs(2), ..plan }
            }
            Finishers => Plan {
                procs: 4,
                targets: 2,
                whole_groups: true,
                chaos: Chaos::finishers(seed),
                ..plan
            },
            Duel => {
                Plan { procs: 2, targets: PAIR.len() as u64, whole_groups: true, ..plan.calm() }
            }
            _ => plan,
        }
    }
}
