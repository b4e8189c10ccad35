//! Flags that several verbs share, and how their values are read.

use std::path::PathBuf;
use std::time::Duration;

use ringfence::{Durability, Owner, TargetGroup, Timestamp, Token, Ttl};

use crate::duration;

/// Where the leases are kept.
#[derive(clap::Args, Debug)]
pub(crate) struct StoreArg {
    /// The directory of the table, made by `ringfence init`
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
}

/// What is claimed, renewed or released as one unit.
#[derive(clap::Args, Debug)]
pub(crate) struct TargetsArg {
    /// The whole group: 1 to 64 different target numbers, separated by commas
    #[arg(long, short, value_name = "N,N,..", value_parser = group, allow_hyphen_values = true)]
    pub(crate) targets: TargetGroup,
}

/// Which grant is meant.
#[derive(clap::Args, Debug)]
pub(crate) struct TokenArg {
    /// The token that `claim` printed, whole
    #[arg(long, value_name = "TOKEN", value_parser = token, allow_hyphen_values = true)]
    pub(crate) token: Token,
}

/// A clock of the caller's own.
#[derive(clap::Args, Debug)]
pub(crate) struct NowArg {
    /// Replaces every clock: Unix seconds, fractions allowed
    #[arg(long, value_name = "SECONDS", value_parser = timestamp, allow_hyphen_values = true)]
    pub(crate) now: Option<Timestamp>,
}

/// How the answer is written.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct JsonArg {
    /// Answers with one JSON object on standard output, errors included
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whether progress is told.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct QuietArg {
    /// Says nothing while waiting
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Who claims, and how long.
#[derive(clap::Args, Debug)]
pub(crate) struct HolderArgs {
    /// The name shown to whoever is refused; it authorises nothing
    #[arg(long, short, value_name = "NAME", value_parser = owner, allow_hyphen_values = true)]
    pub(crate) owner: Owner,

    /// The number of the worker that will run the job
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub(crate) worker: i64,

    /// A JSON object to store with the lease, or @FILE to read it from (@- for standard input)
    #[arg(long, value_name = "JSON|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// How long the lease lasts without a heartbeat; by default the table's ttl
    #[arg(long, value_name = "DURATION", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,

    /// Waits this long in all for the whole group; by default a held group is refused at once
    #[arg(long, short, value_name = "DURATION", value_parser = duration::parse,
          allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Refuses a table of the other durability, for a job that relies on the one named
    #[arg(long, value_enum)]
    pub(crate) durability: Option<DurabilityArg>,
}

/// An engine, as the command line names it.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineArg {
    /// One file that is appended to, for one host
    Journal,
    /// One record per file, which other programs and hosts may share
    Files,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurabilityArg {
    /// The whole group old or new
    Group,
    /// Each record old or new, a group perhaps in part; for tables that other programs use too
    Record,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Self {
        match arg {
            DurabilityArg::Record => Self::Record,
            DurabilityArg::Group => Self::Group,
        }
    }
}

pub(crate) fn group(text: &str) -> Result<TargetGroup, String> {
    text.parse::<TargetGroup>().map_err(|error| error.to_string())
}

pub(crate) fn token(text: &str) -> Result<Token, String> {
    Token::new(text).map_err(|error| error.to_string())
}

pub(crate) fn owner(text: &str) -> Result<Owner, String> {
    Owner::new(text).map_err(|error| error.to_string())
}

pub(crate) fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration::parse(text)?).map_err(|error| error.to_string())
}

pub(crate) fn timestamp(text: &str) -> Result<Timestamp, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of Unix seconds".to_owned())?;
    Timestamp::from_seconds(seconds).map_err(|error| error.to_string())
}
