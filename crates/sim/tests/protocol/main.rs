//! The protocol of groups of record files, checked in every order of its steps.
//!
//! `model.rs` is the protocol, `checks.rs` runs the sound one and the broken ones.

#![allow(
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "a model of few fixed cells, whose steps read best as one table"
)]

mod checks;
mod model;
