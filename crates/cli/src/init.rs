//! `ringfence init`.

use std::path::PathBuf;

use ringfence::{InitError, InitOptions, ShardCount, Store, Ttl};
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

    /// What a crash in the middle of a call may leave of a group
    #[arg(long, value_enum, default_value_t = DurabilityArg::Group)]
    durability: DurabilityArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Made {
    outcome: &'static str,
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
    let options = InitOptions {
        shards: args.shards,
        ttl: args.ttl,
        durability: args.durability.into(),
        ..InitOptions::default()
    };
    let store = Store::init(&args.store, &options).map_err(|error| not_made(&error))?;
    let info = store.info();
    let json = Made {
        outcome: "ready",
        store: info.location.clone(),
        table: info.table,
        shards: info.shards,
        ttl: info.default_ttl.seconds(),
        durability: options.durability.as_str(),
    };
    let human = format!(
        "a table is ready in {}: {} shards, a ttl of {}, durability {}\n",
        info.location,
        info.shards,
        info.default_ttl,
        options.durability.as_str()
    );
    Ok(out.answer(&json, &human))
}

fn not_made(error: &InitError) -> Complaint {
    let message = store::chain(error);
    match error {
        InitError::Open(error) => store::not_opened(error),
        InitError::Failure(failure) => store::failed("init", failure),
        InitError::Differs { .. } => Complaint::new(Exit::NO_TABLE, "differs", message),
        InitError::NotEmpty { .. } => Complaint::new(Exit::NO_TABLE, "not-empty", message),
        InitError::OtherShards { .. } => Complaint::new(Exit::NO_TABLE, "other-shards", message),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}
