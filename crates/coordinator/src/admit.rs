//! Admission: look, claim the group and the execution as one.
//!
//! A1. What is refused leaves nothing behind: no lease, no work item, no change in what the scheduler
//!     counts. The caller goes on down its list.
//! A2. A job that is granted after somebody else's result came in is given back: what was worth
//!     doing when it was proposed is checked again under the lease.
//! A3. From the grant on, the keeper renews what is held; whatever ends the job lets go first.
//!
//! ```text
//! Proposed -[look]-> Free -[claim group and work]-> Leased -[still current]-> Admitted
//!     \ Look             \ Work, Busy, Locked,         \ Stale: both given back
//!                          Damaged, Failed
//! ```
//!
//! Where groups are not leased, the execution alone is claimed once the job is known to be current.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringfence::model::rules::JobRefused;
use ringfence::model::{Entry, Record};
use ringfence::{
    Claim, ClaimRefused, Failure, JobClaimError, Payload, ShardCount, Target, TargetGroup, Token,
    WorkClaimError, WorkLease,
};

use crate::context::Context;
use crate::events::{Event, Reason};
use crate::job::Job;
use crate::keeper::Holding;

/// A job that may run.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) job: Job,
    pub(crate) work: WorkLease,
    /// The leased group, where groups are leased.
    pub(crate) group: Option<(TargetGroup, Token)>,
    /// Under which the keeper holds both.
    pub(crate) number: u64,
    pub(crate) lost: Arc<AtomicBool>,
    /// The monotonic clock at the grant.
    pub(crate) since: Duration,
}

/// A job that may not run now.
#[derive(Debug)]
pub(crate) struct Turned {
    pub(crate) reason: Reason,
    /// Targets that are held, as far as is known.
    pub(crate) held: BTreeSet<u64>,
}

impl Turned {
    fn by(reason: Reason) -> Self {
        Self { reason, held: BTreeSet::new() }
    }
}

/// Takes everything a job needs, or nothing.
pub(crate) fn admit(
    context: &Context,
    job: Job,
    takeover: bool,
    still_current: &mut dyn FnMut(&Job) -> bool,
) -> Result<Admitted, Turned> {
    let clock = &context.world.clock;
    let failed = || Turned::by(Reason::Failed);
    let group = job.group().map_err(|_| failed())?;
    let own = context.own_name();
    let payload = job.payload(&context.config.build_id, own.as_deref()).map_err(|_| failed())?;
    let leases = context.config.arm.leases();

    let since = clock.monotonic();
    let mut look_ms = 0.0;
    if leases {
        look(context, &group)?;
        look_ms = context.ms_since(since);
    } else if !still_current(&job) {
        return Err(Turned::by(Reason::Stale));
    }
    let (before, renewed) = (clock.monotonic(), clock.boottime());
    let work =
        if leases { claim(context, &group, &payload)? } else { claim_work(context, &payload)? };
    let ms = context.ms_since(before);
    let leased = leases.then(|| (group.clone(), work.token.clone()));
    let lost = Arc::new(AtomicBool::new(false));
    let item = Some((work.id, work.token.clone()));
    let number = context.keeper.hold(Holding {
        group: leased.clone(),
        work: item,
        lost: Arc::clone(&lost),
        renewed,
    });
    if leases && !still_current(&job) {
        context.keeper.let_go(number);
        // If this fails both run out by themselves; nothing depends on it.
        let _ = context.jobs.abandon(&group, work.id, &work.token, None);
        return Err(Turned::by(Reason::Stale));
    }
    context.events.write(Event::Granted {
        work: work.id.to_string(),
        targets: group.len(),
        shards: shards(context, &group),
        look_ms,
        claim_ms: if leases { ms } else { 0.0 },
        work_ms: if leases { 0.0 } else { ms },
        takeover,
    });
    Ok(Admitted { job, work, group: leased, number, lost, since })
}

/// Reads whether anybody holds a member. Writes nothing and waits for nobody.
fn look(context: &Context, group: &TargetGroup) -> Result<(), Turned> {
    let view = context.targets.look(group, None).map_err(|_| Turned::by(Reason::Failed))?;
    let held = |entry: &Entry| match entry {
        Entry::Present(Record::Target(record)) => {
            !record.holder.is_expired(&view.moment, view.default_ttl)
        }
        Entry::Damaged(_) => true,
        _ => false,
    };
    let mut taken = BTreeSet::new();
    for ((_, target), (_, entry)) in group.members().zip(&view.entries) {
        if held(entry) {
            taken.insert(target.get());
        }
    }
    if taken.is_empty() { Ok(()) } else { Err(Turned { reason: Reason::Look, held: taken }) }
}

/// The group and the execution under one token, or neither.
fn claim(context: &Context, group: &TargetGroup, payload: &Payload) -> Result<WorkLease, Turned> {
    let claim = Claim::by_owner(context.owner.clone())
        .worker(i64::from(context.index))
        .payload(Payload::empty())
        .ttl(context.ttl);
    match context.jobs.claim(group, payload, &claim) {
        Ok(job) => {
            // J2: the group that was leased is the group that will be solved.
            assert_eq!(job.group.group(), group, "a lease on another group than was claimed");
            Ok(job.work)
        }
        Err(JobClaimError::Refused(JobRefused::Group(refused))) => Err(busy(&refused)),
        Err(JobClaimError::Refused(JobRefused::Work(_))) => Err(Turned::by(Reason::Work)),
        Err(JobClaimError::Queued { .. } | JobClaimError::Failed(Failure::Busy { .. })) => {
            Err(Turned::by(Reason::Locked))
        }
        Err(_) => Err(Turned::by(Reason::Failed)),
    }
}

fn busy(refused: &ClaimRefused) -> Turned {
    let conflicts = refused.conflicts.iter().map(|conflict| conflict.target);
    let damaged = refused.damaged.iter().map(|member| member.target);
    let held = conflicts.chain(damaged).map(Target::get).collect();
    let reason = if refused.damaged.is_empty() { Reason::Busy } else { Reason::Damaged };
    Turned { reason, held }
}

fn claim_work(context: &Context, payload: &Payload) -> Result<WorkLease, Turned> {
    let worker = i64::from(context.index);
    match context.work.claim(payload, &context.owner, worker, Some(context.ttl), None) {
        Ok(work) => Ok(work),
        Err(WorkClaimError::Failed(Failure::Busy { .. })) => Err(Turned::by(Reason::Locked)),
        Err(WorkClaimError::Refused(_)) => Err(Turned::by(Reason::Work)),
        Err(_) => Err(Turned::by(Reason::Failed)),
    }
}

/// How many shards a group is spread over: the K of its directory syncs.
fn shards(context: &Context, group: &TargetGroup) -> usize {
    let Ok(count) = ShardCount::new(context.targets.info().shards) else { return 0 };
    let shards: BTreeSet<_> = group.members().map(|(id, _)| id.shard(count)).collect();
    shards.len()
}

/// Gives a job's leases back after it came to nothing.
pub(crate) fn give_up(context: &Context, admitted: &Admitted, why: &str) {
    context.keeper.let_go(admitted.number);
    let (id, token) = (admitted.work.id, &admitted.work.token);
    let dropped = || Event::Dropped { work: id.to_string(), why: why.to_owned() };
    if let Some((group, _)) = &admitted.group {
        let before = context.world.clock.monotonic();
        if let Ok(()) = context.jobs.abandon(group, id, token, None) {
            context.events.write(dropped());
            released(context, admitted, context.ms_since(before), true);
            return;
        }
    }
    // Alone, or one part is lost: the other is given up all the same.
    let work = id.to_string();
    match context.work.abandon(id, token, None) {
        Ok(()) => context.events.write(dropped()),
        Err(ringfence::AbandonError::Refused(refused)) => {
            let (step, why) = ("abandon".to_owned(), refused.to_string());
            context.events.write(Event::FenceRefused { work, step, why });
        }
        Err(error) => {
            let what = format!("a work lease was not given up, it will run out: {error}");
            context.events.write(Event::Trouble { what });
        }
    }
    release(context, admitted);
}

/// Gives the group back alone. After a failure it runs out by itself.
pub(crate) fn release(context: &Context, admitted: &Admitted) {
    context.keeper.let_go(admitted.number);
    let Some((group, token)) = &admitted.group else { return };
    let before = context.world.clock.monotonic();
    let mut outcome = context.targets.release(group, token, None);
    if outcome.as_ref().is_err_and(ringfence::ReleaseError::is_retryable) {
        outcome = context.targets.release(group, token, None);
    }
    if let Err(error) = &outcome {
        let what = format!("a group was not released: {error}");
        context.events.write(Event::Trouble { what });
    }
    released(context, admitted, context.ms_since(before), outcome.is_ok());
}

/// Tells what became of the group.
pub(crate) fn released(context: &Context, admitted: &Admitted, ms: f64, released: bool) {
    context.events.write(Event::Released {
        work: admitted.work.id.to_string(),
        ms,
        hold_ms: context.ms_since(admitted.since),
        released,
    });
}
