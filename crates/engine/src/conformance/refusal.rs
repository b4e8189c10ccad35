//! E2. Refused means that nothing was written.

use ringfence_model::rules::{self, LostMember, WorkClaimRefused};
use ringfence_model::{Fence, FencingToken, Payload, Target, Token};

use super::Testbed;
use super::kit::*;

/// The first, a middle and the last member of a group in the order in which engines write.
fn positions(group: &ringfence_model::TargetGroup) -> [u64; 3] {
    let order: Vec<u64> = group.targets().map(Target::get).collect();
    [order[0], order[order.len() / 2], order[order.len() - 1]]
}

fn stranger() -> FencingToken {
    FencingToken::new(Fence(7), 0xdead)
}

pub(super) fn a_refused_claim_changes_nothing_wherever_the_conflict_is<T: Testbed>(bed: &T) {
    for (first, size) in [(1, 1), (10, 2), (100, 64)] {
        let request = ask("b", first..first + size);
        for number in positions(&request.group) {
            let held = ask("a", [number]);
            let token = claim(&bed.engine(), &held, at(0.0)).unwrap();
            let refused = without_a_trace(bed, |engine| claim(engine, &request, at(1.0)));
            assert_eq!(refused.unwrap_err().conflicts.len(), 1);
            release(&bed.engine(), &held.group, token, at(2.0)).unwrap();
        }
        claim(&bed.engine(), &request, at(3.0)).unwrap();
    }
}

pub(super) fn a_refused_release_changes_nothing_wherever_the_mismatch_is<T: Testbed>(bed: &T) {
    let request = ask("a", 1..=8);
    for number in positions(&request.group) {
        let engine = bed.engine();
        let token = claim(&engine, &request, at(0.0)).unwrap();
        // Whatever took one member away: another's grant, or nobody at all.
        let now_theirs = foreign(number, "theirs", at(0.0).unwrap());
        put(&engine, &[now_theirs]);
        let refused =
            without_a_trace(bed, |engine| release(engine, &request.group, token, at(1.0)));
        let [LostMember::OtherToken(conflict)] = &refused.unwrap_err().members[..] else {
            panic!("one member is another's")
        };
        assert_eq!(conflict.target, target(number));
        let theirs = group([number]);
        let clear = Token::new("theirs").unwrap();
        decide(&engine, &keys(&theirs), at(1.0), |view| rules::release(view, &theirs, &clear))
            .unwrap();
        let refused =
            without_a_trace(bed, |engine| release(engine, &request.group, token, at(1.0)));
        assert_eq!(refused.unwrap_err().members, [LostMember::NotHeld(target(number))]);
        let rest = group((1..=8).filter(|member| *member != number));
        release(&engine, &rest, token, at(1.0)).unwrap();
    }
}

pub(super) fn a_refused_heartbeat_changes_nothing<T: Testbed>(bed: &T) {
    let request = ask("a", 1..=8);
    claim(&bed.engine(), &request, at(0.0)).unwrap();
    let wrong = without_a_trace(bed, |engine| {
        heartbeat(engine, &request.group, stranger(), at(1.0)).unwrap_err()
    });
    assert_eq!(wrong.members.len(), 8);
    let nobodys = group([20, 21]);
    without_a_trace(bed, |engine| {
        heartbeat(engine, &nobodys, stranger(), at(1.0)).unwrap_err();
    });
}

pub(super) fn a_refused_force_release_changes_nothing<T: Testbed>(bed: &T) {
    let request = ask("a", [1, 2]);
    let token = claim(&bed.engine(), &request, at(0.0)).unwrap();
    let more = group([1, 2, 3]);
    for (group, token, reason) in [
        (&request.group, stranger().into(), "stuck"),
        (&request.group, Token::from(token), "  "),
        (&more, Token::from(token), "stuck"),
    ] {
        without_a_trace(bed, |engine| {
            let rule = |view: &_| rules::force_release(view, group, &token, reason);
            decide(engine, &keys(group), at(1.0), rule).unwrap_err();
        });
    }
}

pub(super) fn a_refused_work_verb_changes_nothing<T: Testbed>(bed: &T) {
    let item = ask_work("a", 1);
    let token: Token = claim_work(&bed.engine(), &item, at(0.0)).unwrap().into();
    let wrong: Token = stranger().into();
    let manifest = Payload::empty();
    without_a_trace(bed, |engine| {
        let refused = claim_work(engine, &item, at(1.0)).unwrap_err();
        assert!(matches!(refused, WorkClaimRefused::Leased(_)));
        on_work(engine, &item, at(1.0), |v| rules::heartbeat_work(v, &wrong)).unwrap_err();
        on_work(engine, &item, at(1.0), |v| rules::begin_commit(v, &wrong, &manifest)).unwrap_err();
        on_work(engine, &item, at(1.0), |v| rules::complete(v, &token)).unwrap_err();
        on_work(engine, &item, at(1.0), |v| rules::abandon(v, &wrong)).unwrap_err();
    });
}

pub(super) fn a_refusal_knows_every_holder_in_the_way<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let one = claim(&engine, &ask("one", [1, 2]), at(0.0)).unwrap();
    let two = claim(&engine, &ask("two", [4]), at(5.0)).unwrap();
    let refused = claim(&bed.engine(), &ask("three", 1..=5), at(10.0)).unwrap_err();
    let mut seen: Vec<_> = refused
        .conflicts
        .iter()
        .map(|c| (c.target.get(), c.holding.owner.to_string(), c.holding.token.clone()))
        .collect();
    seen.sort();
    let expected = [
        (1, "one".to_owned(), Token::from(one)),
        (2, "one".to_owned(), one.into()),
        (4, "two".to_owned(), two.into()),
    ];
    assert_eq!(seen, expected);
    let four = refused.conflicts.iter().find(|c| c.target == target(4)).unwrap();
    assert!((four.holding.expires_in - 55.0).abs() < 1e-6, "{four}");
}
