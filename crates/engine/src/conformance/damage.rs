//! E4. Damage is held: shown, left alone, removed only by name.

use ringfence_model::rules::{self, ForceRefused};
use ringfence_model::{Damage, Entry, Key, Space, Token};

use super::Testbed;
use super::kit::*;

const SHAPES: [&[u8]; 4] = [b"", b"{", &[0; 300], br#"{"schema":99}"#];

/// Damages the record of a target, unless the engine's storage knows no such thing.
fn damaged<T: Testbed>(bed: &T, number: u64, bytes: &[u8]) -> bool {
    match bed.damage(Key::target(target(number)), bytes) {
        Ok(()) => true,
        Err(why) => {
            println!("not applicable: {why}");
            false
        }
    }
}

fn seen(bed: &impl Testbed, number: u64) -> Damage {
    match entry(&bed.engine(), Key::target(target(number))) {
        Entry::Damaged(damage) => damage,
        other => panic!("damage, not {other:?}"),
    }
}

pub(super) fn damage_is_shown_and_held<T: Testbed>(bed: &T) {
    for (number, bytes) in (1..).zip(SHAPES) {
        if !damaged(bed, number, bytes) {
            return;
        }
        let damage = seen(bed, number);
        assert!(!damage.location.is_empty() && !damage.reason.is_empty());
        let scan = bed.engine().scan(Space::Targets, None).unwrap();
        let listed = scan.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Damaged(_)));
        assert_eq!(listed.count(), usize::try_from(number).unwrap());
        without_a_trace(bed, |engine| {
            // No clock frees it.
            let refused = claim(engine, &ask("a", [number, 50]), at(1e9)).unwrap_err();
            assert_eq!(refused.damaged.len(), 1, "{refused}");
        });
    }
}

pub(super) fn damage_is_removed_by_its_digest_only<T: Testbed>(bed: &T) {
    for (number, bytes) in (1..).zip(SHAPES) {
        if !damaged(bed, number, bytes) {
            return;
        }
        let group = group([number]);
        let keys = keys(&group);
        let force = |engine: &Handle, token: &Token| {
            let rule = |view: &_| rules::force_release(view, &group, token, "after a power cut");
            decide(engine, &keys, at(0.0), rule)
        };
        let wrong = Token::new("damaged-not-this").unwrap();
        let refused = without_a_trace(bed, |engine| force(engine, &wrong).unwrap_err());
        assert!(matches!(refused, ForceRefused::Mismatch(_)));
        force(&bed.engine(), &seen(bed, number).digest).unwrap();
        claim(&bed.engine(), &ask("a", [number]), at(0.0)).expect("free again");
    }
}

pub(super) fn damage_of_one_record_stops_no_other<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mine = ask("a", [1, 2]);
    let token = claim(&engine, &mine, at(0.0)).unwrap();
    if !damaged(bed, 1, b"\xff\xfe") {
        return;
    }
    without_a_trace(bed, |engine| {
        heartbeat(engine, &mine.group, token, at(1.0)).expect_err("one member is damaged");
        release(engine, &mine.group, token, at(1.0)).expect_err("one member is damaged");
    });
    let rest = group([2]);
    heartbeat(&engine, &rest, token, at(1.0)).unwrap();
    release(&engine, &rest, token, at(1.0)).unwrap();
    claim(&engine, &ask("b", 2..=20), at(1.0)).unwrap();
}
