//! Telling the fence counter from a copy of it.
//!
//! A table that is put back from a backup would hand out numbers a second time, and all that it knows
//! is in the backup too. What no backup holds is which file on the disk its bytes were in.
//!
//! R1. The limit names the very file that it stands in, by number and birth, and the directory of the
//!     table. In a copy, whatever made it, that is another file or another directory.
//! R2. The position counts only with a mark that names its file and the file's last change, which no
//!     program can put back. Older bytes written over it are no position.
//!
//! Only where files keep their numbers over remounts and restarts. Elsewhere, and in memory, nothing is
//! bound. What puts a whole file system back, numbers and all, is not noticed by R1: a snapshot, an
//! image, a virtual machine.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use ringfence_env::{Identity, World, WriteFile};
use ringfence_model::RecordError;
use ringfence_model::field::Fields;

use crate::digest;

/// File systems on a disk, or on a server, whose files keep their numbers.
const KEEPS_NUMBERS: [&str; 14] = [
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "gfs2", "jfs", "nfs", "nfs4", "ocfs2",
    "overlay", "xfs", "zfs",
];

/// The file and the directory that a limit belongs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    inode: u64,
    born: Option<u64>,
    root: Option<u64>,
}

impl Binding {
    /// That of an open file in `root`; `None` where nothing is bound.
    pub(crate) fn of(world: &World, root: &Path, file: &dyn WriteFile) -> io::Result<Option<Self>> {
        let mount = world.fs.mount_type(root)?;
        if !KEEPS_NUMBERS.contains(&&*mount) {
            return Ok(None);
        }
        let (Some(file), Some(root)) = (file.identity()?, world.fs.identity(root)?) else {
            return Ok(None);
        };
        // Directories of an overlay over several file systems may be numbered anew at each mount.
        let root = (mount != "overlay").then_some(root.inode);
        Ok(Some(Self { inode: file.inode, born: file.born, root }))
    }

    /// Takes it from the fields of a limit; one without any is not bound.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Self>, RecordError> {
        let (born, root) = (fields.optional("born")?, fields.optional("root")?);
        Ok(fields.optional("inode")?.map(|inode| Self { inode, born, root }))
    }

    /// The same as fields.
    pub(crate) fn fields(self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("inode", self.inode.to_string())];
        fields.extend(self.root.map(|root| ("root", root.to_string())));
        fields.extend(self.born.map(|born| ("born", born.to_string())));
        fields
    }

    /// Whether `path`, in `root`, is the file that it names.
    pub(crate) fn names(self, world: &World, root: &Path, path: &Path) -> io::Result<bool> {
        let (Some(file), Some(root)) = (world.fs.identity(path)?, world.fs.identity(root)?) else {
            return Ok(true);
        };
        // A kernel that does not tell the birth may be followed by one that does.
        let same = |then: Option<u64>, now| then.zip(now).is_none_or(|(then, now)| then == now);
        let same_root = same(self.root, Some(root.inode));
        Ok(self.inode == file.inode && same_root && same(self.born, file.born))
    }
}

/// The line that vouches for a position. Of fixed width: it is overwritten in place.
pub(crate) fn mark(position: Identity) -> String {
    let Identity { device, inode, born, changed } = position;
    let mut line = format!("{device:020} {inode:020} {:020} {changed:020}", born.unwrap_or(0));
    let check = digest::short(line.as_bytes());
    let _ = writeln!(line, " {check}");
    line
}

/// The table was put back from a backup, or is a copy of another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is a copy: this table was restored from a backup or copied from another place, so fences above \
     its limit of {limit} may have been handed out. Stop every program that uses it, then run \
     `ringfence check STORE --repair --bump-fence N`, with an N that is not less than the number of \
     grants since the copy was made (1000000000 does no harm); nothing was changed",
    fence.display()
)]
pub struct Restored {
    /// The fence counter.
    pub fence: PathBuf,
    /// What it says.
    pub limit: u64,
}
