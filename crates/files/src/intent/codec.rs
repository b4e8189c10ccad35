//! The bytes of an intent.
//!
//! Decoding never panics, and believes no length before the digest over it was checked.

use ringfence_model::record::MAX_RECORD_BYTES;
use ringfence_model::{Fence, Key, MAX_GROUP, RecordId, Space};
use sha2::{Digest as _, Sha256};

/// Where the abort mark is.
pub(super) const ABORT_AT: u64 = 512;
/// Where the body is.
pub(super) const BODY_AT: u64 = 1024;
/// Header and abort mark together.
pub(super) const HEAD_BYTES: usize = 1024;

const SECTOR: usize = 512;
const MAGIC: &[u8; 8] = b"RFINTENT";
const ABORT_MAGIC: &[u8; 8] = b"RFABORT.";
const RETIRED_MAGIC: &[u8; 8] = b"RFRETIRE";
const MAX_BODY: u64 = (2 * MAX_GROUP as u64 + 1) * MAX_RECORD_BYTES as u64;

/// What a group is to become, and what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The table it belongs to.
    pub table: String,
    /// Makes every intent's bytes its own.
    pub nonce: String,
    /// What kind of change.
    pub kind: Kind,
    /// The token that was granted, if it is a grant.
    pub token: Option<String>,
    /// When it was written, none of its records was or had been under a later fence than this one.
    pub issued: Fence,
    /// Its members, in key order.
    pub members: Vec<Member>,
}

/// What kind of change an intent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A claim.
    Grant,
    /// Anything else.
    Edit,
}

/// One record of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The record.
    pub key: Key,
    /// Its state before.
    pub before: Image,
    /// Its state after.
    pub after: Image,
}

/// The state of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// No such name.
    Absent,
    /// A regular file with these bytes.
    Bytes(Vec<u8>),
    /// Something that is no readable file; it can only be moved aside, to this name beside it.
    Opaque(String),
}

/// How an intent in a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The new state is decided.
    Committed,
    /// The old state is decided.
    Aborting,
    /// The decided state is there, durably, and nothing is to be done; but that this is said may not
    /// be durable yet.
    Retired,
}

impl Intent {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_text(&mut out, &self.table);
        put_text(&mut out, &self.nonce);
        out.push(match self.kind {
            Kind::Grant => 1,
            Kind::Edit => 2,
        });
        put_text(&mut out, self.token.as_deref().unwrap_or(""));
        out.extend_from_slice(&self.issued.0.to_le_bytes());
        put_len(&mut out, self.members.len());
        for member in &self.members {
            out.push(match member.key.space {
                Space::Targets => 1,
                Space::Work => 2,
            });
            out.extend_from_slice(member.key.id.as_bytes());
            for image in [&member.before, &member.after] {
                match image {
                    Image::Absent => out.push(1),
                    Image::Bytes(bytes) => {
                        out.push(2);
                        put_len(&mut out, bytes.len());
                        out.extend_from_slice(bytes);
                    }
                    Image::Opaque(aside) => {
                        out.push(3);
                        put_text(&mut out, aside);
                    }
                }
            }
        }
        out
    }

    /// Reads a body back; `None` for anything that [`Intent::encode`] does not write.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let table = take_text(&mut rest)?;
        let nonce = take_text(&mut rest)?;
        let kind = match take(&mut rest, 1)? {
            [1] => Kind::Grant,
            [2] => Kind::Edit,
            _ => return None,
        };
        let token = Some(take_text(&mut rest)?).filter(|token| !token.is_empty());
        let issued = Fence(u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?));
        let count = take_len(&mut rest)?;
        if count > 2 * MAX_GROUP {
            return None;
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let space = match take(&mut rest, 1)? {
                [1] => Space::Targets,
                [2] => Space::Work,
                _ => return None,
            };
            let id = RecordId::from_bytes(take(&mut rest, 32)?.try_into().ok()?);
            let before = take_image(&mut rest)?;
            let after = take_image(&mut rest)?;
            members.push(Member { key: Key { space, id }, before, after });
        }
        rest.is_empty().then_some(Self { table, nonce, kind, token, issued, members })
    }

    /// The intent of going back: what it decides is the state before this one.
    pub(super) fn turned(&self) -> Self {
        let mut turned = self.clone();
        for member in &mut turned.members {
            std::mem::swap(&mut member.before, &mut member.after);
        }
        turned
    }

    /// A whole slot: header, no abort mark, body.
    pub(super) fn to_slot(&self) -> Vec<u8> {
        let body = self.encode();
        let mut slot = vec![0; HEAD_BYTES];
        let mut header = Vec::with_capacity(SECTOR);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&(body.len() as u64).to_le_bytes());
        header.extend_from_slice(&digest(&body));
        put_len(&mut header, self.members.len().min(MAX_GROUP));
        for member in self.members.iter().take(MAX_GROUP) {
            header.extend_from_slice(&prefix(member.key));
        }
        header.resize(SECTOR - 32, 0);
        let check = digest(&header);
        header.extend_from_slice(&check);
        for (to, from) in slot.iter_mut().zip(&header) {
            *to = *from;
        }
        slot.extend_from_slice(&body);
        slot
    }
}

/// A whole intent in a form that this program does not know: another version decided something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it holds an intent of another version of this program; let that one finish it")]
pub(super) struct Unknown;

/// The first two sectors of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) body_len: u64,
    pub(super) digest: [u8; 32],
    pub(super) standing: Standing,
    prefixes: Vec<[u8; 4]>,
}

impl Head {
    /// Reads a head; `None` unless it is whole and valid.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..SECTOR)?;
        let (fields, check) = header.split_at_checked(SECTOR - 32)?;
        if digest(fields) != check {
            return None;
        }
        let mut rest = fields;
        let magic = take(&mut rest, 8)?;
        if magic != MAGIC && magic != RETIRED_MAGIC {
            return None;
        }
        let body_len = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
        let body: [u8; 32] = take(&mut rest, 32)?.try_into().ok()?;
        let count = take_len(&mut rest)?;
        if body_len > MAX_BODY || count > MAX_GROUP {
            return None;
        }
        let prefixes = (0..count)
            .map(|_| take(&mut rest, 4).and_then(|prefix| prefix.try_into().ok()))
            .collect::<Option<_>>()?;
        let aborted = bytes.get(SECTOR..2 * SECTOR).is_some_and(|mark| {
            mark.get(..abort_mark(&body).len()) == Some(abort_mark(&body).as_slice())
        });
        let standing = match aborted {
            _ if magic == RETIRED_MAGIC => Standing::Retired,
            true => Standing::Aborting,
            false => Standing::Committed,
        };
        Some(Self { body_len, digest: body, standing, prefixes })
    }

    /// Whether the intent may cover one of `keys`; `false` is certain.
    pub(super) fn may_cover(&self, keys: &[Key]) -> bool {
        // Only the first members are named in the header; a larger intent may cover anything.
        self.prefixes.len() == MAX_GROUP
            || keys.iter().any(|&key| self.prefixes.contains(&prefix(key)))
    }

    /// The intent, if `slot` holds the body that this head names; an error, if it does and the body is
    /// none that [`Intent::decode`] knows.
    pub(super) fn body(&self, slot: &[u8]) -> Result<Option<Intent>, Unknown> {
        let range = || {
            let start = usize::try_from(BODY_AT).ok()?;
            Some(start..start.checked_add(usize::try_from(self.body_len).ok()?)?)
        };
        match range().and_then(|range| slot.get(range)) {
            Some(body) if digest(body) == self.digest => {
                Intent::decode(body).map(Some).ok_or(Unknown)
            }
            _ => Ok(None),
        }
    }
}

/// The header that says of the intent with this one that it is retired.
pub(super) fn retired(header: &[u8]) -> Vec<u8> {
    let fields = header.get(MAGIC.len()..SECTOR - 32).unwrap_or_default();
    let mut retired = Vec::with_capacity(SECTOR);
    retired.extend_from_slice(RETIRED_MAGIC);
    retired.extend_from_slice(fields);
    let check = digest(&retired);
    retired.extend_from_slice(&check);
    retired
}

/// The bytes that turn the decision for the intent with this digest.
pub(super) fn abort_mark(body: &[u8; 32]) -> Vec<u8> {
    let mut mark = Vec::with_capacity(72);
    mark.extend_from_slice(ABORT_MAGIC);
    mark.extend_from_slice(body);
    let check = digest(&mark);
    mark.extend_from_slice(&check);
    mark
}

pub(super) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn prefix(key: Key) -> [u8; 4] {
    let [a, b, c, d, ..] = *key.id.as_bytes();
    [a, b, c, d]
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).unwrap_or_else(|_| unreachable!("bounded by the record limit"));
    out.extend_from_slice(&len.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn take<'b>(rest: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

fn take_len(rest: &mut &[u8]) -> Option<usize> {
    let bytes = take(rest, 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let len = take_len(rest)?;
    String::from_utf8(take(rest, len)?.to_vec()).ok()
}

fn take_image(rest: &mut &[u8]) -> Option<Image> {
    Some(match take(rest, 1)? {
        [1] => Image::Absent,
        [2] => {
            let len = take_len(rest)?;
            Image::Bytes(take(rest, len)?.to_vec())
        }
        [3] => Image::Opaque(take_text(rest)?),
        _ => return None,
    })
}

/// A slot with a whole intent over these records, one byte longer than this version writes them.
#[cfg(test)]
pub(super) fn unknown(keys: &[Key]) -> Vec<u8> {
    let image = || Image::Absent;
    let members = keys.iter().map(|&key| Member { key, before: image(), after: image() }).collect();
    let (table, nonce) = ("t".into(), "n".into());
    let intent = Intent { table, nonce, kind: Kind::Edit, token: None, issued: Fence(0), members };
    let mut slot = intent.to_slot();
    slot.push(0);
    let body = slot.split_off(HEAD_BYTES);
    let (len, name) = ((body.len() as u64).to_le_bytes(), digest(&body));
    let fields: Vec<u8> = [&MAGIC[..], &len, &name, slot.get(48..SECTOR - 32).unwrap()].concat();
    [fields.as_slice(), &digest(&fields), &[0; SECTOR], &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_model::Target;

    fn intent() -> Intent {
        let key = |number| Key::target(Target::new(number).unwrap());
        let mut members = vec![
            Member { key: key(1), before: Image::Absent, after: Image::Bytes(b"{}\n".to_vec()) },
            Member { key: key(2), before: Image::Bytes(vec![0, 255]), after: Image::Absent },
            Member {
                key: key(3),
                before: Image::Opaque("x.damaged-0".into()),
                after: Image::Absent,
            },
        ];
        members.sort_by_key(|member| member.key);
        let (table, nonce) = ("t".into(), "n".into());
        let token = Some("tok".into());
        Intent { table, nonce, kind: Kind::Grant, token, issued: Fence(300), members }
    }

    fn read(slot: &[u8]) -> Option<(Standing, Intent)> {
        let head = Head::decode(slot)?;
        Some((head.standing, head.body(slot).unwrap()?))
    }

    #[test]
    fn a_slot_reads_back_and_an_abort_mark_turns_only_its_own_intent() {
        let mut slot = intent().to_slot();
        assert_eq!(read(&slot).unwrap(), (Standing::Committed, intent()));
        let head = Head::decode(&slot).unwrap();
        assert!(head.may_cover(&[intent().members[1].key]));
        assert!(!head.may_cover(&[Key::target(Target::new(99).unwrap())]));
        let other = abort_mark(&[7; 32]);
        slot[512..512 + other.len()].copy_from_slice(&other);
        assert_eq!(read(&slot).unwrap().0, Standing::Committed);
        let mark = abort_mark(&head.digest);
        slot[512..512 + mark.len()].copy_from_slice(&mark);
        assert_eq!(read(&slot).unwrap(), (Standing::Aborting, intent()));
    }

    #[test]
    fn a_whole_body_of_an_unknown_form_is_no_free_slot() {
        let mut longer = unknown(&[]);
        let head = Head::decode(&longer).unwrap();
        assert_eq!(head.body(&longer), Err(Unknown));
        *longer.last_mut().unwrap() ^= 1;
        assert_eq!(head.body(&longer), Ok(None), "half written");
    }

    #[test]
    fn nothing_empty_cut_zero_filled_or_changed_is_valid() {
        let slot = intent().to_slot();
        assert_eq!(read(&[]), None);
        assert_eq!(read(&vec![0; slot.len()]), None);
        for len in 0..slot.len() {
            assert_eq!(read(&slot[..len]), None, "cut to {len}");
            let mut zeros = slot.clone();
            zeros[len..].fill(0);
            let same = zeros == slot;
            assert_eq!(read(&zeros).is_some(), same, "zero from {len}");
        }
        for at in (0..512).chain(1024..slot.len()) {
            let mut changed = slot.clone();
            changed[at] ^= 1;
            assert_eq!(read(&changed), None, "bit flipped at {at}");
        }
    }

    #[test]
    fn decoding_any_bytes_neither_panics_nor_believes_a_length() {
        let body = intent().encode();
        for at in 0..body.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = body.clone();
                changed[at] = value;
                let _ = Intent::decode(&changed);
                let _ = Intent::decode(&body[..at]);
            }
        }
    }
}
