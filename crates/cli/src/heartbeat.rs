//! `ringfence heartbeat`.

use ringfence::HeartbeatError;
use serde::Serialize;

use crate::answer;
use crate::args::{JsonArg, NowArg, StoreArg, TargetsArg, TokenArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::signals::Interrupt;
use crate::{refusal, store};

/// Flags of `heartbeat`.
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
struct Renewed {
    outcome: &'static str,
    token: String,
    fence: Option<u64>,
    targets: Vec<u64>,
    updated: f64,
    expires_at: f64,
}

/// Renews a group.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(heartbeat(args, out))
}

fn heartbeat(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let _held_off = Interrupt::hold_off();
    let table = store::open(&args.store.store)?.targets();
    let (group, token) = (&args.targets.targets, &args.token.token);
    let renewed = table.heartbeat(group, token, args.now.now).map_err(|error| match error {
        HeartbeatError::Lost(lost) => refusal::lost("the heartbeat", group, &lost.members),
        HeartbeatError::Failed(failure) => store::failed("the heartbeat", &failure),
        other => Complaint::new(Exit::FAILED, "failed", other).with("restored", true),
    })?;
    let json = Renewed {
        outcome: "renewed",
        token: token.to_string(),
        fence: token.fence().map(|fence| fence.0),
        targets: answer::numbers(group),
        updated: renewed.updated.seconds(),
        expires_at: renewed.expires_at.seconds(),
    };
    let left = renewed.expires_at.seconds() - renewed.updated.seconds();
    Ok(out.answer(&json, &format!("renewed for {left:.1} s\n")))
}
