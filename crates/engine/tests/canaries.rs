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

use ringfence_engine::conformance;

use flaws::Flaw;
use store::MemoryBed;

// The honest engine: the whole suite, one test per check.
ringfence_engine::conformance!(MemoryBed);

/// Asserts that an engine with this flaw fails the check that is there to notice it.
fn is_caught(flaw: Flaw, by: &str) {
    let checks = conformance::checks::<MemoryBed>();
    let check = checks.iter().find(|check| check.name == by).expect("a check of the list");
    let verdict = check.verdict(Duration::from_secs(15), move || MemoryBed::with(Some(flaw)));
    assert!(verdict.is_err(), "{by} lets {flaw:?} pass");
}

fn names() -> Vec<&'static str> {
    conformance::checks::<MemoryBed>().iter().map(|check| check.name).collect()
}

#[test]
fn every_check_of_the_list_has_a_name_of_its_own() {
    let names = names();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn every_theme_catches_some_flaw() {
    let themes = |names: &[&'static str]| -> BTreeSet<&'static str> {
        names.iter().filter_map(|name| name.split("::").next()).collect()
    };
    assert_eq!(themes(flaws::CAUGHT_BY), themes(&names()));
}
