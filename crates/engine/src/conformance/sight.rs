//! What rules and readers see. E6: readers write nothing.

use ringfence_model::{Entry, Key, RecordId, Space, Transition};

use super::Testbed;
use super::kit::*;

pub(super) fn decide_sees_what_the_last_transaction_wrote<T: Testbed>(bed: &T) {
    let handles = [bed.engine(), bed.engine()];
    for turn in 0..10 {
        let engine = &handles[turn % 2];
        let seen = std::cell::Cell::new(u64::MAX);
        let next = decide(engine, &keys_of([1]), at(0.0), |view| {
            seen.set(count(&view.entries[0].1));
            Ok::<_, ()>(increment(view, &[1]))
        });
        next.unwrap();
        assert_eq!(seen.get(), u64::try_from(turn).unwrap());
    }
    let removed = |_: &_| {
        let key = Key::target(target(1));
        Ok::<_, ()>(Transition::edits(vec![ringfence_model::Edit { key, to: None }]))
    };
    decide(&handles[0], &keys_of([1]), at(0.0), removed).unwrap();
    let looked = decide(&handles[1], &keys_of([1]), at(0.0), |view| {
        assert!(matches!(view.entries[0].1, Entry::Vacant));
        Err::<Transition, _>("looked")
    });
    looked.unwrap_err();
}

pub(super) fn decide_sees_exactly_the_keys_asked_for<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    put(&engine, &[2, 3, 4, 9_000].map(|number| counter(number, number)));
    let keys = keys_of([2, 3, 9]);
    let looked = decide(&engine, &keys, at(0.0), |view| {
        assert_eq!(view.entries.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys);
        assert_eq!(view.default_ttl, engine.info().default_ttl);
        assert!(!view.writer.host.is_empty());
        Err::<Transition, _>("looked")
    });
    looked.unwrap_err();
}

pub(super) fn unknown_keys_are_vacant_and_in_no_scan<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mut unknown = keys_of([1, 2, 3]);
    unknown.push(Key::work(RecordId::of_work("{}")));
    let view = engine.view(&unknown, at(0.0)).unwrap();
    assert_eq!(view.entries.iter().map(|(key, _)| *key).collect::<Vec<_>>(), unknown);
    assert!(view.entries.iter().all(|(_, entry)| matches!(entry, Entry::Vacant)));
    let looked = decide(&engine, &unknown, at(0.0), |view| {
        assert!(view.entries.iter().all(|(_, entry)| matches!(entry, Entry::Vacant)));
        Err::<Transition, _>("looked")
    });
    looked.unwrap_err();
    assert_eq!(everything(&engine).len(), 0);
}

pub(super) fn readers_see_what_was_acknowledged<T: Testbed>(bed: &T) {
    let (writer, reader) = (bed.engine(), bed.engine());
    for number in 1..=5 {
        put(&writer, &[counter(1, number)]);
        assert_eq!(counts(&reader, [1]), [number]);
        let line = records(&reader, Space::Targets).remove(&Key::target(target(1))).unwrap();
        assert_eq!(line, counter(1, number).to_line());
    }
    let request = ask("a", 10..=20);
    let token = claim(&writer, &request, at(0.0)).unwrap();
    assert_eq!(records(&reader, Space::Targets).len(), 12);
    release(&writer, &request.group, token, at(0.0)).unwrap();
    assert_eq!(records(&reader, Space::Targets).len(), 1);
}

pub(super) fn readers_change_nothing<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    claim(&engine, &ask("a", 1..=8), at(0.0)).unwrap();
    claim_work(&engine, &ask_work("a", 1), at(0.0)).unwrap();
    without_a_trace(bed, |engine| {
        for now in [None, at(1e6)] {
            let view = engine.view(&keys_of(1..=12), now).unwrap();
            let vacant =
                view.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Vacant)).count();
            assert_eq!((view.entries.len(), vacant), (12, 4));
            assert_eq!(engine.scan(Space::Targets, now).unwrap().entries.len(), 8);
            assert_eq!(engine.scan(Space::Work, now).unwrap().entries.len(), 1);
        }
    });
}

pub(super) fn a_scan_is_in_key_order_and_of_one_table<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", 1..=40);
    claim(&engine, &request, at(0.0)).unwrap();
    let items: Vec<_> = (1..=20).map(|number| ask_work("a", number)).collect();
    for item in &items {
        claim_work(&engine, item, at(0.0)).unwrap();
    }
    let shown = |space| {
        let scan = engine.scan(space, None).unwrap();
        assert!(scan.consistent);
        assert_eq!(scan.default_ttl, engine.info().default_ttl);
        scan.entries.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(shown(Space::Targets), keys(&request.group));
    let mut ids: Vec<_> = items.iter().map(|item| Key::work(item.id())).collect();
    ids.sort_unstable();
    assert_eq!(shown(Space::Work), ids);
}

pub(super) fn a_record_under_change_is_always_seen_whole<T: Testbed>(bed: &T) {
    let times = while_incrementing(bed, &[1, 2], |engine| {
        let mut last = vec![1, 1];
        let mut looks = 0;
        // As long as it takes for both to have done something.
        while looks < 200 || last[0] < 15 {
            looks += 1;
            let view = engine.view(&keys_of([1, 2]), None).unwrap();
            let now: Vec<u64> = view
                .entries
                .iter()
                .map(|(_, entry)| match entry {
                    Entry::Present(_) => count(entry),
                    other => panic!("neither the old nor the new record: {other:?}"),
                })
                .collect();
            assert!(now.iter().zip(&last).all(|(now, last)| now >= last), "{last:?}, then {now:?}");
            last = now;
        }
    });
    assert_eq!(counts(&bed.engine(), [1, 2]), [times + 1; 2]);
}

pub(super) fn a_scan_that_claims_one_instant_shows_one<T: Testbed>(bed: &T) {
    let numbers: Vec<u64> = (1..=8).collect();
    let times = while_incrementing(bed, &numbers, |engine| {
        let mut last = 1;
        let mut looks = 0;
        while looks < 40 || last < 15 {
            looks += 1;
            let scan = engine.scan(Space::Targets, None).unwrap();
            assert_eq!(scan.entries.len(), 8, "no record is ever absent");
            let counts: Vec<u64> = scan.entries.iter().map(|(_, entry)| count(entry)).collect();
            let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
            assert!(least >= last, "the table runs backwards: {last}, then {counts:?}");
            // One instant may lie within the one call that is under way, never across two.
            assert!(!scan.consistent || most - least <= 1, "two instants: {counts:?}");
            last = least;
        }
    });
    let engine = bed.engine();
    assert_eq!(records(&engine, Space::Targets).len(), 8);
    assert_eq!(counts(&engine, 1..=8), [times + 1; 8], "after the call all of it is there");
}

pub(super) fn a_handle_knows_its_table<T: Testbed>(bed: &T) {
    let (one, two) = (bed.engine().info(), bed.engine().info());
    assert_eq!(one, two);
    assert!(!one.name.is_empty() && !one.table.is_empty() && !one.location.is_empty());
    assert!((2..=64).contains(&one.shards), "as the testbed promises: {}", one.shards);
    let other = T::new();
    assert_ne!(other.engine().info().table, one.table, "each table has an identity of its own");
    assert_eq!(bed.reopen().info().table, one.table, "and keeps it");
}
