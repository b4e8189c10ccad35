//! The report for people.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use super::{Report, Spread};

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seeds = if self.live { "live fuzzer" } else { "frozen seeds" };
        writeln!(
            f,
            "{}: arm {}, engine {}, {} coordinators, {} s, {seeds}{}",
            self.name,
            self.arm,
            self.engine,
            self.coordinators,
            self.seconds,
            if self.interrupted.is_some() { ", interrupted" } else { "" }
        )?;
        let claims = &self.claims;
        let grants = if self.arm == "group" { "groups granted" } else { "jobs admitted" };
        row(f, grants, format!("{} ({} taken over)", claims.granted, claims.takeovers))?;
        let per = claims.refused_per_granted;
        row(f, "refused per granted", format!("{per:.2} ({})", words(&claims.refused)))?;
        row(f, "targets per group", sizes(&claims.targets))?;
        // What a directory is to `files`, a journal does not have.
        if self.engine == "files" {
            row(f, "shards per group", sizes(&claims.shards))?;
            row(f, "N/K", format!("{:.2}", claims.targets_per_shard))?;
        }
        row(f, "solves", words(&self.solves))?;
        if !self.samples.is_empty() {
            row(f, "samples", words(&self.samples))?;
        }
        if !self.dropped.is_empty() {
            row(f, "jobs dropped", words(&self.dropped))?;
        }
        self.write_results(f)?;
        self.write_costs(f)?;
        for trouble in &self.troubles {
            writeln!(f, "  trouble: {trouble}")?;
        }
        for fault in self.faults() {
            writeln!(f, "  FAULT: {fault}")?;
        }
        writeln!(f, "  run {} in {}", self.run, self.dir)
    }
}

impl Report {
    fn write_results(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let twice = &self.duplicates;
        row(
            f,
            "duplicate solves",
            format!(
                "by target {} ({:.0} %), by (target, seed) {} ({:.0} %)",
                twice.by_target,
                twice.by_target_share * 100.0,
                twice.by_target_and_seed,
                twice.by_target_and_seed_share * 100.0
            ),
        )?;
        let traces = format!("{} ({:.0} %)", twice.traces, twice.traces_share * 100.0);
        row(f, "duplicate traces", traces)?;
        let commits = &self.commits;
        row(
            f,
            "commits",
            format!(
                "{} ({} finished for others, {} twice)",
                commits.committed, commits.recovered, commits.twice
            ),
        )?;
        row(f, "refused by the fence", words(&commits.fence_refused))?;
        let sound = if self.published.sound { "ids dense" } else { "ids NOT dense" };
        row(f, "published", format!("{} files, {sound}", self.published.files))?;
        if let Some(imports) = self.imports {
            let text = format!(
                "cursor {} of {}, {} kept; its queue {}, its edges {}",
                imports.cursor, self.published.files, imports.kept, imports.queue, imports.edges
            );
            row(f, "fuzzer's imports", text)?;
        }
        let coverage = &self.coverage;
        row(
            f,
            "coverage",
            format!(
                "{} branch directions (seeds alone {}), {} targets solved",
                coverage.targets, coverage.seeds, coverage.solved
            ),
        )?;
        if let Some(edges) = coverage.edges {
            row(f, "edges of all objects", edges.to_string())?;
        }
        Ok(())
    }

    fn write_costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = &self.cpu;
        row(
            f,
            "CPU seconds",
            format!(
                "coordinators {:.1}, workers {:.1}, fuzzer {:.1}; slots idle {:.1} s",
                cpu.coordinators_s, cpu.workers_s, cpu.fuzzer_s, cpu.idle_s
            ),
        )?;
        let beats = &self.heartbeats;
        row(
            f,
            "heartbeats",
            format!(
                "{} batches, {} syncs, {} groups, {} items, {} lost, {} failed",
                beats.batches, beats.syncs, beats.groups, beats.items, beats.lost, beats.failed
            ),
        )?;
        writeln!(f, "  {:<22}{:>8} {:>10} {:>10} {:>10}", "ms", "count", "p50", "p99", "max")?;
        for (what, times) in &self.times {
            let Spread { count, p50, p99, max, .. } = times;
            writeln!(f, "    {what:<20}{count:>8} {p50:>10.2} {p99:>10.2} {max:>10.2}")?;
        }
        let failed: BTreeMap<&String, &u64> =
            self.workers.iter().filter(|(what, _)| *what != "started").collect();
        if !failed.is_empty() {
            row(f, "workers replaced", words(&failed))?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "  {name:<22}{value}")
}

fn sizes(spread: &Spread) -> String {
    format!("median {}, p90 {}, max {}", spread.p50, spread.p90, spread.max)
}

fn words<K: Display, V: Display>(counts: &BTreeMap<K, V>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let mut text = String::new();
    for (index, (word, count)) in counts.iter().enumerate() {
        let gap = if index > 0 { ", " } else { "" };
        let _ = write!(text, "{gap}{word} {count}");
    }
    text
}
