//! A table as the bytes of its files, and the leases that it shows.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use ringfence::{LeaseState, Timestamp, Token, World};
use serde_json::Value;

use crate::opened::{self, Opened};

/// Everything under a directory, by path from there; a directory has no bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree(pub(crate) BTreeMap<String, Option<Vec<u8>>>);

/// A lease or a work item, as a record or a listing tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) owner: String,
    pub(crate) token: String,
    /// Bits of the time of the grant or the last heartbeat.
    pub(crate) updated: u64,
    pub(crate) status: String,
}

/// What is held, by the id of the record.
pub(crate) type View = BTreeMap<String, Lease>;

impl Tree {
    /// Reads it. A directory that is not there is an empty tree.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        if root.exists() {
            tree.add(root, "")?;
        }
        Ok(tree)
    }

    fn add(&mut self, dir: &Path, prefix: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.0.insert(path.clone(), None);
                self.add(&entry.path(), &format!("{path}/"))?;
            } else {
                self.0.insert(path, Some(std::fs::read(entry.path())?));
            }
        }
        Ok(())
    }

    /// Puts it in the place of whatever is at `root`.
    pub(crate) fn write(&self, root: &Path) -> io::Result<()> {
        if root.exists() {
            std::fs::remove_dir_all(root)?;
        }
        std::fs::DirBuilder::new().mode(0o700).create(root)?;
        for (path, bytes) in &self.0 {
            let path = root.join(path);
            match bytes {
                None => std::fs::DirBuilder::new().mode(0o700).create(path)?,
                Some(bytes) => {
                    let mut file = std::fs::OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(0o600)
                        .open(path)?;
                    io::Write::write_all(&mut file, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// The first path at which two trees differ.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let paths = self.0.keys().chain(other.0.keys());
        paths.into_iter().find(|path| self.0.get(*path) != other.0.get(*path)).cloned()
    }

    /// Files that a writer leaves only when it dies.
    pub(crate) fn temporaries(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).filter(|path| is_temporary(path)).collect()
    }

    /// The bytes of every record, by id.
    pub(crate) fn records<'t>(&'t self) -> BTreeMap<&'t str, &'t [u8]> {
        let record = |(path, bytes): (&'t String, &'t Option<Vec<u8>>)| {
            let (_, name) = path.rsplit_once('/')?;
            let id = name.strip_suffix(".json").filter(|id| id.len() == 64)?;
            Some((id, bytes.as_deref()?))
        };
        self.0.iter().filter_map(record).collect()
    }

    /// The leases that the records tell of; what is no record is an error.
    pub(crate) fn view(&self) -> Result<View, String> {
        let lease = |(id, bytes): (&str, &[u8])| {
            let record: Value = serde_json::from_slice(bytes)
                .map_err(|error| format!("the record {id} is damaged: {error}"))?;
            let lease = Lease::of(&record).ok_or_else(|| format!("the record {id} is damaged"))?;
            Ok((id.to_owned(), lease))
        };
        self.records().into_iter().map(lease).collect()
    }

    /// What makes two states after a crash the same kind of state: names and lengths, without what
    /// chance decides.
    pub(crate) fn shape(&self) -> String {
        let mut shape: Vec<String> = self
            .0
            .iter()
            .map(|(path, bytes)| {
                let path = match path.split_once(".json.").filter(|_| is_temporary(path)) {
                    Some((record, _)) => format!("{record}.tmp"),
                    None => path.clone(),
                };
                let intent = bytes.as_ref().is_some_and(|bytes| bytes.starts_with(b"RFINTENT"));
                format!("{path} {:?} {intent}", bytes.as_ref().map(Vec::len))
            })
            .collect();
        shape.sort();
        shape.join("\n")
    }
}

fn is_temporary(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "tmp")
}

impl Lease {
    /// From a record, or from an item of `list --json`: both name these fields alike.
    fn of(record: &Value) -> Option<Self> {
        Some(Self {
            owner: record["owner"].as_str()?.to_owned(),
            token: record["token"].as_str()?.to_owned(),
            updated: record["updated"].as_f64()?.to_bits(),
            status: record["status"].as_str()?.to_owned(),
        })
    }

    fn new(owner: &str, token: &Token, updated: Timestamp, status: &str) -> Self {
        Self {
            owner: owner.to_owned(),
            token: token.as_str().to_owned(),
            updated: updated.seconds().to_bits(),
            status: status.to_owned(),
        }
    }

    /// The number that the token begins with.
    pub(crate) fn fence(&self) -> u64 {
        self.token.split('-').next().and_then(|fence| fence.parse().ok()).unwrap_or(0)
    }
}

/// What is stored in the table at `root`, of which `tree` is a copy: leases, and work items in every
/// status. What is damaged is an error.
pub(crate) fn stored(root: &Path, tree: &Tree) -> Result<View, String> {
    if !opened::is_journal(root) {
        return tree.view();
    }
    let table = Opened::open_read_only(&World::system(), root)?;
    let mut view = View::new();
    for lease in table.targets().list(None).map_err(crate::table::chain)?.leases {
        match lease.state {
            LeaseState::Active(record) | LeaseState::Expired(record) => {
                let holder = &record.holder;
                let held = Lease::new(&holder.owner, &holder.token, holder.updated, "leased");
                view.insert(lease.id.to_string(), held);
            }
            LeaseState::Corrupt(damage) => return Err(format!("damaged: {}", damage.reason)),
        }
    }
    for item in table.work().list(None).map_err(crate::table::chain)? {
        let record = item.record.map_err(|damage| format!("damaged: {}", damage.reason))?;
        let (holder, status) = (&record.holder, record.status.as_str());
        let held = Lease::new(&holder.owner, &holder.token, holder.updated, status);
        view.insert(item.id.to_string(), held);
    }
    Ok(view)
}

/// The leases of a listing; what it calls damaged is an error.
pub(crate) fn listed(answer: &Value) -> Result<View, String> {
    let mut view = View::new();
    for list in ["leases", "work"] {
        let items = answer[list].as_array().ok_or_else(|| format!("a list without {list}"))?;
        for item in items {
            let lease = Lease::of(item).ok_or_else(|| format!("list shows {item}"))?;
            view.insert(item["id"].as_str().unwrap_or_default().to_owned(), lease);
        }
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are as short as can be, and mean the same number.
    #[test]
    fn two_texts_of_one_moment_are_one() {
        let lease = |updated: &str| {
            let text =
                format!(r#"{{"owner":"a","token":"1-a","status":"leased","updated":{updated}}}"#);
            Lease::of(&serde_json::from_str(&text).unwrap()).unwrap()
        };
        assert_eq!(lease("1796279597.3320313"), lease("1796279597.3320312"));
        assert_ne!(lease("1796279597.3320313"), lease("1796279597.3320315"));
    }
}
