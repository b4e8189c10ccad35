//! What a power cut may leave of a disk.
//!
//! Every change that no sync covered survives or not, by itself. A write survives whole, as its
//! first half, as zeros of the right length, in some of its sectors, or not at all (see the module
//! `part`). Names survive in any subset per directory, or, with [`Order::Prefix`], as the
//! directory's log cut at some point.
//!
//! The number of reachable disks is the product of all these choices. Up to a cap all are visited;
//! beyond it the extremes and a seeded sample are, and the answer says so. Temporaries and lock
//! files are left all or none, unless [`CrashModel::vary_temporaries`] asks for more. Nothing reads a
//! temporary, and repair removes each by itself; a lock file has no bytes, holds no lock after a power
//! cut, and whoever needs one makes it: so which of them are left tells no two recoveries apart.

mod part;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use crate::disk::{Body, Disk, Fate, Ino, Inode, Logged, NameChange, Names, ROOT};
use crate::rng::Rng;
use part::Part;

/// In what order a directory's changes reach the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In none: any subset survives.
    #[default]
    Any,
    /// In the order of the calls: a prefix of each directory's log survives.
    Prefix,
}

/// How crash states are made.
#[derive(Clone, Copy, Debug)]
pub struct CrashModel {
    /// The most states per crash point.
    pub cap: usize,
    /// The order of names.
    pub order: Order,
    /// Whether files whose name ends in `.tmp` or `.lock` are varied one by one, and their bytes
    /// too.
    pub vary_temporaries: bool,
    /// Whether a sector that was being written may be left unreadable as a whole, with what stood
    /// in it before. Devices promise not to; a format that keeps acknowledged bytes out of sectors
    /// that it still writes need not believe them.
    pub spoilt_sectors: bool,
}

impl Default for CrashModel {
    fn default() -> Self {
        Self { cap: 1024, order: Order::Any, vary_temporaries: false, spoilt_sectors: false }
    }
}

/// The disks that one power cut may leave.
#[derive(Debug)]
pub struct CrashStates {
    /// Distinct disks, everything on them durable.
    pub disks: Vec<Disk>,
    /// How many combinations of choices there were.
    pub space: u128,
    /// Whether all of them were made.
    pub exhaustive: bool,
}

/// What a file holds after a power cut that memory was mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// What it held before it was mapped.
    Forgotten,
    /// What the memory held.
    Written,
    /// Anything.
    Noise,
}

/// All of them.
pub const MEMORIES: [Memory; 3] = [Memory::Forgotten, Memory::Written, Memory::Noise];

/// The names of every directory, after some choice.
type Tree = BTreeMap<Ino, Arc<Names>>;

impl Disk {
    /// Every disk that a power cut at this moment may leave, up to the cap.
    pub fn crash_states(&self, model: &CrashModel, rng: &mut Rng) -> CrashStates {
        let (trees, trees_space, all_trees) = self.trees(model, rng);
        let mut space = 0_u128;
        let mut plans = Vec::new();
        for tree in trees {
            let slots = self.slots(&tree, model);
            let choices = slots
                .iter()
                .map(|slot| slot.parts.len() as u128)
                .fold(1_u128, u128::saturating_mul);
            space = space.saturating_add(choices);
            plans.push((tree, slots, choices));
        }
        let exhaustive = all_trees && space <= model.cap as u128;
        let mut disks = Vec::new();
        let mut seen = BTreeSet::new();
        let mut keep = |disk: Disk| {
            if seen.insert(disk.digest()) {
                disks.push(disk);
            }
        };
        if exhaustive {
            for (tree, slots, choices) in &plans {
                for number in 0..*choices {
                    keep(self.collapse(tree, slots, |slot| {
                        let mut rest = number;
                        for earlier in &slots[..slot] {
                            rest /= earlier.parts.len() as u128;
                        }
                        usize::try_from(rest % slots[slot].parts.len() as u128).unwrap_or(0)
                    }));
                }
            }
        } else {
            // The extremes: all of it, none of it, and each change of bytes lost by itself.
            for (tree, slots, _) in plans.iter().take(model.cap / 4 + 1) {
                for part in 0..part::PLAIN {
                    keep(self.collapse(tree, slots, |slot| part.min(slots[slot].parts.len() - 1)));
                }
            }
            for _ in 0..model.cap {
                let (tree, slots, _) = &plans[rng.index(plans.len())];
                let choice: Vec<usize> = slots.iter().map(|slot| slot.draw(rng)).collect();
                keep(self.collapse(tree, slots, |slot| choice[slot]));
            }
            disks.truncate(model.cap);
        }
        CrashStates { disks, space: space.max(trees_space), exhaustive }
    }

    /// One disk that a power cut at this moment may leave.
    #[must_use]
    pub fn crash(&self, rng: &mut Rng) -> Disk {
        let model = CrashModel { vary_temporaries: true, ..CrashModel::default() };
        let tree = self.random_tree(&model, rng);
        let slots = self.slots(&tree, &model);
        // Now and then everything or nothing survives: the middle alone would miss the ends.
        let choice: Vec<usize> = match rng.below(4) {
            0 => slots.iter().map(|_| 0).collect(),
            1 => slots.iter().map(|_| 1).collect(),
            _ => slots.iter().map(|slot| slot.draw(rng)).collect(),
        };
        let mut disk = self.collapse(&tree, &slots, |slot| choice[slot]);
        for (ino, words) in &self.words {
            let memory = MEMORIES[rng.index(MEMORIES.len())];
            disk.forget_words(*ino, words, memory, rng);
        }
        disk
    }

    /// A disk that a power cut left of `before`, with this in the files that memory was mapped to.
    #[must_use]
    pub fn with_memory_of(mut self, before: &Self, memory: Memory, rng: &mut Rng) -> Self {
        for (ino, words) in &before.words {
            self.forget_words(*ino, words, memory, rng);
        }
        self
    }

    /// Whether there is memory that is mapped to a file.
    pub fn has_memory(&self) -> bool {
        !self.words.is_empty()
    }

    /// The disk if nothing survives that no sync covered.
    #[must_use]
    pub fn barest(&self) -> Self {
        let tree =
            self.risky().into_iter().map(|(ino, logged)| (ino, names_after(logged, |_| false)));
        self.collapse(&tree.collect(), &[], |_| 0)
    }

    fn forget_words(&mut self, ino: Ino, words: &[u64], memory: Memory, rng: &mut Rng) {
        if memory == Memory::Forgotten {
            return;
        }
        let Some(inode) = self.inodes.get_mut(&ino) else { return };
        let Body::File(data) = &inode.body else { return };
        let mut bytes = (*data.now).clone();
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            let word = if memory == Memory::Written { *word } else { rng.draw() };
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Arc::make_mut(inode).body = Body::File(Logged::durable(bytes));
    }

    /// The directories with changes at risk, and how many each has.
    fn risky(&self) -> Vec<(Ino, &Logged<Names, NameChange>)> {
        self.inodes
            .iter()
            .filter_map(|(ino, inode)| match &inode.body {
                Body::Dir(names) if names.at_risk() > 0 => Some((*ino, names)),
                _ => None,
            })
            .collect()
    }

    /// Distinct sets of names; how many choices led to them; whether all choices were made.
    fn trees(&self, model: &CrashModel, rng: &mut Rng) -> (Vec<Tree>, u128, bool) {
        let risky = self.risky();
        let ways: Vec<u128> = risky.iter().map(|(_, logged)| ways(logged, model)).collect();
        // One more choice for all temporaries and lock files together.
        let temporaries = 1 + u128::from(!model.vary_temporaries && has_temporaries(&risky));
        let space = ways.iter().copied().fold(temporaries, u128::saturating_mul);
        // Many choices of names lead to the same tree, so more of them are looked at than kept.
        let all = space <= 16 * model.cap as u128;
        let mut trees = Vec::new();
        let mut seen = BTreeSet::new();
        let mut keep = |tree: Tree| {
            if seen.insert(self.reachable(&tree)) {
                trees.push(tree);
            }
        };
        if all {
            for number in 0..space {
                let (mut rest, left) =
                    (number % (space / temporaries), number < space / temporaries);
                let choice = risky.iter().zip(&ways).map(|((ino, logged), ways)| {
                    let mine = rest % ways;
                    rest /= ways;
                    (*ino, names_by_number(logged, model, mine, left))
                });
                keep(choice.collect());
            }
        } else {
            for survives in [true, false] {
                let choice =
                    risky.iter().map(|(ino, logged)| (*ino, names_after(logged, |_| survives)));
                keep(choice.collect());
            }
            for _ in 0..model.cap {
                keep(self.random_tree(model, rng));
            }
        }
        (trees, space, all)
    }

    fn random_tree(&self, model: &CrashModel, rng: &mut Rng) -> Tree {
        let mut tree = Tree::new();
        let left = rng.chance(500_000);
        for (ino, logged) in self.risky() {
            let prefix = rng.below(logged.at_risk() as u64 + 1);
            // A biased coin per directory: "nearly all" and "nearly none" come up too.
            let bias = [500_000, 850_000, 150_000][rng.index(3)];
            let names = match model.order {
                Order::Prefix => names_by_number(logged, model, u128::from(prefix), left),
                Order::Any => names_after(logged, |change| match temporary(change, model) {
                    Some(made) => made == left,
                    None => rng.chance(bias),
                }),
            };
            tree.insert(ino, names);
        }
        tree
    }

    /// What a tree looks like from the root: what cannot be reached does not tell trees apart.
    fn reachable(&self, tree: &Tree) -> Vec<(Ino, Vec<(std::ffi::OsString, Ino)>)> {
        let mut out = Vec::new();
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let names = self.names_in(tree, dir);
            for ino in names.values() {
                if matches!(self.inode(*ino).body, Body::Dir(_)) {
                    todo.push(*ino);
                }
            }
            out.push((dir, names.iter().map(|(name, ino)| (name.clone(), *ino)).collect()));
        }
        out
    }

    fn names_in<'a>(&'a self, tree: &'a Tree, dir: Ino) -> &'a Names {
        match (tree.get(&dir), &self.inode(dir).body) {
            (Some(names), _) => names,
            (None, Body::Dir(names)) => &names.now,
            (None, Body::File(_)) => unreachable!("a file is no directory"),
        }
    }

    /// The changes of bytes at risk, in the files that can be reached.
    fn slots(&self, tree: &Tree, model: &CrashModel) -> Vec<Slot> {
        let mut slots = Vec::new();
        for (_, names) in self.reachable(tree) {
            for (name, ino) in names {
                let Body::File(data) = &self.inode(ino).body else { continue };
                if !model.vary_temporaries && is_temporary(&name) {
                    continue;
                }
                for (index, (change, fate)) in data.log.iter().enumerate() {
                    if *fate != Fate::Durable {
                        slots.push(Slot {
                            ino,
                            index,
                            parts: part::of(change, model.spoilt_sectors),
                        });
                    }
                }
            }
        }
        slots
    }

    fn collapse(&self, tree: &Tree, slots: &[Slot], choose: impl Fn(usize) -> usize) -> Disk {
        let mut disk = self.clone();
        disk.words.clear();
        let mut inodes = BTreeMap::new();
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            let inode = &self.inodes[&ino];
            let body = match &inode.body {
                Body::Dir(logged) => {
                    let names = self.names_in(tree, ino);
                    todo.extend(names.values().copied());
                    if logged.log.is_empty() {
                        inodes.insert(ino, Arc::clone(inode));
                        continue;
                    }
                    Body::Dir(Logged::durable(names.clone()))
                }
                Body::File(logged) if logged.log.is_empty() => {
                    inodes.insert(ino, Arc::clone(inode));
                    continue;
                }
                Body::File(logged) => {
                    let mut bytes = (*logged.base).clone();
                    for (index, (change, fate)) in logged.log.iter().enumerate() {
                        let slot = slots.iter().position(|s| s.ino == ino && s.index == index);
                        let part = match slot {
                            Some(slot) => slots[slot].parts[choose(slot)],
                            None if *fate == Fate::Durable => Part::Whole,
                            None => Part::Nothing,
                        };
                        part.apply(change, &mut bytes);
                    }
                    Body::File(Logged::durable(bytes))
                }
            };
            inodes.insert(ino, Arc::new(Inode { body, ..(**inode).clone() }));
        }
        disk.inodes = inodes;
        disk
    }
}

/// One change of bytes that a power cut decides about.
#[derive(Debug)]
struct Slot {
    ino: Ino,
    index: usize,
    parts: Vec<Part>,
}

impl Slot {
    /// Whole, not at all, or in any other way: a third each, however many other ways there are.
    fn draw(&self, rng: &mut Rng) -> usize {
        match rng.index(3) {
            2 => rng.index(self.parts.len()),
            end => end,
        }
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "tmp" || extension == "lock")
}

/// Whether a change only makes a temporary or lock file (`true`) or removes one (`false`), where the model does
/// not vary them one by one.
fn temporary(change: &NameChange, model: &CrashModel) -> Option<bool> {
    match change {
        _ if model.vary_temporaries => None,
        NameChange::Set(name, _) => is_temporary(name).then_some(true),
        NameChange::Remove(name) => is_temporary(name).then_some(false),
        NameChange::Move(..) => None,
    }
}

fn at_risk(logged: &Logged<Names, NameChange>) -> impl Iterator<Item = &NameChange> {
    logged.log.iter().filter(|(_, fate)| *fate != Fate::Durable).map(|(change, _)| change)
}

fn has_temporaries(risky: &[(Ino, &Logged<Names, NameChange>)]) -> bool {
    let mut names = risky.iter().flat_map(|(_, logged)| at_risk(logged));
    names.any(|change| temporary(change, &CrashModel::default()).is_some())
}

/// How many choices there are for one directory, temporaries aside.
fn ways(logged: &Logged<Names, NameChange>, model: &CrashModel) -> u128 {
    match model.order {
        Order::Any => {
            let free = at_risk(logged).filter(|change| temporary(change, model).is_none()).count();
            1_u128.checked_shl(u32::try_from(free).unwrap_or(u32::MAX)).unwrap_or(u128::MAX)
        }
        Order::Prefix => logged.at_risk() as u128 + 1,
    }
}

/// One of those choices; `left` says whether temporaries are.
fn names_by_number(
    logged: &Logged<Names, NameChange>,
    model: &CrashModel,
    number: u128,
    left: bool,
) -> Arc<Names> {
    let mut index = 0_u32;
    names_after(logged, |change| match (model.order, temporary(change, model)) {
        (Order::Any, Some(made)) => made == left,
        (order, _) => {
            index += 1;
            match order {
                Order::Any => number >> (index - 1) & 1 == 1,
                Order::Prefix => u128::from(index - 1) < number,
            }
        }
    })
}

fn names_after(
    logged: &Logged<Names, NameChange>,
    mut survives: impl FnMut(&NameChange) -> bool,
) -> Arc<Names> {
    let mut names = (*logged.base).clone();
    for (change, fate) in &logged.log {
        if *fate == Fate::Durable || survives(change) {
            crate::disk::Change::apply(change, &mut names);
        }
    }
    Arc::new(names)
}

#[cfg(test)]
mod tests;
