//! Records by their holders, so that a rule which was asked at a glance can be written down as one that saw
//! the records.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfence_model::{Edit, Entry, Glance, Key, Record, View};

/// So many are remembered of each key, the last ones.
const MOST: usize = 64;

/// What was to be stored, by whoever wrote it down.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<BTreeMap<Key, Vec<Record>>>);

impl Remembered {
    fn records(&self) -> MutexGuard<'_, BTreeMap<Key, Vec<Record>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what is to be stored.
    pub(crate) fn learn(&self, edits: &[Edit]) {
        let mut known = self.records();
        for edit in edits {
            let Some(record) = &edit.to else { continue };
            let of_key = known.entry(edit.key).or_default();
            of_key.push(record.clone());
            let old = of_key.len().saturating_sub(MOST);
            of_key.drain(..old);
        }
    }

    /// The records whose holders `glance` shows, if all of them are known. No two records of one key have
    /// the same holder: each grant has a token of its own, and a renewal changes nothing but the holder.
    pub(crate) fn view(&self, glance: &Glance) -> Option<View> {
        let known = self.records();
        let entry = |(key, holder): &(Key, _)| {
            let of_key = known.get(key)?;
            let record = of_key.iter().rev().find(|record| record.holder() == holder)?;
            Some((*key, Entry::Present(record.clone())))
        };
        let entries = glance.entries.iter().map(entry).collect::<Option<_>>()?;
        let Glance { moment, writer, default_ttl, .. } = glance.clone();
        Some(View { moment, writer, default_ttl, entries })
    }
}
