//! Crashes for real. A test tool: nothing that is shipped depends on it.
//!
//! | layer | what is real | what is tried |
//! |---|---|---|
//! | [`weak`] | the program, several processes | every disk that POSIX allows after a power cut; every kill |
//! | [`block`] | the program and the file system | every subset of every flush epoch of the device |
//! | [`mutants`] | the same | each sync of each verb left out: the layers above must notice |
//! | [`eio`] | the same | the device fails a write or a flush |
//! | [`resource`] | the program and the file system | full disks, quotas, limits, read-only mounts |
//! | [`sweep`] | the program | each system call of each verb killed, and failed |
//! | [`soak`] | the same | one table through hundreds of power cuts at random moments |
//! | [`two_hosts`] | the program and three kernels | two clients of one NFS export, power cuts of each |
//!
//! Every judgement is made by [`oracle`] from marks that were ordered exactly against the writes.
//! Everything that a run mounts or starts is in [`guard`], and is gone after it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test tool that works below the seam, and fails by panicking"
)]

mod block;
mod blockdev;
mod context;
mod eio;
mod guard;
mod image;
mod lie;
mod marks;
mod mutants;
mod opened;
mod oracle;
mod real;
mod report;
mod resource;
mod rng;
mod soak;
mod states;
mod sweep;
mod table;
mod two_hosts;
mod weak;
mod weakfs;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use crate::context::{Args, Context, Trouble};
use crate::report::Report;

/// Crash, failure and power-cut tests of Ringfence on real processes and real file systems
#[derive(Parser, Debug)]
#[command(name = "ringfence-crash", version)]
struct Cli {
    #[command(subcommand)]
    layer: Layer,
}

#[derive(clap::Subcommand, Debug)]
enum Layer {
    /// Every crash state of a file system that keeps only what POSIX says it must
    Weak(Args),
    /// Every subset of every flush epoch, under ext4, xfs and btrfs
    Block(Args),
    /// Each sync left out in turn: all must be noticed
    Mutants(Args),
    /// A device that fails a write-back or a flush, under ext4, xfs and btrfs
    Eio(Args),
    /// Each system call of each verb killed, and failed
    Sweep(Args),
    /// Full disks, quotas and limits, under ext4, xfs, btrfs and tmpfs
    Resource(Args),
    /// One table through hundreds of power cuts, under ext4 and xfs
    Soak(Args),
    /// Two clients of one NFS export (not part of all)
    TwoHosts(Args),
    /// All of them; with --ci a short fixed form
    All(Args),
    /// One process of a workload (started by the layers)
    #[command(hide = true)]
    Work(workload::Args),
    /// One call that the binary has no verb for (started by a layer)
    #[command(hide = true)]
    Call(sweep::call::Args),
    /// Changes words in shared memory (started by a layer)
    #[command(hide = true)]
    Words(resource::words::Args),
    /// Removes what an interrupted run held (started by itself)
    #[command(hide = true)]
    Clear(guard::ClearArgs),
    /// Removes what a killed run held (started by itself)
    #[command(hide = true)]
    Watch(guard::WatchArgs),
}

fn main() -> ExitCode {
    match Cli::parse().layer {
        Layer::Work(args) => workload::run(&args),
        Layer::Call(args) => sweep::call::run(&args),
        Layer::Words(args) => resource::words::change(&args),
        Layer::Clear(args) => guard::clear(&args),
        Layer::Watch(args) => guard::watch(&args),
        Layer::Weak(args) => run(&args, &["weak"]),
        Layer::Block(args) => run(&args, &["block"]),
        Layer::Mutants(args) => run(&args, &["mutants"]),
        Layer::Eio(args) => run(&args, &["eio"]),
        Layer::Sweep(args) => run(&args, &["sweep"]),
        Layer::Resource(args) => run(&args, &["resource"]),
        Layer::Soak(args) => run(&args, &["soak"]),
        Layer::TwoHosts(args) => run(&args, &["two-hosts"]),
        Layer::All(args) => {
            run(&args, &["weak", "block", "mutants", "eio", "sweep", "resource", "soak"])
        }
    }
}

fn run(args: &Args, layers: &[&str]) -> ExitCode {
    if let Err(trouble) = context::enter_private_mounts() {
        return context::unavailable(&trouble);
    }
    let guard = match guard::install() {
        Ok(guard) => guard,
        Err(trouble) => return context::unavailable(&trouble),
    };
    let mut report = Report::default();
    let done = layers_of(args, layers, &mut report);
    drop(guard);
    let leftovers = guard::leftovers();
    for left in &leftovers {
        eprintln!("left behind: {left}");
    }
    if !report.rows.is_empty() {
        report.print(args.json);
    }
    match done {
        Ok(()) if report.passed() && leftovers.is_empty() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        // What was tried before counts all the same.
        Err(_) if !report.rows.iter().all(report::Row::passed) => ExitCode::FAILURE,
        Err(trouble) => context::unavailable(&trouble),
    }
}

fn layers_of(args: &Args, layers: &[&str], report: &mut Report) -> Result<(), Trouble> {
    let context = Context::new(args)?;
    for layer in layers {
        let context = context.share(layer, layers.len());
        let rows = match *layer {
            "weak" => weak::run(&context)?,
            "block" => block::run(&context)?,
            "eio" => eio::run(&context)?,
            "soak" => soak::run(&context)?,
            "two-hosts" => two_hosts::run(&context)?,
            "resource" => resource::run(&context)?,
            "sweep" => sweep::run(&context)?,
            "mutants" => mutants::run(&context)?,
            other => return Err(Trouble::Missing(format!("the layer {other}"))),
        };
        for row in rows {
            eprintln!("{row}");
            report.rows.push(row);
        }
    }
    Ok(())
}
