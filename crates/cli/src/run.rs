//! `ringfence run`: claim, heartbeats, command, release.
//!
//! R1. The command runs only while the lease is held: it is started after the claim is durable, and
//!     it is dead before the lease may be taken over.
//! R2. The lease is released only after the command was reaped.
//! R3. A signal that a process sent is passed on exactly once. What a terminal sends (`^C`) reaches
//!     the command by itself, because it shares our process group.
//! R4. Whenever this process wakes it looks at the lease before it does anything else.
//!
//! ```text
//! Waiting -[granted]-> Held -[started]-> Running -[child reaped]-> Released -> its exit code
//!    \ 75, 128+n         \ 125, 126, 127    \-[lost]-> Ending -[all dead]-> 79
//! ```
//!
//! One case cannot be told from another: `kill -INT -PGID` reaches the command by itself *and* comes
//! to us as a signal that a process sent, so the command gets it twice.

mod admit;
mod budget;
mod job;
mod settle;
mod voice;

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use ringfence::{Children, KeepAlive, KeepAliveOptions, Lease, Store, World};
use ringfence_env::child::{self, SignalQueue};

use crate::args::{HolderArgs, QuietArg, StoreArg, TargetsArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output, note};
use crate::{answer, duration, payload, store};
use budget::Budget;
use voice::Voice;

/// Flags of `run`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,

    #[command(flatten)]
    targets: TargetsArg,

    #[command(flatten)]
    holder: HolderArgs,

    /// The exit code when the group is held by somebody else, 0 to 255
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::BUSY.0)]
    conflict_exit_code: u8,

    /// How long the command has between TERM and KILL when the lease is lost; by default a sixth of
    /// the ttl, at most 5s
    #[arg(long, value_name = "DURATION", value_parser = duration::parse,
          allow_hyphen_values = true)]
    grace: Option<Duration>,

    /// Lets the command live on if this process is killed; the lease then runs out by itself
    #[arg(long)]
    no_die_with_parent: bool,

    #[command(flatten)]
    quiet: QuietArg,

    /// The command and its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Exit {
    Output::of(false).finish(wrap(args))
}

fn wrap(args: &Args) -> Result<Exit, Complaint> {
    // Before any thread exists: each inherits the mask, and none may swallow a signal.
    let signals = SignalQueue::block(&job::FORWARDED)
        .map_err(|error| own_failure("cannot queue signals", &error))?;
    let payload = payload::read(args.holder.payload.as_deref())?;
    let store = store::open_as(&args.store.store, args.holder.durability)?;
    // The command dies with this process, and the lease goes with the last of what it started.
    let store = if args.no_die_with_parent {
        store
    } else {
        store.tied(Children::Count).map_err(|error| store::not_read(&error))?
    };
    let table = store.targets();
    let ttl = args.holder.ttl.unwrap_or(table.info().default_ttl);
    let budget = Budget::new(ttl.duration(), args.grace).map_err(Complaint::usage)?;
    let lease = match admit::admit(args, &table, payload, &signals)? {
        admit::Admitted::Granted(lease) => lease,
        admit::Admitted::Held(complaint) => {
            note(&complaint.message);
            return Ok(Exit(args.conflict_exit_code));
        }
        admit::Admitted::Interrupted(number) => return Ok(Exit::signal(number)),
    };
    Ok(hold(args, &store, lease, budget, &signals))
}

/// From the grant on nothing returns before the lease was given back or was lost.
fn hold(args: &Args, store: &Store, lease: Lease, budget: Budget, signals: &SignalQueue) -> Exit {
    let table = lease.table().clone();
    let held = settle::Held { table, group: lease.group().clone(), token: lease.token().clone() };
    let mut command = command(args, store, &lease);
    let options = KeepAliveOptions { margin: Some(budget.margin()) };
    let keep = match KeepAlive::start(lease, options) {
        Ok(keep) => keep,
        Err(error) => {
            note(&format!("{error}: {}; the command was not started", error.source));
            held.give_back();
            return Exit::FAILED;
        }
    };
    // This process may have been stopped since the grant.
    if let Some(reason) = keep.status().lost {
        note(&format!("lease lost: {reason}; the command was not started"));
        drop(keep);
        held.give_back();
        return Exit::LOST;
    }
    if let Err(error) = child::adopt_orphans() {
        note(&format!("cannot adopt orphans: {error}; the command was not started"));
        drop(keep);
        held.give_back();
        return Exit::FAILED;
    }
    let child = match signals.spawn(&mut command, !args.no_die_with_parent) {
        Ok(child) => child,
        Err(error) => {
            drop(keep);
            let program = args.command.first().map(|program| program.to_string_lossy());
            note(&format!("cannot run {}: {error}", program.unwrap_or_default()));
            held.give_back();
            return settle::not_started(&error);
        }
    };
    let clock = World::system().clock;
    let job =
        job::Job { child, keep: &keep, signals, clock: &*clock, budget, voice: Voice::default() };
    let ended = job.supervise();
    drop(keep);
    settle::settle(&held, ended)
}

fn command(args: &Args, store: &Store, lease: &Lease) -> Command {
    let mut words = args.command.iter();
    let mut command = Command::new(words.next().map_or_else(OsString::new, Clone::clone));
    let numbers: Vec<String> =
        answer::numbers(lease.group()).iter().map(ToString::to_string).collect();
    let location = store.info().location;
    // Whatever this process inherited under these names, the command gets ours.
    command
        .args(words)
        .env("RINGFENCE_TOKEN", lease.token().as_str())
        .env("RINGFENCE_FENCE", lease.fence().to_string())
        .env("RINGFENCE_TARGETS", numbers.join(","))
        .env("RINGFENCE_EXPIRES_AT", lease.expires_at().seconds().to_string())
        .env("RINGFENCE_OWNER", args.holder.owner.as_str())
        .env(
            "RINGFENCE_STORE",
            // The command may run in another directory.
            std::path::absolute(&args.store.store).unwrap_or_else(|_| location.into()),
        );
    command
}

fn own_failure(what: &str, error: &std::io::Error) -> Complaint {
    Complaint::new(Exit::FAILED, "failed", format!("{what}: {error}"))
}
