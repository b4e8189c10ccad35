//! A table in a temporary directory, and all that can be seen of it from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_engine::{Done, Engine, Failure, Request};
use ringfence_env::fault::FaultFs;
use ringfence_env::{Clock, Fs as _, LockMode, RealFs, SystemClock, World};
use ringfence_files::batch::Barriers;
use ringfence_files::{FilesEngine, InitOptions, Tuning};
use ringfence_model::rules::{self, ClaimRefused, ClaimRequest, ForceRefused, Lost};
use ringfence_model::{
    FencingToken, Key, Owner, Payload, RecordId, ShardCount, Space, Target, TargetGroup,
    TargetRecord, Timestamp, Token, Ttl,
};
use tempfile::TempDir;

pub(crate) const SERIAL: Tuning = Tuning { sync_width: 1, barriers: Barriers::Batched };
/// Nobody is in the way for longer, on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A clock on which waiting takes no time and nothing else takes any: how long was waited is exact.
#[derive(Debug, Default)]
pub(crate) struct OnlyWaits(Mutex<Duration>);

impl Clock for OnlyWaits {
    fn wall(&self) -> Duration {
        SystemClock.wall()
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }

    fn monotonic(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) {
        *self.0.lock().unwrap() += duration;
    }
}

/// A directory in memory where there is one: thousands of transactions are tried.
pub(crate) fn scratch() -> TempDir {
    let mut named = tempfile::Builder::new();
    named.prefix("ringfence-test-");
    named.tempdir_in("/dev/shm").or_else(|_| named.tempdir()).unwrap()
}

/// A directory beside the build's own.
pub(crate) fn on_disk() -> TempDir {
    tempfile::Builder::new()
        .prefix("ringfence-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap()
}

pub(crate) fn options(shards: u16) -> InitOptions {
    InitOptions {
        shards: ShardCount::new(shards).unwrap(),
        work_shards: ShardCount::new(2).unwrap(),
        ttl: Ttl::from_seconds(60.0).unwrap(),
        durability: crate::DURABILITY,
    }
}

/// A table whose every call to the file system is counted and can be made to fail.
pub(crate) struct Table {
    pub(crate) dir: TempDir,
    pub(crate) fs: FaultFs,
    pub(crate) world: World,
    pub(crate) engine: FilesEngine,
}

impl Table {
    pub(crate) fn new(shards: u16) -> Self {
        Self::tuned(shards, SERIAL)
    }

    pub(crate) fn tuned(shards: u16, tuning: Tuning) -> Self {
        Self::made(&options(shards), tuning)
    }

    pub(crate) fn made(options: &InitOptions, tuning: Tuning) -> Self {
        Self::made_in(scratch(), options, tuning)
    }

    /// On a disk, whose files keep their numbers.
    pub(crate) fn on_disk() -> Self {
        let dir = on_disk();
        let mount = RealFs.mount_type(dir.path()).unwrap();
        assert_ne!(mount, "tmpfs", "the target directory must be on a disk");
        Self::made_in(dir, &options(8), SERIAL)
    }

    fn made_in(dir: TempDir, options: &InitOptions, tuning: Tuning) -> Self {
        let root = dir.path().join("table");
        let fs = FaultFs::new(Arc::new(RealFs));
        let world = World::system().with_fs(Arc::new(fs.clone()));
        FilesEngine::init(&world, &root, options).unwrap();
        let engine = FilesEngine::open(&world, &root, tuning).unwrap();
        Self { dir, fs, world, engine }
    }

    /// Another handle, by a clock on which only waiting takes time.
    pub(crate) fn by_waits(&self) -> (FilesEngine, Arc<OnlyWaits>) {
        let clock = Arc::new(OnlyWaits::default());
        let world = self.world.clone().with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        (FilesEngine::open(&world, self.root(), SERIAL).unwrap(), clock)
    }

    pub(crate) fn root(&self) -> &Path {
        self.engine.root()
    }

    pub(crate) fn record(&self, target: u64) -> PathBuf {
        record_path(self.root(), self.engine.meta().shards, target)
    }

    pub(crate) fn lock(&self, target: u64) -> PathBuf {
        self.record(target).with_extension("json.lock")
    }

    pub(crate) fn read(&self, target: u64) -> TargetRecord {
        TargetRecord::parse(id(target), &fs::read(self.record(target)).unwrap()).unwrap()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        snapshot(self.root())
    }

    /// Puts back a snapshot of a table whose names were all regular files.
    pub(crate) fn reset(&self, to: &Snapshot) {
        for (path, kept) in &self.snapshot() {
            if matches!(kept, Kept::Bytes(_)) && to.get(path) != Some(kept) {
                fs::remove_file(path).unwrap();
            }
        }
        for (path, kept) in to {
            if let Kept::Bytes(bytes) = kept {
                fs::write(path, bytes).unwrap();
            }
        }
        assert_eq!(self.snapshot(), *to);
    }
}

pub(crate) fn record_path(root: &Path, shards: ShardCount, target: u64) -> PathBuf {
    let id = id(target);
    root.join(id.shard(shards).to_string()).join(format!("{id}.json"))
}

pub(crate) fn id(target: u64) -> RecordId {
    RecordId::of_target(Target::new(target).unwrap())
}

/// `count` targets that lie in exactly `shards` of the eight shards, every one of them used.
pub(crate) fn targets_over(shards: u16, count: usize) -> Vec<u64> {
    let eight = ShardCount::new(8).unwrap();
    let in_shard = |target: &u64| id(*target).shard(eight).get();
    let mut chosen: Vec<u64> =
        (0..shards).map(|s| (1..1000).find(|t| in_shard(t) == s).unwrap()).collect();
    let more = (1..).filter(|t| in_shard(t) < shards && !chosen.contains(t));
    let more: Vec<u64> = more.take(count - chosen.len()).collect();
    chosen.extend(more);
    chosen
}

pub(crate) fn group(targets: &[u64]) -> TargetGroup {
    TargetGroup::from_numbers(targets.iter().copied()).unwrap()
}

pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::from_seconds(seconds).unwrap()
}

pub(crate) fn keys(group: &TargetGroup) -> Vec<Key> {
    group.members().map(|(id, _)| Key { space: Space::Targets, id }).collect()
}

pub(crate) fn ask(owner: &str, targets: &[u64]) -> ClaimRequest {
    ClaimRequest {
        group: group(targets),
        owner: Owner::new(owner).unwrap(),
        worker: 1,
        payload: Payload::parse(r#"{"seed":"id:000001"}"#).unwrap(),
        ttl: Ttl::from_seconds(60.0).unwrap(),
    }
}

/// The target verbs as the engine runs them.
pub(crate) trait Verbs {
    fn grab(&self, owner: &str, targets: &[u64], now: Option<f64>) -> Granted;
    fn ask(&self, ask: &ClaimRequest, now: Option<f64>, patience: Duration) -> Granted;
    fn beat(&self, targets: &[u64], token: FencingToken, now: Option<f64>) -> Upheld;
    fn free(&self, targets: &[u64], token: FencingToken) -> Upheld;
    fn force(&self, targets: &[u64], token: &Token) -> Result<Result<Done, ForceRefused>, Failure>;
}

pub(crate) type Granted = Result<Result<FencingToken, ClaimRefused>, Failure>;
pub(crate) type Upheld = Result<Result<Done, Lost>, Failure>;

impl Verbs for FilesEngine {
    fn grab(&self, owner: &str, targets: &[u64], now: Option<f64>) -> Granted {
        self.ask(&ask(owner, targets), now, PATIENCE)
    }

    fn ask(&self, ask: &ClaimRequest, now: Option<f64>, patience: Duration) -> Granted {
        let keys = keys(&ask.group);
        let request = Request { keys: &keys, now: now.map(at), patience };
        let engine: &dyn Engine = self;
        let done = engine.decide(&request, |view| rules::claim(view, ask))?;
        Ok(done.map(|done| done.token.unwrap()))
    }

    fn beat(&self, targets: &[u64], token: FencingToken, now: Option<f64>) -> Upheld {
        let (group, token) = (group(targets), token.into());
        let keys = keys(&group);
        let request = Request { keys: &keys, now: now.map(at), patience: PATIENCE };
        let engine: &dyn Engine = self;
        engine.decide(&request, |view| rules::heartbeat(view, &group, &token))
    }

    fn free(&self, targets: &[u64], token: FencingToken) -> Upheld {
        let (group, token) = (group(targets), token.into());
        let keys = keys(&group);
        // Expiry does not matter to a release, so no clock needs to be asked.
        let request = Request { keys: &keys, now: Some(at(0.0)), patience: PATIENCE };
        let engine: &dyn Engine = self;
        engine.decide(&request, |view| rules::release(view, &group, &token))
    }

    fn force(&self, targets: &[u64], token: &Token) -> Result<Result<Done, ForceRefused>, Failure> {
        let group = group(targets);
        let keys = keys(&group);
        let request = Request { keys: &keys, now: None, patience: PATIENCE };
        let engine: &dyn Engine = self;
        engine.decide(&request, |view| rules::force_release(view, &group, token, "a test"))
    }
}

/// What stands under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Bytes(Vec<u8>),
    Dir,
    Other,
}

pub(crate) type Snapshot = BTreeMap<PathBuf, Kept>;

/// Every name and byte below `root`, temporaries included; all but the stable files beside the
/// records: locks, the fence counter, the remembered probe, slots for intents.
pub(crate) fn snapshot(root: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    look(root, &mut found);
    found
}

fn look(dir: &Path, found: &mut Snapshot) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let stable = path.extension().is_some_and(|end| end == "lock" || end == "slot");
        if stable || ["fence", "fence.next", "fence.mark", "probe.json"].contains(&&*name) {
            continue;
        }
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            look(&path, found);
            found.insert(path, Kept::Dir);
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, Kept::Bytes(bytes));
        } else {
            found.insert(path, Kept::Other);
        }
    }
}

/// Every lock file below `root` can be taken by somebody else at this moment.
pub(crate) fn assert_no_lock_is_held(root: &Path) {
    for path in names_below(root) {
        if path.extension().is_some_and(|extension| extension == "lock") && path.is_file() {
            let fd = RealFs.open_lock(&path, false, 0).unwrap();
            // Another test's forked child may have a closed descriptor open for a moment.
            let taken = (0..10_000).any(|_| {
                let taken = fd.try_lock(LockMode::Exclusive).unwrap();
                if !taken {
                    std::thread::sleep(Duration::from_millis(5));
                }
                taken
            });
            assert!(taken, "{} is held", path.display());
            // For the same reason closing would not be enough.
            fd.unlock().unwrap();
        }
    }
}

/// Temporaries below `root`.
pub(crate) fn temps(root: &Path) -> Vec<PathBuf> {
    let is_temp = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "tmp");
    names_below(root).into_iter().filter(is_temp).collect()
}

pub(crate) fn names_below(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            all.extend(names_below(&path));
        }
        all.push(path);
    }
    all
}
