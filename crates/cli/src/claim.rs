//! `ringfence claim`.

use ringfence::{Claim, ClaimError, Lease, TargetTable};
use serde::Serialize;

use crate::answer;
use crate::args::{HolderArgs, JsonArg, NowArg, QuietArg, StoreArg, TargetsArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output, note};
use crate::signals::Interrupt;
use crate::waiting::Notice;
use crate::{payload, refusal, store, waiting};

/// Flags of `claim`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    targets: TargetsArg,
    #[command(flatten)]
    holder: HolderArgs,
    #[command(flatten)]
    now: NowArg,
    #[command(flatten)]
    quiet: QuietArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Granted {
    outcome: &'static str,
    token: String,
    fence: u64,
    targets: Vec<u64>,
    ttl: f64,
    expires_at: f64,
}

/// Claims a group.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(claim(args, out))
}

fn claim(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let payload = payload::read(args.holder.payload.as_deref())?;
    let interrupt = Interrupt::watch().map_err(|error| {
        Complaint::new(Exit::FAILED, "failed", format!("cannot watch for signals: {error}"))
            .with("restored", true)
    })?;
    let table = store::open_as(&args.store.store, args.holder.durability)?.targets();
    let group = &args.targets.targets;
    let lease = {
        let request = request(args, payload, &interrupt);
        let waits = !args.quiet.quiet && args.holder.wait.is_some_and(|wait| !wait.is_zero());
        let _notice = waits.then(|| Notice::start(&table, group, args.now.now));
        table.claim(group, &request)
    };
    let lease = match (lease, interrupt.received()) {
        (Ok(lease), None) => lease,
        // Whoever asked is gone or no longer wants it.
        (Ok(lease), Some(signal)) => return Err(give_back(lease, interrupted(signal))),
        (
            Err(ClaimError::Cancelled | ClaimError::Queued { .. } | ClaimError::Refused(_)),
            Some(signal),
        ) => {
            return Err(interrupted(signal));
        }
        (Err(error), _) => return Err(complaint(args, &table, &error)),
    };
    let granted = Granted {
        outcome: "granted",
        token: lease.token().to_string(),
        fence: lease.fence().0,
        targets: answer::numbers(group),
        ttl: lease.ttl().seconds(),
        expires_at: lease.expires_at().seconds(),
    };
    let human = format!(
        "granted {} under fence {} for {}\ntoken {}\n",
        count(group.len()),
        lease.fence(),
        lease.ttl(),
        lease.token(),
    );
    match out.try_answer(&granted, &human) {
        Ok(()) => Ok(Exit::DONE),
        Err(error) => {
            // A lease whose token nobody has would only stand in the way until it runs out.
            let why = format!("cannot write the answer: {error}");
            let unwritten = Complaint::new(Exit::FAILED, "failed", why).with("restored", true);
            Err(give_back(lease, unwritten))
        }
    }
}

fn request(args: &Args, payload: ringfence::Payload, interrupt: &Interrupt) -> Claim {
    let mut request = Claim::by_owner(args.holder.owner.clone())
        .worker(args.holder.worker)
        .payload(payload)
        .cancelled_by(interrupt.flag());
    if let Some(ttl) = args.holder.ttl {
        request = request.ttl(ttl);
    }
    if let Some(wait) = args.holder.wait {
        request = request.wait(wait);
    }
    if let Some(now) = args.now.now {
        request = request.now(now);
    }
    request
}

fn complaint(args: &Args, table: &TargetTable, error: &ClaimError) -> Complaint {
    let group = &args.targets.targets;
    match error {
        ClaimError::Refused(refused) => {
            let Some(wait) = args.holder.wait.filter(|wait| !wait.is_zero()) else {
                return refusal::claim(group, refused);
            };
            // The refusal may be as old as the wait: say who is in the way at its end.
            let fresh = waiting::refused(table, group, args.now.now);
            refusal::claim_after(Some(wait), group, fresh.as_ref().unwrap_or(refused))
        }
        ClaimError::Queued { .. } => refusal::queued(error),
        ClaimError::Failed(failure) => store::failed("the claim", failure),
        other => Complaint::new(Exit::FAILED, "failed", other).with("restored", true),
    }
}

fn interrupted(signal: i32) -> Complaint {
    let message = format!("interrupted by signal {signal}; nothing is held");
    Complaint::new(Exit::signal(signal), "interrupted", message).with("signal", signal)
}

/// Releases a lease that nobody will use, and complains about why.
fn give_back(lease: Lease, complaint: Complaint) -> Complaint {
    let token = lease.token().to_string();
    match lease.release() {
        Ok(()) => complaint,
        Err(not_released) => {
            note(&format!(
                "the lease {token} was granted and could not be given back, it runs out by itself: \
                 {}",
                store::chain(&not_released)
            ));
            complaint.with("restored", false).with("token", token)
        }
    }
}

fn count(targets: usize) -> String {
    if targets == 1 { "1 target".to_owned() } else { format!("{targets} targets") }
}
