//! `ringfence completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::exit::Exit;
use crate::output::Output;

/// Flags of `completions`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints a completion script.
pub(crate) fn run(args: &Args) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "ringfence", &mut script);
    Output::of(false).answer(&(), &String::from_utf8_lossy(&script))
}
