//! What a run comes to.
//!
//! Every number is computed from files: the event logs of the coordinators, traces, the ledger, the
//! peer queue, the fuzzer's own state. CPU seconds of a killed coordinator are those of its last
//! second written down.

mod compute;
mod coverage;
mod render;

use std::collections::BTreeMap;

use ringfence_env::World;
use serde::Serialize;

use crate::config::RunConfig;
use crate::error::Error;
use crate::exec::Reexec;
use crate::files;
use crate::fuzzer::{self, Imports};
use crate::publish::Publisher;

/// A run in numbers. Times are in milliseconds unless the name ends in `_s`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program's name, as it was given.
    pub name: String,
    /// The campaign directory.
    pub dir: String,
    /// The run's number in it.
    pub run: u32,
    /// `none`, `ledger` or `group`.
    pub arm: &'static str,
    /// `journal` or `files`: what kept the leases.
    pub engine: &'static str,
    /// The build that target integers belong to.
    pub build_id: String,
    /// Whether a fuzzer ran beside the coordinators.
    pub live: bool,
    /// Number of coordinators.
    pub coordinators: u32,
    /// How long jobs were begun, as asked.
    pub seconds: f64,
    /// The signal that ended it early, if one did.
    pub interrupted: Option<i32>,
    /// How each coordinator ended.
    pub ended: Vec<Ended>,
    /// Admission.
    pub claims: Claims,
    /// Latencies of steps.
    pub times: BTreeMap<&'static str, Spread>,
    /// Results of `solve` actions, by outcome.
    pub solves: BTreeMap<&'static str, u64>,
    /// Results of `sample` actions, by outcome.
    pub samples: BTreeMap<&'static str, u64>,
    /// Jobs that came to nothing, by why.
    pub dropped: BTreeMap<String, u64>,
    /// Work done twice.
    pub duplicates: Duplicates,
    /// The work fence.
    pub commits: Commits,
    /// The peer queue.
    pub published: Published,
    /// What the fuzzer made of it.
    pub imports: Option<Imports>,
    /// What was reached.
    pub coverage: Coverage,
    /// CPU seconds.
    pub cpu: CpuSplit,
    /// Renewals.
    pub heartbeats: Heartbeats,
    /// Workers that failed, by how.
    pub workers: BTreeMap<String, u64>,
    /// Troubles that were told, the first of each coordinator's.
    pub troubles: Vec<String>,
}

/// How a coordinator ended.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// Its number, from 1.
    pub index: u32,
    /// `ended`, or its exit code or signal.
    pub how: String,
}

/// Admission in numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Claims {
    /// Jobs that were admitted; in arm `group` each is a granted group.
    pub granted: u64,
    /// Those that took over an execution that had run out.
    pub takeovers: u64,
    /// Jobs that were not, by reason.
    pub refused: BTreeMap<String, u64>,
    /// All refusals over all grants.
    pub refused_per_granted: f64,
    /// Targets per group.
    pub targets: Spread,
    /// Shards per group.
    pub shards: Spread,
    /// Targets per shard, over all groups: N/K.
    pub targets_per_shard: f64,
}

/// A sample in four numbers; nearest ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// Work done twice.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Duplicates {
    /// `solve` actions that found what an earlier one had found: per target, solutions beyond the
    /// first.
    pub by_target: u64,
    /// The same over all solutions.
    pub by_target_share: f64,
    /// `solve` actions on a (target, seed) that was tried before, whatever came of it.
    pub by_target_and_seed: u64,
    /// The same over all `solve` actions.
    pub by_target_and_seed_share: f64,
    /// Seeds traced again.
    pub traces: u64,
    /// The same over all traces.
    pub traces_share: f64,
}

/// The work fence in numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Commits {
    /// Executions whose result was published.
    pub committed: u64,
    /// Those that were finished for another coordinator.
    pub recovered: u64,
    /// Executions that were committed more than once: must be 0.
    pub twice: u64,
    /// Attempts that the fence refused, by step.
    pub fence_refused: BTreeMap<String, u64>,
}

/// The peer queue in numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Published {
    /// Entries.
    pub files: u64,
    /// Whether their ids are dense and their digests distinct; if not, why.
    pub sound: bool,
    /// Why not.
    pub fault: Option<String>,
}

/// What was reached.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Coverage {
    /// Branch directions taken by the given seeds.
    pub seeds: usize,
    /// Branch directions taken by anything traced or published.
    pub targets: usize,
    /// Distinct targets that a `solve` found an input for.
    pub solved: usize,
    /// Edges of the fuzzer's program shown by all objects; absent where it could not be asked.
    pub edges: Option<usize>,
}

/// CPU seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuSplit {
    /// The coordinators themselves.
    pub coordinators_s: f64,
    /// Workers and what else coordinators started.
    pub workers_s: f64,
    /// The fuzzer with its children.
    pub fuzzer_s: f64,
    /// Time that slots waited without anything to do; not CPU time.
    pub idle_s: f64,
}

/// Renewals in numbers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Heartbeats {
    /// Batches.
    pub batches: u64,
    /// Groups renewed in them.
    pub groups: u64,
    /// Work items renewed beside them.
    pub items: u64,
    /// Holdings found lost.
    pub lost: u64,
    /// Renewals that failed and were tried again.
    pub failed: u64,
    /// Syncs of all batches: of the journal, or of directories.
    pub syncs: u64,
}

/// What only the supervisor saw.
pub(crate) struct Facts {
    pub(crate) interrupted: Option<i32>,
    pub(crate) coordinators: u32,
    pub(crate) seconds: f64,
    pub(crate) ended: Vec<Ended>,
    pub(crate) fuzzer_s: f64,
    pub(crate) reexec: Reexec,
}

/// Computes the report and keeps it in the run's directory.
pub(crate) fn make(world: &World, config: &RunConfig, mut facts: Facts) -> Result<Report, Error> {
    let run = config.layout().run(config.run);
    facts.ended.sort_by_key(|ended| ended.index);
    let numbers = compute::read(world, config, facts.coordinators)?;
    let publisher = Publisher::new(world, &config.layout(), &run);
    let published = match publisher.index() {
        Ok(index) => Published { files: index.len() as u64, sound: true, fault: None },
        Err(error) => Published { files: 0, sound: false, fault: Some(error.to_string()) },
    };
    let coverage = coverage::read(world, config, &facts, numbers.distinct)?;
    let cpu = CpuSplit { fuzzer_s: facts.fuzzer_s, ..numbers.cpu };
    let report = Report {
        name: config.name.clone(),
        dir: config.dir.display().to_string(),
        run: config.run,
        arm: config.arm.as_str(),
        engine: config.engine.as_str(),
        build_id: config.build_id.clone(),
        live: config.live,
        coordinators: facts.coordinators,
        seconds: facts.seconds,
        interrupted: facts.interrupted,
        ended: facts.ended,
        claims: numbers.claims,
        times: numbers.times,
        solves: numbers.solves,
        samples: numbers.samples,
        dropped: numbers.dropped,
        duplicates: numbers.duplicates,
        commits: numbers.commits,
        published,
        imports: config.live.then(|| fuzzer::imports(world, &run)),
        coverage,
        cpu,
        heartbeats: numbers.heartbeats,
        workers: numbers.workers,
        troubles: numbers.troubles,
    };
    files::replace(world, &run.report(), report.to_json().as_bytes())?;
    Ok(report)
}

/// Tells on standard error how far a run is.
pub(crate) fn progress(world: &World, config: &RunConfig, coordinators: u32) {
    let Ok(numbers) = compute::read(world, config, coordinators) else { return };
    let now = world.clock.monotonic().as_secs_f64();
    let left = (config.ends_at_ms as f64 / 1e3 - now).max(0.0);
    eprintln!(
        "  {left:.0} s left: {} jobs admitted, {} targets solved, {} results committed",
        numbers.claims.granted, numbers.distinct, numbers.commits.committed
    );
}

impl Report {
    /// One JSON object with a trailing newline.
    pub fn to_json(&self) -> String {
        // Plain data: numbers and texts always have a JSON form.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What is wrong with the run, beside what it measured: nothing, if it went as it must.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.commits.twice > 0 {
            faults.push(format!("{} executions were committed twice", self.commits.twice));
        }
        if let Some(fault) = &self.published.fault {
            faults.push(format!("the peer queue: {fault}"));
        }
        for ended in self.ended.iter().filter(|ended| ended.how != "ended") {
            faults.push(format!("coordinator {} did not end well: {}", ended.index, ended.how));
        }
        if let Some(imports) = self.imports
            && self.interrupted.is_none()
            && imports.cursor != self.published.files
        {
            faults.push(format!(
                "the fuzzer looked at {} of {} published files",
                imports.cursor, self.published.files
            ));
        }
        faults
    }
}
