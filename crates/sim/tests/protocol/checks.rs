//! The sound protocol holds everything it promises; each part of it that is left out is missed.

use stateright::{Checker as _, HasDiscoveries, Model as _};

use crate::model::{Protocol, Variant};

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
    assert_eq!(wrong, Some("groups are whole and what was acknowledged survives"));
}

/// The first promise that this variant breaks.
fn breaks(variant: Variant) -> Option<&'static str> {
    let checker = protocol(variant)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let wrong = checker.discoveries().into_keys().find(|name| checker.model().is_promise(name));
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
    for variant in [
        Variant::NoIntent,
        Variant::IntentNotSynced,
        Variant::NoFileSync,
        Variant::NoDirSync,
        Variant::OneShardOnly,
        Variant::RetirementNotSynced,
        Variant::NoAbortMark,
        Variant::AbortNotSynced,
        Variant::LocksReversed,
        Variant::ReleaseUnvalidated,
        Variant::RecoveryNotSynced,
        Variant::MeetNotChecked,
        Variant::UndoNotSynced,
    ] {
        assert!(breaks(variant).is_some(), "{variant:?} breaks nothing");
    }
}
