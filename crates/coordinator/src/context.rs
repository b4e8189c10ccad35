//! What every step of one coordinator works with.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence::{Children, JobTable, Owner, Store, TargetTable, Ttl, WorkTable};
use ringfence_env::World;

use crate::config::{HoldAt, RunConfig};
use crate::error::Error;
use crate::events::{Event, EventLog, Reason};
use crate::keeper::Keeper;
use crate::layout::{Layout, RunLayout};
use crate::publish::Publisher;

/// See the module.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) world: World,
    pub(crate) config: RunConfig,
    pub(crate) index: u32,
    pub(crate) owner: Owner,
    pub(crate) layout: Layout,
    pub(crate) run: RunLayout,
    pub(crate) targets: TargetTable,
    pub(crate) work: WorkTable,
    pub(crate) jobs: JobTable,
    pub(crate) ttl: Ttl,
    pub(crate) events: EventLog,
    pub(crate) keeper: Keeper,
    pub(crate) publisher: Publisher,
    refused: Arc<Mutex<BTreeMap<Reason, u64>>>,
    was_held: AtomicBool,
}

impl Context {
    pub(crate) fn open(world: &World, config: RunConfig, index: u32) -> Result<Self, Error> {
        let store_error = |error: &dyn std::fmt::Display| Error::Store(error.to_string());
        let layout = config.layout();
        let run = layout.run(config.run);
        let owner = Owner::new(&format!("coordinator-{index}")).map_err(|e| store_error(&e))?;
        let ttl = Ttl::new(config.ttl()).map_err(|e| store_error(&e))?;
        let store = Store::open_in(world, &layout.store()).map_err(|e| store_error(&e))?;
        // Workers count: what a dead coordinator held is free once nobody works on it any more.
        let store = store.tied(Children::Count).map_err(|e| store_error(&e))?;
        let (targets, work, jobs) = (store.targets(), store.work(), store.jobs());
        let events = EventLog::open(world, &run.events(index))?;
        let keeper = Keeper::start(world, jobs.clone(), events.clone(), config.ttl())
            .map_err(|source| Error::Start { program: "a thread".to_owned(), source })?;
        let publisher = Publisher::new(world, &layout, &run);
        let world = world.clone();
        let refused = Arc::default();
        Ok(Self {
            world,
            config,
            index,
            owner,
            layout,
            run,
            targets,
            work,
            jobs,
            ttl,
            events,
            keeper,
            publisher,
            refused,
            was_held: AtomicBool::new(false),
        })
    }

    /// The name that makes an execution this coordinator's own, where executions are not excluded.
    pub(crate) fn own_name(&self) -> Option<String> {
        (!self.config.arm.leases()).then(|| format!("{}/{}", self.config.run, self.owner))
    }

    /// For tests: waits once, if this coordinator was asked to wait here.
    pub(crate) fn hold(&self, at: HoldAt) {
        if let Some(hold) = self.config.hold
            && (hold.coordinator, hold.at) == (self.index, at)
            && !self.was_held.swap(true, Ordering::Relaxed)
        {
            self.world.clock.sleep(Duration::from_millis(hold.ms));
        }
    }

    /// Counts a group that was not dispatched.
    pub(crate) fn refuse(&self, reason: Reason) {
        let mut counts = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(reason).or_default() += 1;
    }

    /// Writes down what was counted since the last time.
    pub(crate) fn flush_refused(&self) {
        let counts = {
            let mut counts = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *counts)
        };
        if !counts.is_empty() {
            self.events.write(Event::Refused { counts });
        }
    }

    /// Milliseconds since `since` on the monotonic clock.
    pub(crate) fn ms_since(&self, since: Duration) -> f64 {
        self.world.clock.monotonic().saturating_sub(since).as_secs_f64() * 1e3
    }
}
