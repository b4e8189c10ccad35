//! The life of a lease after its grant: heartbeats, take-overs, force-release.

use ringfence_model::rules::{self, ClaimRequest, ForceRefused, LostMember};
use ringfence_model::{Space, Token};

use super::Testbed;
use super::kit::*;

pub(super) fn a_heartbeat_gives_the_group_one_common_moment<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", 1..=8);
    let token = claim(&engine, &request, at(0.0)).unwrap();
    for now in [at(30.25), None] {
        heartbeat(&engine, &request.group, token, now).unwrap();
        let first = target_record(&engine, 1).holder.updated;
        assert!(now.is_none_or(|now| now == first));
        for number in 1..=8 {
            assert_eq!(target_record(&engine, number).holder.updated, first, "{number}");
        }
    }
}

pub(super) fn a_heartbeat_keeps_all_but_the_moment<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ClaimRequest { payload: largest_payload(), ..ask("a", [1, 2]) };
    let token = claim(&engine, &request, at(0.0)).unwrap();
    let before = target_record(&engine, 1);
    heartbeat(&bed.engine(), &request.group, token, at(7.0)).unwrap();
    let after = target_record(&engine, 1);
    assert_eq!(after.holder.updated, at(7.0).unwrap());
    assert_eq!(after.holder.token, before.holder.token);
    assert_eq!((&after.holder.owner, after.holder.ttl), (&before.holder.owner, before.holder.ttl));
    assert!(after.holder.payload == before.holder.payload);
    assert_eq!((after.group, after.history), (before.group, before.history));
}

pub(super) fn an_expired_group_that_nobody_took_may_be_renewed<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", [1, 2]);
    let token = claim(&engine, &request, at(0.0)).unwrap();
    heartbeat(&engine, &request.group, token, at(1000.0)).expect("nobody took it");
    claim(&engine, &ask("b", [1]), at(1059.0)).expect_err("renewed");
    release(&engine, &request.group, token, at(5000.0)).expect("expiry ends no right to release");
}

pub(super) fn a_take_over_counts_attempts_and_steals<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mut tokens = Vec::new();
    for (owner, now) in [("a", 0.0), ("a", 60.0), ("b", 120.0), ("c", 180.0)] {
        tokens.push(claim(&engine, &ask(owner, [1, 2]), at(now)).unwrap());
    }
    let record = target_record(&engine, 2);
    assert_eq!((record.history.attempts, record.history.steals), (4, 2));
    assert_eq!(record.history.previous_owner.as_deref(), Some("b"));
    assert_eq!(record.holder.token, tokens[3].into());
    assert!(tokens.is_sorted_by(|one, two| one.fence() < two.fence()));
}

pub(super) fn a_superseded_token_can_do_nothing<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", [1, 2]);
    let late = claim(&engine, &request, at(0.0)).unwrap();
    // The same owner and worker: only the token tells the two attempts apart.
    let current = claim(&engine, &request, at(60.0)).unwrap();
    assert!(late.fence() < current.fence());
    without_a_trace(bed, |engine| {
        for number in [1, 2] {
            let lost = heartbeat(engine, &request.group, late, at(61.0)).unwrap_err();
            assert!(matches!(&lost.members[..], [LostMember::OtherToken(_), _]), "{number}");
        }
        release(engine, &request.group, late, at(61.0)).unwrap_err();
        let late: Token = late.into();
        let force = |view: &_| rules::force_release(view, &request.group, &late, "late");
        decide(engine, &keys(&request.group), at(61.0), force).unwrap_err();
    });
    heartbeat(&engine, &request.group, current, at(62.0)).unwrap();
}

pub(super) fn a_force_release_ends_exactly_what_was_named<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", [1, 2]);
    let token: Token = claim(&engine, &request, at(0.0)).unwrap().into();
    claim(&engine, &ask("b", [3]), at(0.0)).unwrap();
    let force = |view: &_| rules::force_release(view, &request.group, &token, "host is gone");
    let keys = keys(&request.group);
    decide(&engine, &keys, at(1.0), force).unwrap();
    assert_eq!(records(&bed.engine(), Space::Targets).len(), 1);
    let again = without_a_trace(bed, |engine| decide(engine, &keys, at(2.0), force));
    assert_eq!(again.unwrap_err(), ForceRefused::NotHeld);
}
