//! Telling a file from a copy of it, by what no copy has: its number, its birth, and its directory's
//! number.
//!
//! Only where files keep their numbers over remounts and restarts; elsewhere nothing is bound. What puts
//! a whole file system back, numbers and all, is not noticed: a snapshot, an image, a virtual machine.

use std::io;
use std::path::Path;

use crate::{World, WriteFile};

/// File systems on a disk, or on a server, whose files keep their numbers.
const KEEPS_NUMBERS: [&str; 14] = [
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "gfs2", "jfs", "nfs", "nfs4", "ocfs2",
    "overlay", "xfs", "zfs",
];

/// The file, and the directory of its table, that some text belongs in. It is stored in that very file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    inode: u64,
    born: Option<u64>,
    root: Option<u64>,
}

impl Binding {
    /// That of an open file in the directory `root`, which is on a file system of the kind `mount`;
    /// `None` where nothing is bound.
    pub fn of(
        world: &World,
        root: &Path,
        mount: &str,
        file: &dyn WriteFile,
    ) -> io::Result<Option<Self>> {
        if !KEEPS_NUMBERS.contains(&mount) {
            return Ok(None);
        }
        let (Some(file), Some(root)) = (file.identity()?, world.fs.identity(root)?) else {
            return Ok(None);
        };
        // Directories of an overlay over several file systems may be numbered anew at each mount.
        let root = (mount != "overlay").then_some(root.inode);
        Ok(Some(Self { inode: file.inode, born: file.born, root }))
    }

    /// The one that [`Self::fields`] wrote; nothing without an `inode`.
    pub fn from_fields(inode: Option<u64>, root: Option<u64>, born: Option<u64>) -> Option<Self> {
        inode.map(|inode| Self { inode, born, root })
    }

    /// Names and numbers: `inode`, and `root` and `born` where they are known.
    pub fn fields(self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("inode", self.inode.to_string())];
        fields.extend(self.root.map(|root| ("root", root.to_string())));
        fields.extend(self.born.map(|born| ("born", born.to_string())));
        fields
    }

    /// Whether `path`, in `root`, is the file that it names. True where that cannot be told.
    pub fn names(self, world: &World, root: &Path, path: &Path) -> io::Result<bool> {
        let (Some(file), Some(root)) = (world.fs.identity(path)?, world.fs.identity(root)?) else {
            return Ok(true);
        };
        // A kernel that does not tell the birth may be followed by one that does.
        let same = |then: Option<u64>, now| then.zip(now).is_none_or(|(then, now)| then == now);
        let same_root = same(self.root, Some(root.inode));
        Ok(self.inode == file.inode && same_root && same(self.born, file.born))
    }
}
