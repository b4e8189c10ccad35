//! The claim, during which signals end this process promptly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence::{Claim, ClaimError, Lease, Payload, TargetTable};
use ringfence_env::child::SignalQueue;
use signal_hook::consts::{SIGCHLD, SIGTSTP};

use super::{Args, own_failure, settle};
use crate::output::Complaint;
use crate::{refusal, store, waiting};

/// How often the claiming thread is looked at: at first, and after a while.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LATER_LOOK: Duration = Duration::from_millis(20);

/// How the claim ended.
pub(super) enum Admitted {
    /// The lease is ours.
    Granted(Lease),
    /// Somebody else holds part of the group.
    Held(Complaint),
    /// A signal came first; nothing is held.
    Interrupted(i32),
}

/// Claims, and waits as long as the caller asked to.
pub(super) fn admit(
    args: &Args,
    table: &TargetTable,
    payload: Payload,
    signals: &SignalQueue,
) -> Result<Admitted, Complaint> {
    let mut claim =
        Claim::by_owner(args.holder.owner.clone()).worker(args.holder.worker).payload(payload);
    if let Some(ttl) = args.holder.ttl {
        claim = claim.ttl(ttl);
    }
    let group = &args.targets.targets;
    let (claimed, signal) = match args.holder.wait {
        Some(wait) => wait_for(args, table, claim.wait(wait), signals)?,
        None => (table.claim(group, &claim), None),
    };
    let signal = signal.or_else(|| next_ending(signals));
    match claimed {
        Ok(lease) => Ok(match signal {
            None => Admitted::Granted(lease),
            Some(number) => {
                settle::Held {
                    table: table.clone(),
                    group: lease.group().clone(),
                    token: lease.token().clone(),
                }
                .give_back();
                Admitted::Interrupted(number)
            }
        }),
        Err(error) => match (signal, error) {
            (Some(number), _) => Ok(Admitted::Interrupted(number)),
            (None, ClaimError::Refused(refused)) if refused.damaged.is_empty() => {
                Ok(Admitted::Held(refusal::claim(group, &refused)))
            }
            (None, ClaimError::Refused(refused)) => Err(refusal::claim(group, &refused)),
            (None, error @ ClaimError::Queued { .. }) => {
                Ok(Admitted::Held(refusal::queued(&error)))
            }
            (None, ClaimError::Failed(failure @ ringfence::Failure::Busy { .. })) => {
                Ok(Admitted::Held(store::failed("the claim", &failure)))
            }
            (None, ClaimError::Failed(failure)) => Err(store::failed("the claim", &failure)),
            (None, error) => {
                Err(own_failure("the claim failed", &std::io::Error::other(error.to_string())))
            }
        },
    }
}

/// Claims on a second thread, so that this one hears signals.
fn wait_for(
    args: &Args,
    table: &TargetTable,
    claim: Claim,
    signals: &SignalQueue,
) -> Result<(Result<Lease, ClaimError>, Option<i32>), Complaint> {
    let group = &args.targets.targets;
    let _notice = (!args.quiet.quiet).then(|| waiting::Notice::start(table, group, None));
    let cancelled = Arc::new(AtomicBool::new(false));
    let claim = claim.cancelled_by(Arc::clone(&cancelled));
    let claimer = std::thread::Builder::new()
        .name("claim".to_owned())
        .spawn({
            let (table, group) = (table.clone(), group.clone());
            move || table.claim(&group, &claim)
        })
        .map_err(|error| own_failure("cannot start a thread that claims", &error))?;
    let mut signal = None;
    let mut pause = FIRST_LOOK;
    while !claimer.is_finished() {
        // An error here is an error in the look below; the claim has its own deadline.
        let _ = signals.wait(pause);
        pause = (pause * 2).min(LATER_LOOK);
        signal = signal.or_else(|| next_ending(signals));
        if signal.is_some() {
            cancelled.store(true, Ordering::Relaxed);
        }
    }
    match claimer.join() {
        Ok(claimed) => Ok((claimed, signal)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The next signal that ends a process which has no child yet. Stop signals stop it on the way.
fn next_ending(signals: &SignalQueue) -> Option<i32> {
    while let Ok(Some(received)) = signals.take() {
        match received.number {
            SIGTSTP => signals.stop_as(received.number),
            SIGCHLD => {}
            number if signals.was_ignored(number) => {}
            number => return Some(number),
        }
    }
    None
}
