//! The same tests of the facade, on the engine `journal`.
#![allow(
    clippy::unnecessary_wraps,
    clippy::duration_suboptimal_units,
    clippy::items_after_statements,
    clippy::float_cmp,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

/// Which engine keeps the stores of these tests.
const JOURNAL: bool = true;

mod heartbeats;
mod jobs;
mod keep_alive;
mod migrate;
mod migrate_races;
mod support;
mod verbs;
mod waiting;
mod work;
