//! What a workload says about its calls, in the order of the writes around them.
//!
//! A mark is one write to the recorder's control file. The recorder puts it into its log between the
//! writes that came before and those that came after, so "acknowledged before this write" is exact.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a call is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verb {
    /// Grants; the call's number is the owner's name.
    Claim,
    /// Renews the grant of another call.
    Heartbeat,
    /// Removes a grant.
    Release,
    /// Removes a grant by an operator's hand.
    ForceRelease,
    /// Decides to publish a work item.
    BeginCommit,
    /// Ends a work item.
    Complete,
}

/// A call that is about to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Its number, unique in the whole recording.
    pub(crate) id: u64,
    /// What it is to do.
    pub(crate) verb: Verb,
    /// The records: targets by number, work items above [`WORK`].
    pub(crate) items: Vec<u64>,
    /// The claim whose grant it is about; its own number for a claim.
    pub(crate) of: u64,
    /// The time it stores, as bits of a float, where the caller gives one.
    pub(crate) updated: Option<u64>,
    /// The fence of the grant, where the caller saw another's in the table.
    #[serde(default)]
    pub(crate) fence: Option<u64>,
}

/// Work items are numbered from here.
pub(crate) const WORK: u64 = 1_000_000;

/// A call that returned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    /// Its number.
    pub(crate) id: u64,
    /// How it ended.
    pub(crate) ending: Ending,
    /// The fence, of a grant.
    pub(crate) fence: Option<u64>,
    /// The time that was stored, as bits of a float.
    pub(crate) updated: Option<u64>,
    /// What went wrong.
    pub(crate) error: Option<String>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// Acknowledged.
    Done,
    /// Refused, or failed and nothing was changed, or it was put back.
    Nothing,
    /// Old or new.
    Unknown,
}

/// Writes marks.
#[derive(Debug)]
pub(crate) struct Marks(File);

impl Marks {
    /// On the recorder's control file, or a plain file that several processes append to.
    pub(crate) fn open(control: &Path) -> io::Result<Self> {
        Ok(Self(std::fs::OpenOptions::new().append(true).open(control)?))
    }

    /// Before the calls.
    pub(crate) fn begin(&mut self, calls: &[Begin]) -> io::Result<()> {
        self.put('B', calls)
    }

    /// After them.
    pub(crate) fn end(&mut self, calls: &[End]) -> io::Result<()> {
        self.put('A', calls)
    }

    fn put(&mut self, kind: char, calls: &(impl Serialize + ?Sized)) -> io::Result<()> {
        let mut line = kind.to_string().into_bytes();
        line.extend(serde_json::to_vec(calls)?);
        line.push(b'\n');
        // One write, or the order would mean nothing.
        let written = self.0.write(&line)?;
        if written == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}
