//! The fence counter.
//!
//! F1. A number is handed out under the counter's lock and never twice.
//! F2. No number above the *durable* limit is handed out, so after a power cut counting resumes
//!     above the limit. The limit is raised in blocks: a claim pays for it once per block.
//! F3. A limit counts as durable only if this boot saw its write succeed; one that is merely
//!     visible (its writer died or failed before the last sync) is raised again.
//! F4. A limit or a position that is a copy hands out nothing, see [`binding`]: a
//!     position is then as good as missing, a limit must be raised by an operator.
//!
//! `fence` holds the limit. `fence.next` holds, for one boot of one host, the last number and the
//! limit known to be durable; it is overwritten without a sync, and when it is missing, damaged or
//! of another boot, counting resumes above the limit. `fence.mark` vouches for it.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Binding, Deadline, LockMode, OpenWrite, Read, World, steps};
use ringfence_model::field::Fields;
use ringfence_model::{Fence, json};

use crate::binding::{self, Restored};
use crate::digest;
use crate::layout::{FILE_MODE, Layout};
use crate::locks;

/// How many fences one durable raise of the limit allows.
pub const BLOCK: u64 = 1024;

/// The counter of one table.
#[derive(Clone, Debug)]
pub struct FenceCounter {
    root: PathBuf,
    limit: PathBuf,
    position: PathBuf,
    mark: PathBuf,
    lock: PathBuf,
}

/// What `fence` says.
struct Limit {
    number: u64,
    binding: Option<Binding>,
}

impl FenceCounter {
    /// The counter of the table at `layout`.
    pub fn new(layout: &Layout) -> Self {
        let root = layout.root();
        Self {
            root: root.to_owned(),
            limit: root.join("fence"),
            position: root.join("fence.next"),
            mark: root.join("fence.mark"),
            lock: root.join("fence.lock"),
        }
    }

    /// Creates the counter at zero, durably. An existing one is kept.
    pub fn create(&self, world: &World) -> Result<(), StorageError> {
        match self.read_limit(world) {
            Ok(_) => Ok(()),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                self.write_limit(world, 0).map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Hands out the next number, above every earlier one and above `above`.
    pub fn next(&self, world: &World, above: Fence, deadline: Deadline) -> Result<Fence, Failure> {
        let _lock = locks::acquire(world, &self.lock, LockMode::Exclusive, deadline)?;
        self.advance(world, above).map_err(Failure::Untouched)
    }

    /// A number that no fence is above which was handed out before this call. Takes no lock: what is
    /// handed out meanwhile may be above it.
    pub fn issued(&self, world: &World) -> Result<Fence, StorageError> {
        let limit = self.read_limit(world)?;
        // Written by somebody at this moment, it may read as damaged; then the limit does.
        let position = self.read_position(world, limit.binding.is_some())?;
        Ok(Fence(position.map_or(limit.number, |(last, _)| last)))
    }

    /// The durable limit: no fence above it was ever handed out, if it is no copy.
    pub fn limit(&self, world: &World) -> Result<u64, StorageError> {
        self.read_limit(world).map(|limit| limit.number)
    }

    /// Whether the counter is a copy. Takes no lock. One that cannot be read is somebody else's finding.
    pub fn restored(&self, world: &World) -> Result<Option<Restored>, StorageError> {
        loop {
            let Ok(limit) = self.read_limit(world) else { return Ok(None) };
            let Some(restored) = self.copy(world, &limit)? else { return Ok(None) };
            // Unless somebody raised it in between.
            let again = self.read_limit(world).ok();
            if again.is_none_or(|again| again.binding == limit.binding) {
                return Ok(Some(restored));
            }
        }
    }

    /// Raises the limit by `by` above itself and above `above`, durably, whether it is a copy or not; the
    /// next number is above that. For an operator who knows that the table was put back.
    pub fn bump(
        &self,
        world: &World,
        by: NonZeroU64,
        above: Fence,
        deadline: Deadline,
    ) -> Result<u64, Failure> {
        let _lock = locks::acquire(world, &self.lock, LockMode::Exclusive, deadline)?;
        let raise = || {
            let now = self.read_limit(world)?.number.max(above.0);
            let limit = now.checked_add(by.get()).ok_or_else(|| self.exhausted())?;
            // First, lest somebody count on from it.
            match world.fs.unlink(&self.position) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StorageError::new("remove", self.position.display(), error));
                }
                _ => self.write_limit(world, limit)?,
            };
            Ok(limit)
        };
        raise().map_err(Failure::Untouched)
    }

    fn advance(&self, world: &World, above: Fence) -> Result<Fence, StorageError> {
        let Limit { number: limit, mut binding } = self.read_limit(world)?;
        if let Some(restored) = self.copy(world, &Limit { number: limit, binding })? {
            let why = io::Error::new(io::ErrorKind::InvalidData, restored);
            return Err(StorageError::new("count on from", self.limit.display(), why));
        }
        let position = self.read_position(world, binding.is_some())?;
        let (last, durable) = position.unwrap_or((limit, limit));
        let next = last.max(above.0).checked_add(1).ok_or_else(|| self.exhausted())?;
        let mut durable = durable.min(limit);
        if next > durable {
            durable = next.checked_add(BLOCK - 1).ok_or_else(|| self.exhausted())?;
            binding = self.write_limit(world, durable)?;
        }
        self.write_position(world, next, durable, binding.is_some())?;
        Ok(Fence(next))
    }

    fn exhausted(&self) -> StorageError {
        let why = io::Error::other("the fence counter is exhausted");
        StorageError::new("raise", self.limit.display(), why)
    }

    fn copy(&self, world: &World, limit: &Limit) -> Result<Option<Restored>, StorageError> {
        let Some(binding) = limit.binding else { return Ok(None) };
        let named = binding.names(world, &self.root, &self.limit);
        let named =
            named.map_err(|source| StorageError::new("stat", self.limit.display(), source))?;
        let restored = || Restored { fence: self.limit.clone(), limit: limit.number };
        Ok((!named).then(restored))
    }

    fn read_limit(&self, world: &World) -> Result<Limit, StorageError> {
        let fail = |source| StorageError::new("read", self.limit.display(), source);
        let damaged = || {
            let why = "the fence counter is damaged; restore it with a limit above every fence";
            fail(io::Error::new(io::ErrorKind::InvalidData, why))
        };
        match world.fs.read(&self.limit, 4096).map_err(fail)? {
            Read::Bytes(bytes) => Fields::parse(&bytes)
                .and_then(|mut fields| {
                    let number = fields.required("limit")?;
                    let (root, born) = (fields.optional("root")?, fields.optional("born")?);
                    let binding = Binding::from_fields(fields.optional("inode")?, root, born);
                    Ok(Limit { number, binding })
                })
                .map_err(|_| damaged()),
            _ => Err(damaged()),
        }
    }

    /// Returns what the new limit is bound to.
    fn write_limit(&self, world: &World, limit: u64) -> Result<Option<Binding>, StorageError> {
        let fail = |source| StorageError::new("raise", self.limit.display(), source);
        let temp =
            self.limit.with_file_name(format!("fence.{}.tmp", world.unique().map_err(fail)?));
        let mut binding = None;
        let line = |file: &dyn ringfence_env::WriteFile| {
            let mount = world.fs.mount_type(&self.root)?;
            binding = Binding::of(world, &self.root, &mount, file)?;
            let mut fields = BTreeMap::from([("limit", limit.to_string())]);
            fields.extend(binding.into_iter().flat_map(Binding::fields));
            Ok(json::object_line(&fields).into_bytes())
        };
        steps::durable_replace_by(&*world.fs, &temp, &self.limit, line, FILE_MODE).map_err(fail)?;
        Ok(binding)
    }

    /// The last number and the durable limit, if this boot of this host wrote them whole, and if
    /// nothing was put in their place since.
    fn read_position(
        &self,
        world: &World,
        bound: bool,
    ) -> Result<Option<(u64, u64)>, StorageError> {
        let Some(boot) = &world.host.boot else { return Ok(None) };
        let Some(bytes) = read_small(world, &self.position)? else { return Ok(None) };
        let fail = |source| StorageError::new("stat", self.position.display(), source);
        if bound && let Some(now) = world.fs.identity(&self.position).map_err(fail)? {
            let mark = read_small(world, &self.mark)?;
            if mark.is_none_or(|mark| mark != binding::mark(now).into_bytes()) {
                return Ok(None);
            }
        }
        Ok(parse_position(&String::from_utf8_lossy(&bytes), boot))
    }

    fn write_position(
        &self,
        world: &World,
        last: u64,
        durable: u64,
        bound: bool,
    ) -> Result<(), StorageError> {
        // A process that cannot name its boot leaves a position that nobody believes: an older one
        // would let the others go on below the number that is handed out here.
        let line = match &world.host.boot {
            Some(boot) => position_line(last, durable, boot),
            None => position_line(last, durable, &Arc::from("")),
        };
        let overwrite = |path: &Path, line: &str| {
            let mut file = world.fs.open_write(path, OpenWrite::Overwrite, FILE_MODE)?;
            steps::write_all(&mut *file, line.as_bytes())?;
            if bound { file.identity() } else { Ok(None) }
        };
        let fail = |path: &Path, source| StorageError::new("advance", path.display(), source);
        let written =
            overwrite(&self.position, &line).map_err(|source| fail(&self.position, source))?;
        if let Some(written) = written {
            overwrite(&self.mark, &binding::mark(written))
                .map_err(|source| fail(&self.mark, source))?;
        }
        Ok(())
    }
}

fn read_small(world: &World, path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match world.fs.read(path, 4096) {
        Ok(Read::Bytes(bytes)) => Ok(Some(bytes)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StorageError::new("read", path.display(), source)),
    }
}

/// Fixed width, so that an overwrite leaves nothing of what was there.
fn position_line(last: u64, durable: u64, boot: &Arc<str>) -> String {
    let body = format!("{last:020} {durable:020}");
    let check = digest::short(format!("{body} {boot}").as_bytes());
    format!("{body} {check}\n")
}

fn parse_position(line: &str, boot: &Arc<str>) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace();
    let last = words.next()?.parse().ok()?;
    let durable = words.next()?.parse().ok()?;
    (position_line(last, durable, boot) == line).then_some((last, durable))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::TableMeta;
    use ringfence_env::fault::{Call, Effect, FaultFs, When};
    use ringfence_env::{Clock as _, HostIdentity, SystemClock};
    use ringfence_model::{ShardCount, Ttl};
    use std::path::Path;
    use std::time::Duration;

    fn counter(root: &Path) -> FenceCounter {
        let meta = TableMeta {
            table: "t".into(),
            shards: ShardCount::new(1).unwrap(),
            work_shards: ShardCount::new(1).unwrap(),
            ttl: Ttl::from_seconds(1.0).unwrap(),
            durability: crate::meta::Durability::Record,
        };
        FenceCounter::new(&Layout::new(root, &meta))
    }

    fn next(counter: &FenceCounter, world: &World, above: u64) -> u64 {
        let deadline = SystemClock.deadline(Duration::from_secs(5));
        counter.next(world, Fence(above), deadline).unwrap().0
    }

    fn rebooted(world: &World) -> World {
        let host = HostIdentity { boot: Some("another boot".into()), ..(*world.host).clone() };
        World { host: Arc::new(host), ..world.clone() }
    }

    #[test]
    fn fences_rise_across_reboots_floors_and_a_lost_or_damaged_position() {
        let dir = tempfile::tempdir().unwrap();
        let (counter, world) = (counter(dir.path()), World::system());
        counter.create(&world).unwrap();
        assert_eq!((next(&counter, &world, 0), next(&counter, &world, 0)), (1, 2));
        assert_eq!(next(&counter, &world, 5000), 5001, "above every fence seen");
        let rebooted = next(&counter, &rebooted(&world), 0);
        assert!(rebooted > 5001);
        let mut last = next(&counter, &world, 0);
        assert!(last > rebooted);
        for damage in [&b""[..], &[0; 75], b"00000000000000000001 00000000000000009999 beef\n"] {
            let path = dir.path().join("fence.next");
            let mut file = world.fs.open_write(&path, OpenWrite::Overwrite, 0o600).unwrap();
            file.set_len(0).and_then(|()| steps::write_all(&mut *file, damage)).unwrap();
            let fence = next(&counter, &world, 0);
            assert!(fence > last, "{damage:?}: {fence} after {last}");
            last = fence;
        }
    }

    #[test]
    fn a_limit_whose_raise_failed_is_not_believed_durable_by_the_next_caller() {
        let dir = tempfile::tempdir().unwrap();
        let fs = FaultFs::new(World::system().fs);
        let (counter, world) = (counter(dir.path()), World::system().with_fs(Arc::new(fs.clone())));
        counter.create(&world).unwrap();
        for _ in 0..BLOCK {
            next(&counter, &world, 0);
        }
        fs.arm(When::NthOf(Call::SyncDir, 1), Effect::Errno(5));
        let deadline = SystemClock.deadline(Duration::from_secs(5));
        let failed = counter.next(&world, Fence(0), deadline);
        assert!(matches!(failed, Err(Failure::Untouched(_))), "{failed:?}");
        fs.disarm();
        let syncs = fs.count(Call::SyncDir);
        assert_eq!(next(&counter, &world, 0), BLOCK + 1);
        assert_eq!(fs.count(Call::SyncDir), syncs + 1, "raised again, durably this time");
        assert_eq!(next(&counter, &world, 0), BLOCK + 2);
        assert_eq!(fs.count(Call::SyncDir), syncs + 1, "and then not for a whole block");
    }

    #[test]
    fn a_damaged_or_missing_limit_hands_out_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (counter, world) = (counter(dir.path()), World::system());
        let deadline = SystemClock.deadline(Duration::from_secs(5));
        assert!(counter.next(&world, Fence(0), deadline).is_err());
        counter.create(&world).unwrap();
        steps::durable_unlink(&*world.fs, &dir.path().join("fence")).unwrap();
        let temp = dir.path().join("x.tmp");
        let path = dir.path().join("fence");
        steps::durable_replace(&*world.fs, &temp, &path, b"\0\0\0\0", 0o600).unwrap();
        let error = counter.next(&world, Fence(0), deadline).unwrap_err();
        assert!(error.storage().unwrap().to_string().contains("damaged"), "{error:?}");
        assert!(counter.create(&world).is_err(), "damage is never overwritten");
    }
}
