//! `ringfence force-release`.

use ringfence::model::rules::ForceRefused;
use ringfence::{ForceReleaseError, RecordId, TargetGroup};
use serde::Serialize;

use crate::answer;
use crate::args::{self, JsonArg, StoreArg, TokenArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::signals::Interrupt;
use crate::{refusal, store};

/// Flags of `force-release`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    /// The whole group, or the part of it that is still held
    #[arg(long, short, value_name = "N,N,..", value_parser = args::group,
          allow_hyphen_values = true, required_unless_present = "work")]
    targets: Option<TargetGroup>,
    /// A work item instead of a group: the id that `list` prints. A publication that was decided
    /// on is given up with it
    #[arg(long, value_name = "ID", value_parser = id, conflicts_with = "targets")]
    work: Option<RecordId>,
    #[command(flatten)]
    token: TokenArg,
    /// Why; kept in the table's audit log
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    #[command(flatten)]
    json: JsonArg,
}

/// What is released.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Group(&'a TargetGroup),
    Work(RecordId),
}

#[derive(Serialize)]
struct ForceReleased {
    outcome: &'static str,
    token: String,
    #[serde(flatten)]
    subject: SubjectJson,
    reason: String,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum SubjectJson {
    Targets(Vec<u64>),
    Work(String),
}

impl From<Subject<'_>> for SubjectJson {
    fn from(subject: Subject<'_>) -> Self {
        match subject {
            Subject::Group(group) => Self::Targets(answer::numbers(group)),
            Subject::Work(id) => Self::Work(id.to_string()),
        }
    }
}

fn id(text: &str) -> Result<RecordId, String> {
    text.parse::<RecordId>().map_err(|error| error.to_string())
}

/// Removes somebody's lease.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(force_release(args, out))
}

fn force_release(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let subject = match (&args.targets, args.work) {
        (Some(group), None) => Subject::Group(group),
        (None, Some(id)) => Subject::Work(id),
        _ => return Err(Complaint::usage("name either --targets or --work")),
    };
    let _held_off = Interrupt::hold_off();
    let store = store::open(&args.store.store)?;
    let (token, reason) = (&args.token.token, args.reason.as_str());
    let done = match subject {
        Subject::Group(group) => store.targets().force_release(group, token, reason),
        Subject::Work(id) => store.work().force_release(id, token, reason),
    };
    done.map_err(|error| refused(subject, &error))?;
    let json = ForceReleased {
        outcome: "force-released",
        token: token.to_string(),
        subject: subject.into(),
        reason: args.reason.clone(),
    };
    let human = "force-released; its holder, if it lives, finds out at its next heartbeat\n";
    Ok(out.answer(&json, human))
}

fn refused(subject: Subject<'_>, error: &ForceReleaseError) -> Complaint {
    let refused = match error {
        ForceReleaseError::Refused(refused) => refused,
        ForceReleaseError::Failed(failure) => return store::failed("the force-release", failure),
        other => return Complaint::new(Exit::FAILED, "failed", other).with("restored", true),
    };
    match (refused, subject) {
        (ForceRefused::NotHeld, _) => {
            let text = "not held: there is nothing to release, nothing was changed";
            let complaint = Complaint::new(Exit::NOT_HELD, "not-held", text);
            match SubjectJson::from(subject) {
                SubjectJson::Targets(targets) => complaint.with("targets", targets),
                SubjectJson::Work(id) => complaint.with("work", id),
            }
        }
        (ForceRefused::Mismatch(members), Subject::Group(group)) => {
            refusal::lost("the force-release", group, members)
        }
        (ForceRefused::NoReason, _) => Complaint::usage(refused),
        (_, Subject::Work(id)) => {
            let text =
                format!("lost: the force-release was refused, nothing was changed: {refused}");
            Complaint::new(Exit::LOST, "lost", text).with("work", id.to_string())
        }
        (_, Subject::Group(_)) => Complaint::new(Exit::LOST, "lost", refused),
    }
}
