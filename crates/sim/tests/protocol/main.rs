//! The protocol of groups of record files, checked in every order of its steps.
//!
//! | file | holds |
//! |---|---|
//! | `state.rs` | records, slots, locks, coordinators |
//! | `step.rs`, `decide.rs`, `recover.rs` | the protocol |
//! | `model.rs` | what may happen next, power cuts included |
//! | `properties.rs` | what must hold: M1 to M9, groups, leases |
//! | `variant.rs` | the protocol with one part of it missing |
//! | `checks.rs` | runs the sound one and the broken ones |

#![allow(
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "a model of few fixed cells, whose steps read best as one table"
)]

mod checks;
mod decide;
mod model;
mod properties;
mod recover;
mod state;
mod step;
mod variant;
