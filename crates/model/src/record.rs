//! The stored records, read and written field by field.
//!
//! A record is one JSON object in canonical form with a trailing newline (schema 1). Other programs
//! write and read the same fields; what they add is kept verbatim, and everything of ours that they
//! do not know is inside one field, `ringfence`. That object is bound to the token by its fence and
//! its clock reading to `updated`, so neither outlives another program's change of the record.
//!
//! A record that exists and does not parse is *held*, never *free*.

mod common;
mod target;
mod work;

pub use common::{Granted, History, Holder, RecordError, Writer, WriterBoot};
pub use target::{LeaseBody, TargetRecord};
pub use work::{WorkRecord, WorkStatus};

use std::sync::Arc;

use crate::id::RecordId;
use crate::time::Timestamp;
use crate::view::Space;

/// The only record schema there is.
pub const SCHEMA: u64 = 1;

/// The largest record that is read, in bytes.
pub const MAX_RECORD_BYTES: usize = 1024 * 1024;

/// A stored record of either table.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A lease on one target.
    Target(TargetRecord),
    /// One work item.
    Work(WorkRecord),
}

impl Record {
    /// Parses a record found under `id` in the table of `space`.
    pub fn parse(space: Space, id: RecordId, bytes: &[u8]) -> Result<Self, RecordError> {
        match space {
            Space::Targets => TargetRecord::parse(id, bytes).map(Self::Target),
            Space::Work => WorkRecord::parse(id, bytes).map(Self::Work),
        }
    }

    /// The canonical JSON line.
    pub fn to_line(&self) -> String {
        match self {
            Self::Target(record) => record.to_line(),
            Self::Work(record) => record.to_line(),
        }
    }

    /// Who holds it and since when.
    pub fn holder(&self) -> &Holder {
        match self {
            Self::Target(record) => &record.holder,
            Self::Work(record) => &record.holder,
        }
    }

    /// Renews it.
    pub fn renew(&mut self, updated: Timestamp, writer: Option<Arc<Writer>>) {
        let holder = match self {
            Self::Target(record) => &mut record.holder,
            Self::Work(record) => &mut record.holder,
        };
        (holder.updated, holder.writer) = (updated, writer);
    }
}
