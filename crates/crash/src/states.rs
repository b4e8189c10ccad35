//! Every disk that a power cut may leave, by the weakest rules that POSIX allows.
//!
//! - A file's sync makes its bytes durable, not its name; a directory's sync its names, not the bytes
//!   of the files.
//! - Names that were changed since the last sync of their directory survive in any subset.
//! - Each write since the last sync of its file survives not at all, whole, as zeros, by its first
//!   half, or in some of its sectors.
//! - Where writes only go over bytes that are durable (the segments of a journal), it is the sectors of
//!   512 bytes that survive in any subset, each as one of the writes to it left it: see [`in_place`].
//! - What processes share in memory is durable at no time, and is there after a kill.
//!
//! A file that grew by more than two pending writes is one that is never synced by design (the position
//! of the fence counter): of its many contents each disk gets a few, taken in turn.
//!
//! What is pending only grows between two syncs, so the disks that may be left just before a sync are
//! all that may be left since the one before. Marks change what is allowed, so they are crash points
//! as well.

mod in_place;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::rng::Rng;
use crate::weakfs::{Event, ROOT, put};

/// The content of a whole file system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// By path; parents come first.
    pub(crate) entries: BTreeMap<String, TreeEntry>,
}

/// One name of it.
#[derive(Clone, Debug)]
pub(crate) struct TreeEntry {
    /// Bytes of a file; nothing for a directory.
    pub(crate) bytes: Option<Arc<Content>>,
    /// Permission bits.
    pub(crate) mode: u32,
}

/// Bytes with their digest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Content {
    bytes: Vec<u8>,
    digest: u128,
}

impl Content {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let digest = digest(&bytes);
        Arc::new(Self { bytes, digest })
    }
}

impl std::ops::Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

fn digest(bytes: &[u8]) -> u128 {
    let digest = Sha256::digest(bytes);
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    u128::from_le_bytes(short)
}

impl Tree {
    /// The same with zeros in one of the files, if that is there.
    pub(crate) fn with_zeros(&self, path: &str) -> Option<Self> {
        let mut tree = self.clone();
        let bytes = tree.entries.get_mut(path)?.bytes.as_mut()?;
        *bytes = Content::new(vec![0; bytes.len()]);
        Some(tree)
    }

    /// Tells trees apart.
    pub(crate) fn digest(&self) -> u128 {
        let mut text = Vec::with_capacity(self.entries.len() * 64);
        for (path, entry) in &self.entries {
            text.extend_from_slice(path.as_bytes());
            text.push(0);
            let content = entry.bytes.as_ref().map_or(1, |bytes| bytes.digest);
            text.extend_from_slice(&content.to_le_bytes());
        }
        digest(&text)
    }

    /// Writes it into a directory that is made, and replaced if it is there.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir_all(dir)?;
        for (path, entry) in &self.entries {
            let path = dir.join(path);
            match &entry.bytes {
                None => std::fs::DirBuilder::new().mode(entry.mode).create(&path)?,
                Some(bytes) => {
                    let mut file = std::fs::OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(entry.mode)
                        .open(&path)?;
                    io::Write::write_all(&mut file, bytes)?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Remove(String),
    Move(String, String, u64),
}

#[derive(Clone, Debug)]
enum DataChange {
    Write(usize, Arc<[u8]>),
    Truncate(usize),
    /// From memory that processes share.
    Memory(usize, Arc<[u8]>),
}

#[derive(Clone, Debug)]
enum Inode {
    Dir { mode: u32, durable: BTreeMap<String, u64>, pending: Vec<NameChange> },
    File { mode: u32, durable: Arc<Content>, pending: Vec<DataChange> },
}

/// A disk with what is durable on it and what is not.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    inodes: BTreeMap<u64, Inode>,
}

impl Disk {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let root = Inode::Dir { mode: 0o755, durable: BTreeMap::new(), pending: Vec::new() };
        Self { inodes: BTreeMap::from([(ROOT, root)]) }
    }

    /// Whether an event takes something from what is pending.
    pub(crate) fn narrows(&self, event: &Event) -> bool {
        match event {
            Event::SyncFile { ino } | Event::SyncDir { ino } => match self.inodes.get(ino) {
                Some(Inode::Dir { pending, .. }) => !pending.is_empty(),
                Some(Inode::File { pending, .. }) => !pending.is_empty(),
                None => false,
            },
            Event::Settle => true,
            _ => false,
        }
    }

    /// Does what the event says.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Make { dir, name, ino, is_dir, mode } => {
                let mode = *mode;
                let inode = if *is_dir {
                    Inode::Dir { mode, durable: BTreeMap::new(), pending: Vec::new() }
                } else {
                    let durable = Content::new(Vec::new());
                    Inode::File { mode, durable, pending: Vec::new() }
                };
                self.inodes.insert(*ino, inode);
                self.names(*dir, NameChange::Set(name.clone(), *ino));
            }
            Event::Remove { dir, name } => self.names(*dir, NameChange::Remove(name.clone())),
            Event::Rename { from, name, to, new, ino } if from == to => {
                self.names(*from, NameChange::Move(name.clone(), new.clone(), *ino));
            }
            Event::Rename { from, name, to, new, ino } => {
                self.names(*to, NameChange::Set(new.clone(), *ino));
                self.names(*from, NameChange::Remove(name.clone()));
            }
            Event::Write { ino, at, bytes } => {
                self.data(*ino, DataChange::Write(*at, Arc::clone(bytes)));
            }
            Event::Memory { ino, at, bytes } => {
                self.data(*ino, DataChange::Memory(*at, Arc::clone(bytes)));
            }
            Event::Truncate { ino, len } => self.data(*ino, DataChange::Truncate(*len)),
            Event::SyncFile { ino } | Event::SyncDir { ino } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.sync();
                }
            }
            Event::Settle => self.inodes.values_mut().for_each(Inode::sync),
            Event::Mark(_) => {}
        }
    }

    fn names(&mut self, dir: u64, change: NameChange) {
        if let Some(Inode::Dir { pending, .. }) = self.inodes.get_mut(&dir) {
            pending.push(change);
        }
    }

    fn data(&mut self, ino: u64, change: DataChange) {
        if let Some(Inode::File { pending, .. }) = self.inodes.get_mut(&ino) {
            // The whole of it comes each time.
            if let (DataChange::Memory(..), Some(DataChange::Memory(..))) =
                (&change, pending.last())
            {
                pending.pop();
            }
            pending.push(change);
        }
    }

    /// What those see who are not cut off: everything.
    pub(crate) fn volatile(&self) -> Tree {
        let mut all = self.clone();
        all.inodes.values_mut().for_each(Inode::sync);
        all.tree(&BTreeMap::new(), &BTreeMap::new())
    }

    /// Visits every tree that may be left now, or `cap` of them; returns whether it was all.
    ///
    /// Trees may come up more than once.
    pub(crate) fn each(&self, cap: usize, rng: &mut Rng, mut visit: impl FnMut(Tree)) -> bool {
        let dirs: Vec<(u64, usize)> = self
            .inodes
            .iter()
            .filter_map(|(ino, inode)| match inode {
                Inode::Dir { pending, .. } if !pending.is_empty() => Some((*ino, pending.len())),
                _ => None,
            })
            .collect();
        let bits: usize = dirs.iter().map(|(_, len)| len).sum();
        let mut whole = true;
        let mut seen = BTreeSet::new();
        let mut options: BTreeMap<u64, Vec<Arc<Content>>> = BTreeMap::new();
        let (mut left, mut turn) = (cap, 0);
        for mask in masks(bits, cap, rng, &mut whole) {
            let mut names = BTreeMap::new();
            let mut start = 0;
            for &(ino, len) in &dirs {
                names.insert(ino, self.names_of(ino, |bit| mask[start + bit]));
                start += len;
            }
            let tree_of_names = self.tree(&names, &BTreeMap::new());
            let reached: Vec<u64> = self
                .reached(&names)
                .into_iter()
                .filter(|ino| {
                    matches!(self.inodes.get(ino), Some(Inode::File { pending, .. }) if !pending.is_empty())
                })
                .collect();
            let key = (tree_of_names.digest(), reached.clone());
            if !seen.insert(key) {
                continue;
            }
            for ino in &reached {
                options.entry(*ino).or_insert_with(|| self.contents(*ino, cap, rng, &mut whole));
            }
            turn += 1;
            let chosen: Vec<Vec<&Arc<Content>>> = reached
                .iter()
                .map(|ino| {
                    let all = &options[ino];
                    if self.is_memory(*ino) {
                        vec![&all[turn % all.len()]]
                    } else if self.is_never_synced(*ino) {
                        (0..2).map(|at| &all[(turn * 2 + at) % all.len()]).collect()
                    } else {
                        all.iter().collect()
                    }
                })
                .collect();
            let counts: Vec<usize> = chosen.iter().map(Vec::len).collect();
            for choice in choices(&counts, left.max(8), rng, &mut whole) {
                let files: BTreeMap<u64, Arc<Content>> = reached
                    .iter()
                    .zip(chosen.iter().zip(&choice))
                    .map(|(ino, (contents, &index))| (*ino, Arc::clone(contents[index])))
                    .collect();
                left = left.saturating_sub(1);
                visit(if files.is_empty() {
                    tree_of_names.clone()
                } else {
                    self.tree(&names, &files)
                });
            }
        }
        whole
    }

    /// Visits trees that tell whether one inode's pending changes matter: they in every way (at most
    /// `cap` of them), all others lost or all others kept.
    pub(crate) fn about(&self, ino: u64, cap: usize, rng: &mut Rng, mut visit: impl FnMut(Tree)) {
        let mut all = self.clone();
        for (other, inode) in &mut all.inodes {
            if *other != ino {
                inode.sync();
            }
        }
        for disk in [&all, self] {
            match self.inodes.get(&ino) {
                Some(Inode::Dir { pending, .. }) => {
                    for mask in masks(pending.len(), cap, rng, &mut true) {
                        let names = disk.names_of(ino, |bit| mask[bit]);
                        visit(disk.tree(&BTreeMap::from([(ino, names)]), &BTreeMap::new()));
                    }
                }
                Some(Inode::File { .. }) => {
                    for content in self.contents(ino, cap.max(256), rng, &mut true) {
                        let files = BTreeMap::from([(ino, content)]);
                        visit(disk.tree(&BTreeMap::new(), &files));
                    }
                }
                None => {}
            }
        }
    }

    /// The names of a directory with a subset of what is pending.
    fn names_of(&self, ino: u64, keep: impl Fn(usize) -> bool) -> BTreeMap<String, u64> {
        let Some(Inode::Dir { durable, pending, .. }) = self.inodes.get(&ino) else {
            return BTreeMap::new();
        };
        let mut names = durable.clone();
        for (_, change) in pending.iter().enumerate().filter(|(bit, _)| keep(*bit)) {
            change.apply(&mut names);
        }
        names
    }

    fn is_never_synced(&self, ino: u64) -> bool {
        match self.inodes.get(&ino) {
            Some(Inode::File { durable, pending, .. }) => {
                pending.len() > 2 && in_place::writes(durable, pending).is_none()
            }
            _ => false,
        }
    }

    fn is_memory(&self, ino: u64) -> bool {
        let is = |change: &DataChange| matches!(change, DataChange::Memory(..));
        matches!(self.inodes.get(&ino), Some(Inode::File { pending, .. }) if pending.iter().any(is))
    }

    /// Every content that a file with pending writes may have; at most `cap` where sectors decide.
    fn contents(&self, ino: u64, cap: usize, rng: &mut Rng, whole: &mut bool) -> Vec<Arc<Content>> {
        const FATES: usize = 5;
        const SAMPLES: usize = 10;
        let Some(Inode::File { durable, pending, .. }) = self.inodes.get(&ino) else {
            return Vec::new();
        };
        if let Some(writes) = in_place::writes(durable, pending) {
            return in_place::contents(durable, &writes, cap, rng, whole);
        }
        let mut fates: Vec<Vec<usize>> = Vec::new();
        if self.is_never_synced(ino) {
            let len = pending.len();
            let prefix = |count: usize| (0..len).map(|at| usize::from(at < count)).collect();
            fates.extend([prefix(0), prefix(len), prefix(len - 1), prefix(len - 2)]);
            for fate in 2..FATES {
                let mut last: Vec<usize> = prefix(len);
                last[len - 1] = fate;
                fates.push(last);
            }
            for _ in 0..SAMPLES {
                fates.push((0..len).map(|_| rng.index(FATES)).collect());
            }
        } else {
            fates.extend(choices(&vec![FATES; pending.len()], usize::MAX, rng, &mut true));
        }
        let mut found: Vec<Arc<Content>> = Vec::new();
        for fate in fates {
            let mut bytes = durable.bytes.clone();
            for (change, fate) in pending.iter().zip(fate) {
                change.apply(&mut bytes, fate, rng);
            }
            let content = Content::new(bytes);
            if !found.contains(&content) {
                found.push(content);
            }
        }
        found
    }

    /// Every inode that has a name.
    fn reached(&self, names: &BTreeMap<u64, BTreeMap<String, u64>>) -> BTreeSet<u64> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let Some(Inode::Dir { durable, .. }) = self.inodes.get(&dir) else { continue };
            for &child in names.get(&dir).unwrap_or(durable).values() {
                if reached.insert(child) {
                    todo.push(child);
                }
            }
        }
        reached
    }

    /// The tree with these names and contents; where none are given, the durable ones.
    fn tree(
        &self,
        names: &BTreeMap<u64, BTreeMap<String, u64>>,
        files: &BTreeMap<u64, Arc<Content>>,
    ) -> Tree {
        let mut tree = Tree::default();
        let mut todo = vec![(ROOT, String::new())];
        while let Some((dir, path)) = todo.pop() {
            let Some(Inode::Dir { durable, .. }) = self.inodes.get(&dir) else { continue };
            for (name, child) in names.get(&dir).unwrap_or(durable) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                match self.inodes.get(child) {
                    Some(Inode::Dir { mode, .. }) => {
                        tree.entries.insert(path.clone(), TreeEntry { bytes: None, mode: *mode });
                        todo.push((*child, path));
                    }
                    Some(Inode::File { mode, durable, .. }) => {
                        let bytes = Arc::clone(files.get(child).unwrap_or(durable));
                        tree.entries.insert(path, TreeEntry { bytes: Some(bytes), mode: *mode });
                    }
                    None => {}
                }
            }
        }
        tree
    }
}

impl Inode {
    fn sync(&mut self) {
        match self {
            Self::Dir { durable, pending, .. } => {
                for change in pending.drain(..) {
                    change.apply(durable);
                }
            }
            Self::File { durable, pending, .. } if !pending.is_empty() => {
                let mut bytes = durable.bytes.clone();
                for change in pending.drain(..) {
                    change.apply(&mut bytes, 1, &mut Rng::new(0));
                }
                *durable = Content::new(bytes);
            }
            Self::File { .. } => {}
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Set(name, ino) => {
                names.insert(name.clone(), *ino);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
            Self::Move(name, new, ino) => {
                if names.get(name) == Some(ino) {
                    names.remove(name);
                }
                names.insert(new.clone(), *ino);
            }
        }
    }
}

impl DataChange {
    /// Fates: 0 not at all, 1 whole, 2 zeros, 3 the first half, 4 some sectors.
    fn apply(&self, bytes: &mut Vec<u8>, fate: usize, rng: &mut Rng) {
        match (self, fate) {
            (_, 0) => {}
            (Self::Memory(at, data), _) | (Self::Write(at, data), 1) => put(bytes, *at, data),
            (Self::Write(at, data), 2) => put(bytes, *at, &vec![0; data.len()]),
            (Self::Write(at, data), 3) => put(bytes, *at, &data[..data.len() / 2]),
            (Self::Write(at, data), _) => {
                // The length is there, but only some of the sectors.
                let end = at + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                for (index, sector) in data.chunks(512).enumerate() {
                    if rng.below(2) == 1 {
                        put(bytes, at + index * 512, sector);
                    }
                }
            }
            (Self::Truncate(len), 1) => bytes.resize(*len, 0),
            (Self::Truncate(_), _) => {}
        }
    }
}

/// Every subset of so many bits, or `cap` of them: none, all, all but one, just one, random ones.
fn masks(bits: usize, cap: usize, rng: &mut Rng, whole: &mut bool) -> Vec<Vec<bool>> {
    let counts = vec![2; bits];
    let choices = choices(&counts, cap, rng, whole);
    choices.into_iter().map(|choice| choice.into_iter().map(|bit| bit == 1).collect()).collect()
}

/// Every choice of one of so many options each, or `cap` of them.
fn choices(counts: &[usize], cap: usize, rng: &mut Rng, whole: &mut bool) -> Vec<Vec<usize>> {
    let product = counts.iter().try_fold(1_usize, |product, &count| product.checked_mul(count));
    if let Some(product) = product.filter(|&product| product <= cap) {
        let mut all = Vec::with_capacity(product);
        for number in 0..product {
            let mut rest = number;
            let digit = |&count: &usize| {
                let digit = rest % count;
                rest /= count;
                digit
            };
            all.push(counts.iter().map(digit).collect());
        }
        return all;
    }
    *whole = false;
    let none = vec![0; counts.len()];
    let all: Vec<usize> = counts.iter().map(|&count| usize::from(count > 1)).collect();
    let mut chosen = vec![none.clone(), all.clone()];
    for (at, &count) in counts.iter().enumerate() {
        for base in [&none, &all] {
            for option in 0..count.min(4) {
                let mut one = base.clone();
                one[at] = option;
                chosen.push(one);
            }
        }
    }
    chosen.truncate(cap.max(2));
    while chosen.len() < cap {
        chosen.push(counts.iter().map(|&count| rng.index(count)).collect());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(dir: u64, name: &str, ino: u64, is_dir: bool) -> Event {
        Event::Make { dir, name: name.into(), ino, is_dir, mode: 0o600 }
    }

    fn left(disk: &Disk) -> BTreeSet<Vec<(String, String)>> {
        let mut left = BTreeSet::new();
        assert!(disk.each(10_000, &mut Rng::new(1), |tree| {
            let entries = tree.entries.iter().map(|(path, entry)| {
                let bytes = entry
                    .bytes
                    .as_ref()
                    .map_or("dir".into(), |bytes| String::from_utf8_lossy(bytes).into_owned());
                (path.clone(), bytes)
            });
            left.insert(entries.collect());
        }));
        left
    }

    fn disk(events: &[Event]) -> Disk {
        let mut disk = Disk::new();
        for event in events {
            disk.apply(event);
        }
        disk
    }

    #[test]
    fn a_file_sync_keeps_the_bytes_and_a_directory_sync_the_name() {
        let made = [
            make(ROOT, "f", 3, false),
            Event::Write { ino: 3, at: 0, bytes: b"ab".as_slice().into() },
        ];
        let contents = |disk: &Disk| {
            left(disk)
                .into_iter()
                .map(|tree| tree.first().map(|(_, bytes)| bytes.clone()))
                .collect::<BTreeSet<_>>()
        };
        let unsynced = contents(&disk(&made));
        let all = [None, Some(""), Some("ab"), Some("\0\0"), Some("a")];
        assert_eq!(unsynced, all.iter().map(|text| text.map(str::to_owned)).collect());
        let mut synced = disk(&made);
        synced.apply(&Event::SyncFile { ino: 3 });
        let kept = [None, Some("ab".to_owned())];
        assert_eq!(contents(&synced), kept.into_iter().collect());
        synced.apply(&Event::SyncDir { ino: ROOT });
        assert_eq!(contents(&synced), BTreeSet::from([Some("ab".to_owned())]));
    }

    #[test]
    fn names_survive_in_any_subset_and_a_rename_is_one() {
        let mut disk = disk(&[
            make(ROOT, "a", 3, false),
            make(ROOT, "b", 4, false),
            Event::Settle,
            Event::Rename { from: ROOT, name: "a".into(), to: ROOT, new: "b".into(), ino: 3 },
            Event::Remove { dir: ROOT, name: "b".into() },
        ]);
        let names = |disk: &Disk| {
            left(disk)
                .into_iter()
                .map(|tree| tree.into_iter().map(|(path, _)| path).collect::<String>())
                .collect::<BTreeSet<_>>()
        };
        let expected = ["ab", "b", "a", ""];
        assert_eq!(names(&disk), expected.iter().map(|&text| text.to_owned()).collect());
        disk.apply(&Event::SyncDir { ino: ROOT });
        assert_eq!(names(&disk), BTreeSet::from([String::new()]));
    }

    #[test]
    fn what_is_not_tried_is_said_to_be_missing() {
        let events: Vec<Event> =
            (0..20).map(|ino| make(ROOT, &ino.to_string(), ino + 3, false)).collect();
        let disk = disk(&events);
        let mut count = 0;
        assert!(!disk.each(100, &mut Rng::new(1), |_| count += 1));
        assert!((40..=100).contains(&count), "{count}");
        assert_eq!(disk.volatile().entries.len(), 20);
    }
}
