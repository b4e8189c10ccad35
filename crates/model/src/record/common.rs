//! What both kinds of record share.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::field::Fields;
use crate::id::RecordId;
use crate::json::{self, Object, float, quoted};
use crate::payload::Payload;
use crate::record::SCHEMA;
use crate::time::{Moment, Timestamp, Ttl};
use crate::token::{Fence, Token};
use crate::view::View;

/// Who holds a record, under which token, since when: a grant, and who renewed it last.
///
/// A renewal changes nothing of the grant, so a thousand of them share what they have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// What was granted; its fields can be read as the holder's own.
    pub grant: Arc<Granted>,
    /// The last grant or heartbeat.
    pub updated: Timestamp,
    /// The process that wrote it last, where known.
    pub writer: Option<Arc<Writer>>,
}

/// What no heartbeat changes. Shared by the members of one grant.
#[derive(Clone, Debug, PartialEq)]
pub struct Granted {
    /// The name of the coordinator.
    pub owner: Arc<str>,
    /// The coordinator's own number for the worker that runs the job.
    pub worker: i64,
    /// The token, compared whole.
    pub token: Token,
    /// How long the lease lasts from `updated`; the table's default where another program wrote it.
    pub ttl: Option<Ttl>,
    /// The caller's object.
    pub payload: Payload,
}

impl Deref for Holder {
    type Target = Granted;

    fn deref(&self) -> &Granted {
        &self.grant
    }
}

impl Holder {
    /// Whether it is held under exactly `token`.
    pub fn is_under(&self, token: &Token) -> bool {
        self.token == *token
    }

    /// Whether the lease has run out at `moment`.
    pub fn is_expired(&self, moment: &Moment, default_ttl: Ttl) -> bool {
        moment.is_expired(self.updated, self.ttl(default_ttl), self.writer.as_deref())
    }

    /// Whether only the store's clock could confirm that the lease has run out.
    pub fn needs_store_clock(&self, moment: &Moment, default_ttl: Ttl) -> bool {
        moment.needs_store_clock(self.updated, self.ttl(default_ttl), self.writer.as_deref())
    }

    /// Whether it is the very same, without looking into the grant.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.grant, &other.grant)
            && self.is_renewed_as(other.updated, other.writer.as_ref())
    }

    /// Whether this is when, and by whom, it was written last.
    pub fn is_renewed_as(&self, updated: Timestamp, writer: Option<&Arc<Writer>>) -> bool {
        // The cheap difference first.
        self.updated == updated
            && match (&self.writer, writer) {
                (Some(one), Some(two)) => Arc::ptr_eq(one, two) || one == two,
                (None, None) => true,
                _ => false,
            }
    }

    /// The same after a heartbeat at the moment of `view`.
    #[must_use]
    pub fn renewed(&self, view: &View) -> Self {
        let writer = Some(Arc::clone(&view.writer));
        Self { grant: Arc::clone(&self.grant), updated: view.moment.wall, writer }
    }

    /// The ttl in force.
    pub fn ttl(&self, default_ttl: Ttl) -> Ttl {
        self.ttl.unwrap_or(default_ttl)
    }

    /// The first moment at which the lease is expired, by the wall clock.
    pub fn expires_at(&self, default_ttl: Ttl) -> Timestamp {
        self.updated.after(self.ttl(default_ttl))
    }
}

/// The process that wrote a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Writer {
    /// Its host's name.
    pub host: Arc<str>,
    /// Its process id on that host; for people, never proof of life or death.
    pub pid: u32,
    /// The boot-time clock at `updated`; absent when the caller supplied `now`.
    pub boot: Option<WriterBoot>,
}

/// A boot-time clock reading, valid for one boot of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct WriterBoot {
    /// The kernel's identity of that boot.
    pub boot: Arc<str>,
    /// Seconds since that boot.
    pub seconds: f64,
    /// Names the kernel lock that the process keeps as long as it lives, if its leases are tied to
    /// its life.
    pub life: Option<Arc<str>>,
}

/// How often a record was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Grants over this record without a release in between, at least 1.
    pub attempts: u64,
    /// Take-overs by a different owner.
    pub steals: u64,
    /// The owner before the last take-over by a different owner.
    pub previous_owner: Option<Arc<str>>,
}

impl History {
    /// A first grant.
    pub fn first() -> Self {
        Self { attempts: 1, steals: 0, previous_owner: None }
    }

    /// The history after `new_owner` takes over a record of `old_owner`.
    #[must_use]
    pub fn taken_over(&self, old_owner: &Arc<str>, new_owner: &str) -> Self {
        let stolen = **old_owner != *new_owner;
        Self {
            attempts: self.attempts.saturating_add(1),
            steals: self.steals.saturating_add(u64::from(stolen)),
            previous_owner: if stolen {
                Some(Arc::clone(old_owner))
            } else {
                self.previous_owner.clone()
            },
        }
    }
}

/// What is read first of any record.
pub(super) struct Head {
    pub(super) holder: Holder,
    pub(super) history: History,
    pub(super) status: Arc<str>,
    /// The rest of our own object, when it belongs to the current token.
    pub(super) own: Option<Fields>,
}

pub(super) fn read_head(fields: &mut Fields, id: RecordId) -> Result<Head, RecordError> {
    let schema: u64 = fields.required("schema")?;
    if schema != SCHEMA {
        return Err(RecordError::UnknownSchema(schema));
    }
    let named: Arc<str> = fields.required("id")?;
    if *named != *id.to_string() {
        return Err(RecordError::WrongId(named.chars().take(80).collect()));
    }
    let status = fields.required("status")?;
    let token: Arc<str> = fields.required("token")?;
    let token = Token::new(&token)
        .map_err(|_| RecordError::Invalid { field: "token", expected: "a token" })?;
    let updated = Timestamp::from_seconds(fields.required("updated")?)
        .map_err(|_| RecordError::Invalid { field: "updated", expected: "Unix seconds" })?;
    let payload = match fields.take("payload") {
        None => Payload::empty(),
        Some(raw) => Payload::verbatim(raw.get())
            .map_err(|_| RecordError::Invalid { field: "payload", expected: "an object" })?,
    };
    let history = History {
        attempts: fields.optional("attempts")?.unwrap_or(1),
        steals: fields.optional("steals")?.unwrap_or(0),
        previous_owner: fields.optional("previous_owner")?,
    };
    if history.attempts == 0 {
        return Err(RecordError::Invalid { field: "attempts", expected: "at least 1" });
    }
    let owner = fields.optional("owner")?.unwrap_or_else(|| "".into());
    let worker = fields.optional("worker")?.unwrap_or(0);
    let mut own = match fields.take("ringfence") {
        None => None,
        Some(raw) => {
            let mut own = Fields::parse_raw("ringfence", &raw)?;
            // A fence that is not the token's is left over from before another program's grant.
            let fence: u64 = own.required("fence")?;
            (token.fence() == Some(Fence(fence))).then_some(own)
        }
    };
    let (ttl, writer) = match own.as_mut() {
        None => (None, None),
        Some(own) => (read_ttl(own)?, read_writer(own, updated)?),
    };
    let grant = Arc::new(Granted { owner, worker, token, ttl, payload });
    let holder = Holder { grant, updated, writer: writer.map(Arc::new) };
    Ok(Head { holder, history, status, own })
}

fn read_ttl(own: &mut Fields) -> Result<Option<Ttl>, RecordError> {
    own.optional::<f64>("ttl")?
        .map(Ttl::from_seconds)
        .transpose()
        .map_err(|_| RecordError::Invalid { field: "ringfence.ttl", expected: "a ttl in seconds" })
}

fn read_writer(own: &mut Fields, updated: Timestamp) -> Result<Option<Writer>, RecordError> {
    let host: Option<Arc<str>> = own.optional("host")?;
    let pid: Option<u64> = own.optional("pid")?;
    let boot: Option<Arc<str>> = own.optional("boot")?;
    let seconds: Option<f64> = own.optional("boottime")?;
    let life: Option<Arc<str>> = own.optional("life")?;
    let at: Option<f64> = own.optional("updated")?;
    // A heartbeat of another program moves `updated` only: our clock reading no longer belongs to it.
    let same = at.is_some_and(|at| at.to_bits() == updated.seconds().to_bits());
    let boot = match (boot, seconds) {
        (Some(boot), Some(seconds)) if same => Some(WriterBoot { boot, seconds, life }),
        _ => None,
    };
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    Ok(host.map(|host| Writer { host, pid, boot }))
}

/// The fields of both kinds of record, as canonical text.
pub(super) fn write_head<'a>(
    id: RecordId,
    status: &str,
    holder: &'a Holder,
    history: &'a History,
    own: BTreeMap<&'static str, String>,
    extra: &'a Object,
) -> BTreeMap<&'a str, String> {
    let mut fields: BTreeMap<&str, String> =
        extra.iter().map(|(key, value)| (key.as_str(), value.get().to_owned())).collect();
    fields.insert("schema", SCHEMA.to_string());
    fields.insert("id", quoted(&id.to_string()));
    fields.insert("status", quoted(status));
    fields.insert("owner", quoted(&holder.owner));
    fields.insert("worker", holder.worker.to_string());
    fields.insert("token", quoted(holder.token.as_str()));
    fields.insert("updated", float(holder.updated.seconds()));
    fields.insert("payload", holder.payload.as_str().to_owned());
    fields.insert("attempts", history.attempts.to_string());
    fields.insert("steals", history.steals.to_string());
    let previous = history.previous_owner.as_deref().map_or_else(|| "null".to_owned(), quoted);
    fields.insert("previous_owner", previous);
    if let Some(own) = write_own(holder, own) {
        fields.insert("ringfence", own);
    }
    fields
}

/// Our own object, for grants of ours only.
fn write_own(holder: &Holder, mut own: BTreeMap<&'static str, String>) -> Option<String> {
    own.insert("fence", holder.token.fence()?.to_string());
    own.insert("updated", float(holder.updated.seconds()));
    if let Some(ttl) = holder.ttl {
        own.insert("ttl", float(ttl.seconds()));
    }
    if let Some(writer) = &holder.writer {
        own.insert("host", quoted(&writer.host));
        own.insert("pid", writer.pid.to_string());
        if let Some(boot) = &writer.boot {
            own.insert("boot", quoted(&boot.boot));
            own.insert("boottime", float(boot.seconds));
            if let Some(life) = &boot.life {
                own.insert("life", quoted(life));
            }
        }
    }
    Some(json::object_line(&own).trim_end().to_owned())
}

/// Why stored bytes are no valid record. The record is held all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Zero bytes long.
    #[error("the record is empty")]
    Empty,
    /// Nothing but NUL bytes, as after a power cut.
    #[error("the record is {0} NUL bytes")]
    AllZero(usize),
    /// Not text.
    #[error("the record is not UTF-8 text")]
    NotUtf8,
    /// Not one JSON object.
    #[error("the record is not one JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by a newer or another program.
    #[error("the record has schema {0}, this program knows {SCHEMA}")]
    UnknownSchema(u64),
    /// Belongs under another name.
    #[error("the record names the id {0:?}, not that of its file")]
    WrongId(String),
    /// A field is not there.
    #[error("the field {0:?} is missing")]
    Missing(&'static str),
    /// A field holds something else.
    #[error("the field {field:?} is not {expected}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}
