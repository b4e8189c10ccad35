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
//! R1 is [`ringfence_env::Binding`], which says where nothing is bound and what is not noticed.

use std::fmt::Write as _;
use std::path::PathBuf;

use ringfence_env::Identity;

use crate::digest;

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
