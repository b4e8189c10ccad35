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
pub const KNOWN: &[Known] = &[
    Known {
        name: "journal: a table whose making was cut short opens without its directory of lives",
        signs: &["Init: ", "repair: nothing was changed"],
    },
    Known {
        name: "journal: init acknowledges a table in a directory of which a sync failed before",
        signs: &["Init: call", " late ", "not open after all", "not a table"],
    },
    Known {
        name: "journal: init acknowledges a table that is there before its name is durable",
        signs: &["Init: ", "> kill, the same call again", "is not a table"],
    },
    Known {
        name: "journal: behind a seal, the header of the next segment is written anew; if that spoils \
               it, nobody can store anything any more",
        signs: &[
            " > cut ",
            "something else ended as Restored(\"cannot read the journal of /t/table: the segment that \
             the checkpoint goes on in is not there",
        ],
    },
    Known {
        name: "journal: a frame that was written nearly whole is erased, not durably, and its call says \
               that nothing was changed; a power cut brings it back",
        signs: &["is cut short > ", "was put back, and it was not"],
    },
    Known {
        name: "journal: a failed sync is forgotten by its own process where its mark cannot be written: \
               the next sync is believed, and what it should have covered is lost",
        signs: &[" late", "> and it goes on", "does not open after all", "is damaged"],
    },
    Known {
        name: "journal: an audit line behind one whose sync failed and whose writer died does not read",
        signs: &[" late ", "SetLen table/audit.log > kill", "no readable audit line"],
    },
];

/// Put at the end of what is wrong with an order, where a recovery synced what a failed sync had
/// covered.
pub const BELIEVED_SYNC: &str = " [recovery synced what a failed sync had covered]";

/// The known defect that a violation is of.
pub fn name(violation: &str, subject: &dyn Subject) -> Option<&'static str> {
    let engine = if subject.has_memory() { "journal: " } else { "files: " };
    let mine = KNOWN.iter().filter(|known| known.name.starts_with(engine));
    let mut found = mine.filter(|known| known.signs.iter().all(|sign| violation.contains(sign)));
    found.next().map(|known| known.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{FILES_GROUP, JOURNAL};

    #[test]
    fn what_is_known_of_one_engine_hides_nothing_of_the_other() {
        let seen = "Init: 3 SyncDir t/table > cut 2: repair: nothing was changed";
        assert!(name(seen, JOURNAL).is_some());
        assert_eq!(name(seen, FILES_GROUP), None);
    }
}
