//! Calls of the library that the binary has no verb for, one process for each, answered like its own.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ringfence::{
    AbandonError, BeginCommitError, CompleteError, Failure, Owner, Renewal, TargetGroup,
    TargetTable, Token, WorkClaimError, WorkHeartbeatError, World,
};
use ringfence_files::open::Tuning;
use ringfence_model::RecordId;
use serde_json::{Value, json};

use crate::opened::Opened;
use crate::table;

/// Flags of `call`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The table
    store: PathBuf,
    /// What to do
    #[arg(long)]
    verb: Verb,
    /// Which work item
    #[arg(long, default_value = "1")]
    item: u64,
    /// Who claims it
    #[arg(long, default_value = "op-1")]
    owner: String,
    /// The token that it is held under
    #[arg(long)]
    token: Option<String>,
    /// Groups to renew: targets, an equals sign, the token
    #[arg(long = "lease")]
    leases: Vec<String>,
}

/// A verb of the library.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Verb {
    Claim,
    Heartbeat,
    BeginCommit,
    Complete,
    Abandon,
    RenewMany,
}

/// Makes the call; the exit codes are those of the binary.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (code, answer) = match call(args) {
        Ok(answer) => (0, answer),
        Err(Wrong::Refused(error)) => (79, json!({ "outcome": "lost", "error": error })),
        Err(Wrong::Failed(error, restored)) => {
            (125, json!({ "outcome": "failed", "error": error, "restored": restored }))
        }
    };
    // An answer that cannot be written is a failure, and no panic.
    let said = std::io::stdout().write_all(format!("{answer}\n").as_bytes());
    ExitCode::from(if said.is_ok() { code } else { 125 })
}

enum Wrong {
    Refused(String),
    Failed(String, bool),
}

impl Wrong {
    fn of(failure: &Failure) -> Self {
        Self::Failed(table::chain_of(failure), failure.restored())
    }

    fn plain(error: impl std::error::Error) -> Self {
        Self::Failed(table::chain(error), true)
    }
}

/// One error type of the library to what is answered.
macro_rules! answered {
    ($error:ident, $call:expr) => {
        $call.map_err(|error| match &error {
            $error::Failed(failure) => Wrong::of(failure),
            refused => Wrong::Refused(table::chain_of(refused)),
        })
    };
}

fn call(args: &Args) -> Result<Value, Wrong> {
    let world = World::system();
    let opened = Opened::open(&world, &args.store, Tuning::default())
        .map_err(|error| Wrong::Failed(error, true))?;
    let work = opened.work();
    let payload = table::work_item(args.item);
    let id = RecordId::of_work(payload.as_str());
    let token = || {
        let token = args.token.as_deref().unwrap_or_default();
        Token::new(token).map_err(Wrong::plain)
    };
    match args.verb {
        Verb::Claim => {
            let owner = Owner::new(&args.owner).map_err(Wrong::plain)?;
            let lease = answered!(WorkClaimError, work.claim(&payload, &owner, 0, None, None))?;
            return Ok(json!({ "outcome": "granted", "token": lease.token.as_str() }));
        }
        Verb::Heartbeat => {
            answered!(WorkHeartbeatError, work.heartbeat(id, &token()?, None))?;
        }
        Verb::BeginCommit => {
            let manifest = table::work_item(args.item + 1);
            answered!(BeginCommitError, work.begin_commit(id, &token()?, &manifest, None))?;
        }
        Verb::Complete => {
            answered!(CompleteError, work.complete_once(id, &token()?, None))?;
        }
        Verb::Abandon => answered!(AbandonError, work.abandon(id, &token()?, None))?,
        Verb::RenewMany => renew_many(&opened.targets(), &args.leases)?,
    }
    Ok(json!({ "outcome": "done" }))
}

/// Renews several groups in one call; it has succeeded if all were renewed.
fn renew_many(table: &TargetTable, leases: &[String]) -> Result<(), Wrong> {
    let mut held = Vec::new();
    for lease in leases {
        let (targets, token) = lease.split_once('=').unwrap_or((lease, ""));
        let numbers = targets.split(',').filter_map(|number| number.parse().ok());
        let group = TargetGroup::from_numbers(numbers).map_err(Wrong::plain)?;
        held.push((group, Token::new(token).map_err(Wrong::plain)?));
    }
    let held: Vec<_> = held.iter().map(|(group, token)| (group, token)).collect();
    let mut wrong = Ok(());
    for renewal in table.heartbeat_many(&held, None).renewals {
        let this = match renewal {
            Renewal::Renewed(_) => continue,
            Renewal::Lost(lost) => Wrong::Refused(table::chain(lost)),
            Renewal::Failed(failure) => Wrong::of(&failure),
            Renewal::NotBegun => Wrong::Failed("not begun".to_owned(), true),
        };
        // Some groups may have been renewed: the call as a whole is not as if it had not been made.
        if wrong.is_ok() {
            wrong = Err(match this {
                Wrong::Refused(why) => Wrong::Refused(why),
                Wrong::Failed(why, _) => Wrong::Failed(why, false),
            });
        }
    }
    wrong
}
