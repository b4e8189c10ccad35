//! `ringfence release`.

use ringfence::ReleaseError;
use serde::Serialize;

use crate::answer;
use crate::args::{JsonArg, NowArg, StoreArg, TargetsArg, TokenArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::signals::Interrupt;
use crate::{refusal, store};

/// Flags of `release`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    targets: TargetsArg,
    #[command(flatten)]
    token: TokenArg,
    #[command(flatten)]
    now: NowArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Released {
    outcome: &'static str,
    token: String,
    targets: Vec<u64>,
}

/// Gives a group back.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(release(args, out))
}

fn release(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let _held_off = Interrupt::hold_off();
    let table = store::open(&args.store.store)?.targets();
    let (group, token) = (&args.targets.targets, &args.token.token);
    table.release(group, token, args.now.now).map_err(|error| match error {
        ReleaseError::Lost(lost) => refusal::lost("the release", group, &lost.members),
        ReleaseError::Failed(failure) => store::failed("the release", &failure),
        other => Complaint::new(Exit::FAILED, "failed", other).with("restored", true),
    })?;
    let json =
        Released { outcome: "released", token: token.to_string(), targets: answer::numbers(group) };
    Ok(out.answer(&json, "released\n"))
}
