//! `ringfence list`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringfence::model::{TargetRecord, WorkStatus};
use ringfence::{LeaseState, Listed, Listing, Timestamp, WorkItem};
use serde::Serialize;

use crate::answer::{LeaseJson, WorkJson};
use crate::args::{JsonArg, NowArg, StoreArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::{store, table};

/// Flags of `list`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    /// Only what has run out and nobody took over, and work whose publication is to be finished
    #[arg(long)]
    expired: bool,
    #[command(flatten)]
    now: NowArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Answer {
    outcome: &'static str,
    leases: Vec<LeaseJson>,
    work: Vec<WorkJson>,
    consistent: bool,
    now: f64,
}

/// Lists what is held.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(list(args, out))
}

fn list(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let store = store::open_read_only(&args.store.store)?;
    let mut listing =
        store.targets().list(args.now.now).map_err(|error| store::not_read(&error))?;
    let mut work = store.work().list(args.now.now).map_err(|error| store::not_read(&error))?;
    work.retain(|item| !is_done(item) && (!args.expired || waits_for_somebody(item)));
    if args.expired {
        listing.leases.retain(|listed| matches!(listed.state, LeaseState::Expired(_)));
    }
    listing.leases.sort_by_key(|listed| listed.state.record().map(|record| record.target));
    let default_ttl = listing.default_ttl;
    let answer = Answer {
        outcome: "listed",
        leases: listing.leases.iter().map(|listed| LeaseJson::of(&listing, listed)).collect(),
        work: work.iter().map(|item| WorkJson::of(item, listing.now, default_ttl)).collect(),
        consistent: listing.consistent,
        now: listing.now.seconds(),
    };
    Ok(out.answer(&answer, &human(&listing, &work)))
}

fn is_done(item: &WorkItem) -> bool {
    item.record.as_ref().is_ok_and(|record| record.status == WorkStatus::Done)
}

fn waits_for_somebody(item: &WorkItem) -> bool {
    let committing = |item: &WorkItem| {
        item.record.as_ref().is_ok_and(|record| record.status == WorkStatus::Committing)
    };
    item.expired || committing(item)
}

/// One row per grant, then what is damaged, then unfinished work.
pub(crate) fn human(listing: &Listing, work: &[WorkItem]) -> String {
    let mut text = String::new();
    let rows = grants(listing);
    if !rows.is_empty() {
        let head = [
            "STATE", "TARGETS", "HELD", "OWNER", "WORKER", "HOST", "PID", "FENCE", "LEFT", "TOKEN",
        ];
        text.push_str(&table::aligned(head, &rows));
    }
    for listed in &listing.leases {
        if let LeaseState::Corrupt(damage) = &listed.state {
            let _ = writeln!(
                text,
                "corrupt  {}: {}, token {}",
                table::plain(&damage.location),
                table::plain(&damage.reason),
                damage.digest
            );
        }
    }
    if !work.is_empty() {
        let rows: Vec<_> = work.iter().map(|item| work_row(item, listing)).collect();
        let head = ["WORK", "ITEM", "OWNER", "WORKER", "GENERATION", "LEFT", "TOKEN"];
        text.push_str(&table::aligned(head, &rows));
    }
    if text.is_empty() {
        text.push_str("nothing is held\n");
    }
    if !listing.consistent {
        text.push_str("(the table changed while it was read: each row is true, their whole may never have been)\n");
    }
    text
}

fn grants(listing: &Listing) -> Vec<[String; 10]> {
    let mut grants: BTreeMap<(&str, &str), Vec<(&Listed, &TargetRecord)>> = BTreeMap::new();
    for listed in &listing.leases {
        if let Some(record) = listed.state.record() {
            let key = (listed.state.name(), record.holder.token.as_str());
            grants.entry(key).or_default().push((listed, record));
        }
    }
    let mut rows: Vec<_> = grants
        .into_iter()
        .filter_map(|((state, token), members)| {
            let (_, first) = members.first()?;
            let holding = listing.holding(first);
            let targets: Vec<u64> = members.iter().map(|(_, record)| record.target.get()).collect();
            let dash = || "-".to_owned();
            let row = [
                state.to_owned(),
                table::some(&targets),
                // Fewer than the group has: the rest was lost in a crash, or is another program's.
                format!("{} of {}", targets.len(), first.group.targets.len()),
                table::plain(&holding.owner),
                holding.worker.to_string(),
                holding.host.as_deref().map_or_else(dash, table::plain),
                holding.pid.map_or_else(dash, |pid| pid.to_string()),
                holding.fence.map_or_else(dash, |fence| fence.to_string()),
                left(holding.expires_in),
                table::plain(token),
            ];
            Some((targets.first().copied(), row))
        })
        .collect();
    rows.sort();
    rows.into_iter().map(|(_, row)| row).collect()
}

fn work_row(item: &WorkItem, listing: &Listing) -> [String; 7] {
    let now: Timestamp = listing.now;
    let id = item.id.to_string();
    let short = id.get(..12).unwrap_or(&id).to_owned();
    match (&item.record, item.holding(now, listing.default_ttl)) {
        (Ok(record), Some(holding)) => {
            let state = WorkJson::state(item);
            let timed = state == "leased" || state == "expired";
            [
                state.to_owned(),
                short,
                table::plain(&holding.owner),
                holding.worker.to_string(),
                record.generation.to_string(),
                if timed { left(holding.expires_in) } else { "-".to_owned() },
                table::plain(holding.token.as_str()),
            ]
        }
        (Err(damage), _) => {
            let dash = || "-".to_owned();
            let where_and_why = format!("{}: {}", damage.location, damage.reason);
            [
                "corrupt".to_owned(),
                short,
                table::plain(&where_and_why),
                dash(),
                dash(),
                dash(),
                damage.digest.to_string(),
            ]
        }
        (Ok(_), None) => std::array::from_fn(|_| String::new()),
    }
}

fn left(seconds: f64) -> String {
    format!("{seconds:.1} s")
}
