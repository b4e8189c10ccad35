//! What peers store about one target: as much as a record of ours says, about 300 bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Held;
use crate::random::Random;
use crate::{Error, Result};

/// Who claims in this benchmark.
pub(crate) const OWNER: &str = "coordinator-1";
/// For which of its workers.
pub(crate) const WORKER: i64 = 3;
/// Seconds a lease lives.
pub(crate) const TTL: f64 = 60.0;
/// What is stored with it: an object.
pub(crate) const PAYLOAD: &str =
    r#"{"job":"0c9f2f6a5b8e4d1790aa17c3","seed":"id:000412,src:000117,op:havoc","stage":"solve"}"#;

/// The record of one target, as JSON, for peers that store bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record<'a> {
    schema: u32,
    target: u64,
    owner: &'a str,
    worker: i64,
    token: &'a str,
    acquired_at: f64,
    updated_at: f64,
    ttl: f64,
    attempt: u32,
    #[serde(borrow)]
    payload: &'a serde_json::value::RawValue,
}

impl<'a> Record<'a> {
    /// A new lease, as stored.
    pub(crate) fn granted(target: u64, token: &str, now: f64) -> Result<Vec<u8>> {
        let payload = serde_json::from_str(PAYLOAD)?;
        let record = Record {
            schema: 1,
            target,
            owner: OWNER,
            worker: WORKER,
            token,
            acquired_at: now,
            updated_at: now,
            ttl: TTL,
            attempt: 1,
            payload,
        };
        Ok(serde_json::to_vec(&record)?)
    }

    /// Reads a stored lease.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Whether it still excludes others.
    pub(crate) fn is_active(&self, now: f64) -> bool {
        now < self.updated_at + self.ttl
    }

    /// Whether it is held under `token`.
    pub(crate) fn is_under(&self, token: &str) -> bool {
        self.token == token
    }

    /// The same lease, renewed.
    pub(crate) fn renewed(&self, now: f64) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&Record { updated_at: now, payload: self.payload, ..*self })?)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Tokens that no other grant has: peers issue no fence, which spares them a counter.
#[derive(Debug)]
pub(crate) struct Tokens(Random);

impl Tokens {
    /// A sequence of this process's own.
    pub(crate) fn new() -> Self {
        let nanos =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        Self(Random::new(u64::from(std::process::id()) << 32 | u64::from(nanos)))
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> String {
        format!("{:016x}{:016x}", self.0.next(), self.0.next())
    }
}

/// The group and the token of a peer's lease.
pub(crate) fn token_of(held: &Held) -> Result<(&[u64], &str)> {
    match held {
        Held::Token { targets, token } => Ok((targets, token)),
        Held::Ours { .. } => Err("a lease of another contender".into()),
    }
}

/// A record that is not there, or not under the token, where one must be.
pub(crate) fn lost(target: u64) -> Error {
    format!("target {target} is not held under the token that it was granted under").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_about_three_hundred_bytes_and_survives_a_renewal() {
        let token = Tokens::new().next();
        let bytes = Record::granted(1 << 40, &token, now()).unwrap();
        assert!((270..=330).contains(&bytes.len()), "{} bytes", bytes.len());
        let record = Record::parse(&bytes).unwrap();
        assert!(record.is_under(&token) && !record.is_under("other"));
        let later = record.updated_at + 2.0 * TTL;
        assert!(!record.is_active(later));
        let renewed = record.renewed(later).unwrap();
        assert!(Record::parse(&renewed).unwrap().is_active(later));
    }

    #[test]
    fn tokens_do_not_repeat() {
        let mut tokens = Tokens::new();
        assert_ne!(tokens.next(), tokens.next());
    }
}
