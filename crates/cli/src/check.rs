//! `ringfence check`.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::PathBuf;

use ringfence::{CheckError, CheckReport, Finding, OpenError, Recovered, Repair, Store};
use ringfence_files::intent::Standing;
use serde::Serialize;

use crate::args::{JsonArg, StoreArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::{store, table};

/// Flags of `check`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    /// Also finishes calls that were cut short, makes missing directories, and removes stale
    /// temporaries and idle lock files. Only while no program other than Ringfence uses the table:
    /// others do not know the gate that keeps us out
    #[arg(long)]
    repair: bool,
    /// For a table that was restored from a backup or copied: raises its fences by N, which must not
    /// be less than the number of grants since the copy was made (1000000000 does no harm)
    #[arg(long, value_name = "N", requires = "repair", value_parser = bump,
          allow_hyphen_values = true)]
    bump_fence: Option<NonZeroU64>,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Answer {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    healthy: bool,
    records: usize,
    lock_files: usize,
    idle_lock_files: usize,
    findings: Vec<FindingJson>,
    removed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovered: Option<RecoveredJson>,
}

/// What dead writers had left, finished by a repair.
#[derive(Serialize)]
struct RecoveredJson {
    redone: usize,
    undone: usize,
    left_alone: Vec<String>,
}

#[derive(Serialize)]
struct FindingJson {
    kind: &'static str,
    location: Option<String>,
    reason: Option<String>,
    token: Option<String>,
}

fn bump(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| "a number from 1 on is expected".to_owned())
}

/// Looks a table over.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(check(args, out))
}

fn check(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let report = if args.repair {
        // A table that is about to arrive the repair itself finishes.
        if let Err(error @ OpenError::Moved { .. }) = Store::expect_no_move(&args.store.store) {
            return Err(store::not_opened(&error));
        }
        Store::repair_at(&args.store.store, Repair { bump_fence: args.bump_fence })
    } else {
        store::open_read_only(&args.store.store)?.check()
    };
    let report = report.map_err(|error| not_checked(&error))?;
    let paths = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
    let findings: Vec<FindingJson> = report.findings.iter().map(FindingJson::of).collect();
    let healthy = !report.findings.iter().any(needs_an_operator);
    let answer = Answer {
        outcome: if args.repair { "repaired" } else { "checked" },
        error: (!healthy).then_some("an operator is needed: see the findings"),
        healthy,
        records: report.records,
        lock_files: report.lock_files,
        idle_lock_files: report.idle_lock_files,
        removed: paths(&report.removed),
        made: args.repair.then(|| paths(&report.made)),
        fence_limit: report.fence_limit,
        findings,
        recovered: args.repair.then(|| RecoveredJson::of(&report.recovered)),
    };
    let written = out.answer(&answer, &human(&report, &answer, args.repair));
    Ok(if healthy || written != Exit::DONE { written } else { Exit::DAMAGED })
}

/// Why a table was not checked.
pub(crate) fn not_checked(error: &CheckError) -> Complaint {
    match error {
        CheckError::Gate(failure) => store::failed("the repair", failure),
        CheckError::Storage(error) => store::not_read(error),
        CheckError::Restored(restored) => store::not_restored(restored),
        CheckError::Open(error) => store::files_not_opened(error),
        other => Complaint::new(Exit::FAILED, "failed", other).with("restored", true),
    }
}

/// What stands in nobody's way, or is finished by whoever meets it, needs nobody.
fn needs_an_operator(finding: &Finding) -> bool {
    !matches!(finding, Finding::Temporary(_) | Finding::Stray(_) | Finding::Intent { .. })
}

impl RecoveredJson {
    fn of(recovered: &Recovered) -> Self {
        let path = |left: &ringfence::LeftAlone| left.path.display().to_string();
        Self {
            redone: recovered.redone,
            undone: recovered.undone,
            left_alone: recovered.left_alone.iter().map(path).collect(),
        }
    }
}

impl FindingJson {
    fn of(finding: &Finding) -> Self {
        let at = |kind, path: &std::path::Path| Self {
            kind,
            location: Some(path.display().to_string()),
            reason: None,
            token: None,
        };
        match finding {
            Finding::Damaged { path, reason, token } => Self {
                reason: Some(reason.clone()),
                token: Some(token.clone()),
                ..at("corrupt", path)
            },
            Finding::Misplaced(path) => at("misplaced", path),
            Finding::Temporary(path) => at("temporary", path),
            Finding::Stray(path) => at("stray", path),
            Finding::Intent { path, records, standing } => Self {
                reason: Some(format!(
                    "a call on {} records is under way or was cut short, its {} state is decided: \
                     whoever meets one of them finishes it",
                    records.len(),
                    match standing {
                        Standing::Committed => "new",
                        Standing::Aborting => "old",
                        Standing::Retired => "final",
                    }
                )),
                ..at("intent", path)
            },
            Finding::FenceCounter(reason) => Self {
                kind: "fence-counter",
                location: None,
                reason: Some(reason.clone()),
                token: None,
            },
            Finding::Restored(restored) => {
                Self { reason: Some(restored.to_string()), ..at("restored", &restored.fence) }
            }
            Finding::Incomplete(path) => Self {
                reason: Some("`check --repair` makes it, durably".to_owned()),
                ..at("incomplete", path)
            },
            Finding::Contradiction(path) => Self {
                reason: Some(
                    "table.json says durability \"record\", which has none: it was edited"
                        .to_owned(),
                ),
                ..at("contradiction", path)
            },
            _ => Self { kind: "other", location: None, reason: None, token: None },
        }
    }
}

fn human(report: &CheckReport, answer: &Answer, repaired: bool) -> String {
    let mut text = format!(
        "{} valid records; {} lock files, of which {} idle\n",
        report.records, report.lock_files, report.idle_lock_files
    );
    for FindingJson { kind, location, reason, token } in &answer.findings {
        let _ = write!(text, "{kind}");
        for (word, part) in [("  ", location), ("  ", reason), ("  token ", token)] {
            if let Some(part) = part {
                let _ = write!(text, "{word}{}", table::plain(part));
            }
        }
        text.push('\n');
    }
    if repaired {
        let _ = writeln!(text, "{} leftovers removed", report.removed.len());
        for path in &report.made {
            let _ =
                writeln!(text, "made again, empty: {}", table::plain(&path.display().to_string()));
        }
        if let Some(limit) = report.fence_limit {
            let _ = writeln!(text, "the next fence is above {limit}");
        }
        let Recovered { redone, undone, left_alone } = &report.recovered;
        if redone + undone > 0 {
            let _ = writeln!(text, "calls cut short: {redone} completed, {undone} put back");
        }
        for left in left_alone {
            let path = left.path.display().to_string();
            let _ =
                writeln!(text, "left alone, changed by another program: {}", table::plain(&path));
        }
    }
    let healthy = if answer.healthy { "healthy" } else { "an operator is needed: see above" };
    let _ = writeln!(text, "{healthy}");
    text
}
