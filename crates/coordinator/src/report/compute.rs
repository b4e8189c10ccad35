//! From event logs to numbers.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_env::World;

use super::{Claims, Commits, CpuSplit, Duplicates, Heartbeats, Spread};
use crate::config::RunConfig;
use crate::digest::Digest;
use crate::error::Error;
use crate::events::{self, Event};
use crate::job::Kind;
use crate::worker::Outcome;

/// What the logs of all coordinators say.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) claims: Claims,
    pub(super) times: BTreeMap<&'static str, Spread>,
    pub(super) solves: BTreeMap<&'static str, u64>,
    pub(super) samples: BTreeMap<&'static str, u64>,
    pub(super) dropped: BTreeMap<String, u64>,
    pub(super) duplicates: Duplicates,
    pub(super) commits: Commits,
    pub(super) cpu: CpuSplit,
    pub(super) heartbeats: Heartbeats,
    pub(super) workers: BTreeMap<String, u64>,
    pub(super) troubles: Vec<String>,
    pub(super) distinct: usize,
}

#[derive(Default)]
struct Tally {
    numbers: Numbers,
    targets: Vec<f64>,
    shards: Vec<f64>,
    times: BTreeMap<&'static str, Vec<f64>>,
    solved: BTreeMap<u64, u64>,
    tried: BTreeMap<(u64, Digest), u64>,
    traced: BTreeMap<Digest, u64>,
    committed: BTreeMap<String, u64>,
}

pub(super) fn read(world: &World, config: &RunConfig, coordinators: u32) -> Result<Numbers, Error> {
    let run = config.layout().run(config.run);
    let mut tally = Tally::default();
    for index in 1..=coordinators {
        let mut usage = CpuSplit::default();
        let mut trouble = None;
        for stamped in events::read(world, &run.events(index))? {
            match stamped.event {
                Event::Usage { own_s, workers_s, idle_s } => {
                    usage.coordinators_s = own_s;
                    usage.workers_s = workers_s;
                    usage.idle_s = idle_s;
                }
                Event::Trouble { what } => {
                    trouble.get_or_insert(format!("coordinator {index}: {what}"));
                }
                other => tally.add(other),
            }
        }
        let cpu = &mut tally.numbers.cpu;
        cpu.coordinators_s += usage.coordinators_s;
        cpu.workers_s += usage.workers_s;
        cpu.idle_s += usage.idle_s;
        tally.numbers.troubles.extend(trouble);
    }
    Ok(tally.finish())
}

impl Tally {
    fn add(&mut self, event: Event) {
        let numbers = &mut self.numbers;
        match event {
            Event::Granted { targets, shards, look_ms, claim_ms, work_ms, takeover, .. } => {
                numbers.claims.granted += 1;
                numbers.claims.takeovers += u64::from(takeover);
                self.targets.push(targets as f64);
                self.shards.push(shards as f64);
                if claim_ms > 0.0 {
                    self.time("look", look_ms);
                    self.time("claim job", claim_ms);
                } else {
                    self.time("claim work", work_ms);
                }
            }
            Event::Refused { counts } => {
                for (reason, count) in counts {
                    let word = format!("{reason:?}").to_lowercase();
                    *numbers.claims.refused.entry(word).or_default() += count;
                }
            }
            Event::Solved { seed, ms, results, .. } => {
                self.time("solve", ms);
                for result in results {
                    self.result(seed, &result);
                }
            }
            Event::Traced { seed, ms, .. } => {
                *self.traced.entry(seed).or_default() += 1;
                self.time("trace", ms);
            }
            Event::Dropped { why, .. } => *numbers.dropped.entry(why).or_default() += 1,
            Event::Committed { work, ms, recovered, .. } => {
                numbers.commits.committed += 1;
                numbers.commits.recovered += u64::from(recovered);
                *self.committed.entry(work).or_default() += 1;
                self.time("commit", ms);
            }
            Event::FenceRefused { step, .. } => {
                *numbers.commits.fence_refused.entry(step).or_default() += 1;
            }
            Event::Released { ms, hold_ms, .. } => {
                self.time("release group", ms);
                self.time("hold group", hold_ms);
            }
            Event::Heartbeat { groups, items, ms, lost, failed, syncs } if groups + items > 0 => {
                let beats = &mut numbers.heartbeats;
                beats.batches += 1;
                beats.groups += groups as u64;
                beats.items += items as u64;
                beats.lost += lost as u64;
                beats.failed += failed as u64;
                beats.syncs += syncs;
                self.time("heartbeat batch", ms);
            }
            Event::Worker { what, .. } => *numbers.workers.entry(what).or_default() += 1,
            _ => {}
        }
    }

    fn result(&mut self, seed: Digest, result: &events::Result) {
        let word = result.outcome.as_str();
        if result.action == Kind::Sample {
            *self.numbers.samples.entry(word).or_default() += 1;
            return;
        }
        *self.numbers.solves.entry(word).or_default() += 1;
        *self.tried.entry((result.target, seed)).or_default() += 1;
        if result.outcome == Outcome::Sat {
            *self.solved.entry(result.target).or_default() += 1;
        }
    }

    fn time(&mut self, what: &'static str, ms: f64) {
        self.times.entry(what).or_default().push(ms);
    }

    fn finish(mut self) -> Numbers {
        let numbers = &mut self.numbers;
        let claims = &mut numbers.claims;
        let refused: u64 = claims.refused.values().sum();
        claims.refused_per_granted = share(refused, claims.granted);
        let (n, k): (f64, f64) = (self.targets.iter().sum(), self.shards.iter().sum());
        claims.targets_per_shard = if k > 0.0 { n / k } else { 0.0 };
        claims.targets = spread(&mut self.targets);
        claims.shards = spread(&mut self.shards);
        numbers.times =
            self.times.into_iter().map(|(what, mut times)| (what, spread(&mut times))).collect();
        let (solved, beyond) = beyond_first(self.solved.values());
        numbers.duplicates.by_target = beyond;
        numbers.duplicates.by_target_share = share(beyond, solved);
        let (tried, beyond) = beyond_first(self.tried.values());
        numbers.duplicates.by_target_and_seed = beyond;
        numbers.duplicates.by_target_and_seed_share = share(beyond, tried);
        let (traced, beyond) = beyond_first(self.traced.values());
        numbers.duplicates.traces = beyond;
        numbers.duplicates.traces_share = share(beyond, traced);
        numbers.commits.twice = self.committed.values().filter(|count| **count > 1).count() as u64;
        numbers.distinct = self.solved.keys().collect::<BTreeSet<_>>().len();
        self.numbers
    }
}

/// The sum of all counts, and of what each has beyond 1.
fn beyond_first<'c>(counts: impl Iterator<Item = &'c u64>) -> (u64, u64) {
    counts.fold((0, 0), |(all, beyond), count| (all + count, beyond + count.saturating_sub(1)))
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn spread(sample: &mut [f64]) -> Spread {
    sample.sort_by(f64::total_cmp);
    let rank = |percent: usize| {
        // The nearest rank: the smallest value that so many percent do not exceed.
        let at = (sample.len() * percent).div_ceil(100).saturating_sub(1);
        sample.get(at).copied().unwrap_or(0.0)
    };
    Spread {
        count: sample.len(),
        p50: rank(50),
        p90: rank(90),
        p99: rank(99),
        max: sample.last().copied().unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved(seed: &[u8], target: u64, outcome: Outcome) -> Event {
        let result = events::Result { target, action: Kind::Solve, outcome, outputs: 1 };
        let seed = Digest::of(seed);
        Event::Solved { work: "w".to_owned(), seed, ms: 1.0, cpu_s: 0.0, results: vec![result] }
    }

    #[test]
    fn duplicates_by_target_count_solutions_and_by_pair_count_tries() {
        let mut tally = Tally::default();
        tally.add(solved(b"a", 1, Outcome::Unsat));
        tally.add(solved(b"b", 1, Outcome::Sat));
        tally.add(solved(b"c", 1, Outcome::Sat));
        tally.add(solved(b"a", 2, Outcome::Timeout));
        tally.add(solved(b"a", 2, Outcome::Timeout));
        let numbers = tally.finish();
        assert_eq!(numbers.duplicates.by_target, 1);
        assert!((numbers.duplicates.by_target_share - 0.5).abs() < 1e-9);
        assert_eq!(numbers.duplicates.by_target_and_seed, 1);
        assert!((numbers.duplicates.by_target_and_seed_share - 0.2).abs() < 1e-9);
        assert_eq!(numbers.distinct, 1);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut sample: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let spread = spread(&mut sample);
        let expected = Spread { count: 100, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 };
        assert_eq!(spread, expected);
        assert_eq!(super::spread(&mut [7.0]).p99.to_string(), "7");
        assert_eq!(super::spread(&mut []), Spread::default());
    }

    #[test]
    fn an_execution_that_two_commit_is_noticed() {
        let mut tally = Tally::default();
        for work in ["a", "b", "a"] {
            let work = work.to_owned();
            tally.add(Event::Committed {
                work,
                outputs: 0,
                published: 0,
                ms: 1.0,
                recovered: false,
            });
        }
        assert_eq!(tally.finish().commits.twice, 1);
    }
}
