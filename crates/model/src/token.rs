//! Fences and fencing tokens.
//!
//! A [`Fence`] is strictly increasing over the life of a table. A [`FencingToken`] is a fence and a
//! random part, one per grant, the same for the whole group, unchanged by heartbeats. A stored
//! token is opaque text ([`Token`]), because other programs write tokens of their own form; the
//! table compares the whole text, downstream systems compare the fence.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A grant's number: larger than that of every earlier grant of the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A token as Ringfence issues it: 20 decimal digits, `-`, 32 hex digits.
///
/// The width is fixed, so text order is fence order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    fence: Fence,
    nonce: u128,
}

impl FencingToken {
    /// Joins a fence and a random part.
    pub fn new(fence: Fence, nonce: u128) -> Self {
        Self { fence, nonce }
    }

    /// The number that downstream systems compare.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:032x}", self.fence.0, self.nonce)
    }
}

impl From<FencingToken> for Token {
    fn from(token: FencingToken) -> Self {
        // In every claim: written by hand, without the formatter. A test compares the two.
        let mut text = [b'-'; 53];
        let (fence, nonce) = text.split_at_mut(20);
        let mut rest = token.fence.0;
        for digit in fence.iter_mut().rev() {
            *digit = hex(rest % 10);
            rest /= 10;
        }
        let digits = nonce.get_mut(1..).unwrap_or_default();
        for (pair, byte) in digits.chunks_exact_mut(2).zip(token.nonce.to_be_bytes()) {
            pair.copy_from_slice(&[hex(u64::from(byte >> 4)), hex(u64::from(byte))]);
        }
        Self(std::str::from_utf8(&text).unwrap_or_default().into())
    }
}

/// The digit of a number below 16.
fn hex(number: u64) -> u8 {
    let digit = u8::try_from(number & 15).unwrap_or(0);
    if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
}

/// Any program's token: opaque text, compared whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The longest token that is read or accepted, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Accepts 1 to 512 bytes without control characters.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(TokenError::TooLong(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(TokenError::Control);
        }
        Ok(Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The fence, if this token has the form that Ringfence issues.
    pub fn fence(&self) -> Option<Fence> {
        let (digits, nonce) = self.0.split_once('-')?;
        let decimal = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let ours = decimal && nonce.len() == 32 && nonce.bytes().all(hex);
        if ours { digits.parse().ok().map(Fence) } else { None }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        Self::new(text)
    }
}

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Nothing.
    #[error("the token is empty")]
    Empty,
    /// Over [`Token::MAX_BYTES`].
    #[error("the token has {0} bytes, over the limit of {max}", max = Token::MAX_BYTES)]
    TooLong(usize),
    /// A control character.
    #[error("the token has a control character in it")]
    Control,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn foreign_tokens_are_kept_whole_and_have_no_fence() {
        for text in ["abc", "5f2c-1", "0000000000000000001-00", "x".repeat(512).as_str()] {
            let token = Token::new(text).unwrap();
            assert_eq!((token.as_str(), token.fence()), (text, None));
        }
        assert_eq!(Token::new(""), Err(TokenError::Empty));
        assert_eq!(Token::new("a\nb"), Err(TokenError::Control));
        assert_eq!(Token::new(&"x".repeat(513)), Err(TokenError::TooLong(513)));
    }

    proptest! {
        #[test]
        fn text_order_is_fence_order_and_the_fence_reads_back(
            a: u64, b: u64, na: u128, nb: u128,
        ) {
            let (one, two) = (FencingToken::new(Fence(a), na), FencingToken::new(Fence(b), nb));
            let text = Token::from(one);
            prop_assert_eq!(text.as_str(), one.to_string());
            let (text_one, text_two) = (Token::from(one), Token::from(two));
            prop_assert_eq!(text_one.fence(), Some(Fence(a)));
            if a != b {
                prop_assert_eq!(text_one < text_two, a < b);
            }
        }
    }
}
