//! What one coordinator knows: seeds, what they reach, what was tried, what came of it.
//!
//! It is rebuilt from files at any time, so nothing here has to survive a crash.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::job::Kind;
use crate::worker::Outcome;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    seeds: BTreeMap<Digest, Seed>,
    /// Targets that some input takes.
    covered: BTreeMap<u64, u32>,
    /// The seeds whose path offers a target as the opposite of a branch.
    reach: BTreeMap<u64, Vec<Digest>>,
    attempts: BTreeMap<u64, u32>,
    samples: BTreeMap<u64, u32>,
    tried: BTreeSet<(u64, Digest, Kind)>,
    solved: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Seed {
    opposites: Vec<u64>,
}

impl Knowledge {
    /// Takes in a seed's trace.
    pub(crate) fn add_trace(&mut self, seed: Digest, taken: &[u64], opposites: &[u64]) {
        if self.seeds.contains_key(&seed) {
            return;
        }
        for target in taken {
            *self.covered.entry(*target).or_default() += 1;
        }
        for target in opposites {
            self.reach.entry(*target).or_default().push(seed);
        }
        self.seeds.insert(seed, Seed { opposites: opposites.to_vec() });
    }

    /// Takes in what came of one action of a finished job.
    pub(crate) fn add_result(&mut self, seed: Digest, target: u64, kind: Kind, outcome: Outcome) {
        if !self.tried.insert((target, seed, kind)) {
            return;
        }
        let counts = if kind == Kind::Sample { &mut self.samples } else { &mut self.attempts };
        *counts.entry(target).or_default() += 1;
        if outcome == Outcome::Sat {
            self.solved.insert(target);
        }
    }

    /// Leaves one action alone from now on: it cost workers, and what came of it is not known.
    pub(crate) fn set_aside(&mut self, seed: Digest, target: u64, kind: Kind) {
        self.tried.insert((target, seed, kind));
    }

    /// Takes in targets that a published output was seen to take.
    pub(crate) fn add_reached(&mut self, reached: &[u64]) {
        for target in reached {
            self.covered.entry(*target).or_default();
        }
    }

    pub(crate) fn is_covered(&self, target: u64) -> bool {
        self.covered.contains_key(&target)
    }

    pub(crate) fn is_solved(&self, target: u64) -> bool {
        self.solved.contains(&target)
    }

    pub(crate) fn was_tried(&self, target: u64, seed: Digest, kind: Kind) -> bool {
        self.tried.contains(&(target, seed, kind))
    }

    pub(crate) fn attempts(&self, target: u64) -> u32 {
        self.attempts.get(&target).copied().unwrap_or(0)
    }

    pub(crate) fn samples(&self, target: u64) -> u32 {
        self.samples.get(&target).copied().unwrap_or(0)
    }

    /// How many traced seeds take a target.
    pub(crate) fn takers(&self, target: u64) -> u32 {
        self.covered.get(&target).copied().unwrap_or(0)
    }

    pub(crate) fn opposites(&self, seed: Digest) -> &[u64] {
        self.seeds.get(&seed).map(|seed| seed.opposites.as_slice()).unwrap_or_default()
    }

    /// Every target offered, with the seeds that offer it.
    pub(crate) fn offers(&self) -> impl Iterator<Item = (u64, &[Digest])> {
        self.reach.iter().map(|(target, seeds)| (*target, seeds.as_slice()))
    }
}
