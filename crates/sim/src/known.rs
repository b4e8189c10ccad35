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
pub const KNOWN: &[Known] = &[
    // The writer's directory sync failed and so did its abort mark, so the new state stays decided.
    // Whoever recovers finds the record as decided, syncs its directory and retires the intent; but a
    // sync that succeeds says nothing about what an earlier one failed on.
    Known {
        name: "recovery believes its sync of a directory whose sync failed before",
        signs: &["no order explains it until the power cut", BELIEVED_SYNC],
    },
];

/// Put at the end of what is wrong with an order, where a recovery synced what a failed sync had
/// covered.
pub const BELIEVED_SYNC: &str = " [recovery synced what a failed sync had covered]";

/// The known defect that a violation is of.
pub fn name(violation: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| known.signs.iter().all(|sign| violation.contains(sign)));
    known.map(|known| known.name)
}
