//! The record of a lease on one target.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::field::Fields;
use crate::id::RecordId;
use crate::json::{self, Object};
use crate::record::common::{self, History, Holder, RecordError};
use crate::target::Target;

/// A lease on one target, as stored.
#[derive(Clone, Debug)]
pub struct TargetRecord {
    /// The target.
    pub target: Target,
    /// The group it was granted with.
    pub group: Arc<LeaseBody>,
    /// Who holds it; shared by the group but for its renewals.
    pub holder: Holder,
    /// Take-overs.
    pub history: History,
    /// Fields of other programs, verbatim.
    pub extra: Object,
}

/// What the members of a granted group share besides their holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseBody {
    /// The whole group, in id order.
    pub targets: Vec<Target>,
    /// The target named first, where known.
    pub primary: Option<Target>,
}

impl PartialEq for TargetRecord {
    fn eq(&self, other: &Self) -> bool {
        self.to_line() == other.to_line()
    }
}

impl TargetRecord {
    /// The only status of a target record.
    pub const STATUS: &'static str = "leased";

    /// Parses the bytes found under `id`.
    pub fn parse(id: RecordId, bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::parse(bytes)?;
        let mut head = common::read_head(&mut fields, id)?;
        if *head.status != *Self::STATUS {
            return Err(RecordError::Invalid { field: "status", expected: "\"leased\"" });
        }
        let bad_target =
            RecordError::Invalid { field: "target", expected: "the target of this id" };
        let target = match Target::new(fields.required("target")?) {
            Ok(target) if RecordId::of_target(target) == id => target,
            _ => return Err(bad_target),
        };
        let bad_targets = RecordError::Invalid { field: "targets", expected: "a list of targets" };
        let targets = match fields.optional::<Vec<u64>>("targets")? {
            None => vec![target],
            Some(numbers) => numbers
                .into_iter()
                .map(Target::new)
                .collect::<Result<_, _>>()
                .map_err(|_| bad_targets)?,
        };
        let primary = match head.own.as_mut() {
            None => None,
            Some(own) => own.optional("primary")?.and_then(|number| Target::new(number).ok()),
        };
        Ok(Self {
            target,
            group: Arc::new(LeaseBody { targets, primary }),
            holder: head.holder,
            history: head.history,
            extra: fields.rest(),
        })
    }

    /// The canonical JSON line.
    pub fn to_line(&self) -> String {
        let own = match self.group.primary {
            Some(primary) => BTreeMap::from([("primary", primary.to_string())]),
            None => BTreeMap::new(),
        };
        let id = RecordId::of_target(self.target);
        let mut fields =
            common::write_head(id, Self::STATUS, &self.holder, &self.history, own, &self.extra);
        let targets: Vec<String> = self.group.targets.iter().map(ToString::to_string).collect();
        fields.insert("target", self.target.to_string());
        fields.insert("targets", format!("[{}]", targets.join(",")));
        json::object_line(&fields)
    }
}
