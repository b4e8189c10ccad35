//! What was measured: rows for each work, as JSON and as text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::Error;
use crate::block::Block;
use crate::contender::Contender;
use crate::goals::Goal;
use crate::run::Blocks;
use crate::stats::Spread;
use crate::work::Work;

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    /// `measured`, or `quick` for a smoke test whose figures mean nothing.
    pub(crate) outcome: &'static str,
    /// The type of the file system, by the mount table.
    pub(crate) file_system: String,
    /// What else is known about it.
    pub(crate) note: Option<String>,
    /// What each fsync and fdatasync took longer, in ms.
    pub(crate) slow_sync_ms: f64,
    pub(crate) processors: usize,
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    /// How long each block was.
    pub(crate) seconds: f64,
    /// Rounds of one work.
    pub(crate) begun: u32,
    /// How many of them began on a quiet machine.
    pub(crate) quiet: u32,
    /// Whether it stopped waiting for a quiet machine.
    pub(crate) gave_up_waiting: bool,
    pub(crate) took_seconds: f64,
    pub(crate) works: Vec<Table>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) troubles: Vec<Trouble>,
}

/// One work.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    work: Work,
    title: &'static str,
    rows: Vec<Row>,
}

/// One contender at one work.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    contender: Contender,
    rounds: usize,
    cycles: u64,
    /// Cycles per second of all processes.
    rate: Spread,
    p10_ms: Spread,
    p50_ms: Spread,
    p99_ms: Spread,
    worst_p99_ms: Spread,
    fairness: Spread,
    syncs_per_cycle: Option<Spread>,
    busy_per_cycle: f64,
    timeouts: u64,
    violations: u64,
    /// Of one process: its p50 over the floor's in the same round. Of several: its rate over the
    /// floor's.
    of_floor: Option<Spread>,
    /// The same of `journal` against this one.
    journal_against: Option<Spread>,
}

/// Something that did not go as asked.
#[derive(Debug, Serialize)]
pub(crate) struct Trouble {
    contender: Option<Contender>,
    work: Option<Work>,
    what: String,
    /// Whether a contender failed that was there.
    failed: bool,
}

impl Trouble {
    /// A contender that this machine does not have.
    pub(crate) fn absent(contender: Contender, why: &Error) -> Self {
        let failed = contender.is_embedded();
        Self { contender: Some(contender), work: None, what: why.to_string(), failed }
    }

    /// A block that failed.
    pub(crate) fn of(contender: Contender, work: Work, why: &Error) -> Self {
        let what = why.to_string();
        Self { contender: Some(contender), work: Some(work), what, failed: true }
    }

    /// Something that is not measured.
    pub(crate) fn unseen(what: String) -> Self {
        Self { contender: None, work: None, what, failed: false }
    }

    /// Whether it says that this contender failed at this work.
    pub(crate) fn is_of(&self, contender: Contender, work: Work) -> bool {
        self.contender == Some(contender) && self.work == Some(work)
    }
}

impl Measured {
    /// Whether nobody failed and no target ever had two holders.
    pub(crate) fn is_sound(&self) -> bool {
        let mut rows = self.works.iter().flat_map(|table| &table.rows);
        rows.all(|row| row.violations == 0) && !self.troubles.iter().any(|trouble| trouble.failed)
    }
}

/// One figure of a block.
pub(crate) type Figure = fn(&Block) -> f64;

/// What one contender's figure is over another's, round by round.
pub(crate) fn ratio(
    blocks: &Blocks,
    over: (Work, Contender),
    under: (Work, Contender),
    figures: (Figure, Figure),
) -> Option<Spread> {
    let (over, under) = (blocks.get(&over)?, blocks.get(&under)?);
    let both = over.iter().filter_map(|(round, block)| Some((block, under.get(round)?)));
    Spread::of(both.map(|(over, under)| figures.0(over) / figures.1(under)))
}

/// The figure that a work is judged by: the time of a cycle of one process, the rate of several.
fn figure(work: Work) -> Figure {
    if work.processes() == 1 { |block| block.p50 } else { |block| block.rate }
}

/// A table for each work that anybody did.
pub(crate) fn tables(blocks: &Blocks) -> Vec<Table> {
    let table = |work: Work| {
        let rows: Vec<Row> =
            Contender::ALL.into_iter().filter_map(|who| row(blocks, work, who)).collect();
        (!rows.is_empty()).then(|| Table { work, title: work.title(), rows })
    };
    Work::ALL.into_iter().filter_map(table).collect()
}

fn row(blocks: &Blocks, work: Work, contender: Contender) -> Option<Row> {
    let rounds = blocks.get(&(work, contender))?;
    let spread = |of: fn(&Block) -> f64| Spread::of(rounds.values().map(of));
    let sum = |of: fn(&Block) -> u64| rounds.values().map(of).sum::<u64>();
    let figures = (figure(work), figure(work));
    let mine = (work, contender);
    Some(Row {
        contender,
        rounds: rounds.len(),
        cycles: sum(|block| block.cycles),
        rate: spread(|block| block.rate)?,
        p10_ms: spread(|block| block.p10)?,
        p50_ms: spread(|block| block.p50)?,
        p99_ms: spread(|block| block.p99)?,
        worst_p99_ms: spread(|block| block.worst_p99)?,
        fairness: spread(|block| block.fairness)?,
        syncs_per_cycle: Spread::of(rounds.values().filter_map(|block| block.syncs)),
        busy_per_cycle: spread(|block| block.busy)?.median,
        timeouts: sum(|block| block.timeouts),
        violations: sum(|block| block.violations),
        of_floor: ratio(blocks, mine, (work, Contender::Floor), figures),
        journal_against: ratio(blocks, (work, Contender::Journal), mine, figures),
    })
}

/// Everything, in text.
pub(crate) fn text(measured: &Measured) -> String {
    let mut text = String::new();
    let note = measured.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    let slow = if measured.slow_sync_ms > 0.0 {
        format!(", {} ms added to every sync", measured.slow_sync_ms)
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "claim + release on {}{note}{slow}; {} processors, {} rounds of {} s, seed {}; {:.0} s in all",
        measured.file_system,
        measured.processors,
        measured.rounds,
        measured.seconds,
        measured.seed,
        measured.took_seconds
    );
    let _ = writeln!(
        text,
        "{} of {} rounds began on a quiet machine{}",
        measured.quiet,
        measured.begun,
        if measured.gave_up_waiting { "; it gave up waiting for one" } else { "" }
    );
    if measured.outcome == "quick" {
        let _ = writeln!(text, "a smoke test: these figures mean nothing");
    }
    for table in &measured.works {
        write_table(&mut text, table);
    }
    if !measured.goals.is_empty() {
        let _ = writeln!(text, "\ngoals (median of the rounds' ratios, smallest to largest)");
    }
    for goal in &measured.goals {
        let _ = writeln!(text, "  {goal}");
    }
    for trouble in &measured.troubles {
        let who = trouble.contender.map_or("", Contender::name);
        let work = trouble.work.map(|work| format!(", {}", work.title())).unwrap_or_default();
        let _ = writeln!(text, "  ! {who}{work}: {}", trouble.what);
    }
    text
}

fn write_table(text: &mut String, table: &Table) {
    let _ =
        writeln!(text, "\n{} (medians of rounds, in brackets smallest to largest)", table.title);
    let _ = writeln!(
        text,
        "  {:<13} {:>8} {:>22} {:>24} {:>9} {:>9} {:>6} {:>7} {:>6} {:>17} {:>17}",
        "",
        "p10",
        "p50 ms",
        "cycles/s",
        "p99",
        "worst p99",
        "fair",
        "syncs",
        "busy",
        if table.work.processes() == 1 { "time of floor" } else { "rate of floor" },
        "journal against"
    );
    for row in &table.rows {
        let _ = writeln!(
            text,
            "  {:<13} {:>8.3} {:>22} {:>24} {:>9.3} {:>9.3} {:>6.2} {:>7} {:>6.2} {:>17} {:>17}{}",
            row.contender.name(),
            row.p10_ms.median,
            spread(row.p50_ms, 3),
            spread(row.rate, 0),
            row.p99_ms.median,
            row.worst_p99_ms.median,
            row.fairness.median,
            row.syncs_per_cycle.map_or("-".to_owned(), |syncs| format!("{:.2}", syncs.median)),
            row.busy_per_cycle,
            row.of_floor.map_or("-".to_owned(), |ratio| spread(ratio, 2)),
            row.journal_against.map_or("-".to_owned(), |ratio| spread(ratio, 2)),
            remarks(row)
        );
    }
}

fn remarks(row: &Row) -> String {
    let mut remarks = String::new();
    if row.timeouts > 0 {
        let _ = write!(remarks, "  {} timeouts", row.timeouts);
    }
    if row.violations > 0 {
        let _ = write!(remarks, "  {} TARGETS WITH TWO HOLDERS", row.violations);
    }
    remarks
}

fn spread(spread: Spread, digits: usize) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.digits$} [{min:.digits$} {max:.digits$}]")
}
