//! What others left: commits to be finished, executions to be taken over.
//!
//! R1. A committing item is finished by whoever finds that its coordinator has been silent for a ttl.
//!     If that one lives after all, both publish the same things, once.
//! R2. An execution whose lease ran out is offered like any other job, through the same admission.
//! R3. What ran out and is not worth doing any more is removed, not kept for ever.

use ringfence::Timestamp;

use crate::commit;
use crate::context::Context;
use crate::events::Event;
use crate::job::Job;

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
    let now = Timestamp::from_unix(context.world.clock.wall());
    for item in items {
        let silent = item.holding(now, context.ttl).is_some_and(|held| held.expires_in < 0.0);
        if let (true, Ok(record)) = (silent, &item.record) {
            let before = context.world.clock.monotonic();
            commit::replay(context, item.id, &record.holder.token, before, true);
        }
    }
}

/// Jobs whose lease ran out (R2).
pub(crate) fn expired_jobs(
    context: &Context,
    is_current: &mut dyn FnMut(&Job) -> bool,
) -> Vec<Job> {
    if !context.config.arm.leases() {
        return Vec::new();
    }
    let Ok(items) = context.work.recover_expired(None) else { return Vec::new() };
    let mut jobs = Vec::new();
    for item in items {
        let Ok(record) = &item.record else { continue };
        let payload = &record.holder.payload;
        let Some(job) = Job::from_payload(payload, &context.config.build_id) else { continue };
        if is_current(&job) {
            jobs.push(job);
        } else if let Ok(lease) =
            context.work.claim(payload, &context.owner, i64::from(context.index), None, None)
        {
            // R3. If this fails, it runs out once more.
            let _ = context.work.abandon(lease.id, &lease.token, None);
        }
    }
    jobs
}
