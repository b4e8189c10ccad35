//! Reading one record, and telling damage from absence.

use std::io;
use std::path::Path;

use ringfence_engine::StorageError;
use ringfence_env::{Fs, Read};
use ringfence_model::record::MAX_RECORD_BYTES;
use ringfence_model::{Damage, Entry, Key, Record, Token};

use crate::digest;

/// What is stored under a record's name.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The exact content, which a failed call puts back.
    pub before: Before,
    /// The same, as rules see it.
    pub entry: Entry,
}

impl Stored {
    /// No such name.
    pub fn absent() -> Self {
        Self { before: Before::Absent, entry: Entry::Vacant }
    }
}

/// A record file with these bytes, as rules see it.
pub fn parsed(key: Key, path: &Path, bytes: Vec<u8>) -> Stored {
    let entry = match Record::parse(key.space, key.id, &bytes) {
        Ok(record) => Entry::Present(record),
        Err(error) => damaged(path, error.to_string(), &digest::short(&bytes)),
    };
    Stored { before: Before::Bytes(bytes), entry }
}

fn damaged(path: &Path, reason: String, digest: &str) -> Entry {
    Entry::Damaged(Damage {
        location: path.display().to_string(),
        reason,
        digest: damage_token(digest),
    })
}

/// The exact previous state of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// No such name.
    Absent,
    /// A regular file with these bytes.
    Bytes(Vec<u8>),
    /// Something whose content cannot be kept in memory (a directory, a pipe, a huge file): it can
    /// only be moved aside and back.
    Opaque,
}

/// Reads the record of `key` at `path`.
pub fn stored(fs: &dyn Fs, key: Key, path: &Path) -> Result<Stored, StorageError> {
    match fs.read(path, MAX_RECORD_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Stored::absent()),
        Err(source) => Err(StorageError::new("read", path.display(), source)),
        Ok(Read::Bytes(bytes)) => Ok(parsed(key, path, bytes)),
        Ok(Read::NotRegular(kind)) => {
            let word = format!("{kind:?}").to_lowercase();
            let entry = damaged(path, format!("it is {kind}"), &word);
            Ok(Stored { before: Before::Opaque, entry })
        }
        Ok(Read::TooLarge(len)) => {
            let entry = damaged(path, format!("it has {len} bytes"), &format!("{len}-bytes"));
            Ok(Stored { before: Before::Opaque, entry })
        }
    }
}

fn damage_token(digest: &str) -> Token {
    // The text is short and printable, so it is always a token.
    Token::new(&format!("damaged-{digest}")).unwrap_or_else(|_| unreachable!("a valid token"))
}
