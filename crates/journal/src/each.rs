//! Independent units that share one sync.

use std::collections::HashSet;

use ringfence_engine::{DecideEach, EachReport, Failure, Request, StorageError, UnitOutcome};
use ringfence_model::{Key, Space};

use crate::changed::KeyHashing;
use crate::commit::Ticket;
use crate::engine::{JournalEngine, UnitEnd, outcome};
use crate::hints::FREED;
use crate::journal::Journal;
use crate::recover::into_storage;

/// Decides and appends the units in (shard, id) order of their first key, then waits once.
pub(crate) fn transact_each(
    engine: &JournalEngine,
    units: &[Request<'_>],
    decide: &mut DecideEach<'_>,
) -> EachReport {
    let journal = &engine.journal;
    let order = in_order(units, journal);
    let mut outcomes: Vec<UnitOutcome> = units.iter().map(|_| UnitOutcome::NotBegun).collect();
    let mut waiting: Vec<Awaited> = Vec::with_capacity(units.len());
    let mut frees = false;
    let mut rest = &order[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(disjoint(units, rest));
        rest = after;
        let requests: Vec<&Request<'_>> =
            chunk.iter().filter_map(|&index| units.get(index)).collect();
        let patience = requests.iter().map(|request| request.patience).max().unwrap_or_default();
        let deadline = journal.world.clock.deadline(patience);
        let ends = engine.run(
            &requests,
            &mut |at, view| chunk.get(at).and_then(|&index| decide(index, view)),
            deadline,
        );
        let mut failed = false;
        for (&index, end) in chunk.iter().zip(ends) {
            let Some(end) = end else { continue };
            if let UnitEnd::Appended(ticket) | UnitEnd::Refused(Some(ticket)) = &end {
                let Ticket { epoch, sequence, stored, .. } = *ticket;
                waiting.push(Awaited { epoch, sequence, index, stored });
                frees |= ticket.frees;
            }
            let end = outcome(end);
            // Who had to wait too long for a lock says nothing of the others.
            failed |= matches!(&end, UnitOutcome::Failed(why) if why.storage().is_some());
            put(&mut outcomes, index, end);
        }
        if failed {
            break;
        }
    }
    let stored = waiting.iter().any(|awaited| awaited.stored);
    let mut is_durable = !waiting.is_empty();
    for (index, failure) in wait(journal, waiting) {
        is_durable = false;
        put(&mut outcomes, index, UnitOutcome::Failed(failure));
    }
    if frees {
        journal.hints.tell(FREED, true);
    }
    if is_durable {
        journal.maintain_if_due();
    }
    EachReport { units: outcomes, barriers: u64::from(is_durable && stored) }
}

/// A frame that a unit waits for.
#[derive(Clone, Copy)]
struct Awaited {
    epoch: u64,
    sequence: u64,
    index: usize,
    /// Whether it is the unit's own.
    stored: bool,
}

impl Awaited {
    fn ticket(self) -> Ticket {
        let Self { epoch, sequence, stored, .. } = self;
        Ticket { epoch, sequence, token: None, stored, frees: false }
    }
}

/// Waits once for all frames of an epoch; says which of them are not durable, and why.
fn wait(journal: &Journal, mut waiting: Vec<Awaited>) -> Vec<(usize, Failure)> {
    let mut failed = Vec::new();
    // A batch that was interrupted by a failed sync has frames in several epochs.
    waiting.sort_by_key(|awaited| (awaited.epoch, awaited.sequence));
    for group in waiting.chunk_by(|a, b| a.epoch == b.epoch) {
        let Some(last) = group.last() else { continue };
        let Err(failure) = journal.wait_durable(&last.ticket()) else { continue };
        for awaited in group {
            // What was before the last one may count all the same: that is decided by now.
            let own = match &failure {
                Failure::Restored(_) => journal.wait_durable(&awaited.ticket()).err(),
                _ => Some(copy(&failure)),
            };
            let own = own.map(|own| if awaited.stored { own } else { untouched(own) });
            failed.extend(own.map(|own| (awaited.index, own)));
        }
    }
    failed
}

/// What was to be waited for was somebody else's frame.
fn untouched(failure: Failure) -> Failure {
    Failure::Untouched(into_storage(failure))
}

fn put(outcomes: &mut [UnitOutcome], index: usize, outcome: UnitOutcome) {
    if let Some(slot) = outcomes.get_mut(index) {
        *slot = outcome;
    }
}

/// The units by space, shard and id of their first key.
fn in_order(units: &[Request<'_>], journal: &Journal) -> Vec<usize> {
    let first = |index: usize| units.get(index).and_then(|unit| unit.keys.first());
    let place = |index: usize| first(index).map_or(0, |&key| place(key, journal));
    let mut order: Vec<(u64, usize)> =
        (0..units.len()).map(|index| (place(index), index)).collect();
    order.sort_unstable();
    // What the numbers do not tell apart.
    for same in order.chunk_by_mut(|a, b| a.0 == b.0) {
        if same.len() > 1 {
            same.sort_by_key(|&(_, index)| (first(index), index));
        }
    }
    order.into_iter().map(|(_, index)| index).collect()
}

/// Orders keys by space, shard and as much of the id as there is room for.
fn place(key: Key, journal: &Journal) -> u64 {
    let shard = key.id.shard(journal.meta.shards);
    let id = key.id.as_bytes().first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
    u64::from(key.space == Space::Work) << 63 | u64::from(shard.get()) << 53 | id >> 11
}

/// How many of the units at the beginning of `order` have no key in common.
fn disjoint(units: &[Request<'_>], order: &[usize]) -> usize {
    let keys_of = |index: usize| units.get(index).map_or(&[][..], |unit| unit.keys);
    // Where each has one key, two with the same one come one after the other.
    if order.iter().all(|&index| keys_of(index).len() == 1) {
        return 1 + order.array_windows().take_while(|[a, b]| keys_of(*a) != keys_of(*b)).count();
    }
    let mut keys: HashSet<Key, KeyHashing> = HashSet::default();
    keys.reserve(order.len());
    let fits = |&&index: &&usize| {
        let unit = units.get(index).map_or(&[][..], |unit| unit.keys);
        unit.iter().all(|&key| keys.insert(key))
    };
    order.iter().take_while(fits).count().max(1)
}

/// The failure of one sync is that of every unit it should have covered.
pub(crate) fn copy(failure: &Failure) -> Failure {
    let again = |error: &StorageError| {
        let source = std::io::Error::new(error.source.kind(), error.source.to_string());
        StorageError::new(error.operation, &error.location, source)
    };
    match failure {
        Failure::Untouched(error) => Failure::Untouched(again(error)),
        Failure::Restored(error) => Failure::Restored(again(error)),
        Failure::Unknown { source, restore, members } => Failure::Unknown {
            source: again(source),
            restore: again(restore),
            members: members.clone(),
        },
        other => {
            let why = std::io::Error::other(other.to_string());
            let source = StorageError::new("sync", "the journal", why);
            let restore = again(&source);
            Failure::Unknown { source, restore, members: Vec::new() }
        }
    }
}
