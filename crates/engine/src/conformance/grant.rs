//! Grants, releases and plain edits: what goes in comes back.

use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Edit, Entry, Key, Payload, Record, Space, Token, Transition, json};

use super::Testbed;
use super::kit::*;

pub(super) fn a_group_of_any_size_is_granted_shown_and_released<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    for (first, size) in [(1, 1), (10, 2), (100, 64)] {
        let request = ask("a", first..first + size);
        let token = claim(&engine, &request, at(0.0)).unwrap();
        let stored = records(&engine, Space::Targets);
        assert_eq!(stored.keys().copied().collect::<Vec<_>>(), keys(&request.group));
        release(&engine, &request.group, token, at(1.0)).unwrap();
        assert_eq!(everything(&engine).len(), 0, "a released group of {size} leaves no record");
    }
}

pub(super) fn an_item_of_the_work_table_is_granted_shown_and_given_up<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let item = ask_work("a", 1);
    let token: Token = claim_work(&engine, &item, at(0.0)).unwrap().into();
    let stored = records(&engine, Space::Work);
    assert_eq!(stored.keys().copied().collect::<Vec<_>>(), [Key::work(item.id())]);
    assert_eq!(work_record(&engine, &item).holder.token, token);
    on_work(&engine, &item, at(1.0), |view| rules::abandon(view, &token)).unwrap();
    assert_eq!(everything(&engine).len(), 0);
}

pub(super) fn every_member_has_the_token_that_the_grant_named<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", [7, 3, 5]);
    let token = claim(&engine, &request, at(0.0)).unwrap();
    for number in [3, 5, 7] {
        let record = target_record(&engine, number);
        assert_eq!(record.holder.token, token.into());
        assert_eq!(record.holder.token.fence(), Some(token.fence()));
        assert_eq!(record.group.targets, request.group.targets().collect::<Vec<_>>());
        assert_eq!(record.group.primary, Some(target(7)));
        assert_eq!(*record.holder.owner, *"a");
        assert_eq!((record.holder.worker, record.holder.ttl), (3, Some(ttl(60.0))));
    }
}

pub(super) fn a_released_group_starts_anew<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    for owner in ["a", "b"] {
        let request = ask(owner, [1, 2]);
        let token = claim(&engine, &request, at(0.0)).unwrap();
        let history = target_record(&engine, 1).history;
        assert_eq!((history.attempts, history.steals, history.previous_owner), (1, 0, None));
        release(&engine, &request.group, token, at(1.0)).unwrap();
    }
}

pub(super) fn a_payload_of_64_kib_comes_back_to_the_byte<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ClaimRequest { payload: largest_payload(), ..ask("a", [1]) };
    claim(&engine, &request, at(0.0)).unwrap();
    assert!(target_record(&bed.engine(), 1).holder.payload == request.payload);
}

pub(super) fn a_full_group_may_carry_the_largest_payload<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ClaimRequest { payload: largest_payload(), ..ask("a", 1..=64) };
    let token = claim(&engine, &request, at(0.0)).unwrap();
    heartbeat(&engine, &request.group, token, at(1.0)).unwrap();
    for number in 1..=64 {
        assert!(target_record(&engine, number).holder.payload == request.payload, "{number}");
    }
    release(&engine, &request.group, token, at(2.0)).unwrap();
    assert_eq!(everything(&engine).len(), 0);
}

pub(super) fn names_in_any_script_come_back<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let names = ["координатор", "協調者 7", "a\"b\\c/d", "👩‍🚀\u{202e}x", "ÿ\u{10ffff}"];
    for (number, name) in (1..).zip(names) {
        let mut text = String::new();
        json::write_string(&mut text, name);
        let payload = Payload::parse(&format!("{{{text}:{text}}}")).unwrap();
        let request = ClaimRequest { payload, ..ask(name, [number]) };
        claim(&engine, &request, at(0.0)).unwrap();
        let record = target_record(&bed.engine(), number);
        assert_eq!(*record.holder.owner, *name);
        assert_eq!(record.holder.payload, request.payload);
    }
}

pub(super) fn a_transition_may_leave_keys_as_they_are<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    put(&engine, &[counter(1, 5), counter(2, 6)]);
    let keys = keys_of([1, 2, 3]);
    decide(&engine, &keys, at(1.0), |_| Ok::<_, ()>(store(vec![counter(2, 7)]))).unwrap();
    assert_eq!(counts(&engine, [1, 2]), [5, 7]);
    assert!(matches!(entry(&engine, Key::target(target(3))), Entry::Vacant));
}

pub(super) fn an_empty_transition_is_done_and_changes_nothing<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    put(&engine, &[counter(1, 5)]);
    let done = without_a_trace(bed, |engine| {
        let nothing = |_: &_| Ok::<_, ()>(Transition::edits(Vec::new()));
        decide(engine, &keys_of([1, 2]), at(1.0), nothing)
    });
    assert_eq!(done.unwrap().token, None);
}

pub(super) fn one_transition_may_span_both_tables<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let item = ask_work("a", 1);
    claim_work(&engine, &item, at(0.0)).unwrap();
    put(&engine, &[counter(1, 1)]);
    let done = work_record(&engine, &item);
    let mut both = keys_of([1]);
    both.push(Key::work(item.id()));
    let moved = decide(&engine, &both, at(1.0), |view| {
        assert!(view.entries.iter().all(|(_, entry)| matches!(entry, Entry::Present(_))));
        let target = increment(view, &[1]);
        let Transition::Edits { mut edits, audit } = target else { panic!("edits") };
        let mut record = done.clone();
        record.history.attempts = 9;
        let to = Some(Record::Work(record));
        edits.push(Edit { key: Key::work(item.id()), to });
        Ok::<_, ()>(Transition::Edits { edits, audit })
    });
    moved.unwrap();
    assert_eq!(counts(&engine, [1]), [2]);
    assert_eq!(work_record(&engine, &item).history.attempts, 9);
}

pub(super) fn whatever_was_stored_took_a_barrier<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", 1..=8);
    let granted =
        decide(&engine, &keys(&request.group), at(0.0), |view| rules::claim(view, &request));
    let granted = granted.unwrap();
    assert!(granted.barriers > 0, "a grant");
    let token = granted.token.unwrap();
    assert!(heartbeat(&engine, &request.group, token, at(1.0)).unwrap().barriers > 0);
    assert!(release(&engine, &request.group, token, at(2.0)).unwrap().barriers > 0);
}
