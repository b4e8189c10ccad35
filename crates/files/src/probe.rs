//! Can this directory carry the protocol?
//!
//! The probe makes one directory of its own inside the given one, tries there every operation that
//! the protocol rests on, and removes it. An operation that was not tried is `not verified`, never
//! `works`. Nothing here proves that two *hosts* exclude each other.
//!
//! A success is remembered in the table per host and boot, so that a command pays for it once.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_env::process::ChildLock;
use ringfence_env::{LockMode, Read, World, steps};
use ringfence_model::field::Fields;
use ringfence_model::json;

use crate::layout::{DIR_MODE, FILE_MODE, Layout};

/// What a probe tries, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeStep {
    /// A second process gets a free lock and returns.
    LockAnswers,
    /// A second process is excluded while the lock is held.
    LockExcludes,
    /// It is admitted once the lock is given up.
    LockAdmits,
    /// A file's bytes can be synced.
    FileSync,
    /// A directory's names can be synced.
    DirectorySync,
    /// A file is replaced within its directory, and the new bytes are read back.
    Replace,
    /// A name is removed durably.
    Unlink,
    /// Two hosts exclude each other. Never tried by this probe.
    CrossHostExclusion,
}

impl fmt::Display for ProbeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LockAnswers => "lock-answers",
            Self::LockExcludes => "lock-excludes",
            Self::LockAdmits => "lock-admits",
            Self::FileSync => "file-sync",
            Self::DirectorySync => "directory-sync",
            Self::Replace => "replace",
            Self::Unlink => "unlink",
            Self::CrossHostExclusion => "cross-host-exclusion",
        })
    }
}

/// What came of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Tried and works.
    Works,
    /// Tried and does not work.
    Failed(String),
    /// Not tried.
    NotVerified,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The directory.
    pub dir: PathBuf,
    /// The type of the file system there, as the mount table names it.
    pub mount: String,
    /// Every step with its verdict.
    pub steps: BTreeMap<ProbeStep, Verdict>,
}

impl Probe {
    /// Whether every operation that the protocol rests on works, on this host.
    pub fn usable(&self) -> bool {
        self.first_failure().is_none()
    }

    /// Refuses a directory that cannot carry the protocol.
    pub fn require(self) -> Result<(), ProbeError> {
        let Some((step, why)) = self.first_failure() else { return Ok(()) };
        Err(ProbeError::Unsupported { dir: self.dir, mount: self.mount, step, why })
    }

    fn first_failure(&self) -> Option<(ProbeStep, String)> {
        self.steps.iter().find_map(|(step, verdict)| match verdict {
            Verdict::NotVerified if *step == ProbeStep::CrossHostExclusion => None,
            Verdict::Works => None,
            Verdict::Failed(why) => Some((*step, why.clone())),
            Verdict::NotVerified => Some((*step, "not verified".to_owned())),
        })
    }
}

const CHILD_PATIENCE: Duration = Duration::from_secs(5);
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
const CLOSE_PAUSE: Duration = Duration::from_millis(2);

/// Probes a directory. Leaves nothing behind, also when it fails.
pub fn run(world: &World, dir: &Path) -> Result<Probe, ProbeError> {
    let fail = |source| ProbeError::of(dir, source);
    let mount = world.fs.mount_type(dir).map_err(fail)?;
    let place = dir.join(format!(".probe-{}.tmp", world.unique().map_err(fail)?));
    world.fs.mkdir(&place, DIR_MODE).map_err(fail)?;
    let steps = try_all(world, &place);
    let clear = || {
        for name in ["lock", "staged", "file"] {
            let _ = world.fs.unlink(&place.join(name));
        }
        world.fs.rmdir(&place)
    };
    // Once more, so that one failed call leaves nothing.
    let cleared = clear().or_else(|_| clear());
    let mut steps = steps.map_err(fail)?;
    cleared.map_err(fail)?;
    steps.insert(ProbeStep::CrossHostExclusion, cross_host(&mount));
    Ok(Probe { dir: dir.to_owned(), mount, steps })
}

/// What is known of two hosts without trying.
///
/// Two clients of one NFS export do exclude each other by these locks, but a lock does not refresh
/// what a client remembers of *other* files: under its locks a call may read records of a minute ago.
fn cross_host(mount: &str) -> Verdict {
    match mount {
        "nfs" | "nfs4" => Verdict::Failed(format!(
            "on {mount} a host that has a lock may still read what other files held before it had it"
        )),
        _ => Verdict::NotVerified,
    }
}

/// Whether a directory is one that a probe makes.
pub fn is_place(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(".probe-").is_some_and(|rest| rest.strip_suffix(".tmp").is_some())
}

/// Tries the steps until one fails; the rest stays unverified. Where there is no room to try one, that
/// says nothing about the directory, and is an error.
fn try_all(world: &World, place: &Path) -> io::Result<BTreeMap<ProbeStep, Verdict>> {
    use ProbeStep as S;
    let all = [
        S::LockAnswers,
        S::LockExcludes,
        S::LockAdmits,
        S::FileSync,
        S::DirectorySync,
        S::Replace,
        S::Unlink,
    ];
    let mut steps: BTreeMap<_, _> = all.map(|step| (step, Verdict::NotVerified)).into();
    steps.insert(S::CrossHostExclusion, Verdict::NotVerified);
    for step in all {
        let verdict = match try_one(world, place, step) {
            Ok(None) => Verdict::Works,
            Ok(Some(why)) => Verdict::Failed(why),
            Err(error) if is_full(&error) => return Err(error),
            Err(error) => Verdict::Failed(error.to_string()),
        };
        let goes_on = verdict == Verdict::Works;
        steps.insert(step, verdict);
        if !goes_on {
            break;
        }
    }
    Ok(steps)
}

/// Whether there was no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// `Some` says what is wrong with a call that did not fail by itself.
fn try_one(world: &World, place: &Path, step: ProbeStep) -> io::Result<Option<String>> {
    let fs = &*world.fs;
    let lock = place.join("lock");
    let (file, staged) = (place.join("file"), place.join("staged"));
    match step {
        ProbeStep::LockAnswers => {
            drop(fs.open_lock(&lock, true, FILE_MODE)?);
            // The first lock call is made by a process that can be killed if it never returns.
            expect_child(fs.lock_in_child(&lock, CHILD_PATIENCE)?, ChildLock::Admitted)
        }
        ProbeStep::LockExcludes => {
            let held = fs.open_lock(&lock, false, FILE_MODE)?;
            if !held.try_lock(LockMode::Exclusive)? {
                return Ok(Some("a free lock was refused".to_owned()));
            }
            let seen = fs.lock_in_child(&lock, CHILD_PATIENCE)?;
            held.unlock()?;
            expect_child(seen, ChildLock::Excluded)
        }
        ProbeStep::LockAdmits => {
            let held = fs.open_lock(&lock, false, FILE_MODE)?;
            let taken = held.try_lock(LockMode::Exclusive)?;
            drop(held);
            if !taken {
                return Ok(Some("a free lock was refused".to_owned()));
            }
            // A child that another thread forks at this moment has the descriptor open until it
            // executes another program: closing ours is then not yet enough.
            let deadline = world.clock.deadline(CLOSE_PATIENCE);
            loop {
                let seen = fs.lock_in_child(&lock, CHILD_PATIENCE)?;
                if seen != ChildLock::Excluded || world.clock.left(deadline).is_zero() {
                    return expect_child(seen, ChildLock::Admitted);
                }
                world.clock.sleep(CLOSE_PAUSE);
            }
        }
        ProbeStep::FileSync => steps::stage_synced(fs, &file, b"old", FILE_MODE).map(|()| None),
        ProbeStep::DirectorySync => fs.sync_dir(place).map(|()| None),
        ProbeStep::Replace => {
            steps::durable_replace(fs, &staged, &file, b"new", FILE_MODE)?;
            match fs.read(&file, 16)? {
                Read::Bytes(bytes) if bytes == b"new" => Ok(None),
                _ => Ok(Some("a replaced file read back something else".to_owned())),
            }
        }
        ProbeStep::Unlink => {
            steps::durable_unlink(fs, &file)?;
            match fs.stat(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Ok(_) => Ok(Some("a removed name was still there".to_owned())),
                Err(error) => Err(error),
            }
        }
        ProbeStep::CrossHostExclusion => Ok(Some("not tried".to_owned())),
    }
}

fn expect_child(seen: ChildLock, expected: ChildLock) -> io::Result<Option<String>> {
    Ok(match seen {
        _ if seen == expected => None,
        ChildLock::Admitted => Some("a second process got a lock that was held".to_owned()),
        ChildLock::Excluded => Some("a second process was refused a free lock".to_owned()),
        ChildLock::NoAnswer => Some("the lock call did not return".to_owned()),
        ChildLock::Failed(errno) => return Err(io::Error::from_raw_os_error(errno)),
    })
}

/// Probes the table's directory unless this host has seen it succeed, for this table, since boot.
///
/// Whoever probes also gives the table's description its name anew: the maker of the table may have died
/// before that was durable, or after his sync of it had failed. For the same reason nothing is
/// remembered of a directory that is not a table yet: one that is empty can be made anew.
pub fn ensure(world: &World, root: &Path, table: &str) -> Result<(), ProbeError> {
    let fail = |source| ProbeError::of(root, source);
    let mine = Seen::now(world, root, table).map_err(fail)?;
    let cache = root.join("probe.json");
    if mine.is_some() && read_cache(world, &cache).get(&*world.host.name) == mine.as_ref() {
        return Ok(());
    }
    run(world, root)?.require()?;
    if !table.is_empty() {
        name_again(world, root).map_err(fail)?;
        remember(world, root, table);
    }
    Ok(())
}

/// Writes the description of a table anew, as it is, so that its name is durable whatever failed before.
fn name_again(world: &World, root: &Path) -> io::Result<()> {
    let path = Layout::meta(root);
    let Read::Bytes(bytes) = world.fs.read(&path, usize::MAX)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    };
    let temp = path.with_file_name(format!("table.json.{}.tmp", world.unique()?));
    steps::durable_replace(&*world.fs, &temp, &path, &bytes, FILE_MODE)
}

/// Remembers a success. The directory can carry the protocol whether or not that works.
pub(crate) fn remember(world: &World, root: &Path, table: &str) {
    let Ok(Some(mine)) = Seen::now(world, root, table) else { return };
    let cache = root.join("probe.json");
    let mut known = read_cache(world, &cache);
    known.insert(world.host.name.to_string(), mine);
    let _ = write_cache(world, &cache, &known);
}

/// What a host has seen: a success is worth nothing in another boot, on another kind of file system,
/// or for another table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    boot: Arc<str>,
    mount: String,
    table: String,
}

impl Seen {
    fn now(world: &World, root: &Path, table: &str) -> io::Result<Option<Self>> {
        let mount = world.fs.mount_type(root)?;
        let boot = world.host.boot.clone();
        Ok(boot.map(|boot| Self { boot, mount, table: table.to_owned() }))
    }
}

/// Hosts remembered at most; more only means that some of them probe more often.
const HOSTS: usize = 64;

type Cache = BTreeMap<String, Seen>;

/// Anything unreadable is no memory: the probe is made again.
fn read_cache(world: &World, path: &Path) -> Cache {
    let read = || {
        let Ok(Read::Bytes(bytes)) = world.fs.read(path, 64 * 1024) else { return None };
        let hosts = Fields::parse(&bytes).ok()?.take("hosts")?;
        let hosts = Fields::parse_raw("hosts", &hosts).ok()?.rest();
        hosts
            .into_iter()
            .map(|(host, seen)| {
                let mut seen = Fields::parse_raw("host", &seen).ok()?;
                let mut text = |name| seen.required::<Arc<str>>(name).ok();
                let (boot, mount, table) = (text("boot")?, text("mount")?, text("table")?);
                let (mount, table) = (mount.to_string(), table.to_string());
                Some((host, Seen { boot, mount, table }))
            })
            .collect()
    };
    read().unwrap_or_default()
}

fn write_cache(world: &World, path: &Path, known: &Cache) -> io::Result<()> {
    let first = known.len().saturating_sub(HOSTS);
    let hosts: BTreeMap<&str, String> = known
        .iter()
        .skip(first)
        .map(|(host, seen)| {
            let fields = [
                ("boot", json::quoted(&seen.boot)),
                ("mount", json::quoted(&seen.mount)),
                ("table", json::quoted(&seen.table)),
            ];
            let line = json::object_line(&fields.into_iter().collect());
            (host.as_str(), line.trim_end().to_owned())
        })
        .collect();
    let hosts = json::object_line(&hosts).trim_end().to_owned();
    let line = json::object_line(&BTreeMap::from([("hosts", hosts)]));
    let temp = path.with_file_name(format!("probe.json.{}.tmp", world.unique()?));
    steps::durable_replace(&*world.fs, &temp, path, line.as_bytes(), FILE_MODE)
}

/// Why a directory was not probed, or cannot carry the protocol.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A required operation does not work here.
    #[error(
        "{} (a {mount} file system) cannot carry a table: {step}: {why}; use another directory",
        dir.display()
    )]
    Unsupported {
        /// The directory.
        dir: PathBuf,
        /// Its file system.
        mount: String,
        /// What does not work.
        step: ProbeStep,
        /// Why.
        why: String,
    },
    /// There is no room to try the directory; nothing is wrong with it or the table.
    #[error(
        "{} is full ({source}), and its first opening since this host started tries it with a few small \
         files: make room for {ROOM_KIB} KiB and five files there, or raise the quota, and try again; \
         leases are as they were",
        dir.display()
    )]
    Full {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("cannot probe {}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ProbeError {
    fn of(dir: &Path, source: io::Error) -> Self {
        let dir = dir.to_owned();
        if is_full(&source) { Self::Full { dir, source } } else { Self::Io { dir, source } }
    }
}

/// What a probe needs on a file system with blocks of 4 KiB: two directories' worth of names, two files
/// beside each other, and the table's description and what is remembered, each beside its successor.
const ROOM_KIB: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nfs_is_refused_by_name_and_other_file_systems_by_what_they_do() {
        let of = |mount: &str| {
            let steps = BTreeMap::from([
                (ProbeStep::LockAnswers, Verdict::Works),
                (ProbeStep::CrossHostExclusion, cross_host(mount)),
            ]);
            Probe { dir: PathBuf::new(), mount: mount.to_owned(), steps }
        };
        assert!(of("ext4").usable() && of("tmpfs").usable());
        for mount in ["nfs", "nfs4"] {
            let probe = of(mount);
            let (step, why) = probe.first_failure().unwrap();
            assert!(!probe.usable() && step == ProbeStep::CrossHostExclusion);
            assert!(why.contains(mount), "{why}");
        }
    }
}
