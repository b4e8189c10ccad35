//! The record of one work item.

use std::collections::BTreeMap;

use crate::field::Fields;
use crate::id::RecordId;
use crate::json::{self, Object};
use crate::payload::Payload;
use crate::record::common::{self, History, Holder, RecordError};

/// One exact execution, as stored.
#[derive(Clone, Debug)]
pub struct WorkRecord {
    /// The digest of the payload.
    pub id: RecordId,
    /// How far it is.
    pub status: WorkStatus,
    /// Who runs it.
    pub holder: Holder,
    /// Take-overs.
    pub history: History,
    /// Rises with every claim of this item, also across an abandoned one: the fence of the grant,
    /// where Ringfence granted it.
    pub generation: u64,
    /// What is to be published; there from the commit decision on.
    pub manifest: Option<Payload>,
    /// Fields of other programs, verbatim.
    pub extra: Object,
}

/// `leased --begin_commit--> committing --complete--> done`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStatus {
    /// Being executed; can be taken over after expiry.
    Leased,
    /// The result was fenced; never taken over by time, finished by any coordinator.
    Committing,
    /// Published.
    Done,
}

impl WorkStatus {
    /// The stored text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Committing => "committing",
            Self::Done => "done",
        }
    }
}

impl PartialEq for WorkRecord {
    fn eq(&self, other: &Self) -> bool {
        self.to_line() == other.to_line()
    }
}

impl WorkRecord {
    /// Parses the bytes found under `id`.
    pub fn parse(id: RecordId, bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::parse(bytes)?;
        let head = common::read_head(&mut fields, id)?;
        let status = match &*head.status {
            "leased" => WorkStatus::Leased,
            "committing" => WorkStatus::Committing,
            "done" => WorkStatus::Done,
            _ => return Err(RecordError::Invalid { field: "status", expected: "a work status" }),
        };
        let bad = RecordError::Invalid { field: "manifest", expected: "an object" };
        let manifest = match fields.take("manifest") {
            Some(raw) if raw.get() != "null" => {
                Some(Payload::verbatim(raw.get()).map_err(|_| bad)?)
            }
            _ if status == WorkStatus::Committing => return Err(RecordError::Missing("manifest")),
            _ => None,
        };
        let generation = fields.optional("dispatch_generation")?.unwrap_or(head.history.attempts);
        Ok(Self {
            id,
            status,
            holder: head.holder,
            history: head.history,
            generation,
            manifest,
            extra: fields.rest(),
        })
    }

    /// The canonical JSON line.
    pub fn to_line(&self) -> String {
        let mut fields = common::write_head(
            self.id,
            self.status.as_str(),
            &self.holder,
            &self.history,
            BTreeMap::new(),
            &self.extra,
        );
        fields.insert("dispatch_generation", self.generation.to_string());
        if let Some(manifest) = &self.manifest {
            fields.insert("manifest", manifest.as_str().to_owned());
        }
        json::object_line(&fields)
    }
}
