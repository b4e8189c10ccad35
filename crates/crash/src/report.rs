//! What was explored and what came of it: for people and for tools.

use std::fmt;

use serde::Serialize;

/// One line of the table.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    /// `weak`, `block`, ..
    pub(crate) layer: &'static str,
    /// `weakfs`, `ext4`, ..
    pub(crate) fs: String,
    /// What was run.
    pub(crate) workload: String,
    /// States or runs that were judged.
    pub(crate) states: u64,
    /// Different ones among them.
    pub(crate) distinct: u64,
    /// Breaches of the oracle, in words; a layer keeps the first few of each kind.
    pub(crate) violations: Vec<String>,
    /// Planted bugs that were noticed.
    pub(crate) caught: u64,
    /// Planted bugs.
    pub(crate) planted: u64,
    /// What else a reader should know: samples instead of all, states that could not be mounted.
    pub(crate) notes: Vec<String>,
    /// Seconds it took.
    pub(crate) seconds: f64,
}

impl Row {
    /// Whether nothing is wrong and every planted bug was noticed.
    pub(crate) fn passed(&self) -> bool {
        self.violations.is_empty() && self.caught == self.planted
    }
}

/// The table.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// One per layer, file system and workload.
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Whether every row passed, and there is one.
    pub(crate) fn passed(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(Row::passed)
    }

    /// Prints it to standard output.
    pub(crate) fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).expect("a report is plain data"));
            return;
        }
        println!(
            "{:<9} {:<7} {:<26} {:>9} {:>9} {:>10} {:>9} {:>8}",
            "LAYER", "FS", "WORKLOAD", "STATES", "DISTINCT", "VIOLATIONS", "MUTANTS", "SECONDS"
        );
        for row in &self.rows {
            println!("{row}");
        }
        let sum = |of: fn(&Row) -> u64| self.rows.iter().map(of).sum::<u64>();
        println!(
            "{:<44} {:>9} {:>9} {:>10} {:>9} {:>8.1}",
            if self.passed() { "all passed" } else { "FAILED" },
            sum(|row| row.states),
            sum(|row| row.distinct),
            sum(|row| row.violations.len() as u64),
            format!("{}/{}", sum(|row| row.caught), sum(|row| row.planted)),
            self.rows.iter().map(|row| row.seconds).sum::<f64>(),
        );
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mutants = match self.planted {
            0 => "-".to_owned(),
            planted => format!("{}/{planted}", self.caught),
        };
        write!(
            f,
            "{:<9} {:<7} {:<26} {:>9} {:>9} {:>10} {:>9} {:>8.1}",
            self.layer,
            self.fs,
            self.workload,
            self.states,
            self.distinct,
            self.violations.len(),
            mutants,
            self.seconds
        )?;
        for violation in &self.violations {
            write!(f, "\n  ! {violation}")?;
        }
        for note in &self.notes {
            write!(f, "\n  - {note}")?;
        }
        Ok(())
    }
}
