//! The engine's own code, in a world that a seed decides. Never shipped.
//!
//! | module | holds |
//! |---|---|
//! | [`disk`] | a disk on which only syncs are durable |
//! | [`crash`] | every disk that a power cut may leave |
//! | [`machine`] | one host: processes that take turns, kernel locks, virtual time |
//! | [`fs`], [`clock`] | that host behind the product's own seam |
//! | [`faults`] | what may go wrong, and how often |
//! | [`history`] | calls on the engine, written down |
//! | [`subject`], [`setup`], [`verbs`] | the engine and table under test, and the calls on it |
//! | `frames` | what the bytes of a journal tell from outside |
//! | [`coverage`] | what came about in a run, counted |
//! | [`case`], [`exhaustive`] | every crash point of one call |
//! | [`random`], [`check`] | many coordinators while everything goes wrong, and what must hold |
//! | [`canary`], [`sabotage`] | bugs planted on purpose, which the checks must notice |
//! | [`known`] | defects that wait to be mended |
//! | [`real`] | real processes that are killed, and the order of their calls |
//! | [`linear`] | whether some order of the calls explains all of it |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a simulation fails by panicking, and nothing shipped depends on it"
)]

pub mod canary;
pub mod case;
pub mod check;
pub mod clock;
pub mod coverage;
pub mod crash;
pub mod disk;
pub mod exhaustive;
pub mod faults;
mod frames;
pub mod fs;
pub mod history;
pub mod known;
pub mod linear;
pub mod machine;
pub mod random;
pub mod real;
mod remembered;
pub mod rng;
pub mod sabotage;
pub mod setup;
pub mod subject;
pub mod verbs;
