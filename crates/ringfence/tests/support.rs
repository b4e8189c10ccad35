use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence::{
    Durability, FilesOptions, JournalOptions, ShardCount, Store, TargetGroup, Timestamp, Ttl, World,
};
use ringfence_env::Clock;
use ringfence_env::fault::FaultFs;

/// What a store of these tests goes by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TheClock {
    Real,
    Fake,
}

/// A store in a directory of its own, with every call countable and breakable.
pub(crate) struct Bed {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) fs: FaultFs,
    pub(crate) store: Store,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let (world, dir) = (World::system(), tempfile::tempdir().unwrap());
        Self::made_in(dir, &world, &FilesOptions::default(), TheClock::Real)
    }

    pub(crate) fn with_clock(clock: &FakeClock) -> Self {
        let world = World::system().with_clock(Arc::new(clock.clone()));
        let dir = tempfile::tempdir().unwrap();
        Self::made_in(dir, &world, &FilesOptions::default(), TheClock::Fake)
    }

    /// The same for a table of either durability.
    pub(crate) fn of(durability: Durability, clock: &FakeClock) -> Self {
        let world = World::system().with_clock(Arc::new(clock.clone()));
        let options = FilesOptions { durability, ..FilesOptions::default() };
        Self::made_in(tempfile::tempdir().unwrap(), &world, &options, TheClock::Fake)
    }

    /// A store of few directories in memory, for tests that make very many.
    pub(crate) fn small() -> Self {
        let shards = |count| ShardCount::new(count).unwrap();
        let (targets, work) = (shards(2), shards(1));
        let options =
            FilesOptions { shards: targets, work_shards: work, ..FilesOptions::default() };
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let journal = JournalOptions { segment_bytes: 64 * 1024, ..JournalOptions::default() };
        Self::made_as(dir, &World::system(), &options, &journal, TheClock::Real)
    }

    fn made_in(
        dir: tempfile::TempDir,
        world: &World,
        options: &FilesOptions,
        clock: TheClock,
    ) -> Self {
        Self::made_as(dir, world, options, &JournalOptions::default(), clock)
    }

    fn made_as(
        dir: tempfile::TempDir,
        world: &World,
        options: &FilesOptions,
        journal: &JournalOptions,
        clock: TheClock,
    ) -> Self {
        let path = dir.path().join("store");
        if crate::JOURNAL {
            Store::init(&path, &(*journal).into()).unwrap();
        } else {
            Store::init(&path, &(*options).into()).unwrap();
        }
        if crate::JOURNAL && clock == TheClock::Fake {
            // Nobody sleeps on shared memory by a clock that is not real: these wait by pauses.
            std::fs::remove_file(path.join("hints")).unwrap();
        }
        let fs = FaultFs::new(world.fs.clone());
        let store = Store::open_in(&world.with_fs(Arc::new(fs.clone())), &path).unwrap();
        Self { _dir: dir, path, fs, store }
    }

    /// A second handle on the same store, as another process would have.
    pub(crate) fn other(&self) -> Store {
        Store::open(&self.path).unwrap()
    }
}

pub(crate) fn group(numbers: &[u64]) -> TargetGroup {
    TargetGroup::from_numbers(numbers.iter().copied()).unwrap()
}

pub(crate) fn at(seconds: f64) -> Option<Timestamp> {
    Some(Timestamp::from_seconds(seconds).unwrap())
}

pub(crate) fn ttl(seconds: f64) -> Ttl {
    Ttl::from_seconds(seconds).unwrap()
}

/// A clock that a test moves; sleeping moves it too, and takes no time.
#[derive(Clone, Debug)]
pub(crate) struct FakeClock(Arc<Mutex<Times>>);

#[derive(Debug)]
struct Times {
    wall: Duration,
    boot: Duration,
    monotonic: Duration,
}

impl FakeClock {
    pub(crate) fn new() -> Self {
        let start = Duration::from_secs(1_000_000);
        Self(Arc::new(Mutex::new(Times { wall: start, boot: start, monotonic: start })))
    }

    pub(crate) fn pass(&self, time: Duration) {
        let mut times = self.0.lock().unwrap();
        times.wall += time;
        times.boot += time;
        times.monotonic += time;
    }

    /// The machine sleeps: the monotonic clock stands still.
    pub(crate) fn suspend(&self, time: Duration) {
        let mut times = self.0.lock().unwrap();
        times.wall += time;
        times.boot += time;
    }

    pub(crate) fn jump_wall(&self, time: Duration) {
        self.0.lock().unwrap().wall += time;
    }
}

impl Clock for FakeClock {
    fn wall(&self) -> Duration {
        self.0.lock().unwrap().wall
    }

    fn boottime(&self) -> Duration {
        self.0.lock().unwrap().boot
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().unwrap().monotonic
    }

    fn sleep(&self, duration: Duration) {
        self.pass(duration);
    }
}
