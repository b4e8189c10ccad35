//! The answers of protocol version 1, as far as a coordinator reads them.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::job::Kind;

/// The version spoken here.
pub(crate) const PROTOCOL: u32 = 1;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) engine: String,
    pub(crate) build_id: String,
    pub(crate) limits: Limits,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Limits {
    pub(crate) max_actions: usize,
    pub(crate) max_models: u32,
    pub(crate) max_limit_ms: u64,
    /// The longest silence outside a query.
    pub(crate) progress_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TraceAnswer {
    pub(crate) seed_sha256: Digest,
    pub(crate) taken: Vec<u64>,
    pub(crate) branches: Vec<Branch>,
    #[serde(default)]
    pub(crate) cpu_s: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Branch {
    pub(crate) opposite: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SolveAnswer {
    pub(crate) seed_sha256: Digest,
    pub(crate) outcomes: Vec<Solved>,
    #[serde(default)]
    pub(crate) cpu_s: f64,
}

/// What became of one action.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Solved {
    pub(crate) target: u64,
    pub(crate) action: Kind,
    pub(crate) outcome: Outcome,
    pub(crate) outputs: Vec<Output>,
}

/// See the protocol for what each says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Sat,
    SatUnverified,
    Unsat,
    Timeout,
    Unreached,
}

impl Outcome {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sat => "sat",
            Self::SatUnverified => "sat-unverified",
            Self::Unsat => "unsat",
            Self::Timeout => "timeout",
            Self::Unreached => "unreached",
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Output {
    pub(crate) sha256: Digest,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VerifyAnswer {
    pub(crate) input_sha256: Digest,
    pub(crate) reached: Vec<u64>,
}
