use std::time::Duration;

use ringfence::{
    Claim, ClaimError, ForceReleaseError, HeartbeatError, Payload, ReleaseError, Renewal, Token,
};
use ringfence_env::fault::{Call, Effect, When};

use crate::support::{Bed, FakeClock, at, group, ttl};

#[test]
fn a_group_is_granted_whole_listed_renewed_and_given_back() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let payload = Payload::parse(r#"{"seed":"ab","n":1.50}"#).unwrap();
    let claim = Claim::by("one").unwrap().worker(3).payload(payload).ttl(ttl(30.0));
    let mut lease = table.claim(&group(&[5, 6, 7]), &claim).unwrap();
    let listing = bed.other().targets().list(None).unwrap();
    assert!(listing.consistent);
    let records: Vec<_> = listing.leases.iter().filter_map(|l| l.state.record()).collect();
    assert_eq!(records.len(), 3);
    for record in records {
        assert_eq!(record.holder.token, *lease.token());
        assert_eq!((&*record.holder.owner, record.holder.worker), ("one", 3));
        assert_eq!(record.holder.payload.as_str(), r#"{"n":1.5,"seed":"ab"}"#);
        assert_eq!(record.group.primary.unwrap().get(), 5);
        assert_eq!(record.holder.writer.as_ref().unwrap().pid, std::process::id());
    }
    let before = lease.expires_at();
    lease.heartbeat().unwrap();
    assert!(lease.expires_at() >= before);
    lease.release().unwrap();
    assert!(table.list(None).unwrap().leases.is_empty());
}

#[test]
fn a_refusal_names_every_target_in_the_way_and_its_holder() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let held = table.claim(&group(&[1, 2]), &Claim::by("holder").unwrap().worker(4)).unwrap();
    let refused = bed.other().targets().claim(&group(&[2, 3, 1]), &Claim::by("me").unwrap());
    let Err(ClaimError::Refused(refused)) = refused else { panic!("{refused:?}") };
    let mut targets: Vec<_> = refused.conflicts.iter().map(|c| c.target.get()).collect();
    targets.sort_unstable();
    assert_eq!(targets, [1, 2]);
    let holding = &refused.conflicts[0].holding;
    assert_eq!((&*holding.owner, holding.worker), ("holder", 4));
    assert_eq!(holding.fence, Some(held.fence()));
    assert_eq!(holding.pid, Some(std::process::id()));
    assert!(holding.expires_in > 0.0 && holding.expires_in <= 60.0);
    assert_eq!(holding.token, *held.token());
}

/// B26: a paused holder acts after a take-over.
#[test]
fn b26_every_verb_of_a_superseded_holder_is_refused_and_changes_nothing() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let (members, claim) = (group(&[1, 2, 3]), Claim::by("same").unwrap().ttl(ttl(10.0)));
    let old = table.claim(&members, &claim.clone().now(at(1000.0).unwrap())).unwrap();
    let new = table.claim(&members, &claim.now(at(1010.0).unwrap())).unwrap();
    assert!(new.fence() > old.fence());
    let before = table.list(at(1011.0)).unwrap();
    let beat = table.heartbeat(&members, old.token(), at(1011.0));
    assert!(matches!(beat, Err(HeartbeatError::Lost(ref lost)) if lost.members.len() == 3));
    let release = table.release(&members, old.token(), at(1011.0));
    assert!(matches!(release, Err(ReleaseError::Lost(_))), "{release:?}");
    let force = table.force_release(&members, old.token(), "stale operator");
    assert!(matches!(force, Err(ForceReleaseError::Refused(_))), "{force:?}");
    let after = table.list(at(1011.0)).unwrap();
    for (one, two) in before.leases.iter().zip(&after.leases) {
        assert_eq!(one.state.record(), two.state.record());
        assert_eq!(two.state.record().unwrap().history.attempts, 2);
    }
    assert_eq!(after.leases.len(), 3);
}

/// B15: the record's ttl rules, not the contender's.
#[test]
fn b15_a_contender_with_a_shorter_ttl_does_not_rob_a_holder_with_a_longer_one() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let long = Claim::by("a").unwrap().ttl(ttl(60.0)).now(at(1000.0).unwrap());
    let _held = table.claim(&group(&[1]), &long).unwrap();
    let short = |now| Claim::by("b").unwrap().ttl(ttl(5.0)).now(at(now).unwrap());
    assert!(matches!(table.claim(&group(&[1]), &short(1010.0)), Err(ClaimError::Refused(_))));
    assert!(matches!(table.claim(&group(&[1]), &short(1059.9)), Err(ClaimError::Refused(_))));
    let _taken = table.claim(&group(&[1]), &short(1060.0)).unwrap();
}

/// B38: a contender whose wall clock runs half an hour ahead.
#[test]
fn b38_a_fast_wall_clock_takes_nothing_from_a_live_holder() {
    let clock = FakeClock::new();
    let bed = Bed::with_clock(&clock);
    let table = bed.store.targets();
    let _held = table.claim(&group(&[1]), &Claim::by("a").unwrap()).unwrap();
    clock.jump_wall(Duration::from_secs(1800));
    let refused = table.claim(&group(&[1]), &Claim::by("b").unwrap());
    assert!(matches!(refused, Err(ClaimError::Refused(_))), "same boot: {refused:?}");
    clock.pass(Duration::from_secs(60));
    let _taken = table.claim(&group(&[1]), &Claim::by("b").unwrap()).unwrap();
}

#[test]
fn a_batch_of_heartbeats_separates_renewed_from_lost_and_shares_its_barriers() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let claim = Claim::by("one").unwrap();
    let groups: Vec<_> = (0..20u64).map(|i| group(&[3 * i + 1, 3 * i + 2])).collect();
    let leases: Vec<_> = groups.iter().map(|g| table.claim(g, &claim).unwrap()).collect();
    table.release(&groups[7], leases[7].token(), None).unwrap();
    let pairs: Vec<_> = leases.iter().map(|lease| (lease.group(), lease.token())).collect();
    let batch = table.heartbeat_many(&pairs, None);
    assert!(batch.first_failure().is_none());
    for (index, renewal) in batch.renewals.iter().enumerate() {
        assert_eq!(matches!(renewal, Renewal::Lost(_)), index == 7, "{index}: {renewal:?}");
        assert_eq!(matches!(renewal, Renewal::Renewed(_)), index != 7, "{index}: {renewal:?}");
    }
    assert!((1..=8).contains(&batch.directory_syncs), "one per shard: {}", batch.directory_syncs);
}

#[test]
fn a_failed_release_hands_the_lease_back_and_releasing_again_works_once() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let lease = table.claim(&group(&[1, 2, 3]), &Claim::by("one").unwrap()).unwrap();
    let call = if crate::JOURNAL { (Call::SyncFile, 1) } else { (Call::Unlink, 2) };
    bed.fs.arm(When::NthOf(call.0, call.1), Effect::Errno(5));
    let back = lease.release().unwrap_err();
    assert!(back.error.is_retryable(), "{:?}", back.error);
    bed.fs.disarm();
    assert_eq!(table.list(None).unwrap().leases.len(), 3, "all put back");
    let (members, token) = (back.lease.group().clone(), back.lease.token().clone());
    back.lease.release().unwrap();
    let third = table.release(&members, &token, None);
    assert!(matches!(third, Err(ReleaseError::Lost(_))), "B3: the third is refused: {third:?}");
    let _again = table.claim(&members, &Claim::by("two").unwrap()).unwrap();
}

/// B66: force-release with the right token, the wrong one, and twice.
#[test]
fn b66_force_release_needs_the_token_and_leaves_one_audit_line_per_real_release() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let members = group(&[1, 2]);
    let lease = table.claim(&members, &Claim::by("gone").unwrap()).unwrap();
    let wrong = table.force_release(&members, &Token::new("wrong").unwrap(), "cleanup");
    assert!(matches!(wrong, Err(ForceReleaseError::Refused(_))), "{wrong:?}");
    table.force_release(&members, lease.token(), "host is gone").unwrap();
    let twice = table.force_release(&members, lease.token(), "host is gone").unwrap_err();
    assert_eq!(twice.to_string(), "not held: there is nothing to release");
    let audit = std::fs::read_to_string(bed.path.join("audit.log")).unwrap();
    assert_eq!(audit.lines().count(), 1, "{audit}");
    assert!(audit.contains("host is gone") && audit.contains(lease.token().as_str()), "{audit}");
}

/// B17: the dead worker's name lives on in its successor; its lease does not.
#[test]
fn b17_a_heartbeat_renews_the_group_it_names_and_nothing_else_of_the_same_worker() {
    let bed = Bed::new();
    let table = bed.store.targets();
    let claim = |now| Claim::by("w").unwrap().worker(1).ttl(ttl(10.0)).now(at(now).unwrap());
    let dead = table.claim(&group(&[1, 2]), &claim(1000.0)).unwrap();
    let live = table.claim(&group(&[3]), &claim(1000.0)).unwrap();
    for now in [1003.0, 1006.0, 1009.0] {
        table.heartbeat(live.group(), live.token(), at(now)).unwrap();
    }
    let listing = table.list(at(1010.0)).unwrap();
    let states: Vec<_> = listing
        .leases
        .iter()
        .map(|listed| (listed.state.record().unwrap().target.get(), listed.state.name()))
        .collect();
    assert_eq!(states.iter().filter(|(_, state)| *state == "expired").count(), 2, "{states:?}");
    assert!(states.contains(&(3, "active")), "{states:?}");
    let next = table.claim(dead.group(), &claim(1010.0)).unwrap();
    assert!(next.fence() > live.fence());
}
