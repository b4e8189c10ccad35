//! What a heartbeat changes: when, and by whom. Everything else of the record stays as it was, so a
//! thousand heartbeats of one call take one renewal and their keys.

use std::sync::Arc;

use ringfence_model::record::{Holder, Writer};
use ringfence_model::{Record, Timestamp};

use super::record::{read_time, read_writer, write_writer};
use super::{In, Malformed, Out};

/// The part of a holder that a heartbeat writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewal {
    /// The moment of the heartbeat.
    pub updated: Timestamp,
    /// The process that made it, where known.
    pub writer: Option<Arc<Writer>>,
}

impl Renewal {
    /// Whether `holder` says the same of its last renewal.
    pub fn is_of(&self, holder: &Holder) -> bool {
        holder.is_renewed_as(self.updated, self.writer.as_ref())
    }

    /// Whether it is the same as another one; the writer is looked into only if it is not the very same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.updated == other.updated
            && match (&self.writer, &other.writer) {
                (Some(one), Some(two)) => Arc::ptr_eq(one, two) || one == two,
                (one, two) => one.is_none() && two.is_none(),
            }
    }

    /// Renews a record.
    pub fn renew(&self, record: &mut Record) {
        record.renew(self.updated, self.writer.clone());
    }

    /// Writes it.
    pub fn write(&self, out: &mut Out) {
        out.f64(self.updated.seconds());
        write_writer(self.writer.as_deref(), out);
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(from: &mut In<'_>) -> Result<Self, Malformed> {
        Ok(Self { updated: read_time(from)?, writer: read_writer(from)?.map(Arc::new) })
    }
}
