//! The caller's own object, carried by a record.

use std::fmt;
use std::sync::Arc;

use crate::json::{self, JsonError};

/// The largest payload, in bytes of canonical JSON.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

/// One JSON object as text.
///
/// A payload of ours is canonical. One read from another program's record is kept verbatim, so that
/// a heartbeat does not change a digit of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Arc<str>);

impl Payload {
    /// The empty object.
    pub fn empty() -> Self {
        Self("{}".into())
    }

    /// Checks that `text` is one JSON object of at most 64 KiB and rewrites it canonically.
    pub fn parse(text: &str) -> Result<Self, PayloadError> {
        if text.len() > 2 * MAX_PAYLOAD_BYTES {
            return Err(PayloadError::TooLarge(text.len()));
        }
        let canonical = json::canonicalize(text)?;
        if !canonical.starts_with('{') {
            return Err(PayloadError::NotAnObject);
        }
        if canonical.len() > MAX_PAYLOAD_BYTES {
            return Err(PayloadError::TooLarge(canonical.len()));
        }
        Ok(Self(canonical.into()))
    }

    /// Keeps an object's text as it was stored. It is not looked at beyond its first character.
    pub fn verbatim(text: &str) -> Result<Self, PayloadError> {
        if text.starts_with('{') { Ok(Self(text.into())) } else { Err(PayloadError::NotAnObject) }
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no payload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// Not JSON; NaN and Infinity are not JSON either.
    #[error("the payload is {0}")]
    Json(#[from] JsonError),
    /// JSON, but not an object.
    #[error("the payload is not a JSON object: write {{\"key\":value}}")]
    NotAnObject,
    /// Over [`MAX_PAYLOAD_BYTES`].
    #[error("the payload has {0} bytes, over the limit of {MAX_PAYLOAD_BYTES}: store a reference")]
    TooLarge(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bounded_json_objects_are_payloads() {
        assert_eq!(Payload::parse("{ \"b\":1,\"a\":2}").unwrap().as_str(), r#"{"a":2,"b":1}"#);
        assert!(matches!(Payload::parse("[1]"), Err(PayloadError::NotAnObject)));
        assert!(matches!(Payload::parse("null"), Err(PayloadError::NotAnObject)));
        assert!(matches!(Payload::parse("{\"x\":NaN}"), Err(PayloadError::Json(_))));
        let big = format!("{{\"x\":\"{}\"}}", "y".repeat(MAX_PAYLOAD_BYTES));
        assert!(matches!(Payload::parse(&big), Err(PayloadError::TooLarge(_))));
        let growing = format!("{{\"x\":\"{}\"}}", "é".repeat(MAX_PAYLOAD_BYTES / 3));
        assert!(matches!(Payload::parse(&growing), Err(PayloadError::TooLarge(_))));
    }
}
