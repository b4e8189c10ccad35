//! Giving free slots something to do.

use std::collections::BTreeSet;

use crate::admit::{self, Admitted};
use crate::digest::Digest;
use crate::events::Reason;
use crate::files;
use crate::job::{Job, trace_payload};
use crate::keeper::Holding;
use crate::propose;
use crate::slot::Task;

use super::{Activity, Coordinator, TraceLease};

/// How far down its list a coordinator goes for one slot before it pauses.
const LONGEST_LIST: usize = 12;

impl Coordinator {
    /// Backfill: goes on until every slot is busy or nothing more is to be had now.
    pub(super) fn assign_all(&mut self) {
        for index in 0..self.slots.len() {
            let ready = |a: &Activity| matches!(a, Activity::Ready);
            if !self.slots.get(index).is_some_and(|(_, activity)| ready(activity)) {
                continue;
            }
            // By turns: without traces there is nothing to solve, without solving nothing to gain.
            let trace_first = self.trace_next;
            let assigned = (trace_first && self.assign_trace(index))
                || self.assign_job(index)
                || (!trace_first && self.assign_trace(index));
            if assigned {
                self.misses = 0;
            } else {
                self.misses = self.misses.saturating_add(1);
            }
        }
    }

    fn assign_trace(&mut self, index: usize) -> bool {
        let mut passed: BTreeSet<Digest> = self
            .slots
            .iter()
            .filter_map(|(_, activity)| match activity {
                Activity::Tracing { seed, .. } => Some(*seed),
                _ => None,
            })
            .collect();
        for _ in 0..LONGEST_LIST {
            let Some(seed) = self.shared.intake.next(&passed) else { return false };
            passed.insert(seed);
            // Another one may have traced it since the directory was listed.
            let path = crate::ledger::TraceRecord::path(&self.trace_dir, seed);
            if files::exists(&self.context.world, &path) {
                continue;
            }
            let Ok(lease) = self.lease_trace(seed) else { continue };
            let since = self.now();
            if let Some((slot, activity)) = self.slots.get_mut(index) {
                *activity = Activity::Tracing { seed, lease, since };
                slot.give(Task::Trace { seed });
                self.trace_next = false;
                return true;
            }
        }
        false
    }

    /// A seed is traced by one coordinator: a work item named by the seed, a group of one. The trace
    /// is a pure function of the seed, so it needs no commit: the file is the end of it.
    fn lease_trace(&self, seed: Digest) -> Result<Option<TraceLease>, ()> {
        if !self.context.config.arm.shares() {
            return Ok(None);
        }
        let context = &self.context;
        let payload = trace_payload(seed, &context.config.build_id).map_err(drop)?;
        let renewed = context.world.clock.boottime();
        let worker = i64::from(context.index);
        let work = context
            .work
            .claim(&payload, &context.owner, worker, Some(context.ttl), None)
            .map_err(drop)?;
        let number = context.keeper.hold(Holding {
            group: None,
            work: Some((work.id, work.token.clone())),
            lost: std::sync::Arc::default(),
            renewed,
        });
        // It may have been finished between the look and the grant.
        let path = crate::ledger::TraceRecord::path(&self.trace_dir, seed);
        if files::exists(&context.world, &path) {
            context.keeper.let_go(number);
            let _ = context.work.abandon(work.id, &work.token, None);
            return Err(());
        }
        Ok(Some(TraceLease { work, number }))
    }

    fn assign_job(&mut self, index: usize) -> bool {
        // What is held by others is learnt on the way, for this round only: a refusal leaves no trace.
        let mut held: BTreeSet<u64> = self.reserved().into_keys().collect();
        for _ in 0..LONGEST_LIST {
            let (job, takeover) = match self.expired.pop() {
                Some(job) => (job, true),
                None => match propose::propose(&self.shared.know, &self.shared.rules, &held) {
                    Some(job) => (job, false),
                    None => return false,
                },
            };
            let targets: Vec<u64> = job.executed().map(|action| action.target).collect();
            // The local reserve: two workers of one coordinator never work on one target.
            if targets.iter().any(|target| held.contains(target)) {
                self.context.refuse(Reason::Local);
                continue;
            }
            match self.admit(job, takeover) {
                Ok(admitted) => {
                    self.dispatch(index, admitted);
                    return true;
                }
                Err(turned) => {
                    self.context.refuse(turned.reason);
                    if turned.held.is_empty() {
                        // Which member was in the way is not known: this group is passed over.
                        held.extend(targets);
                    } else {
                        held.extend(turned.held);
                    }
                }
            }
        }
        false
    }

    /// Admits one job; the ledger is read again under its lease.
    fn admit(&mut self, job: Job, takeover: bool) -> Result<Admitted, admit::Turned> {
        let Self { context, shared, .. } = self;
        admit::admit(context, job, takeover, &mut |job| {
            // A ledger that cannot be read now stops the loop at its next turn.
            shared.refresh(context).is_ok() && propose::is_current(&shared.know, &shared.rules, job)
        })
    }

    fn dispatch(&mut self, index: usize, admitted: Admitted) {
        let context = &self.context;
        let out = context.run.coordinator(context.index).join(format!("out-{index}"));
        for name in files::names(&context.world, &out).unwrap_or_default() {
            let _ = context.world.fs.unlink(&out.join(name));
        }
        let know = &self.shared.know;
        let watch: Vec<u64> = know
            .offers()
            .map(|(target, _)| target)
            .filter(|target| !know.is_covered(*target))
            .chain(admitted.job.executed().map(|action| action.target))
            .collect();
        // J2: what is sent is what was leased.
        if let Some((group, _)) = &admitted.group {
            assert_eq!(admitted.job.group().as_ref(), Ok(group), "the leased group is the job's");
        }
        let since = self.now();
        let job = admitted.job.clone();
        if let Some((slot, activity)) = self.slots.get_mut(index) {
            *activity = Activity::Solving { admitted: Box::new(admitted), since, told: false };
            slot.give(Task::Solve { job, out, watch });
            self.trace_next = true;
        }
    }
}
