//! What a power cut may leave of a disk.
//!
//! Every change that no sync covered survives or not, by itself. A write survives whole, as its
//! first half, as zeros of the right length, or not at all. Names survive in any subset per
//! directory, or, with [`Order::Prefix`], as the directory's log cut at some point.
//!
//! The number of reachable disks is the product of all these choices. Up to a cap all are visited;
//! beyond it the extremes and a seeded sample are, and the answer says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::disk::{
    Body, Change as _, DataChange, Disk, Fate, Ino, Inode, Logged, NameChange, Names, ROOT,
};
use crate::rng::Rng;

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
    /// Whether the bytes of files whose name ends in `.tmp` are varied too. Nothing reads them.
    pub vary_temporaries: bool,
}

impl Default for CrashModel {
    fn default() -> Self {
        Self { cap: 1024, order: Order::Any, vary_temporaries: false }
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

/// How one change of a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Nothing,
    Half,
    Zeros,
}

const PARTS: [Part; 4] = [Part::Whole, Part::Nothing, Part::Half, Part::Zeros];

fn parts_of(change: &DataChange) -> usize {
    match change {
        DataChange::Write { .. } => PARTS.len(),
        DataChange::SetLen(_) => 2,
    }
}

fn apply_part(change: &DataChange, part: Part, to: &mut Vec<u8>) {
    match (change, part) {
        (_, Part::Nothing) => {}
        (DataChange::Write { at, bytes }, Part::Half) => {
            let half = bytes[..bytes.len() / 2].into();
            DataChange::Write { at: *at, bytes: half }.apply(to);
        }
        (DataChange::Write { at, bytes }, Part::Zeros) => {
            let zeros = vec![0; bytes.len()].into();
            DataChange::Write { at: *at, bytes: zeros }.apply(to);
        }
        (change, _) => change.apply(to),
    }
}

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
            let choices = slots.iter().map(|slot| slot.parts as u128).product::<u128>();
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
                            rest /= earlier.parts as u128;
                        }
                        usize::try_from(rest % slots[slot].parts as u128).unwrap_or(0)
                    }));
                }
            }
        } else {
            // The extremes: all of it, none of it, and each change of bytes lost by itself.
            for (tree, slots, _) in plans.iter().take(model.cap / 4 + 1) {
                for part in 0..PARTS.len() {
                    keep(self.collapse(tree, slots, |slot| part.min(slots[slot].parts - 1)));
                }
            }
            for _ in 0..model.cap {
                let (tree, slots, _) = &plans[rng.index(plans.len())];
                let choice: Vec<usize> = slots.iter().map(|slot| rng.index(slot.parts)).collect();
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
        let tree = self.random_tree(model.order, rng);
        let slots = self.slots(&tree, &model);
        // Now and then everything or nothing survives: the middle alone would miss the ends.
        let choice: Vec<usize> = match rng.below(4) {
            0 => slots.iter().map(|_| 0).collect(),
            1 => slots.iter().map(|_| 1).collect(),
            _ => slots.iter().map(|slot| rng.index(slot.parts)).collect(),
        };
        self.collapse(&tree, &slots, |slot| choice[slot])
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
        let ways = |logged: &Logged<Names, NameChange>| match model.order {
            Order::Any => 1_u128.checked_shl(u32::try_from(logged.at_risk()).unwrap_or(u32::MAX)),
            Order::Prefix => Some(logged.at_risk() as u128 + 1),
        };
        let space = risky
            .iter()
            .map(|(_, logged)| ways(logged).unwrap_or(u128::MAX))
            .fold(1_u128, u128::saturating_mul);
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
                let mut rest = number;
                let choice = risky.iter().map(|(ino, logged)| {
                    let ways = ways(logged).unwrap_or(u128::MAX);
                    let mine = rest % ways;
                    rest /= ways;
                    (
                        *ino,
                        names_after(logged, model.order, &mut |index| mine >> index & 1 == 1, mine),
                    )
                });
                keep(choice.collect());
            }
        } else {
            for way in 0..2 {
                let choice = risky.iter().map(|(ino, logged)| {
                    let all = logged.at_risk() as u128;
                    (*ino, names_after(logged, model.order, &mut |_| way == 0, all * (1 - way)))
                });
                keep(choice.collect());
            }
            for _ in 0..model.cap {
                keep(self.random_tree(model.order, rng));
            }
        }
        (trees, space, all)
    }

    fn random_tree(&self, order: Order, rng: &mut Rng) -> Tree {
        let mut tree = Tree::new();
        for (ino, logged) in self.risky() {
            let prefix = rng.below(logged.at_risk() as u64 + 1);
            // A biased coin per directory: "nearly all" and "nearly none" come up too.
            let bias = [500_000, 850_000, 150_000][rng.index(3)];
            let names = names_after(logged, order, &mut |_| rng.chance(bias), u128::from(prefix));
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
                        slots.push(Slot { ino, index, parts: parts_of(change) });
                    }
                }
            }
        }
        slots
    }

    fn collapse(&self, tree: &Tree, slots: &[Slot], choose: impl Fn(usize) -> usize) -> Disk {
        let mut disk = self.clone();
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
                            Some(slot) => PARTS[choose(slot)],
                            None if *fate == Fate::Durable => Part::Whole,
                            None => Part::Nothing,
                        };
                        apply_part(change, part, &mut bytes);
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
    parts: usize,
}

fn is_temporary(name: &std::ffi::OsStr) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "tmp")
}

fn names_after(
    logged: &Logged<Names, NameChange>,
    order: Order,
    survives: &mut dyn FnMut(usize) -> bool,
    prefix: u128,
) -> Arc<Names> {
    let mut names = (*logged.base).clone();
    let mut risks = 0..;
    for (change, fate) in &logged.log {
        let kept = *fate == Fate::Durable || {
            let index = risks.next().unwrap_or(usize::MAX);
            match order {
                Order::Any => survives(index),
                Order::Prefix => (index as u128) < prefix,
            }
        };
        if kept {
            change.apply(&mut names);
        }
    }
    Arc::new(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disk: &mut Disk, path: &str, text: &str) -> Ino {
        let ino = disk.create(Path::new(path), 0o600, 0.0).unwrap();
        disk.change(ino, DataChange::Write { at: 0, bytes: text.as_bytes().into() }, 0.0);
        ino
    }

    fn contents(disk: &Disk, model: &CrashModel, path: &str) -> Vec<Option<Vec<u8>>> {
        let states = disk.crash_states(model, &mut Rng::new(1));
        assert!(states.exhaustive);
        let mut found: Vec<_> =
            states.disks.iter().map(|disk| disk.file(Path::new(path))).collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn an_unsynced_file_may_be_missing_empty_cut_zeroed_or_whole() {
        let mut disk = Disk::default();
        write(&mut disk, "/a", "abcd");
        let all = contents(&disk, &CrashModel::default(), "/a");
        let expected: [Option<&[u8]>; 5] =
            [None, Some(b""), Some(b"\0\0\0\0"), Some(b"ab"), Some(b"abcd")];
        assert_eq!(all, expected.map(|bytes| bytes.map(<[u8]>::to_vec)));
    }

    #[test]
    fn a_synced_file_under_an_unsynced_name_is_whole_or_missing() {
        let mut disk = Disk::default();
        let ino = write(&mut disk, "/a.tmp", "new");
        disk.sync(ino, true);
        disk.rename(Path::new("/a.tmp"), Path::new("/a")).unwrap();
        assert_eq!(contents(&disk, &CrashModel::default(), "/a"), [None, Some(b"new".to_vec())]);
        disk.sync(ROOT, true);
        assert_eq!(contents(&disk, &CrashModel::default(), "/a"), [Some(b"new".to_vec())]);
    }

    #[test]
    fn a_replacement_whose_bytes_were_not_synced_may_be_zeros_under_the_durable_name() {
        let mut disk = Disk::default();
        let old = write(&mut disk, "/a", "old!");
        disk.sync(old, true);
        disk.sync(ROOT, true);
        write(&mut disk, "/t.tmp", "new!");
        disk.rename(Path::new("/t.tmp"), Path::new("/a")).unwrap();
        disk.sync(ROOT, true);
        let all = contents(&disk, &CrashModel::default(), "/a");
        assert!(all.contains(&Some(vec![0; 4])) && all.contains(&Some(Vec::new())), "{all:?}");
        assert!(!all.contains(&Some(b"old!".to_vec())), "the name is durable");
    }

    #[test]
    fn names_survive_in_any_subset_or_as_a_prefix() {
        let mut disk = Disk::default();
        for name in ["/a", "/b", "/c"] {
            disk.create(Path::new(name), 0o600, 0.0).unwrap();
        }
        let count = |order| {
            let model = CrashModel { order, ..CrashModel::default() };
            disk.crash_states(&model, &mut Rng::new(1)).disks.len()
        };
        assert_eq!((count(Order::Any), count(Order::Prefix)), (8, 4));
    }

    #[test]
    fn a_directory_that_was_not_made_durable_takes_what_was_synced_in_it_with_it() {
        let mut disk = Disk::default();
        let dir = disk.mkdir(Path::new("/d"), 0o700, 0.0).unwrap();
        let ino = write(&mut disk, "/d/a", "x");
        disk.sync(ino, true);
        disk.sync(dir, true);
        assert_eq!(contents(&disk, &CrashModel::default(), "/d/a"), [None, Some(b"x".to_vec())]);
    }

    #[test]
    fn what_a_failed_sync_covered_may_be_lost_though_a_later_sync_succeeded() {
        let mut disk = Disk::default();
        let ino = write(&mut disk, "/a", "x");
        disk.sync(ROOT, true);
        disk.sync(ino, false);
        disk.sync(ino, true);
        assert!(contents(&disk, &CrashModel::default(), "/a").contains(&Some(Vec::new())));
    }

    #[test]
    fn beyond_the_cap_the_ends_are_visited_and_the_answer_says_so() {
        let mut disk = Disk::default();
        for number in 0..40 {
            write(&mut disk, &format!("/f{number}"), "abcd");
        }
        let model = CrashModel { cap: 200, ..CrashModel::default() };
        let states = disk.crash_states(&model, &mut Rng::new(1));
        assert!(!states.exhaustive && states.space > 1 << 40, "{}", states.space);
        assert!(states.disks.len() > 100 && states.disks.len() <= 200);
        let sizes: BTreeSet<usize> = states.disks.iter().map(|disk| disk.tree().len()).collect();
        assert!(sizes.contains(&0) && sizes.contains(&40), "{sizes:?}");
        let mut rng = Rng::new(3);
        let one = disk.crash(&mut rng).digest();
        assert_ne!(one, disk.crash(&mut rng).digest());
    }
}
