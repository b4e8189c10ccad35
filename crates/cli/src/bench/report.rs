//! The report for people: the ratios first.

use std::fmt::Write as _;

use super::measure::{Arm, Measured, Table};
use super::stats::Sample;

/// Everything, in text.
pub(super) fn text(measured: &Measured) -> String {
    let mut text = String::new();
    for table in &measured.tables {
        let ratios: Vec<String> = table
            .arms
            .iter()
            .skip(1)
            .map(|arm| format!("{} {:.3}", arm.name, arm.of_scalar))
            .collect();
        let _ = writeln!(text, "of scalar, {} shards: {}", table.shards, ratios.join("  "));
        let intents: Vec<String> = table
            .arms
            .iter()
            .filter_map(|arm| arm.of_record.map(|ratio| format!("{} {ratio:.3}", arm.name)))
            .collect();
        let _ = writeln!(
            text,
            "durability group of record, {} shards: {}",
            table.shards,
            intents.join("  ")
        );
    }
    let note = measured.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    let _ = writeln!(
        text,
        "\nclaim + release of {} targets on {}{note}; {} rounds; ms",
        measured.targets, measured.file_system, measured.rounds
    );
    for table in &measured.tables {
        one(&mut text, table);
    }
    text
}

fn one(text: &mut String, table: &Table) {
    let Table { shards, touched, quiet_rounds, floor_ms, arms } = table;
    let _ = writeln!(
        text,
        "\n{shards} shards, {touched} touched; {quiet_rounds} rounds began on a quiet machine"
    );
    let _ = writeln!(
        text,
        "  {:<23} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>10} {:>10} {:>7}",
        "",
        "median",
        "p95",
        "min",
        "max",
        "claim",
        "release",
        "x floor",
        "dir syncs",
        "file syncs",
        "calls"
    );
    let row = |name: &str, sample: &Sample| {
        format!(
            "  {name:<23} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
            sample.median, sample.p95, sample.min, sample.max
        )
    };
    let _ = writeln!(text, "{} {:>9} {:>8} {:>9.1}", row("floor", floor_ms), "", "", 1.0);
    for arm in arms {
        let Arm { name, counts, .. } = arm;
        let _ = writeln!(
            text,
            "{} {:>9.3} {:>8.3} {:>9.1} {:>10} {:>10} {:>7}",
            row(name, &arm.cycle_ms),
            arm.claim_ms.median,
            arm.release_ms.median,
            arm.times_floor,
            counts.directory_syncs,
            counts.file_syncs,
            counts.total,
        );
        if counts.directory_syncs != arm.directory_syncs_promised {
            let _ = writeln!(
                text,
                "  ! {name}: {} directory syncs were promised",
                arm.directory_syncs_promised
            );
        }
        if counts.file_syncs != arm.file_syncs_promised {
            let _ =
                writeln!(text, "  ! {name}: {} file syncs were promised", arm.file_syncs_promised);
        }
    }
    for Arm { name, claim_syncs, release_syncs, .. } in arms {
        let _ = writeln!(
            text,
            "  syncs of {name}: claim {} directories, {} files; release {} directories, {} files",
            claim_syncs.directories,
            claim_syncs.files,
            release_syncs.directories,
            release_syncs.files
        );
    }
    for arm in arms {
        let kinds: Vec<String> =
            arm.counts.by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let _ = writeln!(text, "  calls of {}: {}", arm.name, kinds.join(", "));
    }
}
