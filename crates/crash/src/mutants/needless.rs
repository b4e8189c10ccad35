//! Syncs of a journal whose work another sync of the same call does as well.
//!
//! Each reason is checked as far as it can be: where it names other syncs, those are left out
//! together with this one, and that must be noticed.

use std::collections::BTreeMap;

use crate::weakfs::Event;

/// Why a call could do without a sync.
#[derive(Clone, Debug)]
pub(super) struct Needless {
    pub(super) why: &'static str,
    /// Where the syncs are that do its work.
    pub(super) with: Vec<usize>,
}

/// A log, to be looked at call by call.
pub(super) struct Calls<'l>(&'l [Event]);

/// The head of a segment: nothing else is written at its beginning.
const HEAD: usize = 1024;

impl<'l> Calls<'l> {
    pub(super) fn of(log: &'l [Event]) -> Self {
        Self(log)
    }

    /// What follows a place within the same call, each with its place.
    fn rest(&self, place: usize) -> impl Iterator<Item = (usize, &'l Event)> {
        let rest = self.0.iter().enumerate().skip(place + 1);
        rest.take_while(|(_, event)| !matches!(event, Event::Mark(_)))
    }

    /// The last write to a file before a place.
    fn last_write(&self, place: usize, file: u64) -> Option<(usize, usize)> {
        self.0[..place].iter().rev().find_map(|event| match event {
            Event::Write { ino, at, bytes } if *ino == file => Some((*at, bytes.len())),
            _ => None,
        })
    }

    /// Why the sync at a place is needless, if it is one of those that are known.
    pub(super) fn needless(&self, place: usize, names: &BTreeMap<u64, String>) -> Option<Needless> {
        match self.0[place] {
            Event::SyncDir { ino } => {
                self.synced_again(place, ino).or_else(|| self.renamed_again(place, ino))
            }
            Event::SyncFile { ino } => {
                let name = names.get(&ino)?.rsplit('/').next()?;
                if !name.starts_with("journal.") {
                    return None;
                }
                self.of_a_head(place, ino)
                    .or_else(|| self.before_a_head(place, ino))
                    .or_else(|| self.in_a_checkpoint(place))
            }
            _ => None,
        }
    }

    fn synced_again(&self, place: usize, dir: u64) -> Option<Needless> {
        let (again, next) =
            self.rest(place).find(|(_, event)| !matches!(event, Event::Memory { .. }))?;
        let why = "the same directory is synced once more before anything else is done";
        (*next == Event::SyncDir { ino: dir }).then(|| Needless { why, with: vec![again] })
    }

    fn renamed_again(&self, place: usize, dir: u64) -> Option<Needless> {
        let mut rest = self.rest(place);
        rest.find(|(_, event)| matches!(event, Event::Rename { new, .. } if new == "checkpoint"))?;
        let (again, _) = rest.find(|(_, event)| **event == Event::SyncDir { ino: dir })?;
        let why = "an epoch ends by two checkpoints of the same state in one call, and the sync after \
                   the second one covers the first; the one between is needed where the segment that \
                   is erased then is one that the checkpoint before them goes on in";
        Some(Needless { why, with: vec![again] })
    }

    fn of_a_head(&self, place: usize, file: u64) -> Option<Needless> {
        let (at, len) = self.last_write(place, file)?;
        let why = "the head of a segment that was made ready: nothing rests on it until the first \
                   frame is there, and that frame's own sync is of the same file";
        (at == 0 && len <= HEAD).then(|| Needless { why, with: Vec::new() })
    }

    fn before_a_head(&self, place: usize, file: u64) -> Option<Needless> {
        let mut heads = 0;
        for (_, event) in self.rest(place) {
            match event {
                Event::Write { ino, at: 0, bytes } if *ino == file && bytes.len() <= HEAD => {
                    heads += 1;
                }
                Event::SyncFile { ino } if *ino == file && heads == 1 => {
                    let why = "the zeros of a segment that is made ready: the sync of its head is of \
                               the same file, and before that at most the head is there without them; \
                               the frames below are of another segment and do not count";
                    return Some(Needless { why, with: Vec::new() });
                }
                Event::Memory { .. } => {}
                _ => return None,
            }
        }
        None
    }

    fn in_a_checkpoint(&self, place: usize) -> Option<Needless> {
        let mut rest = self.rest(place);
        rest.find(|(_, event)| matches!(event, Event::Rename { new, .. } if new == "checkpoint"))?;
        let with: Vec<usize> = rest
            .filter(|(_, event)| matches!(event, Event::SyncDir { .. }))
            .map(|(at, _)| at)
            .collect();
        let why = "the checkpoint that the same call makes durable before it returns holds the same; \
                   others whose frames the sync covers return without one, so it is needed";
        (!with.is_empty()).then_some(Needless { why, with })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 3;
    const DIR: u64 = 1;

    fn names() -> BTreeMap<u64, String> {
        BTreeMap::from([(SEGMENT, "/table/journal.0".to_owned())])
    }

    fn write(at: usize, len: usize) -> Event {
        Event::Write { ino: SEGMENT, at, bytes: vec![1; len].into() }
    }

    #[test]
    fn the_sync_of_a_frame_is_needed_unless_a_checkpoint_follows_in_the_call() {
        let sync = Event::SyncFile { ino: SEGMENT };
        let end = Event::Mark(b"A".to_vec());
        let plain = [write(1024, 512), sync.clone(), end.clone()];
        assert!(Calls::of(&plain).needless(1, &names()).is_none());
        let (name, new) = ("checkpoint.tmp".to_owned(), "checkpoint".to_owned());
        let rename = Event::Rename { from: DIR, name, to: DIR, new, ino: 4 };
        let dir = Event::SyncDir { ino: DIR };
        let with = [write(1024, 512), sync.clone(), rename.clone(), dir.clone(), end.clone()];
        let needless = Calls::of(&with).needless(1, &names());
        assert_eq!(needless.map(|needless| needless.with), Some(vec![3]));
        // In the next call it comes too late.
        let late = [write(1024, 512), sync, end, rename, dir];
        assert!(Calls::of(&late).needless(1, &names()).is_none());
    }

    #[test]
    fn a_directory_must_be_synced_again_at_once() {
        let dir = Event::SyncDir { ino: DIR };
        let log = [dir.clone(), dir.clone(), write(0, 512), dir];
        let calls = Calls::of(&log);
        assert!(calls.needless(0, &names()).is_some());
        assert!(calls.needless(1, &names()).is_none());
    }

    #[test]
    fn the_first_of_two_renames_in_a_call_needs_no_sync_of_its_own() {
        let (name, new) = ("checkpoint.tmp".to_owned(), "checkpoint".to_owned());
        let rename = Event::Rename { from: DIR, name, to: DIR, new, ino: 4 };
        let dir = Event::SyncDir { ino: DIR };
        let log = [rename.clone(), dir.clone(), write(1024, 64), rename, dir];
        let calls = Calls::of(&log);
        assert_eq!(calls.needless(1, &names()).map(|needless| needless.with), Some(vec![4]));
        assert!(calls.needless(4, &names()).is_none());
    }

    #[test]
    fn zeros_and_the_head_of_a_segment_need_one_sync_between_them() {
        let sync = Event::SyncFile { ino: SEGMENT };
        let log = [write(1024, 4096), sync.clone(), write(0, 512), sync];
        let calls = Calls::of(&log);
        assert!(calls.needless(1, &names()).is_some());
        assert!(calls.needless(3, &names()).is_some());
    }
}
