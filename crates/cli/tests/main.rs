//! The command as scripts and people see it: the real binary, real files, real processes.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "a test is the world around the seam, and its panic is its answer"
)]

mod answers;
mod arguments;
mod cases;
mod crash;
mod migrate;
mod migrate_disks;
mod migrate_killed;
mod namespaces;
mod race;
mod readers;
mod run;
mod stopping;
mod streams;
mod support;
mod verbs;
mod waiting;
