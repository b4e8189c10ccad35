//! The conformance suite on real directories, for tables of both durabilities.

#![allow(clippy::unwrap_used, reason = "a testbed may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_engine::conformance::Testbed;
use ringfence_env::{Clock, HostIdentity, SystemClock, World, steps};
use ringfence_files::layout::Layout;
use ringfence_files::{Durability, FilesEngine, InitOptions, Tuning};
use ringfence_model::{Key, ShardCount};

/// A table whose groups are whole after a crash (`GROUP`), or whose records are.
struct TempFiles<const GROUP: bool> {
    dir: tempfile::TempDir,
    restarts: AtomicU64,
}

impl<const GROUP: bool> TempFiles<GROUP> {
    fn root(&self) -> PathBuf {
        self.dir.path().join("table")
    }

    fn open(&self, world: &World) -> FilesEngine {
        FilesEngine::open(world, &self.root(), Tuning::default()).unwrap()
    }

    /// This machine after as many restarts as there were.
    fn world(&self) -> World {
        let world = World::system();
        let restarts = self.restarts.load(Ordering::SeqCst);
        let boot = world.host.boot.as_deref().map(|boot| format!("{boot}-{restarts}").into());
        let host = Arc::new(HostIdentity { boot, ..(*world.host).clone() });
        World { host, ..world }
    }
}

impl<const GROUP: bool> Testbed for TempFiles<GROUP> {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bed = Self { dir, restarts: AtomicU64::new(0) };
        let work_shards = ShardCount::new(16).unwrap();
        let durability = if GROUP { Durability::Group } else { Durability::Record };
        let options = InitOptions { work_shards, durability, ..InitOptions::default() };
        let made = FilesEngine::init(&bed.world(), &bed.root(), &options).unwrap();
        assert_eq!(made.meta().durability, durability);
        bed
    }

    fn engine(&self) -> Arc<dyn Engine> {
        Arc::new(self.open(&self.world()))
    }

    fn reopen(&self) -> Arc<dyn Engine> {
        self.restarts.fetch_add(1, Ordering::SeqCst);
        self.engine()
    }

    fn ahead(&self, by: Duration) -> Arc<dyn Engine> {
        Arc::new(self.open(&self.world().with_clock(Arc::new(WallAhead(by)))))
    }

    fn damage(&self, key: Key, bytes: &[u8]) -> Result<(), &'static str> {
        let world = self.world();
        let record = Layout::new(&self.root(), self.open(&world).meta()).record(key).record;
        let temp = record.with_extension("tmp");
        steps::durable_replace(&*world.fs, &temp, &record, bytes, 0o600).unwrap();
        Ok(())
    }

    fn footprint(&self) -> String {
        let mut files = BTreeMap::new();
        collect(&self.root(), &mut files);
        format!("{files:?}")
    }
}

/// Every file but lock files, with its content.
fn collect(dir: &Path, files: &mut BTreeMap<PathBuf, String>) {
    for item in fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_none_or(|extension| extension != "lock") {
            let bytes = fs::read(&path).unwrap();
            files.insert(path, bytes.escape_ascii().to_string());
        }
    }
}

#[derive(Debug)]
struct WallAhead(Duration);

impl Clock for WallAhead {
    fn wall(&self) -> Duration {
        SystemClock.wall() + self.0
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn sleep(&self, duration: Duration) {
        SystemClock.sleep(duration);
    }
}

mod durability_group {
    use super::TempFiles;

    ringfence_engine::conformance!(TempFiles<true>);
}

mod durability_record {
    use super::TempFiles;

    ringfence_engine::conformance!(TempFiles<false>);
}
