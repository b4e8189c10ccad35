//! Leases on target groups.

use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Engine, EngineInfo, Request, StorageError};
use ringfence_env::World;
use ringfence_model::{Key, Space, TargetGroup, Timestamp};

/// The verbs on leases; each stands in its own file. Cheap to clone.
///
/// Verbs block for at most their patience (2 seconds by default) on kernel locks of other
/// processes, which hold them for one step at a time.
#[derive(Clone, Debug)]
pub struct TargetTable {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) world: World,
    pub(crate) patience: Duration,
}

/// How long a verb waits for kernel locks by default.
pub const PATIENCE: Duration = Duration::from_secs(2);

impl TargetTable {
    /// The table of an engine.
    pub fn on(engine: Arc<dyn Engine>, world: World) -> Self {
        Self { engine, world, patience: PATIENCE }
    }

    /// The same table with another patience for kernel locks.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// What the table's engine is.
    pub fn info(&self) -> EngineInfo {
        self.engine.info()
    }

    /// How many claims wait for a member of `group`; none where the engine keeps no queue.
    pub fn waiting(&self, group: &TargetGroup) -> usize {
        self.engine.waiting(&keys(group))
    }

    /// Reads the members of a group as they stand, without excluding anybody. Writes nothing.
    pub fn look(
        &self,
        group: &TargetGroup,
        now: Option<Timestamp>,
    ) -> Result<ringfence_model::View, StorageError> {
        self.engine.view(&keys(group), now)
    }

    pub(crate) fn request<'k>(&self, keys: &'k [Key], now: Option<Timestamp>) -> Request<'k> {
        Request { keys, now, patience: self.patience }
    }
}

pub(crate) fn keys(group: &TargetGroup) -> Vec<Key> {
    members(group).collect()
}

/// The keys of a group, in order.
pub(crate) fn members(group: &TargetGroup) -> impl Iterator<Item = Key> + '_ {
    group.members().map(|(id, _)| Key { space: Space::Targets, id })
}

/// The keys of the units of a batch, in one piece.
#[derive(Debug, Default)]
pub(crate) struct KeysOfAll {
    keys: Vec<Key>,
    /// Where each unit ends.
    ends: Vec<usize>,
}

impl KeysOfAll {
    /// Adds a unit.
    pub(crate) fn push(&mut self, keys: impl Iterator<Item = Key>) {
        self.keys.extend(keys);
        self.ends.push(self.keys.len());
    }

    /// A request for each unit.
    pub(crate) fn requests(&self, table: &TargetTable, now: Option<Timestamp>) -> Vec<Request<'_>> {
        let mut from = 0;
        let request = |&end: &usize| {
            let keys = self.keys.get(from..end).unwrap_or_default();
            from = end;
            table.request(keys, now)
        };
        self.ends.iter().map(request).collect()
    }
}
