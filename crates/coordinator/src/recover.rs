//! What others left: commits to be finished, executions to be taken over.
//!
//! R1. A committing item is finished by whoever finds that its coordinator has been silent for a ttl, or
//!     is proven to be gone. If that one lives after all, both publish the same things, once.
//! R2. An execution whose lease is over, by its ttl or by the end of its coordinator, is offered like
//!     any other job, through the same admission.
//! R3. What ran out and is not worth doing any more is removed, not kept for ever.

use std::time::Duration;

use ringfence::Payload;

use crate::commit;
use crate::config::StoreEngine;
use crate::context::Context;
use crate::digest::Digest;
use crate::events::Event;
use crate::job::{Job, traced_seed};

/// How often to look: nothing is over sooner than a ttl after it was renewed, except where the end of a
/// process can be proven.
pub(crate) fn period(context: &Context) -> Duration {
    let by_ttl = (context.config.ttl() / 2).max(Duration::from_millis(200));
    match context.config.engine {
        StoreEngine::Journal => by_ttl.min(Duration::from_secs(1)),
        StoreEngine::Files => by_ttl,
    }
}

/// Finishes abandoned commits (R1).
pub(crate) fn finish_commits(context: &Context) {
    let items = match context.work.recover_committing(None) {
        Ok(items) => items,
        Err(error) => {
            let what = format!("cannot look for commits to finish: {error}");
            context.events.write(Event::Trouble { what });
            return;
        }
    };
    for item in items {
        if let (true, Ok(record)) = (item.silent, &item.record) {
            let before = context.world.clock.monotonic();
            commit::replay(context, item.id, &record.holder.token, before, true);
        }
    }
}

/// Jobs whose lease is over (R2).
pub(crate) fn expired_jobs(
    context: &Context,
    is_current: &mut dyn FnMut(&Job) -> bool,
    is_traced: &dyn Fn(Digest) -> bool,
) -> Vec<Job> {
    let Ok(items) = context.work.recover_expired(None) else { return Vec::new() };
    let mut jobs = Vec::new();
    for item in items {
        let Ok(record) = &item.record else { continue };
        let payload = &record.holder.payload;
        let job = Job::from_payload(payload, &context.config.build_id);
        // A seed that nobody has traced yet comes up by itself.
        let waits = traced_seed(payload).is_some_and(|seed| !is_traced(seed));
        match job {
            Some(job) if context.config.arm.leases() && is_current(&job) => jobs.push(job),
            _ if waits => {}
            _ => remove(context, payload),
        }
    }
    jobs
}

/// R3. If it fails, the item runs out once more.
fn remove(context: &Context, payload: &Payload) {
    let worker = i64::from(context.index);
    if let Ok(lease) = context.work.claim(payload, &context.owner, worker, Some(context.ttl), None)
    {
        let _ = context.work.abandon(lease.id, &lease.token, None);
    }
}
