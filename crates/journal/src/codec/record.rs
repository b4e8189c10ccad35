//! A record in two parts: a body that a whole group shares, and the rest of each member.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_model::record::{
    Granted, History, Holder, LeaseBody, TargetRecord, WorkRecord, WorkStatus, Writer, WriterBoot,
};
use ringfence_model::{Payload, Record, RecordId, Target, Timestamp, Token, Ttl};
use serde_json::value::RawValue;

use super::{In, Malformed, Out};

/// What the members of a group share.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// Who holds it.
    pub holder: Holder,
    /// The group; absent for a work item.
    pub group: Option<Arc<LeaseBody>>,
}

impl Body {
    /// The body of a record.
    pub fn of(record: &Record) -> Self {
        match record {
            Record::Target(record) => {
                Self { holder: record.holder.clone(), group: Some(record.group.clone()) }
            }
            Record::Work(record) => Self { holder: record.holder.clone(), group: None },
        }
    }

    /// Whether it is the very body of a record, without looking into it.
    pub fn is_of(&self, record: &Record) -> bool {
        let group = match (&self.group, record) {
            (None, Record::Work(_)) => true,
            (Some(group), Record::Target(record)) => Arc::ptr_eq(group, &record.group),
            _ => false,
        };
        group && self.holder.is_same(record.holder())
    }

    /// Writes it.
    pub fn write(&self, out: &mut Out) {
        let holder = &self.holder;
        out.text(&holder.owner);
        out.i64(holder.worker);
        out.text(holder.token.as_str());
        out.f64(holder.updated.seconds());
        out.option(holder.ttl, |out, ttl| out.f64(ttl.seconds()));
        out.text(holder.payload.as_str());
        write_writer(holder.writer.as_deref(), out);
        out.option(self.group.as_deref(), |out, group| {
            out.count(group.targets.len());
            group.targets.iter().for_each(|target| out.u64(target.get()));
            out.option(group.primary, |out, primary| out.u64(primary.get()));
        });
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(from: &mut In<'_>) -> Result<Self, Malformed> {
        let owner = from.text()?.into();
        let worker = from.i64()?;
        let token = Token::new(from.text()?).map_err(|_| Malformed("a token"))?;
        let updated = read_time(from)?;
        let ttl = from.option(In::f64)?.map(Ttl::from_seconds).transpose();
        let ttl = ttl.map_err(|_| Malformed("a ttl"))?;
        let payload = Payload::verbatim(from.text()?).map_err(|_| Malformed("a payload"))?;
        let writer = read_writer(from)?.map(Arc::new);
        let group = from.option(|from| {
            let count = from.count(8)?;
            let targets = (0..count).map(|_| target(from)).collect::<Result<_, _>>()?;
            Ok(Arc::new(LeaseBody { targets, primary: from.option(target)? }))
        })?;
        let grant = Arc::new(Granted { owner, worker, token, ttl, payload });
        Ok(Self { holder: Holder { grant, updated, writer }, group })
    }
}

pub(super) fn write_writer(writer: Option<&Writer>, out: &mut Out) {
    out.option(writer, |out, writer| {
        out.text(&writer.host);
        out.u32(writer.pid);
        out.option(writer.boot.as_ref(), |out, boot| {
            out.text(&boot.boot);
            out.f64(boot.seconds);
            out.option(boot.life.as_deref(), Out::text);
        });
    });
}

pub(super) fn read_writer(from: &mut In<'_>) -> Result<Option<Writer>, Malformed> {
    from.option(|from| {
        let (host, pid) = (from.text()?.into(), from.u32()?);
        let boot = from.option(|from| {
            let (boot, seconds) = (from.text()?.into(), from.f64()?);
            let life = from.option(|from| Ok(from.text()?.into()))?;
            Ok(WriterBoot { boot, seconds, life })
        })?;
        Ok(Writer { host, pid, boot })
    })
}

pub(super) fn read_time(from: &mut In<'_>) -> Result<Timestamp, Malformed> {
    Timestamp::from_seconds(from.f64()?).map_err(|_| Malformed("a time"))
}

fn target(from: &mut In<'_>) -> Result<Target, Malformed> {
    Target::new(from.u64()?).map_err(|_| Malformed("a target"))
}

/// Writes what is a member's own.
pub fn write_rest(record: &Record, out: &mut Out) {
    let (history, extra) = match record {
        Record::Target(record) => {
            out.u64(record.target.get());
            (&record.history, &record.extra)
        }
        Record::Work(record) => {
            out.u8(match record.status {
                WorkStatus::Leased => 0,
                WorkStatus::Committing => 1,
                WorkStatus::Done => 2,
            });
            out.u64(record.generation);
            out.option(record.manifest.as_ref(), |out, manifest| out.text(manifest.as_str()));
            (&record.history, &record.extra)
        }
    };
    out.u64(history.attempts);
    out.u64(history.steals);
    out.option(history.previous_owner.as_deref(), Out::text);
    out.count(extra.len());
    for (name, value) in extra {
        out.text(name);
        out.text(value.get());
    }
}

/// Reads what [`write_rest`] wrote and joins it with its body.
pub fn read_rest(id: RecordId, body: &Body, from: &mut In<'_>) -> Result<Record, Malformed> {
    if let Some(group) = &body.group {
        let target = target(from)?;
        let (history, extra) = tail(from)?;
        let (group, holder) = (group.clone(), body.holder.clone());
        return Ok(Record::Target(TargetRecord { target, group, holder, history, extra }));
    }
    let status = match from.u8()? {
        0 => WorkStatus::Leased,
        1 => WorkStatus::Committing,
        2 => WorkStatus::Done,
        _ => return Err(Malformed("a status")),
    };
    let generation = from.u64()?;
    let manifest =
        from.option(|from| Payload::verbatim(from.text()?).map_err(|_| Malformed("a manifest")))?;
    let (history, extra) = tail(from)?;
    let holder = body.holder.clone();
    Ok(Record::Work(WorkRecord { id, status, holder, history, generation, manifest, extra }))
}

type Tail = (History, BTreeMap<String, Box<RawValue>>);

fn tail(from: &mut In<'_>) -> Result<Tail, Malformed> {
    let (attempts, steals) = (from.u64()?, from.u64()?);
    let previous_owner = from.option(|from| Ok(from.text()?.into()))?;
    let count = from.count(8)?;
    if count == 0 {
        return Ok((History { attempts, steals, previous_owner }, BTreeMap::new()));
    }
    let field = |_| {
        let name = from.text()?.to_owned();
        let value = RawValue::from_string(from.text()?.to_owned());
        Ok((name, value.map_err(|_| Malformed("a field of another program"))?))
    };
    let extra = (0..count).map(field).collect::<Result<_, _>>()?;
    Ok((History { attempts, steals, previous_owner }, extra))
}
