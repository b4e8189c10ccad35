//! The JSON of leases, holders and damage, as `docs/cli.md` specifies them.

use ringfence::model::json::canonicalize;
use ringfence::model::rules::DamagedMember;
use ringfence::model::{Damage, TargetRecord, WorkRecord};
use ringfence::{
    Conflict, Holding, LeaseState, Listed, Listing, LostMember, Target, TargetGroup, Timestamp,
    Ttl, WorkItem,
};
use serde::Serialize;
use serde_json::value::RawValue;

/// A target that somebody else holds.
#[derive(Debug, Serialize)]
pub(crate) struct Held {
    target: u64,
    owner: String,
    worker: i64,
    host: Option<String>,
    pid: Option<u32>,
    token: String,
    fence: Option<u64>,
    expires_at: f64,
    expires_in: f64,
}

impl Held {
    /// One conflict of a refusal.
    pub(crate) fn by(conflict: &Conflict) -> Self {
        let Holding { owner, worker, host, pid, token, fence, expires_at, expires_in, .. } =
            &conflict.holding;
        Self {
            target: conflict.target.get(),
            owner: owner.to_string(),
            worker: *worker,
            host: host.as_deref().map(str::to_owned),
            pid: *pid,
            token: token.to_string(),
            fence: fence.map(|fence| fence.0),
            expires_at: expires_at.seconds(),
            expires_in: *expires_in,
        }
    }
}

/// Something stored that is no valid record.
#[derive(Debug, Serialize)]
pub(crate) struct CorruptRecord {
    /// The target it stands in the way of, where known.
    pub(crate) target: Option<u64>,
    /// Its path.
    pub(crate) location: String,
    /// What is wrong.
    pub(crate) reason: String,
    /// What force-release takes as its token.
    pub(crate) token: Option<String>,
}

impl CorruptRecord {
    /// A damaged member of a group.
    pub(crate) fn of(member: &DamagedMember) -> Self {
        let Damage { location, reason, digest } = &member.damage;
        Self {
            target: Some(member.target.get()),
            location: location.clone(),
            reason: reason.clone(),
            token: Some(digest.to_string()),
        }
    }
}

/// A member that is not held under the caller's token.
#[derive(Debug, Serialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub(crate) enum Missed {
    /// No record.
    NotHeld {
        /// The member.
        target: u64,
    },
    /// Another token.
    OtherToken(Held),
    /// Damaged.
    Corrupt(CorruptRecord),
}

impl Missed {
    /// One member of a refusal.
    pub(crate) fn of(member: &LostMember) -> Option<Self> {
        Some(match member {
            LostMember::NotHeld(target) => Self::NotHeld { target: target.get() },
            LostMember::OtherToken(conflict) => Self::OtherToken(Held::by(conflict)),
            LostMember::Damaged(member) => Self::Corrupt(CorruptRecord::of(member)),
            _ => return None,
        })
    }
}

/// One record of the target table.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(crate) enum LeaseJson {
    /// Leased and not run out.
    Active(Fields),
    /// Run out and not yet taken over.
    Expired(Fields),
    /// Held, because it is no valid record.
    Corrupt {
        /// Its id.
        id: String,
        /// Its path.
        location: String,
        /// What is wrong.
        reason: String,
        /// What force-release takes as its token.
        token: String,
    },
}

/// The fields of a record, and what follows from them.
#[derive(Debug, Serialize)]
pub(crate) struct Fields {
    id: String,
    target: u64,
    targets: Vec<u64>,
    status: &'static str,
    payload: Box<RawValue>,
    owner: String,
    previous_owner: Option<String>,
    worker: i64,
    token: String,
    updated: f64,
    attempts: u64,
    steals: u64,
    fence: Option<u64>,
    ttl: f64,
    host: Option<String>,
    pid: Option<u32>,
    expires_at: f64,
    expires_in: f64,
}

impl LeaseJson {
    /// One item of a listing.
    pub(crate) fn of(listing: &Listing, listed: &Listed) -> Self {
        let id = listed.id.to_string();
        match &listed.state {
            LeaseState::Active(record) => Self::Active(Fields::of(listing, id, record)),
            LeaseState::Expired(record) => Self::Expired(Fields::of(listing, id, record)),
            LeaseState::Corrupt(Damage { location, reason, digest }) => Self::Corrupt {
                id,
                location: location.clone(),
                reason: reason.clone(),
                token: digest.to_string(),
            },
        }
    }
}

impl Fields {
    fn of(listing: &Listing, id: String, record: &TargetRecord) -> Self {
        let holding = listing.holding(record);
        let TargetRecord { target, group, holder, history, .. } = record;
        Self {
            id,
            target: target.get(),
            targets: group.targets.iter().copied().map(Target::get).collect(),
            status: TargetRecord::STATUS,
            payload: raw(holder.payload.as_str()),
            owner: holder.owner.to_string(),
            previous_owner: history.previous_owner.as_deref().map(str::to_owned),
            worker: holder.worker,
            token: holder.token.to_string(),
            updated: holder.updated.seconds(),
            attempts: history.attempts,
            steals: history.steals,
            fence: holding.fence.map(|fence| fence.0),
            ttl: holder.ttl(listing.default_ttl).seconds(),
            host: holding.host.as_deref().map(str::to_owned),
            pid: holding.pid,
            expires_at: holding.expires_at.seconds(),
            expires_in: holding.expires_in,
        }
    }
}

/// Stored JSON, on one line: another program may have written it on several.
pub(crate) fn raw(text: &str) -> Box<RawValue> {
    let line = canonicalize(text).unwrap_or_else(|_| "null".to_owned());
    RawValue::from_string(line).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The numbers of a group, the primary first, as the caller named it.
pub(crate) fn numbers(group: &TargetGroup) -> Vec<u64> {
    let primary = group.primary().get();
    let mut numbers: Vec<u64> = group.targets().map(Target::get).collect();
    numbers.sort_unstable_by_key(|number| (*number != primary, *number));
    numbers
}

/// One item of the work table.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum WorkJson {
    /// A valid record.
    Item(Box<WorkFields>),
    /// Held, because it is no valid record.
    Corrupt {
        /// `corrupt`.
        state: &'static str,
        /// Its id.
        id: String,
        /// Its path.
        location: String,
        /// What is wrong.
        reason: String,
        /// The digest of its bytes.
        token: String,
    },
}

/// The fields of a work item.
#[derive(Debug, Serialize)]
pub(crate) struct WorkFields {
    state: &'static str,
    id: String,
    status: &'static str,
    payload: Box<RawValue>,
    manifest: Option<Box<RawValue>>,
    generation: u64,
    owner: String,
    previous_owner: Option<String>,
    worker: i64,
    token: String,
    updated: f64,
    attempts: u64,
    steals: u64,
    fence: Option<u64>,
    ttl: f64,
    host: Option<String>,
    pid: Option<u32>,
    expires_at: f64,
    expires_in: f64,
}

impl WorkJson {
    /// `leased`, `expired`, `committing`, `done` or `corrupt`.
    pub(crate) fn state(item: &WorkItem) -> &'static str {
        match &item.record {
            Err(_) => "corrupt",
            Ok(_) if item.expired => "expired",
            Ok(record) => record.status.as_str(),
        }
    }

    /// One item of a listing read at `now`.
    pub(crate) fn of(item: &WorkItem, now: Timestamp, default_ttl: Ttl) -> Self {
        let (state, id) = (Self::state(item), item.id.to_string());
        let record = match &item.record {
            Ok(record) => record,
            Err(Damage { location, reason, digest }) => {
                let (location, reason) = (location.clone(), reason.clone());
                return Self::Corrupt { state, id, location, reason, token: digest.to_string() };
            }
        };
        let WorkRecord { status, holder, history, generation, manifest, .. } = record;
        let holding = Holding::of(holder, now, default_ttl);
        Self::Item(Box::new(WorkFields {
            state,
            id,
            status: status.as_str(),
            payload: raw(holder.payload.as_str()),
            manifest: manifest.as_ref().map(|manifest| raw(manifest.as_str())),
            generation: *generation,
            owner: holder.owner.to_string(),
            previous_owner: history.previous_owner.as_deref().map(str::to_owned),
            worker: holder.worker,
            token: holder.token.to_string(),
            updated: holder.updated.seconds(),
            attempts: history.attempts,
            steals: history.steals,
            fence: holding.fence.map(|fence| fence.0),
            ttl: holder.ttl(default_ttl).seconds(),
            host: holding.host.as_deref().map(str::to_owned),
            pid: holding.pid,
            expires_at: holding.expires_at.seconds(),
            expires_in: holding.expires_in,
        }))
    }
}
