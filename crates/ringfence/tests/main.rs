//! The facade on a real directory.
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
const JOURNAL: bool = false;

mod heartbeats;
mod init;
mod jobs;
mod keep_alive;
mod migrate;
mod migrate_races;
mod records;
mod support;
mod verbs;
mod waiting;
mod work;
