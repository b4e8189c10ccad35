//! Record ids and the shard a record is placed in.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::target::Target;

/// The 32 bytes that name a record; lowercase hex in file names and JSON.
///
/// Ids are ordered; their order is the order in which locks are taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId([u8; 32]);

const _: () = assert!(size_of::<RecordId>() == 32);

impl RecordId {
    /// SHA-256 of the ASCII text `target:` followed by the decimal target.
    pub fn of_target(target: Target) -> Self {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(target.get());
        Self(Sha256::new().chain_update("target:").chain_update(digits).finalize().into())
    }

    /// SHA-256 of a work item's payload as canonical JSON, without a trailing newline.
    pub fn of_work(canonical_payload: &str) -> Self {
        Self(Sha256::digest(canonical_payload).into())
    }

    /// Wraps raw bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 8 hex digits, as an unsigned number, modulo the shard count.
    pub fn shard(&self, shards: ShardCount) -> ShardId {
        let [a, b, c, d, ..] = self.0;
        let head = u32::from_be_bytes([a, b, c, d]);
        // The remainder is below 1,000, so it fits.
        ShardId(u16::try_from(head % u32::from(shards.0)).unwrap_or(u16::MAX))
    }
}

impl Ord for RecordId {
    /// The order of the bytes; they are digests, so the first eight tell nearly any two apart.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let head = |id: &Self| id.0.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
        head(self).cmp(&head(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for RecordId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}

impl FromStr for RecordId {
    type Err = IdError;

    /// Reads exactly 64 lowercase hex digits.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = || IdError(text.chars().take(80).collect());
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(bad()),
        };
        if text.len() != 64 {
            return Err(bad());
        }
        let mut id = [0; 32];
        for (slot, pair) in id.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            if let [high, low] = *pair {
                *slot = digit(high)? << 4 | digit(low)?;
            }
        }
        Ok(Self(id))
    }
}

/// The text is no record id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a record id: 64 lowercase hex digits")]
pub struct IdError(String);

/// How many shards a table is spread over, `1..=1000`; fixed when the table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCount(u16);

impl ShardCount {
    /// The largest count that three decimal digits can name.
    pub const MAX: u16 = 1000;

    /// Accepts `1..=1000`.
    pub fn new(count: u16) -> Result<Self, ShardCountError> {
        if (1..=Self::MAX).contains(&count) { Ok(Self(count)) } else { Err(ShardCountError(count)) }
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }

    /// Every shard, in order.
    pub fn shards(self) -> impl Iterator<Item = ShardId> {
        (0..self.0).map(ShardId)
    }
}

/// The shard count is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a table has 1 to {max} shards, not {0}", max = ShardCount::MAX)]
pub struct ShardCountError(u16);

/// One shard; three decimal digits in file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(u16);

impl ShardId {
    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_ids_are_the_sha256_of_the_decimal_text() {
        // printf 'target:77' | sha256sum
        let id = RecordId::of_target(Target::new(77).unwrap());
        assert_eq!(
            id.to_string(),
            "6c1ad97b4838ddd07eb783b946c31f6241b0d90d8f0e63c79f7f4c6f0efbcec6"
        );
    }

    #[test]
    fn a_shard_is_the_first_eight_hex_digits_modulo_the_count() {
        let mut bytes = [0xff; 32];
        bytes[..4].copy_from_slice(&[0x00, 0x01, 0x00, 0x05]);
        let id = RecordId::from_bytes(bytes);
        assert_eq!(id.shard(ShardCount::new(8).unwrap()).get(), 5);
        assert_eq!(id.shard(ShardCount::new(1000).unwrap()).get(), 541);
        assert_eq!(id.shard(ShardCount::new(1).unwrap()).to_string(), "000");
    }

    #[test]
    fn ids_are_in_the_order_of_their_bytes_also_where_the_first_eight_are_the_same() {
        let mut all: Vec<[u8; 32]> = Vec::new();
        for at in [0, 3, 7, 8, 15, 31] {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = [0x55; 32];
                bytes[at] = byte;
                all.push(bytes);
            }
        }
        for one in &all {
            for two in &all {
                let (a, b) = (RecordId::from_bytes(*one), RecordId::from_bytes(*two));
                assert_eq!(a.cmp(&b), one.cmp(two), "{a} {b}");
            }
        }
    }

    #[test]
    fn ids_read_back_and_refuse_anything_but_64_lowercase_hex_digits() {
        let id = RecordId::of_work("{}");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "ab", &id.to_string().to_uppercase(), &format!("{id}0")] {
            assert!(text.parse::<RecordId>().is_err(), "{text}");
        }
        assert!(ShardCount::new(0).is_err() && ShardCount::new(1001).is_err());
    }
}
