//! How one write that no sync covered may end.
//!
//! It survives whole, not at all, as its first half, or as zeros of the right length. A disk writes
//! [`SECTOR`]s, each whole or not at all and in any order, so of a write over several of them one run
//! of sectors may survive alone, or be lost alone: every run where it touches at most [`EVERY_RUN`],
//! beyond that every beginning, every end, and each sector alone. (A reader that checks a digest
//! cannot tell two incomplete sets of sectors apart that agree on its header.)

use std::ops::Range;

use crate::disk::{Change as _, DataChange};

/// What a disk writes as one.
pub(super) const SECTOR: usize = 512;

/// Up to this many sectors, every run of them is tried.
const EVERY_RUN: usize = 6;

/// At most this many places of a longer write are looked at: its ends, and some between.
const PLACES: usize = 32;

/// How many ways do not depend on sectors; the first two are "whole" and "not at all".
pub(super) const PLAIN: usize = 4;

/// How one change of a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Nothing,
    Half,
    Zeros,
    /// Only these of its sectors, counted from the first that it touches.
    Only(usize, usize),
    /// All but these of its sectors.
    Without(usize, usize),
    /// Whole, but this sector of the file cannot be made sense of.
    Spoilt(usize),
}

/// Every way in which a change may end.
pub(super) fn of(change: &DataChange, spoilt_sectors: bool) -> Vec<Part> {
    let DataChange::Write { at, bytes } = change else { return vec![Part::Whole, Part::Nothing] };
    let mut parts = vec![Part::Whole, Part::Nothing, Part::Half, Part::Zeros];
    let (first, count) = sectors(*at, bytes.len());
    if count > 1 {
        for run in runs(count) {
            parts.push(Part::Only(run.start, run.end));
            // What lacks a beginning or an end is an end or a beginning: it is there already.
            if run.start > 0 && run.end < count {
                parts.push(Part::Without(run.start, run.end));
            }
        }
    }
    if spoilt_sectors && count > 0 {
        parts.push(Part::Spoilt(first));
        parts.extend((count > 1).then_some(Part::Spoilt(first + count - 1)));
    }
    parts
}

/// The first sector that a write touches, and how many it touches.
fn sectors(at: usize, len: usize) -> (usize, usize) {
    let first = at / SECTOR;
    (first, if len == 0 { 0 } else { (at + len - 1) / SECTOR + 1 - first })
}

/// Runs of sectors that are not all of them.
fn runs(count: usize) -> Vec<Range<usize>> {
    let all = |run: &Range<usize>| run.len() < count;
    if count <= EVERY_RUN {
        let runs = (0..count).flat_map(|start| (start + 1..=count).map(move |end| start..end));
        return runs.filter(all).collect();
    }
    let mut runs = Vec::new();
    for place in 0..count {
        let between = count.div_ceil(PLACES / 2);
        let is_end = place < PLACES / 4 || place >= count - PLACES / 4;
        if count > PLACES && !is_end && place % between != 0 {
            continue;
        }
        runs.extend([0..place, place..count, place..place + 1]);
    }
    runs.retain(|run| !run.is_empty() && all(run));
    runs.sort_unstable_by_key(|run| (run.start, run.end));
    runs.dedup();
    runs
}

impl Part {
    /// Applies what survives of a change.
    pub(super) fn apply(self, change: &DataChange, to: &mut Vec<u8>) {
        let DataChange::Write { at, bytes } = change else {
            if self != Self::Nothing {
                change.apply(to);
            }
            return;
        };
        let put = |to: &mut Vec<u8>, within: Range<usize>| {
            if !within.is_empty() {
                let bytes = bytes[within.clone()].into();
                DataChange::Write { at: at + within.start, bytes }.apply(to);
            }
        };
        // The bytes of this write in a run of its sectors.
        let bytes_of = |start: usize, end: usize| {
            let begin = at / SECTOR * SECTOR;
            let from = (begin + start * SECTOR).saturating_sub(*at);
            from..(begin + end * SECTOR - at).min(bytes.len())
        };
        match self {
            Self::Nothing => {}
            Self::Whole => put(to, 0..bytes.len()),
            Self::Half => put(to, 0..bytes.len() / 2),
            Self::Zeros => {
                DataChange::Write { at: *at, bytes: vec![0; bytes.len()].into() }.apply(to);
            }
            Self::Only(start, end) => put(to, bytes_of(start, end)),
            Self::Without(start, end) => {
                let hole = bytes_of(start, end);
                put(to, 0..hole.start);
                put(to, hole.end..bytes.len());
            }
            Self::Spoilt(sector) => {
                put(to, 0..bytes.len());
                let end = ((sector + 1) * SECTOR).min(to.len());
                to[sector * SECTOR..end].fill(0xa5);
            }
        }
    }
}
