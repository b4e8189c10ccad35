//! Names in a table's directory.

use std::path::{Path, PathBuf};

/// Permission bits of every file.
pub const FILE_MODE: u32 = 0o600;
/// How many segments there are: one is written, the other is being made ready.
pub const SLOTS: usize = 2;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The table at `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the table is; written once.
    pub fn meta(&self) -> PathBuf {
        self.root.join("table.json")
    }

    /// The file of a segment.
    pub fn segment(&self, slot: usize) -> PathBuf {
        self.root.join(format!("journal.{slot}"))
    }

    /// The state as of some frame.
    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// The next one while it is written.
    pub fn new_checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint.tmp")
    }

    /// Memory shared by the processes of one boot.
    pub fn hints(&self) -> PathBuf {
        self.root.join("hints")
    }

    /// Whether this is a directory in which somebody tries what the place can do; he may have died at it.
    pub fn is_probe(name: &str) -> bool {
        name.strip_prefix(".probe-").is_some_and(|rest| rest.strip_suffix(".tmp").is_some())
    }

    /// Locked by whoever appends.
    pub fn append_lock(&self) -> PathBuf {
        self.root.join("append.lock")
    }

    /// Locked by whoever syncs.
    pub fn sync_lock(&self) -> PathBuf {
        self.root.join("sync.lock")
    }

    /// Locked by whoever writes a checkpoint or makes a segment ready.
    pub fn maintain_lock(&self) -> PathBuf {
        self.root.join("maintain.lock")
    }

    /// Locked by the processes whose leases are tied to their lives.
    pub fn lives(&self) -> PathBuf {
        self.root.join("lives")
    }

    /// The same while it is made anew.
    pub fn new_lives(&self) -> PathBuf {
        self.root.join("lives.tmp")
    }

    /// The file of one life.
    pub fn life(&self, id: &str) -> PathBuf {
        self.lives().join(format!("{id}.lock"))
    }

    /// One line per force-release.
    pub fn audit(&self) -> PathBuf {
        self.root.join("audit.log")
    }

    /// The same with one line more, while it is written.
    pub fn new_audit(&self) -> PathBuf {
        self.root.join("audit.tmp")
    }
}
