//! Writes over bytes that are durable, as a device keeps them: sector by sector.
//!
//! A sector is there as it was, or as one of the writes since the last sync of the file left it, and no
//! sector says anything of another. So a write may survive whole, not at all, or torn at any border of
//! sectors, and a later one without an earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Content, DataChange, choices, put};
use crate::rng::Rng;

/// What a device writes whole or not at all.
const SECTOR: usize = 512;
/// Of so many writes every subset is tried before torn ones are, where not everything can be.
const WHOLE_WRITES: usize = 5;

/// A write: where, and what.
pub(super) type Write<'p> = (usize, &'p Arc<[u8]>);

/// The pending changes of a file, if all of them are writes within what is durable.
pub(super) fn writes<'p>(durable: &Content, pending: &'p [DataChange]) -> Option<Vec<Write<'p>>> {
    let write = |change: &'p DataChange| match change {
        DataChange::Write(at, bytes) if at + bytes.len() <= durable.len() => Some((*at, bytes)),
        _ => None,
    };
    pending.iter().map(write).collect()
}

/// One sector: where it is, how long the file is there, and what it may hold, oldest first.
struct Sector {
    at: usize,
    versions: Vec<Vec<u8>>,
}

/// Every content that may be left; at most `cap`, and then `whole` says that some are missing.
pub(super) fn contents(
    durable: &Content,
    writes: &[Write<'_>],
    cap: usize,
    rng: &mut Rng,
    whole: &mut bool,
) -> Vec<Arc<Content>> {
    let sectors = sectors(durable, writes);
    let counts: Vec<usize> = sectors.iter().map(|sector| sector.versions.len()).collect();
    let mut is_all = true;
    let mut torn = choices(&counts, cap, rng, &mut is_all);
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut add = |bytes: Vec<u8>| {
        let content = Content::new(bytes);
        if seen.insert(content.digest) {
            found.push(content);
        }
    };
    if !is_all {
        *whole = false;
        for bytes in whole_writes(durable, writes, cap / 2) {
            add(bytes);
        }
        torn.truncate(cap - cap / 2);
    }
    for choice in torn {
        let mut bytes = durable.bytes.clone();
        for (sector, version) in sectors.iter().zip(choice) {
            if let Some(version) = sector.versions.get(version) {
                put(&mut bytes, sector.at, version);
            }
        }
        add(bytes);
    }
    found
}

/// Each sector that was written.
fn sectors(durable: &Content, writes: &[Write<'_>]) -> Vec<Sector> {
    let mut sectors: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
    for (at, data) in writes {
        let mut from = *at;
        while from < at + data.len() {
            let start = from / SECTOR * SECTOR;
            let to = (start + SECTOR).min(at + data.len());
            let versions = sectors.entry(start).or_insert_with(|| {
                vec![durable[start..(start + SECTOR).min(durable.len())].to_vec()]
            });
            let mut version = versions.last().cloned().unwrap_or_default();
            version[from - start..to - start].copy_from_slice(&data[from - at..to - at]);
            if versions.last() != Some(&version) {
                versions.push(version);
            }
            from = to;
        }
    }
    let changed = sectors.into_iter().filter(|(_, versions)| versions.len() > 1);
    changed.map(|(at, versions)| Sector { at, versions }).collect()
}

/// With whole writes only: every subset of the last few over all before, and every prefix.
fn whole_writes(durable: &Content, writes: &[Write<'_>], most: usize) -> Vec<Vec<u8>> {
    let with = |keep: &dyn Fn(usize) -> bool| {
        let mut bytes = durable.bytes.clone();
        for (_, (at, data)) in writes.iter().enumerate().filter(|(index, _)| keep(*index)) {
            put(&mut bytes, *at, data);
        }
        bytes
    };
    let first = writes.len().saturating_sub(WHOLE_WRITES);
    let subsets = 0..1_usize << (writes.len() - first);
    let mut all: Vec<Vec<u8>> = subsets
        .map(|kept| with(&|index| index < first || kept >> (index - first) & 1 == 1))
        .collect();
    all.extend((0..first).map(|count| with(&|index| index < count)));
    all.truncate(most.max(2));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(writes: &[(usize, &[u8])], cap: usize) -> (Vec<Vec<u8>>, bool) {
        let durable = Content::new(vec![0; 4 * SECTOR]);
        let data: Vec<Arc<[u8]>> = writes.iter().map(|(_, data)| Arc::from(*data)).collect();
        let pending: Vec<DataChange> = writes
            .iter()
            .zip(&data)
            .map(|((at, _), data)| DataChange::Write(*at, Arc::clone(data)))
            .collect();
        let found = super::writes(&durable, &pending).expect("within the file");
        let mut whole = true;
        let contents = contents(&durable, &found, cap, &mut Rng::new(1), &mut whole);
        (contents.iter().map(|content| content.bytes.clone()).collect(), whole)
    }

    #[test]
    fn sectors_survive_in_any_subset_and_each_as_one_write_left_it() {
        let (first, second) = ([1; 2 * SECTOR], [2; SECTOR]);
        let (found, whole) = left(&[(0, &first), (SECTOR, &second)], 100);
        let marks: BTreeSet<(u8, u8, u8)> =
            found.iter().map(|bytes| (bytes[0], bytes[SECTOR], bytes[2 * SECTOR - 1])).collect();
        let expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        assert_eq!(marks, expected.iter().map(|&(a, b)| (a, b, b)).collect());
        assert_eq!((found.len(), whole), (6, true));
    }

    #[test]
    fn a_sample_has_nothing_everything_and_whole_writes_without_those_before() {
        let data = [7; SECTOR];
        let writes: Vec<(usize, &[u8])> = (0..4).map(|at| (at * SECTOR, &data[..])).collect();
        let (found, whole) = left(&writes, 8);
        assert!(!whole);
        let marks = |bytes: &Vec<u8>| (0..4).map(|at| bytes[at * SECTOR]).collect::<Vec<_>>();
        let marks: BTreeSet<Vec<u8>> = found.iter().map(marks).collect();
        for expected in [[0; 4], [7; 4], [0, 7, 0, 0]] {
            assert!(marks.contains(&expected[..]), "{expected:?} in {marks:?}");
        }
        assert!(found.len() <= 8);
    }

    #[test]
    fn what_grows_the_file_is_no_write_in_place() {
        let durable = Content::new(vec![0; 10]);
        let write = |at, len| DataChange::Write(at, vec![1; len].into());
        assert!(super::writes(&durable, &[write(0, 10)]).is_some());
        assert!(super::writes(&durable, &[write(0, 10), write(1, 10)]).is_none());
        assert!(super::writes(&durable, &[DataChange::Truncate(3)]).is_none());
    }
}
