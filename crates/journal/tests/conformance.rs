//! The conformance suite on real journals.

#![allow(clippy::unwrap_used, reason = "a testbed may panic")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_engine::conformance::Testbed;
use ringfence_env::{Clock, HostIdentity, SystemClock, World};
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::Key;

struct TempJournal {
    dir: tempfile::TempDir,
    restarts: AtomicU64,
}

impl TempJournal {
    fn root(&self) -> PathBuf {
        self.dir.path().join("table")
    }

    fn open(&self, world: &World) -> JournalEngine {
        JournalEngine::open(world, &self.root()).unwrap()
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

impl Testbed for TempJournal {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bed = Self { dir, restarts: AtomicU64::new(0) };
        // Small, so that the checks go through several segments.
        let options = InitOptions { segment_bytes: 256 * 1024, ..InitOptions::default() };
        JournalEngine::init(&bed.world(), &bed.root(), &options).unwrap();
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

    fn damage(&self, _: Key, _: &[u8]) -> Result<(), &'static str> {
        Err("a frame that does not read is damage of the whole journal, not of one record")
    }

    fn footprint(&self) -> String {
        let mut files = BTreeMap::new();
        for item in std::fs::read_dir(self.root()).unwrap() {
            let path = item.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                files.insert(name, format!("{:?}", std::fs::read_dir(&path).unwrap().count()));
                continue;
            }
            if path.extension().is_none_or(|kind| kind != "lock") && name != "hints" {
                files.insert(name, std::fs::read(&path).unwrap().escape_ascii().to_string());
            }
        }
        format!("{files:?}")
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

ringfence_engine::conformance!(TempJournal);
