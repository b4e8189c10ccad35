//! Admission: look, claim the group, claim the execution.
//!
//! A1. What is refused leaves nothing behind: no lease, no work item, no change in what the scheduler
//!     counts. The caller goes on down its list.
//! A2. A group that is granted after somebody else's result came in is given back: what was worth
//!     doing when it was proposed is checked again under the lease.
//! A3. From the grant on, the keeper renews what is held; whatever ends the job lets go first.
//!
//! ```text
//! Proposed -[look]-> Free -[claim group]-> Leased -[still current, claim work]-> Admitted
//!     \ Look             \ Busy, Locked,         \ Stale, Work: group released
//!                          Damaged, Failed
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringfence::model::{Entry, Record};
use ringfence::{
    Claim, ClaimError, Failure, Payload, ShardCount, Target, TargetGroup, Token, WorkClaimError,
    WorkLease,
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

    let since = clock.monotonic();
    let (mut look_ms, mut claim_ms) = (0.0, 0.0);
    let mut leased = None;
    let renewed = clock.boottime();
    if context.config.arm.leases() {
        look(context, &group)?;
        look_ms = context.ms_since(since);
        let before = clock.monotonic();
        leased = Some((group.clone(), claim(context, &group)?));
        claim_ms = context.ms_since(before);
    }
    let lost = Arc::new(AtomicBool::new(false));
    let holding = Holding { group: leased.clone(), work: None, lost: Arc::clone(&lost), renewed };
    let number = context.keeper.hold(holding);
    let give_back = |reason| {
        context.keeper.let_go(number);
        if let Some((group, token)) = &leased {
            // If this fails the lease runs out by itself; nothing depends on it.
            let _ = context.targets.release(group, token, None);
        }
        Turned::by(reason)
    };
    if !still_current(&job) {
        return Err(give_back(Reason::Stale));
    }
    let before = clock.monotonic();
    let worker = i64::from(context.index);
    let claimed = context.work.claim(&payload, &context.owner, worker, Some(context.ttl), None);
    let work = match claimed {
        Ok(work) => work,
        Err(WorkClaimError::Failed(Failure::Busy { .. })) => return Err(give_back(Reason::Locked)),
        Err(WorkClaimError::Refused(_)) => return Err(give_back(Reason::Work)),
        Err(_) => return Err(give_back(Reason::Failed)),
    };
    context.keeper.add_work(number, work.id, work.token.clone());
    context.events.write(Event::Granted {
        work: work.id.to_string(),
        targets: group.len(),
        shards: shards(context, &group),
        look_ms,
        claim_ms,
        work_ms: context.ms_since(before),
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

fn claim(context: &Context, group: &TargetGroup) -> Result<Token, Turned> {
    let claim = Claim::by_owner(context.owner.clone())
        .worker(i64::from(context.index))
        .payload(Payload::empty())
        .ttl(context.ttl);
    match context.targets.claim(group, &claim) {
        Ok(lease) => {
            // J2: the group that was leased is the group that will be solved.
            assert_eq!(lease.group(), group, "a lease on another group than was claimed");
            Ok(lease.token().clone())
        }
        Err(ClaimError::Refused(refused)) => {
            let conflicts = refused.conflicts.iter().map(|conflict| conflict.target);
            let damaged = refused.damaged.iter().map(|member| member.target);
            let held = conflicts.chain(damaged).map(Target::get).collect();
            let reason = if refused.damaged.is_empty() { Reason::Busy } else { Reason::Damaged };
            Err(Turned { reason, held })
        }
        Err(ClaimError::Failed(Failure::Busy { .. })) => Err(Turned::by(Reason::Locked)),
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
    context.keeper.let_go_of_work(admitted.number);
    let work = admitted.work.id.to_string();
    match context.work.abandon(admitted.work.id, &admitted.work.token, None) {
        Ok(()) => {
            context.events.write(Event::Dropped { work, why: why.to_owned() });
        }
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

/// Gives the group back. After a failure it runs out by itself.
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
    context.events.write(Event::Released {
        work: admitted.work.id.to_string(),
        ms: context.ms_since(before),
        hold_ms: context.ms_since(admitted.since),
        released: outcome.is_ok(),
    });
}
