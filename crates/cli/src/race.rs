//! `ringfence race`: two processes claim overlapping groups at the same moment, over and over.
//!
//! Side A claims targets 1 to 32, side B 17 to 48, on one table of 8 shards. Each side is a process
//! of its own that opens the table, says that it is ready, and is told one moment at which both
//! begin. In every round exactly one must win; then exactly its 32 records must be in the table;
//! after its release nothing may be left. The moment is shared, but who wins is up to the kernel:
//! the count per side says nothing about fairness.

mod round;
mod side;

use std::path::PathBuf;
use std::time::Duration;

use ringfence::{FilesOptions, InitOptions, Store, World};
use serde::Serialize;

use crate::args::EngineArg;
use crate::bench::scratch::Scratch;
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::signals::Interrupt;
use round::{Round, Verdict};
use side::Side;

/// Flags of `race`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// How many times they race
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// What keeps the table
    #[arg(long, value_enum, default_value_t = EngineArg::Journal)]
    engine: EngineArg,

    /// Where the table is made; by default in $TMPDIR, else in the current directory. It is removed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Answers with one JSON object
    #[arg(long)]
    json: bool,

    /// One side of a round: for the processes that the race starts
    #[arg(long, hide = true, requires = "store")]
    side: Option<Side>,

    /// The table of that side
    #[arg(long, hide = true, value_name = "STORE")]
    store: Option<PathBuf>,
}

/// The exit code when a round was not as it must be.
const NOT_SAFE: Exit = Exit(1);

/// What happened in all rounds.
#[derive(Debug, Default, Serialize)]
struct Report {
    outcome: &'static str,
    /// What tools read where the exit code is not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    engine: &'static str,
    rounds: u32,
    single_winner_rounds: u32,
    wins_a: u32,
    wins_b: u32,
    no_winner: u32,
    two_winners: u32,
    partial_publications: u32,
    leftover_records: u64,
    leftover_temporaries: u64,
    hangs: u32,
    failures: u32,
    median_start_skew_ms: f64,
    longest_round_ms: f64,
    total_ms: f64,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Exit {
    if let (Some(side), Some(store)) = (args.side, &args.store) {
        return side::run(side, store);
    }
    let output = Output::of(args.json);
    output.finish(race(args).map(|ended| match ended {
        Err(number) => Exit::signal(number),
        Ok(report) => {
            let exit = if report.error.is_none() { Exit::DONE } else { NOT_SAFE };
            match output.answer(&report, &text(&report)) {
                Exit::DONE => exit,
                unwritten => unwritten,
            }
        }
    }))
}

/// All rounds, or the signal that ended them.
fn race(args: &Args) -> Result<Result<Report, i32>, Complaint> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Complaint::new(Exit::FAILED, "failed", format!("{what}: {error}"))
    };
    let interrupt = Interrupt::watch().map_err(|error| failed("cannot watch signals", &error))?;
    let world = World::system();
    let scratch = Scratch::new(&world, args.dir.as_deref(), "race")
        .map_err(|error| failed("cannot make a directory for the table", &error))?;
    let root = scratch.path().join("store");
    let options = match args.engine {
        EngineArg::Journal => InitOptions::default(),
        EngineArg::Files => FilesOptions::default().into(),
    };
    let store =
        Store::init(&root, &options).map_err(|error| failed("cannot make the table", &error))?;
    let (engine, rounds) = (options.engine(), args.rounds);
    let mut report = Report { engine, rounds, ..Report::default() };
    let mut skews = Vec::new();
    let began = world.clock.monotonic();
    for _ in 0..args.rounds {
        let from = world.clock.monotonic();
        let round = Round { world: &world, store: &store, root: &root }.run();
        if let Some(number) = interrupt.received() {
            return Ok(Err(number));
        }
        let verdict = round.map_err(|error| failed("cannot run a round", &error))?;
        skews.extend(verdict.start_skew.map(millis));
        report.count(&verdict);
        let took = millis(world.clock.monotonic().saturating_sub(from));
        report.longest_round_ms = report.longest_round_ms.max(took);
    }
    report.total_ms = millis(world.clock.monotonic().saturating_sub(began));
    report.median_start_skew_ms = crate::bench::stats::Sample::of(skews).median;
    report.judge();
    Ok(Ok(report))
}

impl Report {
    fn count(&mut self, round: &Verdict) {
        match round.winners.as_slice() {
            [] => self.no_winner += 1,
            [Side::A] => self.wins_a += 1,
            [Side::B] => self.wins_b += 1,
            _ => self.two_winners += 1,
        }
        self.single_winner_rounds += u32::from(round.winners.len() == 1);
        self.partial_publications += u32::from(round.partial);
        self.leftover_records += round.leftover_records;
        self.leftover_temporaries += round.leftover_temporaries;
        self.hangs += u32::from(round.hung);
        self.failures += u32::from(round.failed);
    }

    fn judge(&mut self) {
        let safe = self.single_winner_rounds == self.rounds
            && self.partial_publications == 0
            && (self.leftover_records, self.leftover_temporaries) == (0, 0)
            && (self.hangs, self.failures) == (0, 0);
        (self.outcome, self.error) = if safe {
            ("safe", None)
        } else {
            ("unsafe", Some("not every round had exactly one winner and left nothing"))
        };
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn text(report: &Report) -> String {
    format!(
        "single-winner rounds           {} / {}  ({} by A = 1..32, {} by B = 17..48)\n\
         rounds without a winner        {}\n\
         rounds with two winners        {}\n\
         partial publications           {}\n\
         records left after release     {}\n\
         temporaries left               {}\n\
         hangs                          {}\n\
         failures                       {}\n\
         median skew of the two starts  {:.3} ms\n\
         longest round                  {:.1} ms\n\
         total                          {:.1} ms\n",
        report.single_winner_rounds,
        report.rounds,
        report.wins_a,
        report.wins_b,
        report.no_winner,
        report.two_winners,
        report.partial_publications,
        report.leftover_records,
        report.leftover_temporaries,
        report.hangs,
        report.failures,
        report.median_start_skew_ms,
        report.longest_round_ms,
        report.total_ms,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exactly_one_winner_in_every_round_and_nothing_left_is_safe() {
        let good = Verdict { winners: vec![Side::B], ..Verdict::default() };
        let judged = |rounds: &[Verdict]| {
            let mut report =
                Report { rounds: u32::try_from(rounds.len()).unwrap(), ..Report::default() };
            for round in rounds {
                report.count(round);
            }
            report.judge();
            report.error.is_none()
        };
        assert!(judged(std::slice::from_ref(&good)));
        for bad in [
            Verdict { winners: vec![], ..good.clone() },
            Verdict { winners: vec![Side::A, Side::B], ..good.clone() },
            Verdict { partial: true, ..good.clone() },
            Verdict { leftover_records: 1, ..good.clone() },
            Verdict { leftover_temporaries: 1, ..good.clone() },
            Verdict { hung: true, ..good.clone() },
            Verdict { failed: true, ..good.clone() },
        ] {
            assert!(!judged(&[good.clone(), bad.clone()]), "{bad:?}");
        }
    }
}
