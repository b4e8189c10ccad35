//! `ringfence force-release`.

use ringfence::ForceReleaseError;
use ringfence::model::rules::ForceRefused;
use serde::Serialize;

use crate::answer;
use crate::args::{JsonArg, StoreArg, TargetsArg, TokenArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::signals::Interrupt;
use crate::{refusal, store};

/// Flags of `force-release`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    targets: TargetsArg,
    #[command(flatten)]
    token: TokenArg,
    /// Why; kept in the table's audit log
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct ForceReleased {
    outcome: &'static str,
    token: String,
    targets: Vec<u64>,
    reason: String,
}

/// Removes somebody's lease.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(force_release(args, out))
}

fn force_release(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let _held_off = Interrupt::hold_off();
    let table = store::open(&args.store.store)?.targets();
    let (group, token) = (&args.targets.targets, &args.token.token);
    table.force_release(group, token, &args.reason).map_err(|error| match error {
        ForceReleaseError::Refused(ForceRefused::NotHeld) => {
            let text = "not held: there is nothing to release, nothing was changed";
            Complaint::new(Exit::NOT_HELD, "not-held", text).with("targets", answer::numbers(group))
        }
        ForceReleaseError::Refused(ForceRefused::Mismatch(members)) => {
            refusal::lost("the force-release", group, &members)
        }
        ForceReleaseError::Refused(refused) => Complaint::usage(refused),
        ForceReleaseError::Failed(failure) => store::failed("the force-release", &failure),
        other => Complaint::new(Exit::FAILED, "failed", other).with("restored", true),
    })?;
    let json = ForceReleased {
        outcome: "force-released",
        token: token.to_string(),
        targets: answer::numbers(group),
        reason: args.reason.clone(),
    };
    Ok(out.answer(
        &json,
        "force-released; its holder, if it lives, finds out at its next heartbeat\n",
    ))
}
