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

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod outcome;
pub mod traits;

pub use outcome::{Done, EachReport, Failure, Outcome, StorageError, UnitOutcome};
pub use traits::{Decide, DecideEach, Engine, EngineInfo, Request, Scan};
