//! What came of the calls of one row.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::report::Row;
use crate::sweep::kind_of;

/// Figures of a row.
#[derive(Debug, Default)]
pub(super) struct Tally {
    runs: u64,
    endings: BTreeMap<String, BTreeMap<String, u64>>,
    violations: Vec<String>,
    /// How often each kind of violation was found.
    kinds: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts one call.
    pub(super) fn count(&mut self, what: &str, ending: &str, wrong: Vec<String>) {
        self.runs += 1;
        let endings = self.endings.entry(what.to_owned()).or_default();
        *endings.entry(ending.to_owned()).or_default() += 1;
        for wrong in wrong {
            self.add(format!("{what}: {wrong}"));
        }
    }

    /// Adds a violation, each kind of them once.
    pub(super) fn add(&mut self, wrong: String) {
        let count = self.kinds.entry(kind_of(&wrong)).or_default();
        *count += 1;
        if *count == 1 {
            self.violations.push(wrong);
        }
    }

    pub(super) fn row(self, fs: &str, workload: &str, began: Instant) -> Row {
        let kinds = self.endings.values().map(|endings| endings.len() as u64).sum();
        let mut row = Row {
            layer: "resource",
            fs: fs.to_owned(),
            workload: workload.to_owned(),
            states: self.runs,
            distinct: kinds,
            seconds: began.elapsed().as_secs_f64(),
            ..Row::default()
        };
        row.violations = self.violations;
        for (kind, count) in self.kinds.iter().filter(|(_, count)| **count > 1) {
            row.notes.push(format!("{count} times: {kind}"));
        }
        let mut failed = 0;
        for (what, endings) in &self.endings {
            failed +=
                endings.iter().filter(|(ending, _)| *ending != "done").map(|(_, n)| n).sum::<u64>();
            let endings: Vec<String> =
                endings.iter().map(|(ending, count)| format!("{count} {ending}")).collect();
            row.notes.push(format!("{what}: {}", endings.join(", ")));
        }
        if failed == 0 {
            row.violations.push("nothing ever ran out".to_owned());
        }
        row
    }
}
