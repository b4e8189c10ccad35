//! Where everything of a campaign is.
//!
//! ```text
//! DIR/campaign.json            what the directory is bound to: build-id, arm; written once
//! DIR/store/                   the lease store
//! DIR/objects/DIGEST           seeds and published outputs, named by content
//! DIR/traces/DIGEST.json       what a seed's replay showed; shared
//! DIR/ledger/DIGEST.json       results of jobs; shared
//! DIR/stage/WORK-FENCE/DIGEST  what an attempt is about to publish
//! DIR/runs/NNN/config.json     how this run was asked for
//! DIR/runs/NNN/report.json     what it came to
//! DIR/runs/NNN/sync/           the fuzzer's directory; sync/ringfence/queue is our peer queue
//! DIR/runs/NNN/staging/        queue entries on their way; publish.lock serialises their ids
//! DIR/runs/NNN/NN/             one coordinator: events.jsonl, traces/ (arm none), out/
//! ```

use std::path::{Path, PathBuf};

/// The names below one campaign directory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn binding(&self) -> PathBuf {
        self.dir.join("campaign.json")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.dir.join("objects")
    }

    pub(crate) fn traces(&self) -> PathBuf {
        self.dir.join("traces")
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.join("ledger")
    }

    pub(crate) fn stage(&self) -> PathBuf {
        self.dir.join("stage")
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.dir.join("runs")
    }

    pub(crate) fn run(&self, run: u32) -> RunLayout {
        RunLayout { dir: self.runs().join(format!("{run:03}")) }
    }
}

/// The names of one run.
#[derive(Clone, Debug)]
pub(crate) struct RunLayout {
    dir: PathBuf,
}

/// The name of our peer directory beside the fuzzer's own.
pub(crate) const PEER: &str = "ringfence";
/// The name of the fuzzer's instance.
pub(crate) const FUZZER: &str = "m1";

impl RunLayout {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.dir.join("report.json")
    }

    pub(crate) fn sync(&self) -> PathBuf {
        self.dir.join("sync")
    }

    pub(crate) fn peer(&self) -> PathBuf {
        self.sync().join(PEER)
    }

    pub(crate) fn peer_queue(&self) -> PathBuf {
        self.peer().join("queue")
    }

    pub(crate) fn fuzzer(&self) -> PathBuf {
        self.sync().join(FUZZER)
    }

    pub(crate) fn fuzzer_queue(&self) -> PathBuf {
        self.fuzzer().join("queue")
    }

    pub(crate) fn fuzzer_log(&self) -> PathBuf {
        self.dir.join("fuzzer.log")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.dir.join("staging")
    }

    pub(crate) fn publish_lock(&self) -> PathBuf {
        self.dir.join("publish.lock")
    }

    pub(crate) fn coordinator(&self, index: u32) -> PathBuf {
        self.dir.join(format!("{index:02}"))
    }

    pub(crate) fn events(&self, index: u32) -> PathBuf {
        self.coordinator(index).join("events.jsonl")
    }
}
