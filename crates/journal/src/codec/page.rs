//! A page: changes to records, with what they share stored once.
//!
//! The body of every frame and every block of a checkpoint is a page. It is walked when it is read,
//! so that later look-ups find every part where it was; records are built only when asked for.
//!
//! ```text
//! page   = audit:option(text) count(bodies) body* count(members) member*
//! body   = length:u32 bytes
//! member = space:u8 id:32 kind:u8 [body:u32 [length:u32 rest]]
//!          kind 0: removed   1: stored, with a rest   2: renewed, its body is a renewal
//! ```
//! P1. What is renewed is the last record that was stored whole, so a page with a renewal is read only
//!     in its chain, and no block of a checkpoint has one.

use std::sync::{Arc, OnceLock};

use ringfence_model::record::Holder;
use ringfence_model::{Key, Record, RecordId, Space};

use super::record::{self, Body};
use super::renewal::Renewal;
use super::{In, Malformed, Out};
use crate::frame::SECTOR;

/// So many bodies are looked through for one that is the same: a group's members come one after
/// the other.
const LOOK_BACK: usize = 8;
/// Bytes of a member up to its kind.
const MEMBER: usize = 1 + 32 + 1;
/// Bytes of the number of its body.
const BODY: usize = 4;

/// Builds a page.
#[derive(Debug, Default)]
pub struct PageWriter {
    bodies: Out,
    known: Vec<Known>,
    members: Out,
    count: usize,
}

#[derive(Debug)]
enum Known {
    Body(Body),
    Renewal(Renewal),
}

/// How far a page had come.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    bodies: usize,
    known: usize,
    members: usize,
    count: usize,
}

impl PageWriter {
    /// With room for so many members and what a group shares.
    pub fn with_members(members: usize) -> Self {
        Self {
            bodies: Out(Vec::with_capacity(1024)),
            members: Out(Vec::with_capacity(members * 80)),
            ..Self::default()
        }
    }

    /// Adds the new content of a key; `None` removes it.
    pub fn push(&mut self, key: Key, to: Option<&Record>) {
        let Some(record) = to else { return self.member(key, 0, None) };
        let body = self.body(record);
        self.member(key, 1, Some(body));
        let length_at = self.members.0.len();
        self.members.u32(0);
        record::write_rest(record, &mut self.members);
        fill_in_length(&mut self.members, length_at);
    }

    /// Adds that the records of some keys were renewed, and nothing else of them changed.
    pub fn push_renewals(&mut self, keys: &[Key], renewal: &Renewal) {
        let same = |known: &Known| matches!(known, Known::Renewal(known) if known.is_same(renewal));
        let at = self.find(same).unwrap_or_else(|| {
            let renewal = renewal.clone();
            self.add(|out| renewal.write(out), Known::Renewal(renewal.clone()))
        });
        for &key in keys {
            self.member(key, 2, Some(at));
        }
    }

    /// Adds that some keys are removed.
    pub fn push_removals(&mut self, keys: &[Key]) {
        for &key in keys {
            self.member(key, 0, None);
        }
    }

    /// Everything of a member that has a fixed length, in one piece.
    fn member(&mut self, key: Key, kind: u8, body: Option<u32>) {
        self.count += 1;
        let space = match key.space {
            Space::Targets => 0,
            Space::Work => 1,
        };
        let mut bytes = [0; MEMBER + BODY];
        bytes[0] = space;
        bytes[1..MEMBER - 1].copy_from_slice(key.id.as_bytes());
        bytes[MEMBER - 1] = kind;
        bytes[MEMBER..].copy_from_slice(&body.unwrap_or(0).to_le_bytes());
        let len = if body.is_some() { MEMBER + BODY } else { MEMBER };
        self.members.raw(bytes.get(..len).unwrap_or_default());
    }

    fn body(&mut self, record: &Record) -> u32 {
        let is_same = |known: &Known| matches!(known, Known::Body(known) if known.is_of(record));
        if let Some(found) = self.find(is_same) {
            return found;
        }
        let body = Body::of(record);
        match self.known.last() {
            Some(Known::Body(last)) if *last == body => number(self.known.len() - 1),
            _ => self.add(|out| body.write(out), Known::Body(body.clone())),
        }
    }

    fn find(&self, is_same: impl Fn(&Known) -> bool) -> Option<u32> {
        let from = self.known.len().saturating_sub(LOOK_BACK);
        let at = self.known.get(from..)?.iter().rposition(is_same)?;
        Some(number(from + at))
    }

    fn add(&mut self, write: impl FnOnce(&mut Out), known: Known) -> u32 {
        let length_at = self.bodies.0.len();
        self.bodies.u32(0);
        write(&mut self.bodies);
        fill_in_length(&mut self.bodies, length_at);
        self.known.push(known);
        number(self.known.len() - 1)
    }

    /// How many bytes it will have, but for its head.
    pub fn len(&self) -> usize {
        self.bodies.0.len() + self.members.0.len()
    }

    /// How many bytes it will have with its head.
    pub fn whole_len(&self, audit: Option<&str>) -> usize {
        1 + audit.map_or(0, |line| 4 + line.len()) + 4 + 4 + self.len()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where it is now.
    pub fn mark(&self) -> Mark {
        let (bodies, members) = (self.bodies.0.len(), self.members.0.len());
        Mark { bodies, known: self.known.len(), members, count: self.count }
    }

    /// Takes back what was added since.
    pub fn back_to(&mut self, mark: Mark) {
        self.bodies.0.truncate(mark.bodies);
        self.known.truncate(mark.known);
        self.members.0.truncate(mark.members);
        self.count = mark.count;
    }

    /// Writes the page after what is in `out`.
    pub fn finish(self, audit: Option<&str>, out: &mut Out) {
        out.0.reserve(self.whole_len(audit).next_multiple_of(SECTOR));
        out.option(audit, Out::text);
        out.count(self.known.len());
        out.raw(&self.bodies.0);
        out.count(self.count);
        out.raw(&self.members.0);
    }
}

/// Puts the length of what follows into the four bytes at `at`.
fn fill_in_length(out: &mut Out, at: usize) {
    let length = number(out.0.len() - at - 4);
    if let Some(place) = out.0.get_mut(at..at + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

/// Whatever is encoded here has far fewer parts than that.
fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// A page that was read.
#[derive(Debug)]
pub struct Page {
    bytes: Vec<u8>,
    /// Where the first body begins.
    from: usize,
    /// Found when the first record is asked for: of most pages that others append none ever is.
    bodies: OnceLock<Box<[SharedBody]>>,
}

#[derive(Debug)]
struct SharedBody {
    at: usize,
    read: OnceLock<Read>,
}

#[derive(Debug)]
enum Read {
    Body(Body),
    Renewal(Renewal),
}

/// What is stored under a key by now.
#[derive(Clone, Debug)]
pub enum Stored {
    /// The key was removed.
    Removed,
    /// It is there, whole.
    Record(Place),
    /// It is there, renewed since it was stored whole.
    Renewed(Place, By),
}

/// A record that is there, in the page that has it whole, and what it was renewed with since.
#[derive(Clone, Copy, Debug)]
pub struct Latest<'a> {
    pub(crate) page: &'a Page,
    pub(crate) key: &'a Key,
    pub(crate) whole: Whole,
    pub(crate) renewal: Option<&'a Renewal>,
}

/// What a page says of a key.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is removed.
    Removed,
    /// It is stored, whole.
    Stored(Place),
    /// The record that is there is renewed.
    Renewed(By),
}

/// The same, by numbers that mean something within the page alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is removed.
    Removed,
    /// It is stored, whole.
    Stored(Whole),
    /// The record that is there is renewed, by this body.
    Renewed(u32),
}

/// Where a page has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    body: u32,
    at: u32,
}

/// A record within a page.
#[derive(Clone, Debug)]
pub struct Place {
    page: Arc<Page>,
    key: Key,
    whole: Whole,
}

/// A renewal within a page.
#[derive(Clone, Debug)]
pub struct By {
    page: Arc<Page>,
    body: u32,
}

/// What a page changes.
#[derive(Debug, Default)]
pub struct Contents {
    /// The line of the audit log that went with it.
    pub audit: Option<String>,
    /// Every key, in the order written.
    pub members: Vec<(Key, Change)>,
}

impl Page {
    /// Walks the page that begins at `offset` of `bytes` and ends with them.
    pub fn read(bytes: Vec<u8>, offset: usize) -> Result<Contents, Malformed> {
        let mut members = Vec::new();
        let page = Arc::new(Self::walk(bytes, offset, &mut members)?);
        let audit =
            In::at(&page.bytes, offset)?.option(|from| from.text().map(ToOwned::to_owned))?;
        let change = |(key, said)| {
            let page = Arc::clone(&page);
            let change = match said {
                Said::Removed => Change::Removed,
                Said::Stored(whole) => Change::Stored(Place { page, key, whole }),
                Said::Renewed(body) => Change::Renewed(By { page, body }),
            };
            (key, change)
        };
        Ok(Contents { audit, members: members.into_iter().map(change).collect() })
    }

    /// The same; adds every key to `members`, in the order written, which has what was there before if
    /// the page does not read.
    pub fn walk(
        bytes: Vec<u8>,
        offset: usize,
        members: &mut Vec<(Key, Said)>,
    ) -> Result<Self, Malformed> {
        let before = members.len();
        let from = Self::walk_bytes(&bytes, offset, members);
        let from = from.inspect_err(|_| members.truncate(before))?;
        Ok(Self { bytes, from, bodies: OnceLock::new() })
    }

    fn walk_bytes(
        bytes: &[u8],
        offset: usize,
        members: &mut Vec<(Key, Said)>,
    ) -> Result<usize, Malformed> {
        let mut from = In::at(bytes, offset)?;
        from.option(|from| from.text().map(|_| ()))?;
        let begin = from.position();
        let bodies = from.count(4)?;
        for _ in 0..bodies {
            let len = from.count(1)?;
            from.raw(len)?;
        }
        let body = |from: &mut In<'_>| {
            let body = from.u32()?;
            let is_there = usize::try_from(body).is_ok_and(|body| body < bodies);
            if is_there { Ok(body) } else { Err(Malformed("the number of a body")) }
        };
        let count = from.count(MEMBER)?;
        members.reserve(count);
        for _ in 0..count {
            let (space, id, kind) = from.member()?;
            let space = match space {
                0 => Space::Targets,
                1 => Space::Work,
                _ => return Err(Malformed("a space")),
            };
            let key = Key { space, id: RecordId::from_bytes(id) };
            let said = match kind {
                0 => Said::Removed,
                1 => {
                    let body = body(&mut from)?;
                    let len = from.count(1)?;
                    let at = u32::try_from(from.position()).map_err(|_| Malformed("a length"))?;
                    from.raw(len)?;
                    Said::Stored(Whole { body, at })
                }
                2 => Said::Renewed(body(&mut from)?),
                _ => return Err(Malformed("the kind of a change")),
            };
            members.push((key, said));
        }
        if from.is_empty() { Ok(begin) } else { Err(Malformed("what follows")) }
    }

    /// A body, read once for all that share it.
    fn body(
        &self,
        number: u32,
        read: impl FnOnce(&mut In<'_>) -> Result<Read, Malformed>,
    ) -> Result<&Read, Malformed> {
        let bodies = if let Some(bodies) = self.bodies.get() {
            bodies
        } else {
            let found = self.find_bodies()?;
            self.bodies.get_or_init(|| found)
        };
        let body = usize::try_from(number).ok().and_then(|number| bodies.get(number));
        let shared = body.ok_or(Malformed("the number of a body"))?;
        if let Some(body) = shared.read.get() {
            return Ok(body);
        }
        let body = read(&mut In::at(&self.bytes, shared.at)?)?;
        Ok(shared.read.get_or_init(|| body))
    }

    fn find_bodies(&self) -> Result<Box<[SharedBody]>, Malformed> {
        let mut from = In::at(&self.bytes, self.from)?;
        let count = from.count(4)?;
        let next = |_| {
            let len = from.count(1)?;
            let body = SharedBody { at: from.position(), read: OnceLock::new() };
            from.raw(len)?;
            Ok(body)
        };
        (0..count).map(next).collect()
    }

    /// The body of a record, built once for all records of the page that share it.
    fn body_of(&self, space: Space, whole: Whole) -> Result<&Body, Malformed> {
        let Read::Body(body) = self.body(whole.body, |from| Body::read(from).map(Read::Body))?
        else {
            return Err(Malformed("the kind of a body"));
        };
        if body.group.is_some() != (space == Space::Targets) {
            return Err(Malformed("the kind of a record"));
        }
        Ok(body)
    }

    /// Builds a record.
    fn record(&self, key: Key, whole: Whole) -> Result<Record, Malformed> {
        let body = self.body_of(key.space, whole)?;
        let at = usize::try_from(whole.at).map_err(|_| Malformed("an offset"))?;
        record::read_rest(key.id, body, &mut In::at(&self.bytes, at)?)
    }

    /// What is written of a renewal.
    pub fn renewal(&self, body: u32) -> Result<&Renewal, Malformed> {
        match self.body(body, |from| Renewal::read(from).map(Read::Renewal))? {
            Read::Renewal(renewal) => Ok(renewal),
            Read::Body(_) => Err(Malformed("the kind of a body")),
        }
    }
}

impl Place {
    /// What `page` says of a key.
    pub(crate) fn new(page: Arc<Page>, key: Key, whole: Whole) -> Self {
        Self { page, key, whole }
    }

    /// Builds the record.
    pub fn record(&self) -> Result<Record, Malformed> {
        self.page.record(self.key, self.whole)
    }

    fn latest<'a>(&'a self, renewal: Option<&'a Renewal>) -> Latest<'a> {
        Latest { page: &self.page, key: &self.key, whole: self.whole, renewal }
    }
}

impl By {
    /// A renewal of `page`.
    pub(crate) fn new(page: Arc<Page>, body: u32) -> Self {
        Self { page, body }
    }

    /// What it renews with.
    pub fn renewal(&self) -> Result<&Renewal, Malformed> {
        self.page.renewal(self.body)
    }
}

impl Change {
    /// What is stored after it, where `before` was; P1.
    pub fn after(self, before: Option<&Stored>) -> Result<Stored, Malformed> {
        match (self, before) {
            (Self::Removed, _) => Ok(Stored::Removed),
            (Self::Stored(place), _) => Ok(Stored::Record(place)),
            (Self::Renewed(by), Some(Stored::Record(of) | Stored::Renewed(of, _))) => {
                Ok(Stored::Renewed(of.clone(), by))
            }
            (Self::Renewed(_), _) => Err(Malformed("a renewal of nothing")),
        }
    }
}

impl Stored {
    /// Where the record is, if there is one.
    pub fn latest(&self) -> Result<Option<Latest<'_>>, Malformed> {
        Ok(match self {
            Self::Removed => None,
            Self::Record(place) => Some(place.latest(None)),
            Self::Renewed(of, by) => Some(of.latest(Some(by.renewal()?))),
        })
    }

    /// The record, if there is one.
    pub fn record(&self) -> Result<Option<Record>, Malformed> {
        self.latest()?.map(|latest| latest.record()).transpose()
    }
}

impl Latest<'_> {
    /// Builds the record.
    pub fn record(&self) -> Result<Record, Malformed> {
        let mut record = self.page.record(*self.key, self.whole)?;
        if let Some(renewal) = self.renewal {
            renewal.renew(&mut record);
        }
        Ok(record)
    }

    /// Who holds it; what is the record's own is not looked at.
    pub fn holder(&self) -> Result<Holder, Malformed> {
        let stored = &self.page.body_of(self.key.space, self.whole)?.holder;
        let (updated, writer) = match self.renewal {
            Some(renewal) => (renewal.updated, &renewal.writer),
            None => (stored.updated, &stored.writer),
        };
        Ok(Holder { grant: Arc::clone(&stored.grant), updated, writer: writer.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ringfence_model::record::{TargetRecord, Writer};
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

    /// What is stored after a change where nothing was.
    fn stored_by(change: &Change) -> Result<Option<Record>, Malformed> {
        change.clone().after(None)?.record()
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
            assert_eq!(stored_by(stored).unwrap().unwrap().to_line(), record.to_line());
        }
    }

    #[test]
    fn members_of_a_group_share_their_body_in_the_page_and_in_memory() {
        let records = records();
        let Record::Target(first) = &records[0].1 else { panic!() };
        let group: Vec<(Key, Record)> = (1..=64_u64)
            .map(|number| {
                let target = Target::new(number).unwrap();
                let record = TargetRecord { target, ..first.clone() };
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
            .map(|(_, stored)| match stored_by(stored).unwrap().unwrap() {
                Record::Target(record) => record.holder,
                Record::Work(_) => panic!(),
            })
            .collect();
        assert!(holders.windows(2).all(|pair| pair[0].is_same(&pair[1])));
        assert!(holders.windows(2).all(|pair| Arc::ptr_eq(&pair[0].grant, &pair[1].grant)));
    }

    #[test]
    fn a_renewal_changes_the_time_and_the_writer_and_nothing_else() {
        let records = records();
        let asked: Vec<_> = records.iter().map(|(key, record)| (*key, Some(record))).collect();
        let stored = Page::read(write(&asked, None), 0).unwrap().members;
        let writer = Arc::new(Writer { host: "h2".into(), pid: 77, boot: None });
        let updated = Timestamp::from_seconds(1e9 + 1.0 / 3.0).unwrap();
        let renewal = Renewal { updated, writer: Some(writer.clone()) };
        let mut page = PageWriter::default();
        for (key, _) in &records {
            page.push_renewals(&[*key], &renewal);
        }
        let mut out = Out::default();
        page.finish(None, &mut out);
        assert!(out.0.len() < records.len() * 39 + 60, "{} bytes", out.0.len());
        let renewed = Page::read(out.0, 0).unwrap().members;
        assert_eq!(renewed.len(), records.len());
        for (((key, record), (_, before)), (of, change)) in
            records.iter().zip(&stored).zip(&renewed)
        {
            assert_eq!(key, of);
            let before = before.clone().after(None).unwrap();
            // Twice: a renewal of what was renewed already is laid over what was stored whole.
            let once = change.clone().after(Some(&before)).unwrap();
            let twice = change.clone().after(Some(&once)).unwrap();
            for after in [once, twice] {
                let after = after.record().unwrap().unwrap();
                let expected = (updated, Some(&writer));
                assert_eq!((after.holder().updated, after.holder().writer.as_ref()), expected);
                assert!(renewal.is_of(after.holder()));
                let mut back = after.clone();
                back.renew(record.holder().updated, record.holder().writer.clone());
                assert_eq!(back.to_line(), record.to_line());
            }
            let nothing = Err(Malformed("a renewal of nothing"));
            assert_eq!(change.clone().after(None).map(drop), nothing);
            assert_eq!(change.clone().after(Some(&Stored::Removed)).map(drop), nothing);
        }
    }

    #[test]
    fn what_was_taken_back_is_not_in_the_page() {
        let records = records();
        let renewal = Renewal { updated: records[0].1.holder().updated, writer: None };
        let fill = |page: &mut PageWriter, some: &[(Key, Record)]| {
            for (key, record) in some {
                page.push(*key, Some(record));
            }
            page.push_renewals(&[some[0].0], &renewal);
        };
        let (mut page, mut expected) = (PageWriter::default(), PageWriter::default());
        fill(&mut page, &records[..3]);
        fill(&mut expected, &records[..3]);
        let mark = page.mark();
        fill(&mut page, &records[3..]);
        page.back_to(mark);
        fill(&mut page, &records[5..9]);
        fill(&mut expected, &records[5..9]);
        let (mut out, mut other) = (Out::default(), Out::default());
        page.finish(None, &mut out);
        expected.finish(None, &mut other);
        assert_eq!(out.0, other.0);
    }

    #[test]
    fn times_keep_every_bit() {
        let (key, record) = records().remove(0);
        for seconds in [0.1 + 0.2, 1e9 + 1.0 / 3.0, Timestamp::MAX_SECONDS] {
            let Record::Target(mut record) = record.clone() else { panic!() };
            record.holder.updated = Timestamp::from_seconds(seconds).unwrap();
            let record = Record::Target(record);
            let contents = Page::read(write(&[(key, Some(&record))], None), 0).unwrap();
            let back = stored_by(&contents.members[0].1).unwrap().unwrap();
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
                        let _ = stored_by(&stored);
                    }
                }
            }
        }
    }
}
