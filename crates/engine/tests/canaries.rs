//! The suite bites: an honest engine passes every check, and each way of breaking it is caught.
//!
//! The engine here keeps records in memory and nothing survives its process. A restart of its host
//! is only played: the store stays, what belongs to one boot is made anew. The checks of durability
//! therefore show of this engine only that they would notice a store that forgets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "an engine for tests may panic"
)]

#[path = "canaries/flaws.rs"]
mod flaws;
#[path = "canaries/memory.rs"]
mod memory;
#[path = "canaries/store.rs"]
mod store;

use std::collections::BTreeSet;
use std::time::Duration;

use ringfence_engine::conformance::{self, Check};

use flaws::Flaw;
use store::MemoryBed;

// The honest engine: the whole suite, one test per check.
ringfence_engine::conformance!(MemoryBed);

/// Whether an engine with this flaw fails the check.
fn catches(check: &Check<MemoryBed>, flaw: Flaw) -> bool {
    check.verdict(Duration::from_secs(15), move || MemoryBed::with(Some(flaw))).is_err()
}

/// Asserts that an engine with this flaw fails the check that is there to notice it.
fn is_caught(flaw: Flaw, by: &str) {
    let checks = conformance::checks::<MemoryBed>();
    let check = checks.iter().find(|check| check.name == by).expect("a check of the list");
    assert!(catches(check, flaw), "{by} lets {flaw:?} pass");
}

#[test]
fn every_check_of_the_list_has_a_name_of_its_own() {
    let checks = conformance::checks::<MemoryBed>();
    let names: BTreeSet<_> = checks.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), checks.len());
}

#[test]
fn every_check_catches_some_flaw() {
    for check in conformance::checks::<MemoryBed>() {
        // A flaw that the check is named for has a test of its own.
        let named = flaws::ALL.iter().any(|(_, by)| *by == check.name);
        let mut flaws = flaws::ALL.iter().map(|(flaw, _)| *flaw);
        assert!(named || flaws.any(|flaw| catches(&check, flaw)), "{} catches none", check.name);
    }
}
