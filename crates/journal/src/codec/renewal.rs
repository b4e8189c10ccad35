//! What a heartbeat changes: when, and by whom. Everything else of the record stays as it was, so a
//! thousand heartbeats of one call take one renewal and their keys.

use std::sync::{Arc, Mutex, PoisonError};

use ringfence_model::json::Object;
use ringfence_model::record::{Holder, TargetRecord, WorkRecord, Writer};
use ringfence_model::{Record, Timestamp};

use super::record::{read_time, read_writer, write_writer};
use super::{In, Malformed, Out};

/// The part of a holder that a heartbeat writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewal {
    /// The moment of the heartbeat.
    pub updated: Timestamp,
    /// The process that made it, where known.
    pub writer: Option<Writer>,
}

impl Renewal {
    /// What made `new` of `old`, if it was nothing but a heartbeat.
    pub fn between(old: &Record, new: &Record) -> Option<Self> {
        let rest = match (old, new) {
            (Record::Target(old), Record::Target(new)) => same_target(old, new),
            (Record::Work(old), Record::Work(new)) => same_work(old, new),
            _ => false,
        };
        (rest && same_holder(old.holder(), new.holder())).then(|| Self::of(new.holder()))
    }

    /// The part of this holder.
    pub fn of(holder: &Holder) -> Self {
        Self { updated: holder.updated, writer: holder.writer.clone() }
    }

    /// Writes it.
    pub fn write(&self, out: &mut Out) {
        out.f64(self.updated.seconds());
        write_writer(self.writer.as_ref(), out);
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(from: &mut In<'_>) -> Result<Self, Malformed> {
        Ok(Self { updated: read_time(from)?, writer: read_writer(from)? })
    }
}

fn same_holder(old: &Holder, new: &Holder) -> bool {
    old.token == new.token
        && old.worker == new.worker
        && old.ttl == new.ttl
        && old.owner == new.owner
        && old.payload == new.payload
}

fn same_target(old: &TargetRecord, new: &TargetRecord) -> bool {
    old.target == new.target
        && old.history == new.history
        && (Arc::ptr_eq(&old.group, &new.group) || old.group == new.group)
        && same_extra(&old.extra, &new.extra)
}

fn same_work(old: &WorkRecord, new: &WorkRecord) -> bool {
    old.id == new.id
        && old.status == new.status
        && old.history == new.history
        && old.generation == new.generation
        && old.manifest == new.manifest
        && same_extra(&old.extra, &new.extra)
}

fn same_extra(old: &Object, new: &Object) -> bool {
    let text = |object: &Object| -> Vec<(String, String)> {
        object.iter().map(|(name, value)| (name.clone(), value.get().to_owned())).collect()
    };
    old.len() == new.len() && (old.is_empty() || text(old) == text(new))
}

/// A renewal in a page, and the last holder that it was laid over: a group's members share theirs.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    last: Mutex<Option<(Arc<Holder>, Arc<Holder>)>>,
}

impl Renewed {
    /// The record after the renewal.
    pub(super) fn over(&self, record: Record, renewal: &Renewal) -> Record {
        match record {
            Record::Target(record) => {
                let holder = self.holder(&record.holder, renewal);
                Record::Target(TargetRecord { holder, ..record })
            }
            Record::Work(record) => {
                let holder = self.holder(&record.holder, renewal);
                Record::Work(WorkRecord { holder, ..record })
            }
        }
    }

    fn holder(&self, old: &Arc<Holder>, renewal: &Renewal) -> Arc<Holder> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, holder)) = &*last
            && Arc::ptr_eq(of, old)
        {
            return Arc::clone(holder);
        }
        let Renewal { updated, writer } = renewal.clone();
        let holder = Arc::new(Holder { updated, writer, ..(**old).clone() });
        *last = Some((Arc::clone(old), Arc::clone(&holder)));
        holder
    }
}
