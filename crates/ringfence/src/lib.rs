//! Durable, fenced, all-or-nothing leases on groups of targets.
//!
//! ```
//! use ringfence::{Claim, InitOptions, Store, TargetGroup};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("leases");
//! let table = Store::init(&path, &InitOptions::default())?.targets();
//! let group = TargetGroup::from_numbers([77, 88])?;
//! let lease = table.claim(&group, &Claim::by("coordinator-1")?)?;
//! println!("targets 77 and 88 are ours under fence {}", lease.fence());
//! lease.release()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | type | is |
//! |---|---|
//! | [`Store`] | one place where leases are kept |
//! | [`TargetTable`] | claim, heartbeat, release, list: leases on target groups |
//! | [`Lease`] | a granted group under its token |
//! | [`KeepAlive`] | a thread that renews a lease and tells when it is lost |
//! | [`WorkTable`] | the work fence: one execution, one commit |
//! | [`JobTable`] | a group and a work item as one: both or neither |
//!
//! Every mutation is done, refused (nothing was written) or failed; a failure says whether the
//! state before the call was put back or is unknown. Done means that it survives a power cut.

pub mod claim;
pub mod force;
pub mod heartbeat;
pub mod init;
pub mod job_table;
pub mod keep_alive;
pub mod lease;
pub mod list;
pub mod migrate;
pub mod release;
pub mod store;
pub mod target_table;
mod wait;
pub mod work_table;

pub use claim::{Claim, ClaimError};
pub use force::ForceReleaseError;
pub use heartbeat::{BatchedHeartbeat, HeartbeatError, Renewal, Renewed};
pub use init::{InitError, InitOptions};
pub use job_table::{
    JobAbandonError, JobClaimError, JobCompleteError, JobHeartbeats, JobLease, JobPart,
    JobReplayError, JobTable, PartLost, PartRenewal,
};
pub use keep_alive::{KeepAlive, KeepAliveOptions, KeepAliveStatus, LostReason, StartError};
pub use lease::{Lease, NotReleased};
pub use list::{LeaseState, Listed, Listing};
pub use migrate::{Destination, MigrateError, Migrated};
pub use release::ReleaseError;
pub use store::{OpenError, Store};
pub use target_table::TargetTable;
pub use work_table::{
    AbandonError, BeginCommitError, CompleteError, Completion, ReplayError, WorkClaimError,
    WorkHeartbeatError, WorkItem, WorkLease, WorkTable,
};

pub use ringfence_engine::{Engine, EngineInfo, Failure, StorageError};
pub use ringfence_env::World;
pub use ringfence_files::{
    CheckError, CheckReport, Durability, Finding, InitOptions as FilesOptions, LeftAlone, Probe,
    ProbeError, ProbeStep, Recovered, Repair, Restored, Verdict,
};
pub use ringfence_journal::InitOptions as JournalOptions;
pub use ringfence_journal::check::Place as JournalPlace;
pub use ringfence_journal::lives::Children;
pub use ringfence_model as model;
pub use ringfence_model::rules::{ClaimRefused, Conflict, Holding, Lost, LostMember};
pub use ringfence_model::{
    Dropped, Fence, FencingToken, GroupError, MAX_GROUP, Normalized, Owner, OwnerError, Payload,
    PayloadError, RecordId, ShardCount, Target, TargetError, TargetGroup, TimeError, Timestamp,
    Token, TokenError, Ttl,
};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
