//! `ringfence migrate`.

use std::fmt::Write as _;
use std::path::PathBuf;

use ringfence::{
    Destination, Failure, FilesOptions, JournalOptions, MigrateError, OpenError, ShardCount, Store,
};
use ringfence_files::InitError as FilesInitError;
use ringfence_journal::InitError as JournalInitError;
use serde::Serialize;

use crate::args::{DurabilityArg, EngineArg, JsonArg, StoreArg};
use crate::exit::Exit;
use crate::init;
use crate::output::{Complaint, Output};
use crate::{check, store};

/// Flags of `migrate`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// The directory to make; its parent must exist, on any file system that can carry the engine
    #[arg(value_name = "DESTINATION")]
    to: PathBuf,

    /// What keeps the leases there; by default the engine that does not keep them now
    #[arg(long, value_enum)]
    engine: Option<EngineArg>,

    /// Over how many directories the leases are spread there, 1 to 1000; by default 8
    #[arg(long, value_name = "N", value_parser = init::shards, allow_hyphen_values = true)]
    shards: Option<ShardCount>,

    /// What a crash in the middle of a call may leave of a group there; a journal keeps groups whole
    #[arg(long, value_enum)]
    durability: Option<DurabilityArg>,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Moved {
    outcome: &'static str,
    engine: &'static str,
    from: String,
    store: String,
    table: String,
    leases: usize,
    work: usize,
    fence_floor: u64,
    left: Vec<String>,
}

/// Moves a table.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(migrate(args, out))
}

fn migrate(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let into = destination(args)?;
    let moved = Store::migrate(&args.store.store, &args.to, &into).map_err(|e| not_moved(&e))?;
    // Also where an earlier try had decided which engine it is.
    let info = store::open_read_only(&moved.to)?.info();
    let (leases, work) = moved.records;
    let left: Vec<String> = moved.left.iter().map(|path| path.display().to_string()).collect();
    let (from, store) = (moved.from.display().to_string(), moved.to.display().to_string());
    let mut human = format!(
        "the table of {from} is {store} now: engine {}, {leases} leases, {work} work items, fences \
         above {}\n",
        info.name, moved.fence,
    );
    for path in &left {
        let _ = writeln!(human, "left where it is: {path}");
    }
    let json = Moved {
        outcome: "migrated",
        engine: info.name,
        from,
        store,
        table: info.table,
        leases,
        work,
        fence_floor: moved.fence.0,
        left,
    };
    Ok(out.answer(&json, &human))
}

/// What is to be made at the new place.
fn destination(args: &Args) -> Result<Destination, Complaint> {
    let engine = match args.engine {
        Some(engine) => engine,
        None => the_other(args)?,
    };
    match engine {
        EngineArg::Journal if args.durability == Some(DurabilityArg::Record) => {
            let why = "a journal keeps groups whole: durability `record` is for tables of files, \
                       --engine files";
            Err(Complaint::usage(why))
        }
        EngineArg::Journal => {
            let usual = JournalOptions::default();
            let shards = args.shards.unwrap_or(usual.shards);
            Ok(Destination::Journal(JournalOptions { shards, ..usual }))
        }
        EngineArg::Files => {
            let usual = FilesOptions::default();
            let shards = args.shards.unwrap_or(usual.shards);
            let durability = args.durability.map_or(usual.durability, Into::into);
            Ok(Destination::Files(FilesOptions { shards, durability, ..usual }))
        }
    }
}

/// The engine that does not keep the table now.
fn the_other(args: &Args) -> Result<EngineArg, Complaint> {
    match Store::open_read_only(&args.store.store) {
        Ok(old) if old.journal().is_none() => Ok(EngineArg::Journal),
        // Whoever finishes a move has nothing to choose.
        Ok(_) | Err(OpenError::Moved { .. }) => Ok(EngineArg::Files),
        // A move that brought the table here may be unfinished: the library finishes it.
        Err(OpenError::Arriving { .. }) => store::open(&args.store.store)
            .map(|old| if old.journal().is_none() { EngineArg::Journal } else { EngineArg::Files }),
        Err(error) => Err(store::not_opened(&error)),
    }
}

fn not_moved(error: &MigrateError) -> Complaint {
    let message = store::chain(error);
    match error {
        MigrateError::Open(error) => store::not_opened(error),
        MigrateError::Check(error) => check::not_checked(error),
        MigrateError::NotStill(failure) => in_use(failure),
        MigrateError::Exists { .. } => Complaint::new(Exit::NO_TABLE, "exists", message),
        MigrateError::Occupied { staging } => Complaint::new(Exit::NO_TABLE, "occupied", message)
            .with("staging", staging.display().to_string()),
        MigrateError::Nested { .. } | MigrateError::Same { .. } => Complaint::usage(message),
        MigrateError::NotSound { findings } => {
            Complaint::new(Exit::DAMAGED, "not-sound", message).with("reasons", findings)
        }
        MigrateError::Files(FilesInitError::Open(error)) => store::files_not_opened(error),
        MigrateError::Journal(JournalInitError::Open(error)) => store::journal_not_opened(error),
        // The old place is closed already: nothing is put back.
        MigrateError::Unfinished(_) => {
            Complaint::new(Exit::FAILED, "unfinished", message).with("restored", false)
        }
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

/// Somebody was at work, or had stopped in the middle of a call, all the time.
fn in_use(failure: &Failure) -> Complaint {
    let mut complaint = store::failed("migrate", failure);
    if let Failure::Busy { what, .. } = failure {
        let hint = format!("; stop what uses the table (`fuser {what}` names it), then try again");
        complaint.message.push_str(&hint);
    }
    complaint
}
