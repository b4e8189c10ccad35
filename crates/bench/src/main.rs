//! `ringfence-bench`: the same cycle on Ringfence and on what a user would otherwise reach for.
//!
//! One cycle claims N targets all-or-nothing, each with owner, worker, token and payload (about 300
//! bytes a record), and releases them with every token checked; each call is durable when it returns.
//! Every contender does it in processes of its own. Blocks of all contenders follow each other in one
//! run, in an order that is drawn anew for each round from a fixed seed; a round begins on a quiet
//! machine if one is to be had, and the report says how many did. Read ratios, not milliseconds.
//!
//! Started by `cargo xtask bench --peers`; nothing of the product depends on this crate.

#![allow(
    clippy::disallowed_methods,
    reason = "the seam guards the product; this is a tool beside it that never runs a lease"
)]

mod args;
mod block;
mod contender;
mod ext4;
mod goals;
mod idle;
mod one_shot;
mod random;
mod report;
mod run;
mod shim;
mod stats;
mod wake;
mod work;
mod worker;

use std::process::ExitCode;

use clap::Parser as _;

/// What stops the tool: a sentence with its causes.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
/// As usual.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Puts what was being done in front of what went wrong.
pub(crate) fn during<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
    let what = what.to_owned();
    move |error| format!("{what}: {error}").into()
}

fn main() -> ExitCode {
    let args = args::Args::parse();
    let ended = match &args.worker {
        Some(order) => worker::main(order),
        None => run::main(&args),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("ringfence-bench: {error}");
        ExitCode::FAILURE
    })
}
