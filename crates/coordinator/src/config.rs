//! How a run was asked for; what a campaign directory is bound to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_env::World;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files;
use crate::layout::Layout;

/// How coordinators keep out of each other's way.
///
/// In every arm a result is published through the work fence. Only in arm `group` does the work item
/// keep others from the same execution: elsewhere it is named after its coordinator too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// Each remembers what it did itself; nothing is shared, and nobody is kept from anything.
    None,
    /// Results and traces are shared, and a seed is traced once; groups are not leased.
    Ledger,
    /// Results and traces are shared, and a group is leased while it is solved.
    Group,
}

impl Arm {
    /// The word for it on a command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ledger => "ledger",
            Self::Group => "group",
        }
    }

    /// Whether coordinators see each other's results and traces.
    pub(crate) fn shares(self) -> bool {
        self != Self::None
    }

    /// Whether a group is leased while it is solved, and an execution runs once only.
    pub(crate) fn leases(self) -> bool {
        self == Self::Group
    }
}

/// What keeps a campaign's leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreEngine {
    /// A journal: leases end with their coordinator.
    #[default]
    Journal,
    /// One record per file, which other programs may share: leases of a dead coordinator last for their
    /// ttl.
    Files,
}

impl StoreEngine {
    /// The word for it on a command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Files => "files",
        }
    }

    /// What kept them before there was a choice.
    fn before() -> Self {
        Self::Files
    }
}

/// For tests: a coordinator waits once, at one step of its first commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The coordinator's number, from 1.
    pub coordinator: u32,
    /// Where it waits.
    pub at: HoldAt,
    /// How long, in milliseconds.
    pub ms: u64,
}

/// A step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldAt {
    /// Staged, before the fence is asked.
    Decide,
    /// Decided, before anything is published.
    Publish,
}

/// One run, as its coordinators read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunConfig {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) run: u32,
    pub(crate) arm: Arm,
    pub(crate) engine: StoreEngine,
    pub(crate) build_id: String,
    /// The argv of a worker.
    pub(crate) worker: Vec<String>,
    pub(crate) workers: u32,
    /// The fuzzer's program, for showing edges; none means that replays alone judge outputs.
    pub(crate) program: Option<PathBuf>,
    pub(crate) seeds: PathBuf,
    pub(crate) live: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) group_cap: usize,
    pub(crate) attempts_cap: u32,
    pub(crate) limit_ms: u64,
    pub(crate) max_models: u32,
    pub(crate) silence_ms: Option<u64>,
    pub(crate) drain_ms: u64,
    /// No job begins after this moment of the monotonic clock, milliseconds.
    pub(crate) ends_at_ms: u64,
    /// For tests: time to be stopped or killed in.
    pub(crate) hold: Option<Hold>,
}

impl RunConfig {
    pub(crate) fn layout(&self) -> Layout {
        Layout::new(&self.dir)
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(crate) fn write(&self, world: &World) -> Result<(), Error> {
        let path = self.layout().run(self.run).config();
        let mut text =
            serde_json::to_string_pretty(self).map_err(|error| Error::damaged(&path, error))?;
        text.push('\n');
        files::replace(world, &path, text.as_bytes())
    }

    pub(crate) fn read(world: &World, path: &Path) -> Result<Self, Error> {
        let bytes = files::read(world, path)?;
        let bytes = bytes.ok_or_else(|| Error::damaged(path, "it is missing"))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::damaged(path, error))
    }
}

/// What a campaign directory belongs to. Target integers mean something for one build of one
/// program only: leases on those of another build would exclude nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Binding {
    pub(crate) format: u32,
    pub(crate) build_id: String,
    pub(crate) arm: Arm,
    #[serde(default = "StoreEngine::before")]
    pub(crate) engine: StoreEngine,
    pub(crate) ttl_ms: u64,
}

impl Binding {
    /// Binds a new directory, or checks that an old one is bound alike.
    pub(crate) fn settle(&self, world: &World, layout: &Layout) -> Result<(), Error> {
        let path = layout.binding();
        let Some(bytes) = files::read(world, &path)? else {
            let text = serde_json::to_string(self).map_err(|error| Error::damaged(&path, error))?;
            return files::replace(world, &path, format!("{text}\n").as_bytes());
        };
        let found: Self =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(&path, error))?;
        let differs = |reason| Err(Error::Bound { dir: layout.dir().to_owned(), reason });
        if found.format != self.format {
            return differs(format!("its format is {}, not {}", found.format, self.format));
        }
        if found.build_id != self.build_id {
            return differs(format!(
                "it is for the program with build-id {}, this one is {}",
                found.build_id, self.build_id
            ));
        }
        if found.arm != self.arm {
            return differs(format!("its arm is {}", found.arm.as_str()));
        }
        if found.engine != self.engine {
            return differs(format!("its engine is {}", found.engine.as_str()));
        }
        if found.ttl_ms != self.ttl_ms {
            return differs(format!("its ttl is {} ms", found.ttl_ms));
        }
        Ok(())
    }
}
