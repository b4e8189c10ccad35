//! A directed replay job: one seed, one primary target, further actions.
//!
//! J1. The group of a job is what F309 says: the primary, then every action target whose action is
//!     not `skip`, distinct, at most 64. `skip` takes no lease.
//! J2. A job is a value: between claim and dispatch nothing can change it. What is leased, what names
//!     the work item and what is sent to the worker are read from the same value.

use ringfence::model::json;
use ringfence::{GroupError, MAX_GROUP, Payload, RecordId, Target, TargetGroup};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// What is to be done about one branch target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Find an input that takes it.
    Solve,
    /// Find several: its site was solved, but few inputs go there.
    Sample,
    /// Leave it alone.
    Skip,
}

/// One S2F action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Action {
    pub(crate) target: u64,
    #[serde(rename = "action")]
    pub(crate) kind: Kind,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) seed: Digest,
    pub(crate) primary: u64,
    pub(crate) actions: Vec<Action>,
}

/// The stored form of a job: what names the execution, and enough to run it again.
#[derive(Serialize, Deserialize)]
struct Stored {
    build_id: String,
    op: Op,
    primary: u64,
    seed: Digest,
    actions: Vec<Action>,
    /// The coordinator, where executions are not excluded: then two may run the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Solve,
}

impl Job {
    /// What is leased.
    pub(crate) fn group(&self) -> Result<TargetGroup, GroupError> {
        let mut numbers = vec![self.primary];
        for action in &self.actions {
            if action.kind != Kind::Skip && !numbers.contains(&action.target) {
                numbers.push(action.target);
            }
        }
        numbers.truncate(MAX_GROUP);
        TargetGroup::new(numbers.into_iter().map(Target::new).collect::<Result<Vec<_>, _>>()?)
    }

    /// What is sent to a worker: the actions whose target is leased.
    pub(crate) fn executed(&self) -> impl Iterator<Item = &Action> {
        self.actions.iter().filter(|action| action.kind != Kind::Skip).take(MAX_GROUP)
    }

    /// The payload that names this execution. `by` makes it the coordinator's own.
    pub(crate) fn payload(&self, build_id: &str, by: Option<&str>) -> Result<Payload, JobError> {
        let stored = Stored {
            build_id: build_id.to_owned(),
            op: Op::Solve,
            primary: self.primary,
            seed: self.seed,
            actions: self.executed().copied().collect(),
            by: by.map(str::to_owned),
        };
        Ok(Payload::parse(&serde_json::to_string(&stored)?)?)
    }

    /// Reads a job back from the payload of an item that excludes others; `None` if it is none.
    pub(crate) fn from_payload(payload: &Payload, build_id: &str) -> Option<Self> {
        let stored: Stored = serde_json::from_str(payload.as_str()).ok()?;
        let ours = stored.build_id == build_id && stored.by.is_none();
        let job = Self { seed: stored.seed, primary: stored.primary, actions: stored.actions };
        let group = job.group().ok()?;
        // It comes from a disk: what is executed must be what is leased.
        let leased =
            |action: &Action| Target::new(action.target).is_ok_and(|target| group.contains(target));
        (ours && job.executed().all(leased)).then_some(job)
    }
}

/// The payload of the work item that guards the tracing of one seed.
pub(crate) fn trace_payload(seed: Digest, build_id: &str) -> Result<Payload, JobError> {
    let mut text = String::from("{\"op\":\"trace\",\"seed\":");
    json::write_string(&mut text, &seed.to_string());
    text.push_str(",\"build_id\":");
    json::write_string(&mut text, build_id);
    text.push('}');
    Ok(Payload::parse(&text)?)
}

/// The seed whose tracing this payload guards; `None` if it guards something else.
pub(crate) fn traced_seed(payload: &Payload) -> Option<Digest> {
    #[derive(Deserialize)]
    struct Trace {
        op: String,
        seed: Digest,
    }
    let trace: Trace = serde_json::from_str(payload.as_str()).ok()?;
    (trace.op == "trace").then_some(trace.seed)
}

/// The name under which an attempt stages what it will publish.
pub(crate) fn stage_name(work: RecordId, token: &ringfence::Token) -> String {
    let fence = token.fence().map_or(0, |fence| fence.0);
    format!("{work}-{fence}")
}

/// A job that has no stored form.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Payload(#[from] ringfence::PayloadError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let action = |target, kind| Action { target, kind };
        Job {
            seed: Digest::of(b"seed"),
            primary: 7,
            actions: vec![
                action(7, Kind::Solve),
                action(9, Kind::Skip),
                action(5, Kind::Sample),
                action(5, Kind::Sample),
            ],
        }
    }

    #[test]
    fn skipped_targets_take_no_lease_and_the_primary_comes_first() {
        let group = job().group().unwrap();
        let members: Vec<u64> = group.targets().map(Target::get).collect();
        assert_eq!(group.primary().get(), 7);
        assert_eq!(group.len(), 2);
        assert!(members.contains(&5) && !members.contains(&9));
    }

    #[test]
    fn a_group_never_has_more_than_64_targets() {
        let actions = (1..=100).map(|target| Action { target, kind: Kind::Solve }).collect();
        let job = Job { seed: Digest::of(b""), primary: 1, actions };
        assert_eq!(job.group().unwrap().len(), 64);
        assert_eq!(job.executed().count(), 64);
    }

    #[test]
    fn a_job_reads_back_from_its_payload_and_not_for_another_build() {
        let payload = job().payload("b1", None).unwrap();
        let back = Job::from_payload(&payload, "b1").unwrap();
        assert_eq!(back.group().unwrap(), job().group().unwrap());
        assert_eq!(Job::from_payload(&payload, "b2"), None);
        let own = job().payload("b1", Some("c-1")).unwrap();
        assert_eq!(Job::from_payload(&own, "b1"), None);
        assert_ne!(own.as_str(), payload.as_str());
        let trace = trace_payload(Digest::of(b"seed"), "b1").unwrap();
        assert_eq!(Job::from_payload(&trace, "b1"), None);
        assert_eq!(traced_seed(&trace), Some(Digest::of(b"seed")));
        assert_eq!(traced_seed(&payload), None);
    }
}
