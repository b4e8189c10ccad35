//! A page: changes to records, with what they share stored once.
//!
//! The body of every frame and every block of a checkpoint is a page. It is walked when it is read,
//! so that later look-ups find every part where it was; records are built only when asked for.
//!
//! ```text
//! page   = audit:option(text) count(bodies) body* count(members) member*
//! body   = length:u32 bytes
//! member = space:u8 id:32 kind:u8 [body:u32 length:u32 rest]    kind 0: removed, 1: stored
//! ```

use std::sync::{Arc, OnceLock};

use ringfence_model::{Key, Record, RecordId, Space};

use super::record::{self, Body};
use super::{In, Malformed, Out};

/// Builds a page.
#[derive(Debug, Default)]
pub struct PageWriter {
    bodies: Out,
    known: Vec<Body>,
    members: Out,
    count: usize,
    rest: Out,
}

impl PageWriter {
    /// Adds the new content of a key; `None` removes it.
    pub fn push(&mut self, key: Key, to: Option<&Record>) {
        self.count += 1;
        self.members.u8(match key.space {
            Space::Targets => 0,
            Space::Work => 1,
        });
        self.members.raw(key.id.as_bytes());
        let Some(record) = to else { return self.members.u8(0) };
        self.members.u8(1);
        let body = self.body(Body::of(record));
        self.members.u32(body);
        self.rest.0.clear();
        record::write_rest(record, &mut self.rest);
        self.members.count(self.rest.0.len());
        self.members.raw(&self.rest.0);
    }

    fn body(&mut self, body: Body) -> u32 {
        // The last ones first: a group's members come one after the other.
        let same = self.known.iter().rposition(|known| known.is_same(&body));
        let index = same.or_else(|| {
            let last = self.known.len().checked_sub(1)?;
            self.known.get(last).is_some_and(|known| *known == body).then_some(last)
        });
        let index = index.unwrap_or_else(|| {
            let mut out = Out::default();
            body.write(&mut out);
            self.bodies.count(out.0.len());
            self.bodies.raw(&out.0);
            self.known.push(body);
            self.known.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// How many bytes it will have, but for its head.
    pub fn len(&self) -> usize {
        self.bodies.0.len() + self.members.0.len()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Writes the page after what is in `out`.
    pub fn finish(self, audit: Option<&str>, out: &mut Out) {
        out.option(audit, Out::text);
        out.count(self.known.len());
        out.raw(&self.bodies.0);
        out.count(self.count);
        out.raw(&self.members.0);
    }
}

/// A page that was read.
#[derive(Debug)]
pub struct Page {
    bytes: Vec<u8>,
    bodies: Vec<SharedBody>,
}

#[derive(Debug)]
struct SharedBody {
    at: usize,
    read: OnceLock<Body>,
}

/// Where a record is in its page, if it is not removed.
#[derive(Clone, Debug)]
pub enum Stored {
    /// The key was removed.
    Removed,
    /// It is there.
    Record(Place),
}

/// A record within a page.
#[derive(Clone, Debug)]
pub struct Place {
    page: Arc<Page>,
    key: Key,
    body: u32,
    at: u32,
}

/// What a page changes.
#[derive(Debug, Default)]
pub struct Contents {
    /// The line of the audit log that went with it.
    pub audit: Option<String>,
    /// Every key, in the order written.
    pub members: Vec<(Key, Stored)>,
}

impl Page {
    /// Walks the page that begins at `offset` of `bytes` and ends with them.
    pub fn read(bytes: Vec<u8>, offset: usize) -> Result<Contents, Malformed> {
        let mut from = In::at(&bytes, offset)?;
        let audit = from.option(|from| from.text().map(ToOwned::to_owned))?;
        let count = from.count(4)?;
        let mut bodies = Vec::with_capacity(count);
        for _ in 0..count {
            let len = from.count(1)?;
            bodies.push(SharedBody { at: from.position(), read: OnceLock::new() });
            from.raw(len)?;
        }
        let count = from.count(34)?;
        let mut found = Vec::with_capacity(count);
        for _ in 0..count {
            let space = match from.u8()? {
                0 => Space::Targets,
                1 => Space::Work,
                _ => return Err(Malformed("a space")),
            };
            let key = Key { space, id: RecordId::from_bytes(from.id()?) };
            found.push((
                key,
                match from.u8()? {
                    0 => None,
                    1 => {
                        let body = from.u32()?;
                        if usize::try_from(body).map_or(true, |body| body >= bodies.len()) {
                            return Err(Malformed("the number of a body"));
                        }
                        let len = from.count(1)?;
                        let at =
                            u32::try_from(from.position()).map_err(|_| Malformed("a length"))?;
                        from.raw(len)?;
                        Some((body, at))
                    }
                    _ => return Err(Malformed("the kind of a change")),
                },
            ));
        }
        if !from.is_empty() {
            return Err(Malformed("what follows"));
        }
        let page = Arc::new(Self { bytes, bodies });
        let stored = |(key, place): (Key, Option<(u32, u32)>)| {
            let stored = place.map_or(Stored::Removed, |(body, at)| {
                Stored::Record(Place { page: page.clone(), key, body, at })
            });
            (key, stored)
        };
        Ok(Contents { audit, members: found.into_iter().map(stored).collect() })
    }
}

impl Place {
    /// Builds the record. Its body is built once for all records of the page that share it.
    pub fn record(&self) -> Result<Record, Malformed> {
        let body = usize::try_from(self.body).ok().and_then(|body| self.page.bodies.get(body));
        let shared = body.ok_or(Malformed("the number of a body"))?;
        let body = if let Some(body) = shared.read.get() {
            body
        } else {
            let body = Body::read(&mut In::at(&self.page.bytes, shared.at)?)?;
            shared.read.get_or_init(|| body)
        };
        if body.group.is_some() != (self.key.space == Space::Targets) {
            return Err(Malformed("the kind of a record"));
        }
        let at = usize::try_from(self.at).map_err(|_| Malformed("an offset"))?;
        record::read_rest(self.key.id, body, &mut In::at(&self.page.bytes, at)?)
    }
}

impl Stored {
    /// The record, if there is one.
    pub fn record(&self) -> Result<Option<Record>, Malformed> {
        match self {
            Self::Removed => Ok(None),
            Self::Record(place) => place.record().map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ringfence_model::{Target, Timestamp};

    /// Records as other programs and as we write them.
    fn records() -> Vec<(Key, Record)> {
        let mut found = Vec::new();
        for number in 1..=70_u64 {
            let key = Key::target(Target::new(number).unwrap());
            let own = r#""ringfence":{"fence":7,"ttl":30.5,"updated":100.25,"host":"h","pid":9,
                "boot":"b","boottime":3.5,"life":"l1","primary":2},"#;
            let (own, token) = match number % 3 {
                0 => (own, format!("{:020}-{:032x}", 7, 0xabc)),
                1 => ("", "opaque".to_owned()),
                _ => (r#""theirs":{"a":[1,2.50,"é"]},"zero":-0.0,"#, format!("t{}", number / 10)),
            };
            let line = format!(
                r#"{{"schema":1,"id":"{}","status":"leased",{own}"owner":"o{}","worker":-4,
                "token":"{token}","updated":100.25,"payload":{{"x":{}}},"attempts":3,"steals":1,
                "previous_owner":"p","target":{number},"targets":[{number},2,3]}}"#,
                key.id,
                number / 20,
                number / 20,
            );
            found.push((key, Record::parse(key.space, key.id, line.as_bytes()).unwrap()));
        }
        for (number, status) in ["leased", "committing", "done"].into_iter().enumerate() {
            let key = Key::work(RecordId::of_work(&format!("{{\"n\":{number}}}")));
            let line = format!(
                r#"{{"schema":1,"id":"{}","status":"{status}","owner":"w","worker":1,"token":"t",
                "updated":0.0,"payload":{{}},"attempts":1,"steals":0,"previous_owner":null,
                "dispatch_generation":9,"manifest":{{"files":[]}}}}"#,
                key.id
            );
            found.push((key, Record::parse(key.space, key.id, line.as_bytes()).unwrap()));
        }
        found
    }

    fn write(records: &[(Key, Option<&Record>)], audit: Option<&str>) -> Vec<u8> {
        let mut page = PageWriter::default();
        for (key, record) in records {
            page.push(*key, *record);
        }
        let mut out = Out::default();
        page.finish(audit, &mut out);
        out.0
    }

    #[test]
    fn records_of_every_form_read_back_to_the_byte() {
        let records = records();
        let asked: Vec<_> = records.iter().map(|(key, record)| (*key, Some(record))).collect();
        let contents = Page::read(write(&asked, Some("{\"why\":1}")), 0).unwrap();
        assert_eq!(contents.audit.as_deref(), Some("{\"why\":1}"));
        assert_eq!(contents.members.len(), records.len());
        for ((key, stored), (expected, record)) in contents.members.iter().zip(&records) {
            assert_eq!(key, expected);
            assert_eq!(stored.record().unwrap().unwrap().to_line(), record.to_line());
        }
    }

    #[test]
    fn members_of_a_group_share_their_body_in_the_page_and_in_memory() {
        let records = records();
        let Record::Target(first) = &records[0].1 else { panic!() };
        let group: Vec<(Key, Record)> = (1..=64_u64)
            .map(|number| {
                let target = Target::new(number).unwrap();
                let record = ringfence_model::record::TargetRecord { target, ..first.clone() };
                (Key::target(target), Record::Target(record))
            })
            .collect();
        let asked: Vec<_> = group.iter().map(|(key, record)| (*key, Some(record))).collect();
        let bytes = write(&asked, None);
        assert!(bytes.len() < 64 * 100, "{} bytes", bytes.len());
        let contents = Page::read(bytes, 0).unwrap();
        let holders: Vec<_> = contents
            .members
            .iter()
            .map(|(_, stored)| match stored.record().unwrap().unwrap() {
                Record::Target(record) => record.holder,
                Record::Work(_) => panic!(),
            })
            .collect();
        assert!(holders.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1])));
    }

    #[test]
    fn times_keep_every_bit() {
        let (key, record) = records().remove(0);
        for seconds in [0.1 + 0.2, 1e9 + 1.0 / 3.0, Timestamp::MAX_SECONDS] {
            let Record::Target(mut record) = record.clone() else { panic!() };
            let mut holder = (*record.holder).clone();
            holder.updated = Timestamp::from_seconds(seconds).unwrap();
            record.holder = Arc::new(holder);
            let record = Record::Target(record);
            let contents = Page::read(write(&[(key, Some(&record))], None), 0).unwrap();
            let back = contents.members[0].1.record().unwrap().unwrap();
            assert_eq!(back.holder().updated.seconds().to_bits(), seconds.to_bits());
        }
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_reading_ends_without_panic(
            at in 0_usize..30_000, byte: u8, cut in 0_usize..30_000, noise: Vec<u8>,
        ) {
            let records = records();
            let asked: Vec<_> = records.iter().map(|(key, record)| (*key, Some(record))).collect();
            let mut bytes = write(&asked, None);
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(len - cut % 100);
            for bytes in [bytes, noise] {
                if let Ok(contents) = Page::read(bytes, 0) {
                    for (_, stored) in contents.members {
                        let _ = stored.record();
                    }
                }
            }
        }
    }
}
