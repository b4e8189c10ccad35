//! What every engine promises: the trait, its outcomes, and the suite that checks them.
//!
//! An engine stores records and decides nothing. It offers `transact(keys, decide)`: it reads the
//! keys under its own exclusion, calls a pure rule, and stores the rule's transition whole.
//!
//! | module | holds |
//! |---|---|
//! | [`traits`] | [`Engine`] and its contract, method by method |
//! | [`outcome`] | done, refused, failed and restored, unknown |
//! | `conformance` | one list of checks that every engine passes (feature `conformance`) |
//!
//! # A new engine
//! 1. Implement [`Engine`]: five methods and no lease logic. Read the keys under exclusion, call
//!    `decide` with a [`View`](ringfence_model::View), store what it answers whole, say how that
//!    ended. A [`Grant`](ringfence_model::Grant) gets the next token of the table and then yields
//!    its edits. Whether the engine locks before it decides, or decides and starts over when it lost
//!    a race, is its own affair.
//! 2. Depend on this crate with the feature `conformance` under `[dev-dependencies]`.
//! 3. Write `tests/conformance.rs`: a `Testbed` over a real store, and one line,
//!    `ringfence_engine::conformance!(TheTestbed);`. It becomes one test per check;
//!    `cargo test -p ringfence-NAME --test conformance` runs them. Where the words of a method leave
//!    a choice, the checks say what was meant.
//! 4. Test by itself what only the engine knows: where it can fail, and what a crash leaves.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod outcome;
pub mod traits;

pub use outcome::{Done, EachReport, Failure, Outcome, StorageError, UnitOutcome};
pub use traits::{
    Decide, DecideAtAGlance, DecideEach, DecideEachAtAGlance, Engine, EngineInfo, Place, Request,
    Scan,
};
