//! A branch target: what one lease is on.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// One branch target, `1..=u64::MAX`.
///
/// The number is opaque here; a campaign packs a branch's source and destination into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(NonZeroU64);

impl Target {
    /// Accepts any positive number.
    pub fn new(number: u64) -> Result<Self, TargetError> {
        NonZeroU64::new(number).map(Self).ok_or(TargetError::Zero)
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Target {
    type Err = TargetError;

    /// Reads plain decimal digits; a sign, a space or a base prefix is refused.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits {
            return Err(TargetError::NotDecimal(text.chars().take(40).collect()));
        }
        let number = text.parse().map_err(|_| TargetError::TooLarge(text.to_owned()))?;
        Self::new(number)
    }
}

impl TryFrom<u64> for Target {
    type Error = TargetError;

    fn try_from(number: u64) -> Result<Self, TargetError> {
        Self::new(number)
    }
}

/// Why a number or text is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Zero names no branch.
    #[error("target 0 is not a target: targets are 1..=18446744073709551615")]
    Zero,
    /// Not plain decimal digits.
    #[error("target {0:?} is not a positive decimal number")]
    NotDecimal(String),
    /// More than 64 bits.
    #[error("target {0} does not fit in 64 bits")]
    TooLarge(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_decimal_numbers_of_64_bits_are_targets() {
        assert_eq!("77".parse(), Target::new(77));
        assert_eq!("18446744073709551615".parse(), Target::new(u64::MAX));
        assert_eq!("0".parse::<Target>(), Err(TargetError::Zero));
        for text in ["", "-1", "+1", " 1", "0x10", "1.0", "seven"] {
            assert!(matches!(text.parse::<Target>(), Err(TargetError::NotDecimal(_))), "{text:?}");
        }
        let over = "18446744073709551616";
        assert_eq!(over.parse::<Target>(), Err(TargetError::TooLarge(over.into())));
    }
}
