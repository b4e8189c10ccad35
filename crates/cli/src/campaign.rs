//! `ringfence campaign`: several coordinators on one store, each with warm workers.
//!
//! This process is the supervisor. It starts itself again as each coordinator, and under a name that
//! becomes another program for everything else, so that the kernel ends those with their parent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_coordinator::{
    Arm, Error, Hold, HoldAt, Options, Reexec, StoreEngine, coordinate, exec_under, supervise,
};

use crate::args::EngineArg;
use crate::duration;
use crate::exit::Exit;
use crate::output::{Complaint, Output};

/// Flags of `campaign`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The campaign directory: leases, results, event logs; made if missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// What the report calls the program
    #[arg(long, value_name = "NAME", default_value = "campaign")]
    name: String,

    /// The directory of first seeds
    #[arg(long, value_name = "DIR")]
    seeds: PathBuf,

    /// The program that AFL++ fuzzes, built with its compiler
    #[arg(long, value_name = "FILE", required_unless_present = "frozen")]
    program: Option<PathBuf>,

    /// The freestanding image that the solver replays
    #[arg(long, value_name = "FILE", required_unless_present = "worker", requires = "solver")]
    image: Option<PathBuf>,

    /// The solver: a Python program that speaks the worker protocol
    #[arg(long, value_name = "FILE", requires = "image")]
    solver: Option<PathBuf>,

    /// The Python to run it with
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,

    /// No fuzzer: the seeds are those given and what the coordinators publish
    #[arg(long)]
    frozen: bool,

    /// How long jobs are begun, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,

    /// How many coordinator processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    coordinators: u32,

    /// How many workers each of them has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,

    /// How coordinators keep out of each other's way
    #[arg(long, value_enum, default_value_t = ArmName::Group)]
    arm: ArmName,

    /// What keeps the leases: a journal, where they end with their coordinator, or one record per file
    #[arg(long, value_enum, default_value_t = EngineArg::Journal)]
    engine: EngineArg,

    /// How long a lease lasts without a heartbeat
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "10s")]
    ttl: Duration,

    /// The most targets of a group: 1 to 64
    #[arg(long, value_name = "N", default_value_t = 8)]
    group_cap: usize,

    /// How often a target is tried, over all seeds
    #[arg(long, value_name = "N", default_value_t = 8)]
    attempts: u32,

    /// The solver's time per target
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "2s")]
    limit: Duration,

    /// The most inputs of one `sample`
    #[arg(long, value_name = "N", default_value_t = 4)]
    models: u32,

    /// How long jobs under way may take to finish at the end
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    drain: Duration,

    /// How long a worker may be silent; by default four times what it announces
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    silence: Option<Duration>,

    /// Shards of a new store
    #[arg(long, value_name = "N", default_value_t = 8)]
    shards: u16,

    /// Writes the report as one JSON object to a file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Says nothing while it runs
    #[arg(long, short)]
    quiet: bool,

    /// For tests: N:decide:DURATION or N:publish:DURATION, so long coordinator N waits there once
    #[arg(long, hide = true, value_name = "N:STEP:DURATION", value_parser = hold)]
    hold: Option<Hold>,

    /// A worker of any kind: a command that speaks the worker protocol
    #[arg(last = true, value_name = "WORKER", conflicts_with_all = ["image", "solver"])]
    worker: Vec<String>,
}

/// The arms by name.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum ArmName {
    /// Each remembers what it did itself
    None,
    /// Results are shared, nothing is leased
    Ledger,
    /// Results are shared, groups are leased
    Group,
}

/// One coordinator: for the processes that a campaign starts.
#[derive(clap::Args, Debug)]
pub(crate) struct CoordinatorArgs {
    config: PathBuf,
    index: u32,
    parent: u32,
}

/// A program that ends with its parent: for the processes that a campaign starts.
#[derive(clap::Args, Debug)]
pub(crate) struct ExecArgs {
    parent: u32,
    signal: i32,
    #[arg(last = true, required = true)]
    argv: Vec<OsString>,
}

/// The exit code when something about the run was not as it must be.
const FAULTY: Exit = Exit(1);

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Exit {
    let output = Output::of(false);
    output.finish(campaign(args))
}

fn campaign(args: &Args) -> Result<Exit, Complaint> {
    let reexec = reexec()?;
    let options = options(args);
    let report = supervise(&options, &reexec).map_err(|error| complaint(&error))?;
    if let Some(path) = &args.json {
        write_json(path, &report.to_json())?;
    }
    let told = Output::of(false).answer(&(), &report.to_string());
    if told != Exit::DONE {
        return Ok(told);
    }
    Ok(match report.interrupted {
        Some(signal) => Exit::signal(signal),
        None if report.faults().is_empty() => Exit::DONE,
        None => FAULTY,
    })
}

/// Runs one coordinator.
pub(crate) fn run_coordinator(args: &CoordinatorArgs) -> Exit {
    let done = reexec().and_then(|reexec| {
        coordinate(&args.config, args.index, args.parent, &reexec)
            .map_err(|error| complaint(&error))
    });
    Output::of(false).finish(done.map(|()| Exit::DONE))
}

/// Becomes another program.
pub(crate) fn run_exec(args: &ExecArgs) -> Exit {
    let error = exec_under(args.parent, args.signal, &args.argv);
    let program = args.argv.first().map(|program| program.to_string_lossy().into_owned());
    eprintln!("ringfence: cannot start {}: {error}", program.unwrap_or_default());
    Exit(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

fn options(args: &Args) -> Options {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let worker = match (&args.solver, &args.image) {
        (Some(solver), Some(image)) => vec![text(&args.python), text(solver), text(image)],
        _ => args.worker.clone(),
    };
    Options {
        name: args.name.clone(),
        dir: args.dir.clone(),
        worker,
        program: args.program.clone(),
        seeds: args.seeds.clone(),
        live: !args.frozen,
        time: Duration::from_secs(u64::from(args.seconds)),
        coordinators: args.coordinators,
        workers: args.workers,
        arm: match args.arm {
            ArmName::None => Arm::None,
            ArmName::Ledger => Arm::Ledger,
            ArmName::Group => Arm::Group,
        },
        engine: match args.engine {
            EngineArg::Journal => StoreEngine::Journal,
            EngineArg::Files => StoreEngine::Files,
        },
        ttl: args.ttl,
        group_cap: args.group_cap,
        attempts_cap: args.attempts,
        limit: args.limit,
        max_models: args.models,
        silence: args.silence,
        drain: args.drain,
        shards: args.shards,
        hold: args.hold,
        progress: !args.quiet,
    }
}

fn reexec() -> Result<Reexec, Complaint> {
    let program = std::env::current_exe().map_err(|error| {
        Complaint::new(Exit::FAILED, "failed", format!("cannot find this program: {error}"))
    })?;
    Ok(Reexec { program, exec: "campaign-exec", coordinator: "campaign-coordinator" })
}

fn complaint(error: &Error) -> Complaint {
    let (exit, kind) = match error {
        Error::Usage(_) => (Exit::USAGE, "usage"),
        Error::Bound { .. } => (Exit::NO_TABLE, "bound"),
        _ => (Exit::FAILED, "failed"),
    };
    Complaint::new(exit, kind, error.to_string())
}

fn write_json(path: &Path, text: &str) -> Result<(), Complaint> {
    let world = ringfence::World::system();
    let failed = |error: std::io::Error| {
        let text = format!("cannot write {}: {error}", path.display());
        Complaint::new(Exit::FAILED, "failed", text)
    };
    let path = std::path::absolute(path).map_err(failed)?;
    let name = world.unique().map_err(failed)?;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let temp = path.with_file_name(format!(".{file}.{name}.tmp"));
    ringfence_env::steps::durable_replace(&*world.fs, &temp, &path, text.as_bytes(), 0o644)
        .map_err(failed)
}

fn hold(text: &str) -> Result<Hold, String> {
    let mut parts = text.splitn(3, ':');
    let (Some(number), Some(step), Some(time)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("write N:STEP:DURATION".to_owned());
    };
    let at = match step {
        "decide" => HoldAt::Decide,
        "publish" => HoldAt::Publish,
        _ => return Err("the step is decide or publish".to_owned()),
    };
    let coordinator = number.parse().map_err(|_| "not a number")?;
    let ms = u64::try_from(duration::parse(time)?.as_millis()).unwrap_or(u64::MAX);
    Ok(Hold { coordinator, at, ms })
}
