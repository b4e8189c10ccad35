//! `ringfence bench`: what a claim and release of one group cost on this disk.
//!
//! Ways to do the same, interleaved in one run and alternating in order, after a warm-up: *scalar*
//! syncs the directory after each record and one file at a time, *batch* syncs each touched directory
//! once, *overlapped* also lets the file syncs of the group run side by side. These three are on one
//! table of durability `record`; *batch* and *overlapped* are done on a table of durability `group` as
//! well, which writes an intent first. All do the same validation, JSON, locks, renames and file syncs.
//! Beside them the raw floor of the disk: two 4 KiB writes, each made durable, into a file that was
//! written before.
//!
//! Calls are counted in a pass of their own, so that counting costs the times nothing.

mod count;
mod ext4;
mod floor;
mod idle;
mod measure;
mod report;
pub(crate) mod scratch;
pub(crate) mod stats;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::World;

use crate::duration;
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::signals::Interrupt;
use scratch::Scratch;

/// Flags of `bench`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Targets in the group, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=64))]
    targets: u64,

    /// Shards of the table, each number measured on its own
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 8],
          value_parser = clap::value_parser!(u16).range(1..=999))]
    shards: Vec<u16>,

    /// Timed claims and releases per way
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// How many file syncs are under way at once in the overlapped way, each measured on its own
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [16],
          value_parser = clap::value_parser!(u16).range(2..=64))]
    widths: Vec<u16>,

    /// How long each round waits for a machine that is 70 % idle; it is told how many found it so
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration::parse)]
    idle_wait: Duration,

    /// Where the table is made; by default in $TMPDIR, else in the current directory. It is removed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Measures on a journalled ext4 in an image that is made in DIR and removed; needs root
    #[arg(long)]
    ext4: bool,

    /// Says how to measure beside other stores: this program carries none of them
    #[arg(long)]
    peers: bool,

    /// Answers with one JSON object
    #[arg(long)]
    json: bool,

    /// The image to mount: for the process that --ext4 starts in a mount namespace of its own
    #[arg(long, hide = true, requires = "mount_point")]
    image: Option<PathBuf>,

    /// Where to mount it
    #[arg(long, hide = true)]
    mount_point: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Exit {
    let output = Output::of(args.json);
    let ended = match (&args.image, &args.mount_point) {
        _ if args.peers => Err(Complaint::usage(
            "to measure beside SQLite, LMDB, redb, PostgreSQL, Redis and etcd, call `cargo xtask \
             bench --peers` in a clone of the sources: this program depends on none of them",
        )),
        (Some(image), Some(point)) => ext4::inside(args, image, point),
        _ if args.ext4 => ext4::outside(args),
        _ => on_directory(args, args.dir.as_deref(), None),
    };
    output.finish(ended)
}

/// Measures on the file system of `parent`. `note` says what the caller knows about it.
fn on_directory(args: &Args, parent: Option<&Path>, note: Option<&str>) -> Result<Exit, Complaint> {
    let interrupt = Interrupt::watch().map_err(|error| failed("cannot watch signals", &error))?;
    let world = World::system();
    let scratch = Scratch::new(&world, parent, "bench")
        .map_err(|error| failed("cannot make a directory for the table", &error))?;
    let measured = measure::all(args, &world, scratch.path(), &interrupt)?;
    let Some(mut measured) = measured else {
        return Ok(Exit::signal(interrupt.received().unwrap_or_default()));
    };
    measured.note = note.map(str::to_owned);
    Ok(Output::of(args.json).answer(&measured, &report::text(&measured)))
}

fn failed(what: &str, error: &dyn std::error::Error) -> Complaint {
    Complaint::new(Exit::FAILED, "failed", format!("{what}: {}", crate::store::chain(error)))
}
