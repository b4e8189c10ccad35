//! Opening a table, and what is said when that fails.

use std::error::Error;
use std::path::Path;

use ringfence::{Failure, OpenError, ProbeError, Restored, StorageError, Store};
use ringfence_files::OpenError as FilesError;
use ringfence_files::meta::MetaError;
use ringfence_journal::OpenError as JournalError;
use ringfence_journal::meta::MetaError as JournalMeta;
use ringfence_journal::replica::ReadError;

use crate::answer::CorruptRecord;
use crate::args::DurabilityArg;
use crate::exit::Exit;
use crate::output::Complaint;

/// Opens a table for every operation.
pub(crate) fn open(path: &Path) -> Result<Store, Complaint> {
    Store::open(path).map_err(|error| not_opened(&error))
}

/// Opens a table for every operation, and refuses one of another durability than the one asked for.
pub(crate) fn open_as(path: &Path, wanted: Option<DurabilityArg>) -> Result<Store, Complaint> {
    let Some(wanted) = wanted else { return open(path) };
    Store::open_as(path, wanted.into()).map_err(|error| not_opened(&error))
}

/// Opens a table for reading; nothing in it is written.
pub(crate) fn open_read_only(path: &Path) -> Result<Store, Complaint> {
    Store::open_read_only(path).map_err(|error| not_opened(&error))
}

/// Refuses a place that a table was moved from, or is on its way to.
pub(crate) fn expect_no_move(path: &Path) -> Result<(), Complaint> {
    Store::expect_no_move(path).map_err(|error| not_opened(&error))
}

/// Why a table was not opened.
pub(crate) fn not_opened(error: &OpenError) -> Complaint {
    match error {
        OpenError::Files(error) => files_not_opened(error),
        OpenError::Journal(error) => journal_not_opened(error),
        OpenError::Moved { to, .. } => Complaint::new(Exit::NO_TABLE, "moved", chain(error))
            .with("to", to.display().to_string()),
        OpenError::Arriving { from, .. } => {
            Complaint::new(Exit::NO_TABLE, "arriving", chain(error))
                .with("from", from.display().to_string())
        }
        _ => Complaint::new(Exit::FAILED, "failed", chain(error)).with("restored", true),
    }
}

/// The same, of a journal.
pub(crate) fn journal_not_opened(error: &JournalError) -> Complaint {
    let message = chain(error);
    match error {
        JournalError::NotATable { .. } | JournalError::Meta(JournalMeta::Missing) => {
            Complaint::new(Exit::NO_TABLE, "no-table", message)
        }
        JournalError::Unsafe { .. } => Complaint::new(Exit::NO_TABLE, "unsafe", message),
        JournalError::Restored { limit, .. } => {
            Complaint::new(Exit::NO_TABLE, "restored", message).with("fence_limit", *limit)
        }
        JournalError::Meta(JournalMeta::Damaged { path, reason }) => corrupt(path, reason, message),
        JournalError::Read { root, reason }
            if !matches!(reason, ReadError::Io(_) | ReadError::NoSegment) =>
        {
            corrupt(root, &reason.to_string(), message)
        }
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

/// The same, of a table of files.
pub(crate) fn files_not_opened(error: &FilesError) -> Complaint {
    let message = chain(error);
    match error {
        FilesError::NotATable { .. } | FilesError::Meta(MetaError::Missing) => {
            Complaint::new(Exit::NO_TABLE, "no-table", message)
        }
        FilesError::Unsafe { .. } => Complaint::new(Exit::NO_TABLE, "unsafe", message),
        FilesError::OtherDurability { .. } => {
            Complaint::new(Exit::NO_TABLE, "other-durability", message)
        }
        FilesError::Restored(restored) => not_restored(restored),
        FilesError::Incomplete { missing } => Complaint::new(Exit::NO_TABLE, "incomplete", message)
            .with("missing", [missing.display().to_string()]),
        FilesError::Meta(MetaError::Damaged { path, reason }) => corrupt(path, reason, message),
        FilesError::Contradicts { meta, .. } => {
            corrupt(meta, "its durability was edited", message.clone())
        }
        FilesError::Probe(error) => not_probed(error),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

/// A table that was put back from a backup and whose fences nobody has raised since.
pub(crate) fn not_restored(restored: &Restored) -> Complaint {
    Complaint::new(Exit::NO_TABLE, "restored", restored.to_string())
        .with("fence_limit", restored.limit)
}

/// The table's own description is damaged.
fn corrupt(path: &Path, reason: &str, message: String) -> Complaint {
    let record = CorruptRecord {
        target: None,
        location: path.display().to_string(),
        reason: reason.to_owned(),
        token: None,
    };
    Complaint::new(Exit::DAMAGED, "corrupt", message).with("records", [record])
}

/// Why a directory was not probed, or cannot carry a table.
pub(crate) fn not_probed(error: &ProbeError) -> Complaint {
    let message = chain(error);
    match error {
        ProbeError::Unsupported { .. } => Complaint::new(Exit::UNSUPPORTED, "unsupported", message),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

/// A read that failed.
pub(crate) fn not_read(error: &StorageError) -> Complaint {
    Complaint::new(Exit::FAILED, "failed", chain(error)).with("restored", true)
}

/// A call that failed: busy, put back, or unknown. `verb` begins the sentence.
pub(crate) fn failed(verb: &str, failure: &Failure) -> Complaint {
    let message = format!("{verb} failed: {}", chain(failure));
    match failure {
        Failure::Busy { what, waited } => {
            let message = format!(
                "busy: {what} stayed locked by another process for {:.1} s; nothing was changed",
                waited.as_secs_f64()
            );
            Complaint::new(Exit::BUSY, "busy", message)
                .with("conflicts", [(); 0])
                .with("locked", what)
        }
        Failure::Unknown { members, .. } => Complaint::new(Exit::FAILED, "unknown", message)
            .with("restored", false)
            .with("members", members),
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

/// An error and what caused it, each said once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}
