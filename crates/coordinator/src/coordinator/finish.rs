//! What becomes of a finished task.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::admit::{self, Admitted};
use crate::commit;
use crate::digest::Digest;
use crate::events::{self, Event};
use crate::ledger::{ResultRecord, TraceRecord};
use crate::slot::{Findings, Found};
use crate::worker::{TraceAnswer, WorkerError};

use super::{Coordinator, TraceLease};

/// A seed that ends this many workers is not traced again.
const FATAL_TRACES: u32 = 2;
/// A job that ends this many workers of one coordinator is not run there again.
const FATAL_JOBS: u32 = 2;

impl Coordinator {
    pub(super) fn finish_trace(
        &mut self,
        seed: Digest,
        lease: Option<TraceLease>,
        since: Duration,
        answer: Result<TraceAnswer, WorkerError>,
    ) {
        let ms = self.context.ms_since(since);
        let record = match answer {
            Ok(answer) => {
                self.context.events.write(Event::Traced {
                    seed,
                    ms,
                    cpu_s: answer.cpu_s,
                    branches: answer.branches.len(),
                });
                let opposites: BTreeSet<u64> =
                    answer.branches.iter().map(|branch| branch.opposite).collect();
                let opposites = opposites.into_iter().filter(|target| *target != 0).collect();
                Some(TraceRecord { seed, taken: answer.taken, opposites, error: None })
            }
            Err(WorkerError::Cancelled) => None,
            Err(error) => {
                let why = error.to_string();
                self.context.events.write(Event::TraceFailed { seed, why: why.clone() });
                // A refusal is the same every time; a dead worker may have been ill for itself.
                let give_up =
                    error.worker_lives() || self.shared.intake.failed(seed) >= FATAL_TRACES;
                give_up.then(|| TraceRecord {
                    seed,
                    taken: Vec::new(),
                    opposites: Vec::new(),
                    error: Some(why),
                })
            }
        };
        if let Some(record) = record
            && let Err(error) = record.write(&self.context.world, &self.trace_dir)
        {
            let what = format!("a trace was not kept: {error}");
            self.context.events.write(Event::Trouble { what });
        }
        if let Some(lease) = lease {
            self.context.keeper.let_go(lease.number);
            // If this fails it runs out, and whoever claims it next finds the trace.
            let _ = self.context.work.abandon(lease.work.id, &lease.work.token, None);
        }
    }

    pub(super) fn finish_job(
        &mut self,
        admitted: &Admitted,
        since: Duration,
        answer: Result<Findings, WorkerError>,
    ) {
        let findings = match answer {
            Ok(findings) => findings,
            Err(error) => {
                admit::give_up(&self.context, admitted, error.word());
                self.count_failure(admitted, &error);
                return;
            }
        };
        let count = |target| {
            findings.outputs.iter().filter(|output| output.reached.contains(&target)).count()
        };
        self.context.events.write(Event::Solved {
            work: admitted.work.id.to_string(),
            seed: admitted.job.seed,
            ms: self.context.ms_since(since),
            cpu_s: findings.cpu_s,
            results: findings
                .results
                .iter()
                .map(|result| events::Result {
                    target: result.target,
                    action: result.action,
                    outcome: result.outcome,
                    outputs: count(result.target),
                })
                .collect(),
        });
        let (kept, reached, edges) = self.choose(findings.outputs);
        let record = ResultRecord {
            work: admitted.work.id.to_string(),
            by: self.context.owner.to_string(),
            seed: admitted.job.seed,
            results: findings.results,
            reached,
            outputs: kept.iter().map(|found| found.digest).collect(),
            edges,
        };
        commit::commit(&self.context, admitted, &record, &kept);
    }

    /// A job that ends worker after worker is set aside, here and in this run only: others may have
    /// better workers.
    fn count_failure(&mut self, admitted: &Admitted, error: &WorkerError) {
        if *error == WorkerError::Cancelled {
            return;
        }
        let count = self.failures.entry(admitted.work.id).or_default();
        *count += 1;
        // What a worker refuses it refuses every time.
        if error.worker_lives() || *count >= FATAL_JOBS {
            for action in admitted.job.executed() {
                self.shared.know.set_aside(admitted.job.seed, action.target, action.kind);
            }
        }
    }

    /// Keeps the outputs that show something new: a target nobody covers, or an edge.
    fn choose(&self, outputs: Vec<Found>) -> (Vec<Found>, Vec<u64>, Vec<u32>) {
        let mut reached = BTreeSet::new();
        let mut edges = BTreeSet::new();
        let mut kept = Vec::new();
        for output in outputs {
            let know = &self.shared.know;
            let open = |target: &&u64| !know.is_covered(**target) && !reached.contains(*target);
            let targets: Vec<u64> = output.reached.iter().filter(open).copied().collect();
            let fresh = |edge: &&u32| !self.shared.edges.contains(edge) && !edges.contains(*edge);
            let shown: Vec<u32> = output.edges.iter().filter(fresh).copied().collect();
            if !targets.is_empty() || !shown.is_empty() {
                reached.extend(targets);
                edges.extend(shown);
                kept.push(output);
            }
        }
        (kept, reached.into_iter().collect(), edges.into_iter().collect())
    }
}
