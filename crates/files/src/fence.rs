//! The fence counter.
//!
//! F1. A number is handed out under the counter's lock and never twice.
//! F2. No number above the *durable* limit is handed out, so after a power cut counting resumes
//!     above the limit. The limit is raised in blocks: a claim pays for it once per block.
//! F3. A limit counts as durable only if this boot saw its write succeed; one that is merely
//!     visible (its writer died or failed before the last sync) is raised again.
//!
//! `fence` holds the limit. `fence.next` holds, for one boot of one host, the last number and the
//! limit known to be durable; it is overwritten without a sync, and when it is missing, damaged or
//! of another boot, counting resumes above the limit.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, LockMode, OpenWrite, Read, World, steps};
use ringfence_model::Fence;
use ringfence_model::field::Fields;

use crate::digest;
use crate::layout::{FILE_MODE, Layout};
use crate::locks;

/// How many fences one durable raise of the limit allows.
pub const BLOCK: u64 = 1024;

/// The counter of one table.
#[derive(Clone, Debug)]
pub struct FenceCounter {
    limit: PathBuf,
    position: PathBuf,
    lock: PathBuf,
}

impl FenceCounter {
    /// The counter of the table at `layout`.
    pub fn new(layout: &Layout) -> Self {
        let root = layout.root();
        Self {
            limit: root.join("fence"),
            position: root.join("fence.next"),
            lock: root.join("fence.lock"),
        }
    }

    /// Creates the counter at zero, durably. An existing one is kept.
    pub fn create(&self, world: &World) -> Result<(), StorageError> {
        match self.read_limit(world) {
            Ok(_) => Ok(()),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                self.write_limit(world, 0)
            }
            Err(error) => Err(error),
        }
    }

    /// Hands out the next number, above every earlier one and above `above`.
    pub fn next(&self, world: &World, above: Fence, deadline: Deadline) -> Result<Fence, Failure> {
        let _lock = locks::acquire(world, &self.lock, LockMode::Exclusive, deadline)?;
        self.advance(world, above).map_err(Failure::Untouched)
    }

    /// The durable limit: no fence above it was ever handed out.
    pub fn limit(&self, world: &World) -> Result<u64, StorageError> {
        self.read_limit(world)
    }

    fn advance(&self, world: &World, above: Fence) -> Result<Fence, StorageError> {
        let limit = self.read_limit(world)?;
        let (last, durable) = self.read_position(world)?.unwrap_or((limit, limit));
        let exhausted = || {
            let why = io::Error::other("the fence counter is exhausted");
            StorageError::new("raise", self.limit.display(), why)
        };
        let next = last.max(above.0).checked_add(1).ok_or_else(exhausted)?;
        let mut durable = durable.min(limit);
        if next > durable {
            durable = next.checked_add(BLOCK - 1).ok_or_else(exhausted)?;
            self.write_limit(world, durable)?;
        }
        self.write_position(world, next, durable)?;
        Ok(Fence(next))
    }

    fn read_limit(&self, world: &World) -> Result<u64, StorageError> {
        let fail = |source| StorageError::new("read", self.limit.display(), source);
        let damaged = || {
            let why = "the fence counter is damaged; restore it with a limit above every fence";
            fail(io::Error::new(io::ErrorKind::InvalidData, why))
        };
        match world.fs.read(&self.limit, 4096).map_err(fail)? {
            Read::Bytes(bytes) => Fields::parse(&bytes)
                .and_then(|mut fields| fields.required("limit"))
                .map_err(|_| damaged()),
            _ => Err(damaged()),
        }
    }

    fn write_limit(&self, world: &World, limit: u64) -> Result<(), StorageError> {
        let fail = |source| StorageError::new("raise", self.limit.display(), source);
        let temp =
            self.limit.with_file_name(format!("fence.{}.tmp", world.unique().map_err(fail)?));
        let line = format!("{{\"limit\":{limit}}}\n");
        steps::durable_replace(&*world.fs, &temp, &self.limit, line.as_bytes(), FILE_MODE)
            .map_err(fail)
    }

    /// The last number and the durable limit, if this boot of this host wrote them whole.
    fn read_position(&self, world: &World) -> Result<Option<(u64, u64)>, StorageError> {
        let Some(boot) = &world.host.boot else { return Ok(None) };
        let bytes = match world.fs.read(&self.position, 4096) {
            Ok(Read::Bytes(bytes)) => bytes,
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(StorageError::new("read", self.position.display(), source));
            }
        };
        Ok(parse_position(&String::from_utf8_lossy(&bytes), boot))
    }

    fn write_position(&self, world: &World, last: u64, durable: u64) -> Result<(), StorageError> {
        let fail = |source| StorageError::new("advance", self.position.display(), source);
        // A process that cannot name its boot leaves a position that nobody believes: an older one
        // would let the others go on below the number that is handed out here.
        let line = match &world.host.boot {
            Some(boot) => position_line(last, durable, boot),
            None => position_line(last, durable, &Arc::from("")),
        };
        let mut file =
            world.fs.open_write(&self.position, OpenWrite::Overwrite, FILE_MODE).map_err(fail)?;
        steps::write_all(&mut *file, line.as_bytes()).map_err(fail)
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
