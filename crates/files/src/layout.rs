//! Where everything is.

use std::path::{Path, PathBuf};

use ringfence_model::{Key, RecordId, ShardCount, ShardId, Space};

use crate::meta::TableMeta;

/// Permission bits of files that the engine makes: the table belongs to one user.
pub const FILE_MODE: u32 = 0o600;
/// Permission bits of directories that the engine makes.
pub const DIR_MODE: u32 = 0o700;

/// The names under one root.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
    target_shards: ShardCount,
    work_shards: ShardCount,
}

/// The names of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPaths {
    /// The record.
    pub record: PathBuf,
    /// Its lock file: stable, removed only by repair.
    pub lock: PathBuf,
    /// The shard directory of both.
    pub dir: PathBuf,
}

impl Layout {
    /// The layout of a table.
    pub fn new(root: &Path, meta: &TableMeta) -> Self {
        Self { root: root.to_owned(), target_shards: meta.shards, work_shards: meta.work_shards }
    }

    /// The table's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the table is.
    pub fn meta(root: &Path) -> PathBuf {
        root.join("table.json")
    }

    /// The lock that every operation shares and repair takes alone.
    pub fn gate(&self) -> PathBuf {
        self.root.join("gate.lock")
    }

    /// Says where a closed table went.
    pub fn moved(&self) -> PathBuf {
        self.root.join(crate::moving::MOVED)
    }

    /// Stands while directories are being made again, while somebody waits to move the table, and where
    /// it was moved from.
    pub fn making(&self) -> PathBuf {
        self.root.join("shards.making")
    }

    /// Where intents of groups are kept.
    pub fn intents(&self) -> PathBuf {
        self.root.join("intents")
    }

    /// One slot for an intent.
    pub fn intent(&self, number: u16) -> PathBuf {
        self.intents().join(format!("{number:05}.slot"))
    }

    /// Whether a name in the directory of intents is that of a slot.
    pub fn is_intent(name: &str) -> bool {
        name.strip_suffix(".slot")
            .is_some_and(|number| number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Whether a name beside the shards of one table is one that this engine makes.
    pub fn is_ours(&self, space: Space, name: &str) -> bool {
        const BESIDE: [&str; 12] = [
            "table.json",
            "fence",
            "fence.next",
            "fence.mark",
            "fence.lock",
            "gate.lock",
            "shards.making",
            "audit.log",
            "audit.lock",
            "probe.json",
            "intents",
            "work",
        ];
        let is_shard = name.len() == 3
            && name.bytes().all(|byte| byte.is_ascii_digit())
            && name.parse().is_ok_and(|shard: u16| shard < self.shard_count(space).get());
        is_shard || (space == Space::Targets && BESIDE.contains(&name))
    }

    /// The log of force-releases.
    pub fn audit(&self) -> PathBuf {
        self.root.join("audit.log")
    }

    /// The directory of one table's shards.
    pub fn space(&self, space: Space) -> PathBuf {
        match space {
            Space::Targets => self.root.clone(),
            Space::Work => self.root.join("work"),
        }
    }

    /// How many shards a table has.
    pub fn shard_count(&self, space: Space) -> ShardCount {
        match space {
            Space::Targets => self.target_shards,
            Space::Work => self.work_shards,
        }
    }

    /// The shard that a key is placed in.
    pub fn shard(&self, key: Key) -> ShardId {
        key.id.shard(self.shard_count(key.space))
    }

    /// A shard's directory.
    pub fn shard_dir(&self, space: Space, shard: ShardId) -> PathBuf {
        self.space(space).join(shard.to_string())
    }

    /// The names of one record.
    pub fn record(&self, key: Key) -> RecordPaths {
        let dir = self.shard_dir(key.space, self.shard(key));
        RecordPaths {
            record: dir.join(format!("{}.json", key.id)),
            lock: dir.join(format!("{}.json.lock", key.id)),
            dir,
        }
    }
}

/// What a name in a shard directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A record.
    Record(RecordId),
    /// A record's lock file.
    Lock(RecordId),
    /// A temporary of ours or of another program; stale once its writer is gone.
    Temp,
    /// Something else; no operation looks at it.
    Stray,
}

impl NameKind {
    /// Tells names apart.
    pub fn of(name: &str) -> Self {
        let id = |stem: &str| stem.parse::<RecordId>().ok();
        if let Some(id) = name.strip_suffix(".json").and_then(id) {
            Self::Record(id)
        } else if let Some(id) = name.strip_suffix(".json.lock").and_then(id) {
            Self::Lock(id)
        } else if name.strip_suffix(".tmp").is_some() {
            Self::Temp
        } else {
            Self::Stray
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_shard_are_told_apart() {
        let id = RecordId::of_work("{}");
        assert_eq!(NameKind::of(&format!("{id}.json")), NameKind::Record(id));
        assert_eq!(NameKind::of(&format!("{id}.json.lock")), NameKind::Lock(id));
        assert_eq!(NameKind::of(&format!("{id}.json.7-0-ab.tmp")), NameKind::Temp);
        for stray in [".nfs0001", "x~", "lost+found", "ab.json", &format!("{id}.JSON")] {
            assert_eq!(NameKind::of(stray), NameKind::Stray, "{stray}");
        }
    }
}
