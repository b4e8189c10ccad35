//! The command `ringfence`: leases on groups of targets, for the shell.
//!
//! One module per verb. Answers and exit codes are specified in `docs/cli.md` and tested against it.
//!
//! | module | holds |
//! |---|---|
//! | `args`, `duration`, `payload` | what a command line says |
//! | `store` | opening a table, and what is said when that fails |
//! | `answer`, `refusal` | the JSON of leases, holders and failures, and the words for people |
//! | `output`, `exit` | how an answer leaves the process |
//! | `campaign` | the processes of a campaign: this program under three names |
//! | `signals` | INT, TERM and HUP as a flag |

mod answer;
mod args;
mod bench;
mod campaign;
mod check;
mod claim;
mod completions;
mod dump;
mod duration;
mod exit;
mod force_release;
mod heartbeat;
mod help;
mod init;
mod list;
mod migrate;
mod output;
mod payload;
mod probe;
mod race;
mod refusal;
mod release;
mod run;
mod show;
mod signals;
mod status;
mod store;
mod table;
mod waiting;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::exit::Exit;
use crate::output::{Complaint, Output};

/// Durable, fenced, all-or-nothing leases on groups of targets
#[derive(clap::Parser, Debug)]
#[command(name = "ringfence", version, max_term_width = 100, after_help = help::TOP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Makes a table in a directory
    #[command(after_help = help::INIT)]
    Init(init::Args),
    /// Leases a whole group of targets, or nothing
    #[command(after_help = help::CLAIM)]
    Claim(claim::Args),
    /// Renews a lease
    #[command(after_help = help::HEARTBEAT)]
    Heartbeat(heartbeat::Args),
    /// Gives a lease back
    #[command(after_help = help::RELEASE)]
    Release(release::Args),
    /// Claims, runs a command while keeping the lease, releases
    #[command(after_help = help::RUN)]
    Run(run::Args),
    /// Lists what is held; writes nothing
    #[command(after_help = help::LIST)]
    List(list::Args),
    /// Shows one target; writes nothing
    #[command(after_help = help::SHOW)]
    Show(show::Args),
    /// Sums a table up; writes nothing
    #[command(after_help = help::STATUS)]
    Status(status::Args),
    /// Looks a whole table over; clears leftovers away only if asked to
    #[command(after_help = help::CHECK)]
    Check(check::Args),
    /// Shows what a journal's files hold, frame by frame; writes nothing
    #[command(after_help = help::DUMP)]
    Dump(dump::Args),
    /// Moves a quiet table to another place and engine, fences and all
    #[command(after_help = help::MIGRATE)]
    Migrate(migrate::Args),
    /// Tries whether a directory can carry a table
    #[command(after_help = help::PROBE)]
    Probe(probe::Args),
    /// Removes a lease that is not yours, on the record
    #[command(after_help = help::FORCE_RELEASE)]
    ForceRelease(force_release::Args),
    /// Lets two processes fight over overlapping groups and counts the winners
    #[command(after_help = help::RACE)]
    Race(race::Args),
    /// Measures claim and release on this disk
    #[command(after_help = help::BENCH)]
    Bench(bench::Args),
    /// Runs a hybrid campaign: coordinators on one store, workers, and a fuzzer
    #[command(after_help = help::CAMPAIGN)]
    Campaign(campaign::Args),
    /// One coordinator of a campaign
    #[command(hide = true, after_help = help::CAMPAIGN_PARTS)]
    CampaignCoordinator(campaign::CoordinatorArgs),
    /// A program that ends with its campaign
    #[command(hide = true, after_help = help::CAMPAIGN_PARTS)]
    CampaignExec(campaign::ExecArgs),
    /// Prints a completion script for a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let exit = match Cli::try_parse() {
        Ok(cli) => dispatch(&cli.command),
        Err(error) => explain(&error),
    };
    exit.into()
}

fn dispatch(command: &Command) -> Exit {
    match command {
        Command::Init(args) => init::run(args),
        Command::Claim(args) => claim::run(args),
        Command::Heartbeat(args) => heartbeat::run(args),
        Command::Release(args) => release::run(args),
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Status(args) => status::run(args),
        Command::Check(args) => check::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Migrate(args) => migrate::run(args),
        Command::Probe(args) => probe::run(args),
        Command::ForceRelease(args) => force_release::run(args),
        Command::Race(args) => race::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Campaign(args) => campaign::run(args),
        Command::CampaignCoordinator(args) => campaign::run_coordinator(args),
        Command::CampaignExec(args) => campaign::run_exec(args),
        Command::Completions(args) => completions::run(args),
    }
}

/// Answers a command line that is no command: help, the version, or what is wrong with it.
fn explain(error: &clap::Error) -> Exit {
    let wanted = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let text = error.render();
    if wanted {
        let styled = io::stdout().is_terminal();
        let text = if styled { text.ansi().to_string() } else { text.to_string() };
        return Output::of(false).answer(&(), &text);
    }
    let styled = io::stderr().is_terminal();
    let shown = if styled { text.ansi().to_string() } else { text.to_string() };
    let _ = io::stderr().write_all(shown.as_bytes());
    if asks_for_json(std::env::args_os()) {
        let plain = text.to_string();
        let said = plain.split("\n\nUsage:").next().unwrap_or(&plain);
        let said = said.split("\n\nFor more information").next().unwrap_or(said);
        let said = said.trim_start_matches("error: ").trim_end();
        return Output::of(true).complain_silently(Complaint::usage(said));
    }
    Exit::USAGE
}

/// Whether `--json` stands among our own arguments, not among those of a command to run.
fn asks_for_json(args: impl Iterator<Item = OsString>) -> bool {
    args.take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed_and_every_verb_shows_examples() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        for verb in command.get_subcommands_mut() {
            let help = verb.render_long_help().to_string();
            assert!(help.contains("\nExamples:\n"), "{}: {help}", verb.get_name());
            assert!(help.contains("Exit codes:"), "{}: {help}", verb.get_name());
        }
    }

    #[test]
    fn json_after_the_double_dash_is_the_commands_own() {
        let asks = |args: &[&str]| asks_for_json(args.iter().map(OsString::from));
        assert!(asks(&["ringfence", "list", "--json"]));
        assert!(!asks(&["ringfence", "run", "--", "tool", "--json"]));
    }
}
