//! Independent units that share one sync.

use std::collections::HashSet;

use ringfence_engine::{EachReport, Failure, Request, StorageError, UnitOutcome};
use ringfence_model::{Key, Space};

use crate::changed::KeyHashing;
use crate::commit::Ticket;
use crate::engine::{JournalEngine, UnitEnd, outcome};
use crate::hints::FREED;
use crate::journal::Journal;
use crate::look::Rules;
use crate::recover::into_storage;

/// Decides and appends the units in (shard, id) order of their first key, then waits once.
pub(crate) fn transact_each(
    engine: &JournalEngine,
    units: &[Request<'_>],
    rules: &mut Rules<'_>,
) -> EachReport {
    let journal = &engine.journal;
    let order = in_order(units, journal);
    let mut ends: Vec<Option<UnitEnd>> = order.iter().map(|_| None).collect();
    let (mut rest, mut rest_of_ends) = (&order[..], &mut ends[..]);
    while !rest.is_empty() {
        let count = disjoint(units, rest);
        let (chunk, after) = rest.split_at(count);
        let (ends, after_ends) = rest_of_ends.split_at_mut(count);
        let patience = chunk.iter().filter_map(|&index| units.get(index)).map(|unit| unit.patience);
        let deadline = journal.world.clock.deadline(patience.max().unwrap_or_default());
        engine.run(units, chunk, rules, deadline, ends);
        // Who had to wait too long for a lock says nothing of the others.
        let is_over =
            |end: &UnitEnd| matches!(end, UnitEnd::Failed(why) if why.storage().is_some());
        if ends.iter().flatten().any(is_over) {
            break;
        }
        (rest, rest_of_ends) = (after, after_ends);
    }
    // A batch that was interrupted by a failed sync has frames in several epochs.
    let mut lasts: Vec<Ticket> = Vec::new();
    let (mut stored, mut frees) = (false, false);
    for ticket in ends.iter().flatten().filter_map(UnitEnd::ticket) {
        stored |= ticket.stored;
        frees |= ticket.frees;
        match lasts.iter_mut().find(|last| last.epoch == ticket.epoch) {
            Some(last) if last.sequence >= ticket.sequence => {}
            Some(last) => *last = *ticket,
            None => lasts.push(*ticket),
        }
    }
    let is_durable = !lasts.is_empty() && wait(journal, lasts, &mut ends);
    if frees {
        journal.hints.tell(FREED, true);
    }
    if is_durable {
        journal.maintain_if_due();
    }
    let mut outcomes: Vec<UnitOutcome> = units.iter().map(|_| UnitOutcome::NotBegun).collect();
    for (&index, end) in order.iter().zip(ends) {
        if let (Some(slot), Some(end)) = (outcomes.get_mut(index), end) {
            *slot = outcome(end);
        }
    }
    EachReport { units: outcomes, barriers: u64::from(is_durable && stored) }
}

/// Waits once for all frames of an epoch, of which the last one is given, and puts failures in the place
/// of what is not durable. Says whether all is.
fn wait(journal: &Journal, mut lasts: Vec<Ticket>, ends: &mut [Option<UnitEnd>]) -> bool {
    lasts.sort_unstable_by_key(|last| last.epoch);
    let mut is_durable = true;
    for last in lasts {
        let Err(failure) = journal.wait_durable(&last) else { continue };
        is_durable = false;
        for end in ends.iter_mut() {
            let ticket = end.as_ref().and_then(UnitEnd::ticket).copied();
            let Some(ticket) = ticket.filter(|ticket| ticket.epoch == last.epoch) else { continue };
            // What was before the last one may count all the same: that is decided by now.
            let own = match &failure {
                Failure::Restored(_) => journal.wait_durable(&ticket).err(),
                _ => Some(copy(&failure)),
            };
            let Some(own) = own else { continue };
            let own = if ticket.stored { own } else { untouched(own) };
            *end = Some(UnitEnd::Failed(Box::new(own)));
        }
    }
    is_durable
}

/// What was to be waited for was somebody else's frame.
fn untouched(failure: Failure) -> Failure {
    Failure::Untouched(into_storage(failure))
}

/// The units by space, shard and id of their first key.
fn in_order(units: &[Request<'_>], journal: &Journal) -> Vec<usize> {
    let first = |index: usize| units.get(index).and_then(|unit| unit.keys.first());
    let place = |index: usize| first(index).map_or(0, |&key| place(key, journal));
    // A number for both, the place and which unit it is: numbers are sorted faster than pairs.
    let low = u64::MAX.checked_shr(units.len().leading_zeros()).unwrap_or(0);
    let mut numbers: Vec<u64> =
        (0..units.len()).map(|index| place(index) & !low | index as u64).collect();
    numbers.sort_unstable();
    let index = |number| usize::try_from(number & low).unwrap_or(usize::MAX);
    let mut order: Vec<usize> = numbers.iter().map(|&number| index(number)).collect();
    // What the numbers do not tell apart.
    let mut from = 0;
    for same in numbers.chunk_by(|a, b| a & !low == b & !low) {
        let until = from + same.len();
        if let (2.., Some(same)) = (same.len(), order.get_mut(from..until)) {
            same.sort_by_key(|&index| (first(index), index));
        }
        from = until;
    }
    order
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
