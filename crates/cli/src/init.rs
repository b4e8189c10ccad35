//! `ringfence init`.

use std::path::PathBuf;

use ringfence::{InitError, InitOptions, JournalOptions, ShardCount, Store, Ttl};
use ringfence_journal::InitError as JournalInitError;
use serde::Serialize;

use crate::args::{self, DurabilityArg, JsonArg};
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

    /// What keeps the leases: one record per file, which other programs may share, or a journal,
    /// which takes one sync per call and one host
    #[arg(long, value_enum, default_value_t = EngineArg::Files)]
    engine: EngineArg,

    /// What a crash in the middle of a call may leave of a group; a journal keeps groups whole
    #[arg(long, value_enum, default_value_t = DurabilityArg::Group)]
    durability: DurabilityArg,

    #[command(flatten)]
    json: JsonArg,
}

/// An engine, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EngineArg {
    /// One record per file
    Files,
    /// One file that is appended to
    Journal,
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

fn shards(text: &str) -> Result<ShardCount, String> {
    let count = text.parse().map_err(|_| "a number from 1 to 1000 is expected".to_owned())?;
    ShardCount::new(count).map_err(|error| error.to_string())
}

/// Makes a table.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(init(args, out))
}

fn init(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let store = match args.engine {
        EngineArg::Files => {
            let options = InitOptions {
                shards: args.shards,
                ttl: args.ttl,
                durability: args.durability.into(),
                ..InitOptions::default()
            };
            Store::init(&args.store, &options).map_err(|error| not_made(&error))?
        }
        EngineArg::Journal if args.durability != DurabilityArg::Group => {
            return Err(Complaint::usage("a journal keeps groups whole: leave --durability out"));
        }
        EngineArg::Journal => {
            let options =
                JournalOptions { shards: args.shards, ttl: args.ttl, ..JournalOptions::default() };
            let made = Store::init_journal(&args.store, &options);
            made.map_err(|error| journal_not_made(&error))?
        }
    };
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

fn journal_not_made(error: &JournalInitError) -> Complaint {
    let message = store::chain(error);
    match error {
        JournalInitError::Open(error) => store::journal_not_opened(error),
        JournalInitError::Differs { .. } => Complaint::new(Exit::NO_TABLE, "differs", message),
        JournalInitError::NotEmpty { .. } => Complaint::new(Exit::NO_TABLE, "not-empty", message),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

fn not_made(error: &InitError) -> Complaint {
    let message = store::chain(error);
    match error {
        InitError::Open(error) => store::files_not_opened(error),
        InitError::Failure(failure) => store::failed("init", failure),
        InitError::Differs { .. } => Complaint::new(Exit::NO_TABLE, "differs", message),
        InitError::NotEmpty { .. } => Complaint::new(Exit::NO_TABLE, "not-empty", message),
        InitError::OtherShards { .. } => Complaint::new(Exit::NO_TABLE, "other-shards", message),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}
