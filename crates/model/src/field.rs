//! Typed access to the fields of one stored JSON object.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::json::Object;
use crate::record::RecordError;

/// The fields of an object that have not been taken yet.
pub struct Fields(Object);

impl Fields {
    /// Parses the bytes of one record.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.is_empty() {
            return Err(RecordError::Empty);
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(RecordError::AllZero(bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::NotUtf8)?;
        Ok(Self(serde_json::from_str(text)?))
    }

    /// Parses a nested object.
    pub fn parse_raw(name: &'static str, raw: &RawValue) -> Result<Self, RecordError> {
        serde_json::from_str(raw.get())
            .map(Self)
            .map_err(|_| RecordError::Invalid { field: name, expected: "an object" })
    }

    /// Takes a field as raw text.
    pub fn take(&mut self, name: &'static str) -> Option<Box<RawValue>> {
        self.0.remove(name)
    }

    /// Takes a field that may be absent, or null.
    pub fn optional<T: FromField>(&mut self, name: &'static str) -> Result<Option<T>, RecordError> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(raw) if raw.get() == "null" => Ok(None),
            Some(raw) => T::from_field(raw.get())
                .map(Some)
                .ok_or(RecordError::Invalid { field: name, expected: T::EXPECTED }),
        }
    }

    /// Takes a field that must be there.
    pub fn required<T: FromField>(&mut self, name: &'static str) -> Result<T, RecordError> {
        self.optional(name)?.ok_or(RecordError::Missing(name))
    }

    /// What nobody took: fields of other programs, kept verbatim.
    pub fn rest(self) -> Object {
        self.0
    }
}

/// A type that a field's JSON text can be read as.
pub trait FromField: Sized {
    /// What is expected, for error texts.
    const EXPECTED: &'static str;
    /// Reads the text.
    fn from_field(text: &str) -> Option<Self>;
}

impl FromField for u64 {
    const EXPECTED: &'static str = "a non-negative 64-bit integer";
    fn from_field(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl FromField for i64 {
    const EXPECTED: &'static str = "a 64-bit integer";
    fn from_field(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl FromField for f64 {
    const EXPECTED: &'static str = "a finite number";
    fn from_field(text: &str) -> Option<Self> {
        // `serde_json` rounds some numbers to the neighbour of the nearest double; `str::parse` does
        // not. The text is JSON already, so only its kind is to be checked.
        let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten().filter(|number: &f64| number.is_finite())
    }
}

impl FromField for Arc<str> {
    const EXPECTED: &'static str = "a text";
    fn from_field(text: &str) -> Option<Self> {
        serde_json::from_str::<String>(text).ok().map(Into::into)
    }
}

impl FromField for Vec<u64> {
    const EXPECTED: &'static str = "a list of non-negative 64-bit integers";
    fn from_field(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}
