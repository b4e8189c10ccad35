//! `ringfence show`.

use std::fmt::Write as _;

use ringfence::{LeaseState, Listing, Target};
use serde::Serialize;

use crate::answer::LeaseJson;
use crate::args::{JsonArg, NowArg, StoreArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::{store, table};

/// Flags of `show`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    /// The target's number
    #[arg(value_name = "TARGET", value_parser = target, allow_hyphen_values = true)]
    target: Target,
    #[command(flatten)]
    now: NowArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Answer {
    outcome: &'static str,
    target: u64,
    durability: &'static str,
    lease: Option<LeaseJson>,
}

fn target(text: &str) -> Result<Target, String> {
    text.parse::<Target>().map_err(|error| error.to_string())
}

/// Shows one target.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(show(args, out))
}

fn show(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let store = store::open_read_only(&args.store.store)?;
    let shown =
        store.targets().show(args.target, args.now.now).map_err(|error| store::not_read(&error))?;
    let found = shown.as_ref().and_then(|listing| Some((listing, listing.leases.first()?)));
    let answer = Answer {
        outcome: found.map_or("free", |(_, listed)| listed.state.name()),
        target: args.target.get(),
        durability: store.durability().as_str(),
        lease: found.map(|(listing, listed)| LeaseJson::of(listing, listed)),
    };
    let human = match found {
        None => format!("target {} is free\n", args.target),
        Some((listing, listed)) => human(args.target, listing, &listed.state),
    };
    Ok(out.answer(&answer, &human))
}

fn human(target: Target, listing: &Listing, state: &LeaseState) -> String {
    let record = match state {
        LeaseState::Corrupt(damage) => {
            let (location, reason) = (table::plain(&damage.location), table::plain(&damage.reason));
            return format!(
                "target {target} has a damaged record, which counts as held\n\
                 location  {location}\nreason    {reason}\ntoken     {}\n",
                damage.digest
            );
        }
        LeaseState::Active(record) | LeaseState::Expired(record) => record,
    };
    let holding = listing.holding(record);
    let group: Vec<String> = record.group.targets.iter().map(ToString::to_string).collect();
    let unknown = || "unknown".to_owned();
    let (holder, history) = (&record.holder, &record.history);
    let lines = [
        ("state", state.name().to_owned()),
        ("group", group.join(",")),
        ("owner", table::plain(&holding.owner)),
        ("worker", holding.worker.to_string()),
        ("host", holding.host.as_deref().map_or_else(unknown, table::plain)),
        ("pid", holding.pid.map_or_else(unknown, |pid| pid.to_string())),
        ("fence", holding.fence.map_or_else(unknown, |fence| fence.to_string())),
        ("token", table::plain(holding.token.as_str())),
        ("ttl", holder.ttl(listing.default_ttl).to_string()),
        ("left", format!("{:.1} s", holding.expires_in)),
        ("attempts", history.attempts.to_string()),
        ("steals", history.steals.to_string()),
        (
            "before",
            history.previous_owner.as_deref().map_or_else(|| "nobody".to_owned(), table::plain),
        ),
        ("payload", crate::answer::raw(holder.payload.as_str()).get().to_owned()),
    ];
    let mut text = format!("target {target} is {}\n", held(state));
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<9} {value}");
    }
    text
}

fn held(state: &LeaseState) -> &'static str {
    match state {
        LeaseState::Active(_) => "held",
        _ => "held by nobody any more: its lease has run out and was not taken over",
    }
}
