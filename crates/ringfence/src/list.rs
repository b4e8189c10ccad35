//! What is held: for people and for tools. Writes nothing.

use ringfence_engine::StorageError;
use ringfence_model::rules::Holding;
use ringfence_model::{
    Damage, Entry, Key, Record, RecordId, Space, Target, TargetRecord, Timestamp, Ttl,
};

use crate::target_table::TargetTable;

/// Everything in the target table.
#[derive(Clone, Debug)]
pub struct Listing {
    /// One item per record, in id order.
    pub leases: Vec<Listed>,
    /// Whether all of it stood like this at one instant.
    pub consistent: bool,
    /// When it was read.
    pub now: Timestamp,
    /// The ttl of records that carry none.
    pub default_ttl: Ttl,
}

/// One record.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its id.
    pub id: RecordId,
    /// How it stands.
    pub state: LeaseState,
}

/// How a record stands.
#[derive(Clone, Debug)]
pub enum LeaseState {
    /// Leased and not run out.
    Active(TargetRecord),
    /// Run out by the wall clock and not yet taken over.
    Expired(TargetRecord),
    /// Held, because it is no valid record.
    Corrupt(Damage),
}

impl LeaseState {
    /// `active`, `expired` or `corrupt`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Active(_) => "active",
            Self::Expired(_) => "expired",
            Self::Corrupt(_) => "corrupt",
        }
    }

    /// The record, unless it is damaged.
    pub fn record(&self) -> Option<&TargetRecord> {
        match self {
            Self::Active(record) | Self::Expired(record) => Some(record),
            Self::Corrupt(_) => None,
        }
    }
}

impl Listing {
    /// The holder of a listed record, as a refusal would describe it.
    pub fn holding(&self, record: &TargetRecord) -> Holding {
        Holding::of(&record.holder, self.now, self.default_ttl)
    }
}

impl TargetTable {
    /// Lists the whole table. Blocks nobody.
    pub fn list(&self, now: Option<Timestamp>) -> Result<Listing, StorageError> {
        let scan = self.engine.scan(Space::Targets, now)?;
        let leases = scan
            .entries
            .into_iter()
            .filter_map(|(key, entry)| {
                let state = state(entry, &scan.moment, scan.default_ttl)?;
                Some(Listed { id: key.id, state })
            })
            .collect();
        let (consistent, default_ttl) = (scan.consistent, scan.default_ttl);
        Ok(Listing { leases, consistent, now: scan.moment.wall, default_ttl })
    }

    /// One target's record; `None` if it is free.
    pub fn show(
        &self,
        target: Target,
        now: Option<Timestamp>,
    ) -> Result<Option<Listing>, StorageError> {
        let key = Key::target(target);
        let view = self.engine.view(&[key], now)?;
        let leases: Vec<Listed> = view
            .entries
            .into_iter()
            .filter_map(|(key, entry)| {
                let state = state(entry, &view.moment, view.default_ttl)?;
                Some(Listed { id: key.id, state })
            })
            .collect();
        let (now, default_ttl) = (view.moment.wall, view.default_ttl);
        let listing = Listing { leases, consistent: true, now, default_ttl };
        Ok((!listing.leases.is_empty()).then_some(listing))
    }
}

fn state(entry: Entry, moment: &ringfence_model::Moment, default_ttl: Ttl) -> Option<LeaseState> {
    match entry {
        Entry::Present(Record::Target(record)) => {
            Some(if record.holder.is_expired(moment, default_ttl) {
                LeaseState::Expired(record)
            } else {
                LeaseState::Active(record)
            })
        }
        Entry::Damaged(damage) => Some(LeaseState::Corrupt(damage)),
        Entry::Present(Record::Work(_)) | Entry::Vacant => None,
    }
}
