//! `ringfence init`.

use std::path::PathBuf;

use ringfence::{FilesOptions, InitError, InitOptions, JournalOptions, ShardCount, Store, Ttl};
use ringfence_files::InitError as FilesInitError;
use ringfence_journal::InitError as JournalInitError;
use serde::Serialize;

use crate::args::{self, DurabilityArg, EngineArg, JsonArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::store;

/// Flags of `init`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory to make; its parent must exist
    #[arg(value_name = "STORE")]
    store: PathBuf,

    /// Over how many directories the leases are spread, 1 to 1000
    #[arg(long, value_name = "N", default_value = "8", value_parser = shards,
          allow_hyphen_values = true)]
    shards: ShardCount,

    /// How long a lease lasts without a heartbeat, where its claim does not say
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = args::ttl,
          allow_hyphen_values = true)]
    ttl: Ttl,

    /// What keeps the leases: by default a journal, which takes one sync per call and one host, or
    /// one record per file, which other programs and hosts may share
    #[arg(long, value_enum)]
    engine: Option<EngineArg>,

    /// What a crash in the middle of a call may leave of a group; only tables of files can leave less
    /// than the whole, so `record` means `--engine files`
    #[arg(long, value_enum, default_value_t = DurabilityArg::Group)]
    durability: DurabilityArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Made {
    outcome: &'static str,
    engine: &'static str,
    store: String,
    table: String,
    shards: u16,
    ttl: f64,
    durability: &'static str,
}

pub(crate) fn shards(text: &str) -> Result<ShardCount, String> {
    let count = text.parse().map_err(|_| "a number from 1 to 1000 is expected".to_owned())?;
    ShardCount::new(count).map_err(|error| error.to_string())
}

/// Makes a table.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(init(args, out))
}

fn init(args: &Args, out: Output) -> Result<Exit, Complaint> {
    store::expect_no_move(&args.store)?;
    let (shards, ttl) = (args.shards, args.ttl);
    let options: InitOptions = match (args.engine, args.durability) {
        (Some(EngineArg::Journal), DurabilityArg::Record) => {
            return Err(Complaint::usage(
                "a journal keeps groups whole: durability `record` is for tables of files, \
                 --engine files",
            ));
        }
        (Some(EngineArg::Journal) | None, DurabilityArg::Group) => {
            JournalOptions { shards, ttl, ..JournalOptions::default() }.into()
        }
        (Some(EngineArg::Files), _) | (None, DurabilityArg::Record) => {
            let durability = args.durability.into();
            FilesOptions { shards, ttl, durability, ..FilesOptions::default() }.into()
        }
    };
    let store = Store::init(&args.store, &options).map_err(|error| not_made(&error, args))?;
    let info = store.info();
    let durability = store.durability().as_str();
    let json = Made {
        outcome: "ready",
        engine: info.name,
        store: info.location.clone(),
        table: info.table,
        shards: info.shards,
        ttl: info.default_ttl.seconds(),
        durability,
    };
    let human = format!(
        "a table is ready in {}: engine {}, {} shards, a ttl of {}, durability {durability}\n",
        info.location, info.name, info.shards, info.default_ttl,
    );
    Ok(out.answer(&json, &human))
}

fn not_made(error: &InitError, args: &Args) -> Complaint {
    let message = store::chain(error);
    match error {
        InitError::Journal(error) => journal_not_made(error, args),
        InitError::Files(error) => files_not_made(error),
        InitError::OtherEngine { .. } => Complaint::new(Exit::NO_TABLE, "other-engine", message),
        InitError::Probe(error) => store::not_probed(error),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

fn journal_not_made(error: &JournalInitError, args: &Args) -> Complaint {
    let message = store::chain(error);
    match error {
        JournalInitError::Open(error) => store::journal_not_opened(error),
        JournalInitError::Differs { .. } => Complaint::new(Exit::NO_TABLE, "differs", message),
        JournalInitError::NotEmpty { .. } => {
            // Whoever did not choose may have meant records of another program.
            let hint = "; --engine files shares a directory with other programs";
            let hint = if args.engine.is_none() { hint } else { "" };
            Complaint::new(Exit::NO_TABLE, "not-empty", message + hint)
        }
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

fn files_not_made(error: &FilesInitError) -> Complaint {
    let message = store::chain(error);
    match error {
        FilesInitError::Open(error) => store::files_not_opened(error),
        FilesInitError::Failure(failure) => store::failed("init", failure),
        FilesInitError::Differs { .. } => Complaint::new(Exit::NO_TABLE, "differs", message),
        FilesInitError::NotEmpty { .. } => Complaint::new(Exit::NO_TABLE, "not-empty", message),
        FilesInitError::OtherShards { .. } => {
            Complaint::new(Exit::NO_TABLE, "other-shards", message)
        }
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}
