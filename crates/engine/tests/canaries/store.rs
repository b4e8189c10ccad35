//! What is stored, and the testbed over it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_engine::conformance::Testbed;
use ringfence_model::Key;

use crate::flaws::Flaw;
use crate::memory::Memory;

/// What handles share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) table: u64,
    pub(crate) state: Mutex<State>,
    pub(crate) freed: Condvar,
}

pub(crate) type Lines = BTreeMap<Key, Vec<u8>>;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) records: Lines,
    pub(crate) busy: BTreeSet<Key>,
    pub(crate) fence: u64,
    /// Audit lines, and whatever else no reader shows.
    pub(crate) hidden: u64,
    /// What was stored before the last change; for flaws that lose it.
    pub(crate) before_last: Option<Lines>,
    /// What was removed; for flaws that bring it back.
    pub(crate) removed: Lines,
    pub(crate) work_fence: u64,
}

impl Store {
    pub(crate) fn new(table: u64) -> Self {
        Self { table, state: Mutex::default(), freed: Condvar::new() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A testbed over one store in memory.
pub(crate) struct MemoryBed {
    store: Arc<Store>,
    flaw: Option<Flaw>,
}

impl MemoryBed {
    /// An empty table whose handles all have this flaw.
    pub(crate) fn with(flaw: Option<Flaw>) -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let table = TABLES.fetch_add(1, Ordering::Relaxed);
        Self { store: Arc::new(Store::new(table)), flaw }
    }

    fn handle(&self, ahead: Duration) -> Arc<dyn Engine> {
        Arc::new(Memory::open(&self.store, self.flaw, ahead))
    }
}

impl Testbed for MemoryBed {
    /// An honest one.
    fn new() -> Self {
        Self::with(None)
    }

    fn engine(&self) -> Arc<dyn Engine> {
        self.handle(Duration::ZERO)
    }

    fn reopen(&self) -> Arc<dyn Engine> {
        let mut state = self.store.state();
        match self.flaw {
            Some(Flaw::FenceForgotten) => state.fence = 0,
            Some(Flaw::ForgetsLast | Flaw::BatchIsVolatile) => {
                if let Some(before) = state.before_last.take() {
                    state.records = before;
                }
            }
            Some(Flaw::RemovedReturns) => {
                let removed = std::mem::take(&mut state.removed);
                for (key, line) in removed {
                    state.records.entry(key).or_insert(line);
                }
            }
            _ => {}
        }
        drop(state);
        self.engine()
    }

    fn ahead(&self, by: Duration) -> Arc<dyn Engine> {
        self.handle(by)
    }

    fn damage(&self, key: Key, bytes: &[u8]) -> Result<(), &'static str> {
        self.store.state().records.insert(key, bytes.to_vec());
        Ok(())
    }

    fn footprint(&self) -> String {
        let state = self.store.state();
        format!("{:?} {} {}", state.records, state.fence, state.hidden)
    }
}
