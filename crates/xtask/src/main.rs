//! `cargo xtask`: the one door to the project for people and for CI.
//!
//! It is the first thing a fresh clone builds, so it depends on next to nothing. It says what it
//! will do before it does it, installs what is missing by package name, and leaves no process
//! behind: whatever it starts is its descendant until it has ended.

#![allow(
    clippy::disallowed_methods,
    reason = "the seam guards the product; this is a tool beside it that never runs a lease"
)]

mod args;
mod bench;
mod campaign;
mod crash;
mod fuzz;
mod packages;
mod process;
mod programs;
mod suite;
mod suites;
mod tally;
mod targets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::Task;

fn main() -> ExitCode {
    let task = match args::parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("xtask: {error}\n\n{}", args::USAGE);
            return ExitCode::from(args::EXIT_USAGE);
        }
    };
    if let Err(error) = process::guard_descendants() {
        eprintln!("xtask: cannot watch over child processes: {error}");
        return ExitCode::FAILURE;
    }
    let repo = repository_root();
    match task {
        Task::Help => {
            println!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        Task::ListSuites => {
            suite::list(suites::ALL);
            ExitCode::SUCCESS
        }
        Task::Test { only } => suite::test(&repo, suites::ALL, only.as_deref()),
        Task::Campaign(options) => campaign::campaign(&repo, &options),
        Task::Sim(arguments) => crash::sim(&repo, &arguments),
        Task::Crash(arguments) => crash::crash(&repo, &arguments),
        Task::Fuzz(options) => fuzz::fuzz(&repo, &options),
        Task::Bench { peers, arguments } => bench::bench(&repo, peers, &arguments),
    }
}

/// The root of the clone that `cargo xtask` was called in.
///
/// Cargo names the package's folder when it runs the binary; the path known at build time serves
/// when the binary is started by hand.
fn repository_root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.ancestors().nth(2).map_or_else(|| package.clone(), Path::to_path_buf)
}

/// Where cargo builds to: `CARGO_TARGET_DIR`, or `target` in the clone.
fn target_dir(repo: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo.join("target"), |dir| repo.join(dir))
}
