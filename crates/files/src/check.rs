//! Looking a whole table over, and clearing away what nobody uses.
//!
//! Checking only reads. Repair takes the gate alone, so no operation of Ringfence is under way; it
//! removes stale temporaries and lock files that stand beside no record. *Other programs do not
//! know the gate*: while one of them is using the table, removing a lock file that it has open would
//! let it and a newcomer each hold "the" lock. That is why repair is only done when asked for.
//! Damaged records are reported, never touched.

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_engine::{Engine as _, Failure, StorageError};
use ringfence_env::{Deadline, FileKind, FileLock, LockMode, Name};
use ringfence_model::{Audit, Entry, Fence, Key, Space, json};

use crate::binding::Restored;
use crate::engine::FilesEngine;
use crate::fence::FenceCounter;
use crate::intent::{Member, Recovered, Standing, standing_intents};
use crate::layout::NameKind;
use crate::open::OpenError;
use crate::{audit, locks, make, moving, probe, read};

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Valid records.
    pub records: usize,
    /// Lock files, which stay behind for every target ever touched.
    pub lock_files: usize,
    /// Lock files that stand beside no record.
    pub idle_lock_files: usize,
    /// What somebody should look at.
    pub findings: Vec<Finding>,
    /// Removed by repair.
    pub removed: Vec<PathBuf>,
    /// Made again by repair: directories that somebody had removed.
    pub made: Vec<PathBuf>,
    /// The limit of fences, if repair was asked to raise it.
    pub fence_limit: Option<u64>,
    /// Finished by repair: what dead writers had left.
    pub recovered: Recovered,
}

/// What a repair is asked to do beside clearing away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Raises the fence counter by this much, above every fence in the table: for a table that was put
    /// back from a backup, by not less than the number of grants since that was made.
    pub bump_fence: Option<NonZeroU64>,
}

/// Something that somebody should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A record that is held because it is no valid record.
    Damaged {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// The token with which force-release removes exactly this.
        token: String,
    },
    /// A record in a shard where no operation looks for it.
    Misplaced(PathBuf),
    /// A temporary; stale unless its writer is at work at this moment.
    Temporary(PathBuf),
    /// A name that is none of ours.
    Stray(PathBuf),
    /// An intent that stands: a writer is at work, or died and left it to whoever comes next.
    Intent {
        /// Its slot.
        path: PathBuf,
        /// The targets' records that it covers.
        records: Vec<PathBuf>,
        /// The state it decided on.
        standing: Standing,
    },
    /// The fence counter cannot be read: no grant is possible.
    FenceCounter(String),
    /// The fence counter is a copy: nothing is possible until a repair has raised it.
    Restored(Restored),
    /// A directory that somebody removed, or that a repair did not finish making.
    Incomplete(PathBuf),
    /// The description says `record`, but there is this: the description was edited.
    Contradiction(PathBuf),
}

const GATE_PATIENCE: Duration = Duration::from_secs(30);

impl FilesEngine {
    /// Looks at every name of the table. Writes nothing.
    pub fn check(&self) -> Result<CheckReport, CheckError> {
        let mut report = CheckReport::default();
        self.walk(&mut report, false)?;
        Ok(report)
    }

    /// The same, finishes what dead writers left, and removes stale temporaries and idle lock files.
    pub fn repair(&self) -> Result<CheckReport, CheckError> {
        self.repair_with(Repair::default())
    }

    /// The same, and makes directories again that somebody removed, and raises the fence counter if
    /// asked. A table that was put back from a backup is left as it is unless that is asked for.
    pub fn repair_with(&self, repair: Repair) -> Result<CheckReport, CheckError> {
        let deadline = self.world.clock.deadline(GATE_PATIENCE);
        let mut report = CheckReport::default();
        {
            let _gate = self.alone(deadline)?;
            moving::refuse_closed(&self.world, &self.layout)?;
            let counter = FenceCounter::new(&self.layout);
            if repair.bump_fence.is_none()
                && let Some(restored) = counter.restored(&self.world)?
            {
                return Err(restored.into());
            }
            report.made = make::again(&self.world, &self.layout, self.meta.durability)?;
            if let Some(by) = repair.bump_fence {
                let highest = self.highest_fence()?;
                let line = self.bump_line(by, highest);
                drop(audit::append(&self.world, &self.layout, &line, deadline)?);
                report.fence_limit = Some(counter.bump(&self.world, by, highest, deadline)?);
            }
        }
        // Without the gate, which recovery shares.
        report.recovered = self.recover(None, deadline)?;
        let _gate = self.alone(deadline)?;
        self.walk(&mut report, true)?;
        Ok(report)
    }

    pub(crate) fn alone(&self, deadline: Deadline) -> Result<FileLock, Failure> {
        locks::acquire(&self.world, &self.layout.gate(), LockMode::Exclusive, deadline)
    }

    fn highest_fence(&self) -> Result<Fence, StorageError> {
        let mut highest = Fence(0);
        for space in [Space::Targets, Space::Work] {
            for (_, entry) in self.scan(space, None)?.entries {
                if let Entry::Present(record) = entry {
                    highest = highest.max(record.holder().token.fence().unwrap_or(highest));
                }
            }
        }
        Ok(highest)
    }

    /// The line that tells who comes later. It is durable before the counter is raised.
    fn bump_line(&self, by: NonZeroU64, highest: Fence) -> Audit {
        let fields = [
            ("at", json::float(self.moment(None).wall.seconds())),
            ("by", by.to_string()),
            ("event", json::quoted("bump-fence")),
            ("highest", highest.0.to_string()),
        ];
        Audit(json::object_line(&fields.into_iter().collect()).trim_end().to_owned())
    }

    fn walk(&self, report: &mut CheckReport, repair: bool) -> Result<(), CheckError> {
        self.top(Space::Targets, report, repair)?;
        self.top(Space::Work, report, repair)?;
        if let Err(error) = self.fence_limit() {
            report.findings.push(Finding::FenceCounter(error.to_string()));
        }
        let counter = FenceCounter::new(&self.layout);
        report.findings.extend(counter.restored(&self.world)?.map(Finding::Restored));
        let missing = make::missing(&self.world, &self.layout, self.meta.durability)?;
        report.findings.extend(missing.into_iter().map(Finding::Incomplete));
        if make::mark::stands(&self.world, &self.layout)? {
            report.findings.push(Finding::Incomplete(self.layout.making()));
        }
        match self.agrees() {
            Err(OpenError::Contradicts { found, .. }) => {
                report.findings.push(Finding::Contradiction(found));
            }
            Err(OpenError::Storage(error)) => return Err(error.into()),
            _ => {}
        }
        for name in self.names(&self.layout.intents())? {
            if name.name.to_str().map(NameKind::of) == Some(NameKind::Temp) {
                self.temporary(self.layout.intents().join(&name.name), report, repair)?;
            }
        }
        for found in standing_intents(&self.world, &self.layout, None)? {
            if found.standing == Standing::Retired {
                continue;
            }
            let record = |member: &Member| self.layout.record(member.key).record;
            report.findings.push(Finding::Intent {
                records: found.intent.members.iter().map(record).collect(),
                path: found.path,
                standing: found.standing,
            });
        }
        for space in [Space::Targets, Space::Work] {
            for shard in self.layout.shard_count(space).shards() {
                let dir = self.layout.shard_dir(space, shard);
                for name in self.names(&dir)? {
                    self.name(space, &dir, &name, report, repair)?;
                }
            }
        }
        Ok(())
    }

    /// The names beside the shards of one table.
    fn top(&self, space: Space, report: &mut CheckReport, repair: bool) -> Result<(), CheckError> {
        let top = self.layout.space(space);
        for name in self.names(&top)? {
            let path = top.join(&name.name);
            let text = name.name.to_str().unwrap_or_default();
            if NameKind::of(text) == NameKind::Temp {
                self.temporary(path, report, repair)?;
            } else if !self.layout.is_ours(space, text) {
                report.findings.push(Finding::Stray(path));
            }
        }
        Ok(())
    }

    fn name(
        &self,
        space: Space,
        dir: &Path,
        name: &Name,
        report: &mut CheckReport,
        repair: bool,
    ) -> Result<(), CheckError> {
        let path = dir.join(&name.name);
        match name.name.to_str().map_or(NameKind::Stray, NameKind::of) {
            NameKind::Record(id) => {
                let key = Key { space, id };
                if self.layout.record(key).dir != dir {
                    report.findings.push(Finding::Misplaced(path));
                    return Ok(());
                }
                match read::stored(&*self.world.fs, key, &path)?.entry {
                    Entry::Vacant => {}
                    Entry::Present(_) => report.records += 1,
                    Entry::Damaged(damage) => report.findings.push(Finding::Damaged {
                        path,
                        reason: damage.reason,
                        token: damage.digest.to_string(),
                    }),
                }
            }
            // Nobody can lock it: every claim of this target fails until it is moved away.
            NameKind::Lock(_) if name.kind != FileKind::File => {
                report.findings.push(Finding::Stray(path));
            }
            NameKind::Lock(id) => {
                report.lock_files += 1;
                let record = dir.join(format!("{id}.json"));
                if self.is_absent(&record)? {
                    report.idle_lock_files += 1;
                    if repair && self.remove_idle_lock(&path, &record)? {
                        report.lock_files -= 1;
                        report.idle_lock_files -= 1;
                        report.removed.push(path);
                    }
                }
            }
            NameKind::Temp => self.temporary(path, report, repair)?,
            NameKind::Stray => report.findings.push(Finding::Stray(path)),
        }
        Ok(())
    }

    fn temporary(
        &self,
        path: PathBuf,
        report: &mut CheckReport,
        repair: bool,
    ) -> Result<(), CheckError> {
        let fs = &self.world.fs;
        let fail = |source| StorageError::new("remove", path.display(), source);
        let kind = match fs.stat(&path).map(|stat| stat.kind) {
            // Its writer lives, and has renamed or removed it since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Nobody may be told that all is cleared away.
            Err(source) if repair => {
                return Err(StorageError::new("stat", path.display(), source).into());
            }
            kind => kind,
        };
        match kind {
            Ok(FileKind::File) if repair => {
                fs.unlink(&path).map_err(fail)?;
                report.removed.push(path);
            }
            // What a probe left that was killed.
            Ok(FileKind::Dir) if repair && probe::is_place(&path) => {
                for name in self.names(&path)? {
                    fs.unlink(&path.join(name.name)).map_err(fail)?;
                }
                fs.rmdir(&path).map_err(fail)?;
                report.removed.push(path);
            }
            // One that was to take the place of another, with empty shards in it at most.
            Ok(FileKind::Dir) if repair && self.holds_nothing(&path)? => {
                for name in self.names(&path)? {
                    fs.rmdir(&path.join(name.name)).map_err(fail)?;
                }
                fs.rmdir(&path).map_err(fail)?;
                report.removed.push(path);
            }
            _ => report.findings.push(Finding::Temporary(path)),
        }
        Ok(())
    }

    /// Removes a lock file that nobody holds and that stands beside no record.
    fn remove_idle_lock(&self, lock: &Path, record: &Path) -> Result<bool, CheckError> {
        let fail = |source| StorageError::new("remove", lock.display(), source);
        let fd = match self.world.fs.open_lock(lock, false, 0) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(false),
            Err(error) => return Err(fail(error).into()),
        };
        if !fd.try_lock(LockMode::Exclusive).map_err(fail)? {
            return Ok(false);
        }
        let idle = self.is_absent(record)?;
        if idle {
            self.world.fs.unlink(lock).map_err(fail)?;
        }
        fd.unlock().map_err(fail)?;
        Ok(idle)
    }

    fn is_absent(&self, path: &Path) -> Result<bool, StorageError> {
        match self.world.fs.stat(path) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(source) => Err(StorageError::new("stat", path.display(), source)),
        }
    }

    fn holds_nothing(&self, dir: &Path) -> Result<bool, StorageError> {
        for name in self.names(dir)? {
            let path = dir.join(&name.name);
            if name.kind != FileKind::Dir || !self.names(&path)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn names(&self, dir: &Path) -> Result<Vec<Name>, StorageError> {
        match self.world.fs.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(|source| StorageError::new("list", dir.display(), source)),
        }
    }

    fn fence_limit(&self) -> Result<u64, StorageError> {
        FenceCounter::new(&self.layout).limit(&self.world)
    }
}

/// Why a table could not be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The operating system refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The gate was not to be had: operations are under way.
    #[error("the table is in use: {0}")]
    Gate(#[from] Failure),
    /// It was put back from a backup, or is a copy; nothing was changed.
    #[error(transparent)]
    Restored(#[from] Restored),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}
