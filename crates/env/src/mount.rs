//! What is mounted where.

use std::io;
use std::path::{Path, PathBuf};

/// The file-system type of the mount that holds `path`, as `/proc/self/mountinfo` names it.
pub fn type_of(path: &Path) -> io::Result<String> {
    let path = path.canonicalize()?;
    // Mount points are bytes, not text, and `/proc` may be missing: neither is a reason to fail.
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    Ok(find(&table, &path).unwrap_or_else(|| "unknown".to_owned()))
}

/// The last mount on the longest mount point that is a prefix of `path` is the one in force.
fn find(table: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in table.lines() {
        let (head, tail) = line.split_once(" - ")?;
        let point = unescape(head.split(' ').nth(4)?);
        let kind = tail.split(' ').next()?;
        if path.starts_with(&point) {
            let depth = point.components().count();
            if best.is_none_or(|(deepest, _)| depth >= deepest) {
                best = Some((depth, kind));
            }
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Spaces and backslashes in mount points stand as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            out.push(char::from(code));
            rest = after.get(3..).unwrap_or("");
        } else {
            out.push('\\');
            rest = after;
        }
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_latest_mount_decides() {
        let table = "\
1 0 8:1 / / rw - ext4 /dev/a rw
2 1 0:5 / /mnt rw shared:1 - tmpfs none rw
3 1 0:6 / /mnt rw - nfs4 host:/x rw
4 1 0:7 / /mnt/with\\040space rw - xfs /dev/b rw
";
        assert_eq!(find(table, Path::new("/home")).unwrap(), "ext4");
        assert_eq!(find(table, Path::new("/mnt/deep/er")).unwrap(), "nfs4");
        assert_eq!(find(table, Path::new("/mnt/with space/x")).unwrap(), "xfs");
        assert_eq!(find(table, Path::new("/mntx")).unwrap(), "ext4");
        assert_eq!(type_of(Path::new("/proc")).unwrap(), "proc");
    }
}
