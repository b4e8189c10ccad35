//! Pure values and rules of Ringfence: no input or output, no clock, no randomness.
//!
//! Everything that decides lives here. An engine reads records under its own exclusion, calls a
//! rule with a [`View`], and stores the [`Transition`] whole; it never interprets a lease itself,
//! so that several engines cannot drift apart in meaning.
//!
//! | module | holds |
//! |---|---|
//! | [`target`], [`group`] | what a lease is on |
//! | [`id`] | record ids and the shard they are placed in |
//! | [`token`] | fences and fencing tokens |
//! | [`time`] | timestamps, time-to-live, and when a lease is expired |
//! | [`json`], [`payload`] | canonical JSON and the caller's own object |
//! | [`record`] | the stored forms, read and written field by field |
//! | [`view`] | what a rule sees and what it answers |
//! | [`rules`] | claim, heartbeat, release, force-release, and the work verbs |

pub mod field;
pub mod group;
pub mod id;
pub mod json;
pub mod owner;
pub mod payload;
pub mod record;
pub mod rules;
pub mod target;
pub mod time;
pub mod token;
pub mod view;

pub use group::{Dropped, GroupError, MAX_GROUP, Normalized, TargetGroup};
pub use id::{IdError, RecordId, ShardCount, ShardCountError, ShardId};
pub use owner::{Owner, OwnerError};
pub use payload::{MAX_PAYLOAD_BYTES, Payload, PayloadError};
pub use record::{
    LeaseBody, Record, RecordError, TargetRecord, WorkRecord, WorkStatus, Writer, WriterBoot,
};
pub use target::{Target, TargetError};
pub use time::{BootMoment, Moment, TimeError, Timestamp, Ttl};
pub use token::{Fence, FencingToken, Token, TokenError};
pub use view::{
    Alike, Audit, Damage, Edit, Entry, Glance, Grant, Key, Shown, Space, Transition, View,
};
