//! Which job next: F309's rule.
//!
//! The primary is the open target that fewest seeds reach; the group is the primary and other open
//! targets on the same seed, capped. Open means: not covered, not tried on this seed, below the cap of
//! attempts. A target is `solve` while it is open, `sample` once it was solved but few inputs take it,
//! and `skip` otherwise.
//!
//! Proposing is pure: it changes no count. A refused group therefore leaves no trace.

use std::collections::BTreeSet;

use crate::digest::Digest;
use crate::job::{Action, Job, Kind};
use crate::knowledge::Knowledge;

/// How jobs are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The most targets of a group.
    pub(crate) group_cap: usize,
    /// How often a target is tried, over all seeds.
    pub(crate) attempts_cap: u32,
}

/// A solved target is rare while at most this many traced seeds take it.
const RARE: u32 = 2;
/// So many seeds of a primary are compared; a popular primary has hundreds.
const SEEDS_COMPARED: usize = 8;
/// A job names at most this many skipped targets.
const SKIPS_NAMED: usize = 16;

/// The best job that touches none of `held`; `None` if there is none.
pub(crate) fn propose(know: &Knowledge, rules: &Rules, held: &BTreeSet<u64>) -> Option<Job> {
    best(know, rules, held, Kind::Solve).or_else(|| best(know, rules, held, Kind::Sample))
}

/// Whether every action of the job is still worth it.
pub(crate) fn is_current(know: &Knowledge, rules: &Rules, job: &Job) -> bool {
    job.executed().all(|action| wants(know, rules, action.target, job.seed, action.kind))
}

fn wants(know: &Knowledge, rules: &Rules, target: u64, seed: Digest, kind: Kind) -> bool {
    if know.was_tried(target, seed, kind) {
        return false;
    }
    match kind {
        Kind::Solve => !know.is_covered(target) && know.attempts(target) < rules.attempts_cap,
        Kind::Sample => {
            know.is_solved(target)
                && know.takers(target) <= RARE
                && know.samples(target) < rules.attempts_cap
        }
        Kind::Skip => false,
    }
}

fn best(know: &Knowledge, rules: &Rules, held: &BTreeSet<u64>, kind: Kind) -> Option<Job> {
    let mut primary: Option<(usize, u64, Vec<Digest>)> = None;
    for (target, seeds) in know.offers() {
        if held.contains(&target)
            || primary.as_ref().is_some_and(|(fewest, ..)| seeds.len() >= *fewest)
        {
            continue;
        }
        let usable: Vec<Digest> = seeds
            .iter()
            .copied()
            .filter(|seed| wants(know, rules, target, *seed, kind))
            .take(SEEDS_COMPARED)
            .collect();
        if !usable.is_empty() {
            primary = Some((seeds.len(), target, usable));
        }
    }
    let (_, primary, seeds) = primary?;
    let jobs = seeds.into_iter().map(|seed| job(know, rules, held, primary, seed, kind));
    // The seed on which most can be done in one replay; the first of equals.
    let mut best: Option<Job> = None;
    for job in jobs {
        if best.as_ref().is_none_or(|best| job.executed().count() > best.executed().count()) {
            best = Some(job);
        }
    }
    best
}

fn job(
    know: &Knowledge,
    rules: &Rules,
    held: &BTreeSet<u64>,
    primary: u64,
    seed: Digest,
    kind: Kind,
) -> Job {
    let mut actions = vec![Action { target: primary, kind }];
    let mut named = BTreeSet::from([primary]);
    let mut others: Vec<u64> = know.opposites(seed).to_vec();
    others.sort_by_key(|target| (know.attempts(*target), *target));
    for kind in [Kind::Solve, Kind::Sample] {
        for target in &others {
            if actions.len() >= rules.group_cap {
                break;
            }
            let free = !held.contains(target) && !named.contains(target);
            if free && wants(know, rules, *target, seed, kind) {
                named.insert(*target);
                actions.push(Action { target: *target, kind });
            }
        }
    }
    let skipped = others.iter().filter(|target| know.is_covered(**target)).take(SKIPS_NAMED);
    for target in skipped {
        if named.insert(*target) {
            actions.push(Action { target: *target, kind: Kind::Skip });
        }
    }
    Job { seed, primary, actions }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Outcome;

    const RULES: Rules = Rules { group_cap: 3, attempts_cap: 2 };

    fn seed(number: u8) -> Digest {
        Digest::of(&[number])
    }

    fn targets(job: &Job, kind: Kind) -> Vec<u64> {
        job.actions.iter().filter(|a| a.kind == kind).map(|a| a.target).collect()
    }

    fn know() -> Knowledge {
        let mut know = Knowledge::default();
        know.add_trace(seed(1), &[100], &[10, 11, 12, 13]);
        know.add_trace(seed(2), &[100], &[10, 11, 14]);
        know
    }

    #[test]
    fn the_primary_is_the_open_target_that_fewest_seeds_reach() {
        let job = propose(&know(), &RULES, &BTreeSet::new()).unwrap();
        assert_eq!(job.primary, 12);
        assert_eq!(job.seed, seed(1));
        assert_eq!(targets(&job, Kind::Solve), [12, 10, 11]);
    }

    #[test]
    fn held_targets_are_left_to_others_and_the_next_best_group_is_proposed() {
        let job = propose(&know(), &RULES, &BTreeSet::from([12, 10, 13])).unwrap();
        assert_eq!((job.primary, job.seed), (14, seed(2)));
        assert_eq!(targets(&job, Kind::Solve), [14, 11]);
    }

    #[test]
    fn unsat_on_one_path_leaves_the_target_open_on_another_until_the_cap() {
        let mut know = know();
        know.add_result(seed(1), 10, Kind::Solve, Outcome::Unsat);
        let held: BTreeSet<u64> = [11, 12, 13, 14].into();
        let job = propose(&know, &RULES, &held).unwrap();
        assert_eq!((job.primary, job.seed), (10, seed(2)));
        know.add_result(seed(2), 10, Kind::Solve, Outcome::Timeout);
        know.add_trace(seed(3), &[], &[10]);
        assert_eq!(propose(&know, &RULES, &held), None);
    }

    #[test]
    fn covered_targets_are_skipped_and_a_rare_solved_one_is_sampled_once_per_seed() {
        let mut know = know();
        know.add_result(seed(1), 10, Kind::Solve, Outcome::Sat);
        know.add_reached(&[10, 13]);
        let job = propose(&know, &RULES, &BTreeSet::from([11])).unwrap();
        assert_eq!(targets(&job, Kind::Solve), [12]);
        assert_eq!(targets(&job, Kind::Sample), [10]);
        assert_eq!(targets(&job, Kind::Skip), [13]);
        assert!(is_current(&know, &RULES, &job));
        know.add_result(seed(1), 10, Kind::Sample, Outcome::Sat);
        assert!(!is_current(&know, &RULES, &job));
    }

    #[test]
    fn proposing_twice_gives_the_same_job() {
        let know = know();
        let none = BTreeSet::new();
        assert_eq!(propose(&know, &RULES, &none), propose(&know, &RULES, &none));
    }
}
