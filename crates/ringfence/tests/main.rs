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

mod keep_alive;
mod support;
mod verbs;
mod waiting;
mod work;
