//! `ringfence status`.

use std::path::Path;

use ringfence::{Finding, LeaseState, Listing, Store, WorkItem, World};
use ringfence_files::fence::FenceCounter;
use ringfence_files::layout::Layout;
use ringfence_files::meta::TableMeta;
use serde::Serialize;

use crate::answer::WorkJson;
use crate::args::{JsonArg, NowArg, StoreArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::store;

/// Flags of `status`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    now: NowArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Answer {
    outcome: &'static str,
    store: String,
    table: String,
    engine: &'static str,
    mount: Option<String>,
    shards: u16,
    work_shards: Option<u16>,
    ttl: f64,
    durability: &'static str,
    fence_limit: Option<u64>,
    journal: Option<Journal>,
    leases: Leases,
    work: Work,
    lock_files: usize,
    idle_lock_files: usize,
    temporaries: usize,
    strays: usize,
    intents: usize,
    consistent: bool,
    now: f64,
}

/// Where a journal is.
#[derive(Serialize)]
struct Journal {
    epoch: u64,
    segment: u64,
    sequence: u64,
    checkpoint: u64,
}

#[derive(Default, Serialize)]
struct Leases {
    active: usize,
    expired: usize,
    corrupt: usize,
}

#[derive(Default, Serialize)]
struct Work {
    leased: usize,
    expired: usize,
    committing: usize,
    done: usize,
    corrupt: usize,
}

/// Sums a table up.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(status(args, out))
}

fn status(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let root = &args.store.store;
    let store = store::open_read_only(root)?;
    let answer = gather(&store, root, args)?;
    Ok(out.answer(&answer, &human(&answer)))
}

fn gather(store: &Store, root: &Path, args: &Args) -> Result<Answer, Complaint> {
    let read = |error| store::not_read(&error);
    let listing = store.targets().list(args.now.now).map_err(read)?;
    let work = store.work().list(args.now.now).map_err(read)?;
    let check = store.check().map_err(|error| crate::check::not_checked(&error))?;
    let world = World::system();
    let place = store.journal().transpose().map_err(read)?;
    let meta = match place {
        Some(_) => None,
        None => Some(
            TableMeta::read(&*world.fs, root)
                .map_err(|error| store::files_not_opened(&error.into()))?,
        ),
    };
    let limit = match (&meta, place) {
        (Some(meta), _) => FenceCounter::new(&Layout::new(root, meta)).limit(&world).ok(),
        (None, place) => place.map(|place| place.fence),
    };
    let count = |wanted: fn(&Finding) -> bool| check.findings.iter().filter(|f| wanted(f)).count();
    let info = store.info();
    Ok(Answer {
        outcome: "status",
        store: info.location,
        table: info.table,
        engine: info.name,
        mount: world.fs.mount_type(root).ok(),
        shards: info.shards,
        work_shards: meta.as_ref().map(|meta| meta.work_shards.get()),
        ttl: info.default_ttl.seconds(),
        durability: store.durability().as_str(),
        fence_limit: limit,
        journal: place.map(|place| Journal {
            epoch: place.epoch,
            segment: place.segment,
            sequence: place.sequence,
            checkpoint: place.checkpoint,
        }),
        leases: leases(&listing),
        work: items(&work),
        lock_files: check.lock_files,
        idle_lock_files: check.idle_lock_files,
        temporaries: count(|finding| matches!(finding, Finding::Temporary(_))),
        strays: count(|finding| matches!(finding, Finding::Stray(_) | Finding::Misplaced(_))),
        intents: count(|finding| matches!(finding, Finding::Intent { .. })),
        consistent: listing.consistent,
        now: listing.now.seconds(),
    })
}

fn leases(listing: &Listing) -> Leases {
    let mut counts = Leases::default();
    for listed in &listing.leases {
        *match listed.state {
            LeaseState::Active(_) => &mut counts.active,
            LeaseState::Expired(_) => &mut counts.expired,
            LeaseState::Corrupt(_) => &mut counts.corrupt,
        } += 1;
    }
    counts
}

fn items(work: &[WorkItem]) -> Work {
    let mut counts = Work::default();
    for item in work {
        *match WorkJson::state(item) {
            "leased" => &mut counts.leased,
            "expired" => &mut counts.expired,
            "committing" => &mut counts.committing,
            "done" => &mut counts.done,
            _ => &mut counts.corrupt,
        } += 1;
    }
    counts
}

fn human(answer: &Answer) -> String {
    let Answer { leases, work, .. } = answer;
    let mount = answer.mount.as_deref().unwrap_or("unknown");
    let limit = answer
        .fence_limit
        .map_or_else(|| "unreadable: no grant is possible".to_owned(), |limit| limit.to_string());
    let shards = match answer.work_shards {
        Some(work) => format!("{} for targets, {work} for work", answer.shards),
        None => answer.shards.to_string(),
    };
    let journal = answer.journal.as_ref().map_or_else(String::new, |journal| {
        format!(
            "journal      frame {} in segment {}, epoch {}, checkpoint as of frame {}\n",
            journal.sequence, journal.segment, journal.epoch, journal.checkpoint
        )
    });
    format!(
        "store        {} ({} on {mount})\n\
         table        {}\n\
         shards       {shards}\n\
         ttl          {} s\n\
         durability   {}\n\
         fence limit  {limit}\n\
         {journal}\
         leases       {} active, {} expired, {} corrupt\n\
         work         {} leased, {} expired, {} committing, {} done, {} corrupt\n\
         lock files   {}, of which {} idle\n\
         leftovers    {} temporaries, {} strays, {} standing intents\n",
        answer.store,
        answer.engine,
        answer.table,
        answer.ttl,
        answer.durability,
        leases.active,
        leases.expired,
        leases.corrupt,
        work.leased,
        work.expired,
        work.committing,
        work.done,
        work.corrupt,
        answer.lock_files,
        answer.idle_lock_files,
        answer.temporaries,
        answer.strays,
        answer.intents,
    )
}
