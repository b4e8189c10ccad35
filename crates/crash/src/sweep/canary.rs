//! Lies that the judge must notice: system calls that are not made and seem to succeed, and a table
//! that is judged by a promise that it does not make.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use super::cases::{self, Case};
use super::traced::{Blow, Place};
use super::{Known, bench, program, undisturbed};
use crate::context::{Context, Trouble};
use crate::opened::Mode;
use crate::report::Row;

/// What is planted into which case.
struct Canary {
    what: &'static str,
    case: &'static str,
    mode: Mode,
    places: Vec<Place>,
    /// Judged as if the table kept groups whole, or the call had been acknowledged.
    promised: bool,
}

fn lie(call: &str, value: u64, when: u64) -> Place {
    Place { blow: Blow::Lie(value), call: call.to_owned(), when }
}

fn kill(call: &str, when: u64) -> Place {
    Place { blow: Blow::Kill, call: call.to_owned(), when }
}

fn planted() -> Vec<Canary> {
    let canary = |what, case, mode, places| Canary { what, case, mode, places, promised: false };
    let (group, record) = (Mode::Group, Mode::Record);
    let unwritten = |what, case| Canary {
        what,
        case,
        mode: Mode::Journal,
        places: vec![kill("pwrite64", 1)],
        promised: true,
    };
    vec![
        canary("a rename that is not made", "claim", record, vec![lie("rename", 0, 2)]),
        canary("a renewal that is not made", "heartbeat", group, vec![lie("rename", 0, 1)]),
        canary("a removal that is not made", "release", record, vec![lie("unlink", 0, 1)]),
        canary(
            "an intent that is not written, and a kill between the renames",
            "claim",
            group,
            vec![lie("pwrite64", 3000, 1), kill("rename", 3)],
        ),
        canary(
            "temporaries that are not removed",
            "check --repair",
            record,
            vec![Place { blow: Blow::LieOn(0), ..lie("unlink", 0, 1) }],
        ),
        Canary {
            what: "a group in part where each record is whole, judged as a whole group",
            case: "claim",
            mode: record,
            places: vec![kill("rename", 3)],
            promised: true,
        },
        unwritten("a grant without a frame, judged as acknowledged", "claim"),
        unwritten("a renewal without a frame, judged as acknowledged", "heartbeat"),
        unwritten("a removal without a frame, judged as acknowledged", "release"),
    ]
}

/// Each must be noticed, and the same case without the lie must pass.
pub(super) fn run(context: &Context) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut row = Row {
        layer: "sweep",
        fs: "tmpfs".to_owned(),
        workload: "lies that must be noticed".to_owned(),
        ..Row::default()
    };
    let judged = Mutex::new(HashSet::new());
    let bench = bench(context, &judged)?;
    let mut all = BTreeMap::new();
    for mode in context.modes(&Mode::ALL) {
        all.insert(mode, cases::all(context, mode)?);
    }
    for canary in planted() {
        let Some(cases) = all.get(&canary.mode) else { continue };
        let case = cases.iter().find(|case| case.name == canary.case);
        let case = case.ok_or_else(|| Trouble::Failed(format!("no case {}", canary.case)))?;
        // This fails if anything is wrong without the lie.
        let Known { answer, shown, .. } = undisturbed(&bench, case)?;
        let before = cases::prepare(context, case, &bench.store, Some(&shown))?;
        let args = case.args(&bench.store);
        let ran = bench.runner.traced(&canary.places, program(context, case), &args)?;
        let promised = Case { mode: Mode::Group, ..case.clone() };
        let unwritten = canary.promised && canary.mode == Mode::Journal;
        let case = if canary.promised && !unwritten { &promised } else { case };
        let verdict = if unwritten {
            bench.as_acknowledged(case, &before)?
        } else if ran.signal == Some(9) {
            bench.after_kill(case, &before, &ran)?
        } else {
            bench.after_error(case, &before, canary.places.first(), &ran, &answer)?
        };
        row.states += 1;
        row.distinct += 1;
        row.planted += 1;
        if verdict.wrong.is_empty() {
            row.notes.push(format!("not noticed: {} ({})", canary.what, ran.ending()));
        } else {
            row.caught += 1;
        }
    }
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}
