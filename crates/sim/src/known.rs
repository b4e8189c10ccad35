//! Violations that were found, reported and are not mended yet.
//!
//! They are counted apart, so that they hide nothing new. A defect that is mended leaves this list.

/// A defect that is known.
#[derive(Debug)]
pub struct Known {
    /// What it is.
    pub name: &'static str,
    /// All of these are in the text of a violation that is one of its kind.
    pub signs: &'static [&'static str],
}

/// Every known defect.
pub const KNOWN: &[Known] = &[];

/// Put at the end of what is wrong with an order, where a recovery synced what a failed sync had
/// covered.
pub const BELIEVED_SYNC: &str = " [recovery synced what a failed sync had covered]";

/// The known defect that a violation is of.
pub fn name(violation: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| known.signs.iter().all(|sign| violation.contains(sign)));
    known.map(|known| known.name)
}
