//! One process of a workload.

use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `work`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The table
    #[arg(long)]
    pub(crate) store: PathBuf,
}

/// Runs it.
pub(crate) fn run(_args: &Args) -> ExitCode {
    eprintln!("failed: this build has no workload");
    ExitCode::FAILURE
}
