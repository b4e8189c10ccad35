//! `ringfence probe`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use ringfence::{Probe, Verdict, World};
use serde::Serialize;

use crate::args::JsonArg;
use crate::exit::Exit;
use crate::output::{Complaint, Output, note};
use crate::store;

/// Flags of `probe`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory to try; nothing is left in it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Answer {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    dir: String,
    mount: String,
    steps: BTreeMap<String, StepJson>,
}

#[derive(Serialize)]
struct StepJson {
    verdict: &'static str,
    why: Option<String>,
}

/// Tries a directory.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(probe(args, out))
}

fn probe(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let probe = ringfence_files::probe::run(&World::system(), &args.dir)
        .map_err(|error| store::not_probed(&error))?;
    let error = format!("{} cannot carry a table; use another directory", args.dir.display());
    let answer = Answer {
        outcome: if probe.usable() { "usable" } else { "unsupported" },
        error: (!probe.usable()).then(|| error.clone()),
        dir: probe.dir.display().to_string(),
        mount: probe.mount.clone(),
        steps: probe
            .steps
            .iter()
            .map(|(step, verdict)| (step.to_string(), json(verdict)))
            .collect(),
    };
    let written = out.answer(&answer, &human(&probe));
    if probe.usable() || written != Exit::DONE {
        return Ok(written);
    }
    note(&error);
    Ok(Exit::UNSUPPORTED)
}

fn json(verdict: &Verdict) -> StepJson {
    match verdict {
        Verdict::Works => StepJson { verdict: "works", why: None },
        Verdict::Failed(why) => StepJson { verdict: "failed", why: Some(why.clone()) },
        Verdict::NotVerified => StepJson { verdict: "not-verified", why: None },
    }
}

fn human(probe: &Probe) -> String {
    let mut text = format!("{} is on {}\n", probe.dir.display(), probe.mount);
    for (step, verdict) in &probe.steps {
        let step = step.to_string();
        let words = match verdict {
            Verdict::Works => "works".to_owned(),
            Verdict::Failed(why) => format!("FAILED: {why}"),
            Verdict::NotVerified => "not verified".to_owned(),
        };
        let _ = writeln!(text, "{step:<21} {words}");
    }
    text
}
