//! Violations that were found, reported and are not mended yet.
//!
//! They are counted apart, so that they hide nothing new. A defect that is mended leaves this list.

use crate::subject::Subject;

/// A defect that is known.
#[derive(Debug)]
pub struct Known {
    /// What it is, and of which engine.
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
pub fn name(violation: &str, subject: &dyn Subject) -> Option<&'static str> {
    among(KNOWN, violation, subject)
}

fn among(known: &[Known], violation: &str, subject: &dyn Subject) -> Option<&'static str> {
    let engine = if subject.has_memory() { "journal: " } else { "files: " };
    let mine = known.iter().filter(|known| known.name.starts_with(engine));
    let mut found = mine.filter(|known| known.signs.iter().all(|sign| violation.contains(sign)));
    found.next().map(|known| known.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{FILES_GROUP, JOURNAL};

    #[test]
    fn what_is_known_of_one_engine_hides_nothing_of_the_other() {
        let known =
            [Known { name: "journal: a table without a name", signs: &["Init:", "not a table"] }];
        let seen = "Init: call 2 fails late > cut 2: /t/table is not a table";
        assert_eq!(among(&known, seen, JOURNAL), Some("journal: a table without a name"));
        assert_eq!(among(&known, seen, FILES_GROUP), None);
        assert_eq!(among(&known, "Claim: /t/table is not a table", JOURNAL), None);
    }
}
