//! Who asks for a lease.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a coordinator: 1 to 256 bytes of text without control characters.
///
/// An owner is for people and for counting steals. It authorises nothing; the token does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, OwnerError> {
        if name.is_empty() {
            return Err(OwnerError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(OwnerError::TooLong(name.len()));
        }
        if name.chars().any(char::is_control) {
            return Err(OwnerError::Control);
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as shared text, as records hold it.
    pub fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        Self::new(text)
    }
}

/// Why a text is no owner name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// Nothing.
    #[error("the owner name is empty")]
    Empty,
    /// Over [`Owner::MAX_BYTES`].
    #[error("the owner name has {0} bytes, over the limit of {max}", max = Owner::MAX_BYTES)]
    TooLong(usize),
    /// A control character.
    #[error("the owner name has a control character in it")]
    Control,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_of_at_most_256_bytes() {
        assert_eq!(Owner::new("协调器-1").unwrap().as_str(), "协调器-1");
        assert_eq!(Owner::new(""), Err(OwnerError::Empty));
        assert_eq!(Owner::new("a\tb"), Err(OwnerError::Control));
        assert_eq!(Owner::new(&"x".repeat(257)), Err(OwnerError::TooLong(257)));
    }
}
