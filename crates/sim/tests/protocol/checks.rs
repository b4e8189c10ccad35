//! The sound protocol holds everything it promises; each part of it that is left out is missed.

use stateright::{Checker as _, HasDiscoveries, Model as _};

use crate::properties::GROUP;
use crate::variant::{Protocol, Variant};

fn protocol(variant: Variant) -> Protocol {
    // A recovery that is not durable takes a second crash to be missed.
    let twice = variant == Variant::RecoveryNotSynced;
    let (calls, crashes) = if twice { (1, 2) } else { (2, 1) };
    Protocol { variant, calls, crashes, failures: 1 }
}

#[test]
fn the_protocol_keeps_every_promise_in_every_order() {
    let checker = protocol(Variant::Sound).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 100_000);
}

/// Two crashes: a kill and a power cut, or a crash in the recovery from the first one.
fn twice(variant: Variant) -> Protocol {
    Protocol { variant, calls: 1, crashes: 2, failures: 1 }
}

#[test]
fn two_crashes_break_no_promise_if_what_was_found_is_synced_before_it_is_acted_on() {
    let checker = twice(Variant::FoundSynced).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them distinct", checker.state_count(), checker.unique_state_count());
    // With one call each nobody lives to release, so only the promises are looked at.
    for (name, path) in checker.discoveries() {
        let last = path.last_state().clone();
        assert!(!checker.model().is_promise(name), "{name}: {path}{last:?}");
    }
}

/// An intent's image of the old state is what its writer *saw*. If whoever made that did not live to
/// sync it, a power cut brings an older state back, which is neither image; then recovery leaves
/// the record alone and the group stays torn. And an intent that is seen may itself not be durable:
/// a power cut in the middle of finishing it leaves half of the group and no intent.
#[test]
fn acting_on_what_is_seen_but_not_durable_tears_a_group() {
    let checker = twice(Variant::Sound).checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let wrong = checker.discoveries().into_keys().find(|name| checker.model().is_promise(name));
    assert_eq!(wrong, Some(GROUP));
}

/// The promises that the first wrong state of this variant breaks.
fn breaks(variant: Variant) -> Vec<&'static str> {
    let checker =
        protocol(variant).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let mut wrong: Vec<&str> = checker.discoveries().into_keys().collect();
    wrong.retain(|name| checker.model().is_promise(name));
    println!("{variant:?}: {wrong:?} ({} states)", checker.unique_state_count());
    wrong
}

impl Protocol {
    fn is_promise(&self, name: &str) -> bool {
        use stateright::Expectation::Always;
        self.properties().iter().any(|it| it.name == name && it.expectation == Always)
    }
}

#[test]
fn every_part_of_the_protocol_is_needed() {
    let needed = [
        (Variant::LocksReversed, "M1"),
        (Variant::ReleaseUnvalidated, "M2"),
        (Variant::SerialiseLate, "M3"),
        (Variant::NoFileSync, "M4"),
        (Variant::SyncPerRecord, "M5"),
        (Variant::NoDirSync, "M6"),
        (Variant::OneShardOnly, "G"),
        (Variant::AcknowledgedEarly, "M6"),
        (Variant::UndoInexact, "M7"),
        (Variant::UndoNotSynced, "M8"),
        (Variant::StagedElsewhere, "M9"),
        (Variant::NoAbortMark, "I2"),
        (Variant::AbortNotSynced, "I2"),
        (Variant::NoIntent, "G"),
        (Variant::IntentNotSynced, "G"),
        (Variant::RetirementNotSynced, "G"),
        (Variant::RetiredEarly, "G"),
        (Variant::RecoveryNotSynced, "G"),
        (Variant::SlotUnlocked, "G"),
        (Variant::MeetNotChecked, "what a call saw"),
        (Variant::FencesReused, "fences"),
        (Variant::ExpiredEarly, "a target has one holder"),
    ];
    let mut odd = Vec::new();
    for (variant, promise) in needed {
        let broken = breaks(variant);
        if !broken.iter().any(|name| name.starts_with(promise)) {
            odd.push((variant, promise, broken));
        }
    }
    assert!(odd.is_empty(), "{odd:?}");
}

/// Whoever holds a member's lock and finds no intent over it excludes writers; whoever finds one gives
/// way to the holder of its slot. So among those who know intents the slot's lock alone protects
/// recovery. The locks of the records are taken all the same: nothing else keeps out a program that
/// knows only them.
#[test]
fn recovery_needs_the_locks_of_records_only_against_strangers() {
    assert_eq!(breaks(Variant::RecordsUnlocked), [] as [&str; 0]);
}
