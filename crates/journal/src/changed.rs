//! What has changed since the checkpoint: for each key the last frame that changed it, and where its page
//! says what is stored.
//!
//! Everything that anybody appends goes through here in every process, so an entry is a few numbers:
//! nothing is allocated for a key, and a record is built only when somebody asks for it.
//!
//! D1. A page is kept as long as something in it counts, and no longer.
//! D2. What is renewed is the last record that was stored whole: in a page, or in the checkpoint.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use ringfence_model::Key;

use crate::checkpoint::{Checkpoint, CheckpointError, Found};
use crate::codec::Malformed;
use crate::codec::page::{self, By, Page, Place, Said, Stored, Whole};

/// Hashes keys.
pub type KeyHashing = BuildHasherDefault<KeyHasher>;

/// Keys are digests already: one word of theirs is as good as all of it.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        match bytes.first_chunk() {
            Some(word) => self.write_u64(u64::from_le_bytes(*word)),
            None => bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte))),
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word.cast_unsigned() as u64);
    }
}

/// The changes.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    keys: HashMap<Key, Latest, KeyHashing>,
    pages: Pages,
}

/// The last change of a key.
#[derive(Clone, Copy, Debug)]
struct Latest {
    /// The frame that made it.
    sequence: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Removed,
    Stored(At),
    Renewed(Of, Renewal),
}

/// A record in a page.
#[derive(Clone, Copy, Debug)]
struct At {
    page: u32,
    whole: Whole,
}

/// A renewal in a page.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    page: u32,
    body: u32,
}

/// What is renewed; D2.
#[derive(Clone, Copy, Debug)]
enum Of {
    Checkpoint(Found),
    Page(At),
}

/// A change, for somebody who goes through all of them while more are made.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// This is stored, whatever the checkpoint has.
    Stored(Stored),
    /// What the checkpoint has is renewed.
    Renewed(By),
}

/// Why a record was not built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

const NOTHING: Malformed = Malformed("a renewal of nothing");

impl Changed {
    /// Applies what the page of the frame `sequence` says.
    pub(crate) fn apply(
        &mut self,
        sequence: u64,
        page: Page,
        members: &[(Key, Said)],
        checkpoint: &Checkpoint,
    ) -> Result<(), Unread> {
        // As many as there may be: a later one of the same page may give up what an earlier one holds.
        let most = members.len() + 1;
        let page = self.pages.add(page, most);
        self.keys.reserve(members.len());
        let mut users = 0;
        let applied = members.iter().try_for_each(|&(key, said)| {
            let known = self.keys.get_mut(&key);
            let before = known.as_ref().map(|latest| latest.state);
            let state = match said {
                Said::Removed => State::Removed,
                Said::Stored(whole) => State::Stored(At { page, whole }),
                Said::Renewed(body) => {
                    let of = match before {
                        Some(State::Stored(at)) => Of::Page(at),
                        Some(State::Renewed(of, _)) => of,
                        Some(State::Removed) => return Err(NOTHING.into()),
                        None => Of::Checkpoint(checkpoint.find(key)?.ok_or(NOTHING)?),
                    };
                    State::Renewed(of, Renewal { page, body })
                }
            };
            let is_renewed = matches!(state, State::Renewed(..));
            users += usize::from(!matches!(state, State::Removed));
            match before {
                Some(State::Stored(at)) if !is_renewed => self.pages.give_up(at.page, 1),
                Some(State::Renewed(of, by)) => {
                    self.pages.give_up(by.page, 1);
                    // What was stored is needed by what renews it.
                    if let (Of::Page(at), false) = (of, is_renewed) {
                        self.pages.give_up(at.page, 1);
                    }
                }
                _ => {}
            }
            let latest = Latest { sequence, state };
            match known {
                Some(known) => *known = latest,
                None => drop(self.keys.insert(key, latest)),
            }
            Ok(())
        });
        self.pages.give_up(page, most - users);
        applied
    }

    /// Where what is stored under a key is: by a change, or else by the checkpoint.
    pub(crate) fn find<'a>(
        &'a self,
        key: &'a Key,
        checkpoint: &'a Checkpoint,
    ) -> Result<Option<page::Latest<'a>>, Unread> {
        let at = |At { page, whole }: At| {
            Ok::<_, Malformed>(page::Latest {
                page: self.pages.get(page)?,
                key,
                whole,
                renewal: None,
            })
        };
        Ok(match self.keys.get(key).map(|latest| &latest.state) {
            None => match checkpoint.get(*key)? {
                Some(stored) => stored.latest()?,
                None => None,
            },
            Some(State::Removed) => None,
            Some(State::Stored(of)) => Some(at(*of)?),
            Some(State::Renewed(of, by)) => {
                let of = match of {
                    Of::Page(of) => at(*of)?,
                    Of::Checkpoint(found) => checkpoint.stored(*found)?.latest()?.ok_or(NOTHING)?,
                };
                let renewal = Some(self.pages.get(by.page)?.renewal(by.body)?);
                Some(page::Latest { renewal, ..of })
            }
        })
    }

    /// The last frame that changed a key, if that is known.
    pub(crate) fn sequence(&self, key: Key) -> Option<u64> {
        self.keys.get(&key).map(|latest| latest.sequence)
    }

    /// How many keys have changed.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Every change, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Result<(Key, Change), Malformed>> {
        self.keys.iter().map(|(&key, latest)| {
            let place =
                |at: At| Ok(Place::new(Arc::clone(self.pages.get(at.page)?), key, at.whole));
            let change = match latest.state {
                State::Removed => Change::Stored(Stored::Removed),
                State::Stored(at) => Change::Stored(Stored::Record(place(at)?)),
                State::Renewed(of, by) => {
                    let by = By::new(Arc::clone(self.pages.get(by.page)?), by.body);
                    match of {
                        Of::Page(at) => Change::Stored(Stored::Renewed(place(at)?, by)),
                        Of::Checkpoint(_) => Change::Renewed(by),
                    }
                }
            };
            Ok((key, change))
        })
    }
}

impl Change {
    /// What is stored after it, where the checkpoint has `before`.
    pub(crate) fn after(self, before: Option<Stored>) -> Result<Stored, Malformed> {
        match (self, before) {
            (Self::Stored(stored), _) => Ok(stored),
            (Self::Renewed(by), Some(Stored::Record(of) | Stored::Renewed(of, _))) => {
                Ok(Stored::Renewed(of, by))
            }
            (Self::Renewed(_), _) => Err(NOTHING),
        }
    }
}

/// The pages that something counts in.
#[derive(Debug, Default)]
struct Pages {
    slots: Vec<Option<Kept>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Kept {
    page: Arc<Page>,
    /// How many entries need it.
    users: usize,
}

impl Pages {
    /// Takes a page in, for so many users.
    fn add(&mut self, page: Page, users: usize) -> u32 {
        let kept = Some(Kept { page: Arc::new(page), users });
        let Some(at) = self.free.pop() else {
            self.slots.push(kept);
            // There are far fewer sectors in a segment.
            return u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX);
        };
        if let Some(slot) = slot(&mut self.slots, at) {
            *slot = kept;
        }
        at
    }

    fn get(&self, at: u32) -> Result<&Arc<Page>, Malformed> {
        let slot = usize::try_from(at).ok().and_then(|at| self.slots.get(at));
        slot.and_then(Option::as_ref).map(|kept| &kept.page).ok_or(Malformed("a page"))
    }

    /// D1.
    fn give_up(&mut self, at: u32, users: usize) {
        let Some(slot) = slot(&mut self.slots, at) else { return };
        let Some(kept) = slot else { return };
        kept.users -= users;
        if kept.users == 0 {
            *slot = None;
            self.free.push(at);
        }
    }
}

fn slot(slots: &mut [Option<Kept>], at: u32) -> Option<&mut Option<Kept>> {
    usize::try_from(at).ok().and_then(|at| slots.get_mut(at))
}

#[cfg(test)]
mod tests;
