//! The sound protocol holds everything it promises; each part of it that is left out is missed.

use stateright::{Checker as _, HasDiscoveries, Model as _};

use crate::properties::{COPIES_LOST, COPIES_TWICE};
use crate::variant::{Protocol, Variant};

/// Two calls each, one crash.
fn protocol(variant: Variant) -> Protocol {
    Protocol { variant, calls: [2, 2], crashes: 1, failures: 1, expiry: true }
}

/// Two crashes: a kill and a power cut, or a crash in the recovery from the first one.
fn twice(variant: Variant) -> Protocol {
    Protocol { calls: [1, 1], crashes: 2, ..protocol(variant) }
}

/// Two recoverers that die one after the other, or the second one of a power cut.
fn thrice(variant: Variant) -> Protocol {
    Protocol { calls: [2, 2], crashes: 3, failures: 0, expiry: false, variant }
}

/// A call on one record fails and dies before what it put back is durable; the power is cut in a later call.
fn late(variant: Variant) -> Protocol {
    Protocol { calls: [2, 1], crashes: 2, ..protocol(variant) }
}

/// No promise is broken, and all of this comes about.
fn keeps_every_promise(model: Protocol, events: &[&str]) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them distinct", checker.state_count(), checker.unique_state_count());
    let found = checker.discoveries();
    for (name, path) in &found {
        let last = path.last_state().clone();
        assert!(!checker.model().is_promise(name), "{name}: {path}{last:?}");
    }
    for event in events {
        assert!(found.contains_key(event), "it never happens that {event}");
    }
}

#[test]
fn the_protocol_keeps_every_promise_in_every_order() {
    let model = protocol(Variant::Sound);
    let late = [COPIES_LOST, COPIES_TWICE];
    let events: Vec<&str> = model.properties().iter().map(|it| it.name).collect();
    let events: Vec<&str> =
        events.into_iter().filter(|name| !model.is_promise(name) && !late.contains(name)).collect();
    assert!(events.len() > 4);
    keeps_every_promise(model, &events);
}

#[test]
fn two_crashes_break_no_promise() {
    keeps_every_promise(twice(Variant::Sound), &[COPIES_LOST]);
}

#[test]
fn recoverers_that_die_one_after_the_other_break_no_promise() {
    keeps_every_promise(thrice(Variant::Sound), &[COPIES_TWICE]);
}

/// The promises that the first wrong state of this variant breaks.
fn breaks(model: Protocol) -> Vec<&'static str> {
    let variant = model.variant;
    // One thread: which promise is the first does not depend on the machine.
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
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
        (Variant::SlotUnlocked, "I3"),
        (Variant::MeetNotChecked, "what a call saw"),
        (Variant::FencesReused, "fences"),
        (Variant::ExpiredEarly, "a target has one holder"),
    ];
    let mut odd = Vec::new();
    for (variant, promise) in needed {
        odd.extend(unless_broken(protocol(variant), promise));
    }
    assert!(odd.is_empty(), "{odd:?}");
}

/// What only a second crash shows: a recovery that lacks something.
#[test]
fn every_part_of_recovery_is_needed() {
    let needed = [
        (twice as fn(Variant) -> Protocol, Variant::RecoveryNotSynced, "G"),
        (twice, Variant::NotCopied, "G"),
        (twice, Variant::FoundSynced, "G"),
        (twice, Variant::CopyNotSynced, "G"),
        (twice, Variant::FoundRetiredFirst, "G"),
        (twice, Variant::CopyNotTurned, "G"),
        (twice, Variant::DecidedBelieved, "G"),
        // It would be finished again and again, and nobody would ever come to his own call.
        (twice, Variant::FoundLeft, "I3"),
        (late, Variant::OlderLeftAlone, "G"),
        (late, Variant::RetirementBelieved, "G"),
        (late, Variant::IssuedUntold, "G"),
    ];
    let odd = needed
        .iter()
        .filter_map(|(model, variant, promise)| unless_broken(model(*variant), promise));
    let odd: Vec<_> = odd.collect();
    assert!(odd.is_empty(), "{odd:?}");
}

/// What was found of a variant that does not break this promise.
fn unless_broken(model: Protocol, promise: &str) -> Option<(Variant, String, Vec<&'static str>)> {
    let variant = model.variant;
    let broken = breaks(model);
    let seen = broken.iter().any(|name| name.starts_with(promise));
    (!seen).then(|| (variant, promise.to_owned(), broken))
}

/// A take-over of one record fails, the lease is put back, and its caller dies before that is durable. The
/// holder renews the group: both images of that record are of the old token. A power cut may bring the
/// take-over back, which is of a later one than both.
#[test]
fn what_a_power_cut_brings_back_of_a_call_on_one_record_breaks_no_promise() {
    keeps_every_promise(late(Variant::Sound), &[COPIES_LOST]);
}

/// Whoever holds a member's lock and finds no intent over it excludes writers; whoever finds one gives
/// way to the holder of its slot. So among those who know intents the slot's lock alone protects
/// recovery. The locks of the records are taken all the same: nothing else keeps out a program that
/// knows only them.
#[test]
fn recovery_needs_the_locks_of_records_only_against_strangers() {
    assert_eq!(breaks(protocol(Variant::RecordsUnlocked)), [] as [&str; 0]);
}
