//! Claim: contention, take-over, whose ttl rules, whose clock counts.

use super::*;
use crate::record::WriterBoot;
use crate::time::BootMoment;

fn conflicting(refused: &ClaimRefused) -> Vec<u64> {
    refused.conflicts.iter().map(|conflict| conflict.target.get()).collect()
}

#[test]
fn a_vacant_group_is_granted_whole_under_one_token_and_one_moment() {
    let mut table = Table::new();
    let request = ClaimRequest { worker: -3, ttl: ttl(12.5), ..ask("a", [88, 77, 99]) };
    let token = table.claim(1000.25, &request).unwrap();
    assert_eq!(token.fence(), Some(Fence(1)));
    assert_eq!(table.stored.len(), 3);
    for number in [77, 88, 99] {
        let record = table.record(number);
        assert_eq!(record.target, t(number));
        assert_eq!(record.group.targets, request.group.targets().collect::<Vec<_>>());
        assert_eq!(record.group.primary, Some(t(88)));
        assert_eq!((&*record.holder.owner, record.holder.worker), ("a", -3));
        assert_eq!(record.holder.token, token);
        assert_eq!(record.holder.updated, at(1000.25));
        assert_eq!(record.holder.ttl, Some(ttl(12.5)));
        assert_eq!(record.holder.payload.as_str(), r#"{"seed":"s1"}"#);
        assert_eq!(record.holder.writer.as_ref(), Some(&table.writer));
        assert_eq!(record.history, crate::record::History::first());
    }
}

#[test]
fn b1_a_busy_member_refuses_the_whole_group_and_every_holder_is_named() {
    let mut table = Table::new();
    let held = ClaimRequest { worker: 5, ..ask("b", [7]) };
    let token = table.claim(1000.0, &held).unwrap();
    table.claim(1010.0, &ask("c", [9, 90])).unwrap();
    let before = table.stored.clone();

    let refused = table.claim(1020.0, &ask("a", 1..=64)).unwrap_err();
    assert_eq!(conflicting(&refused), in_id_order([7, 9]));
    assert!(refused.damaged.is_empty());
    let seven = refused.conflicts.iter().find(|conflict| conflict.target == t(7)).unwrap();
    let Holding { owner, worker, host, pid, fence, updated, expires_at, expires_in, .. } =
        seven.holding.clone();
    assert_eq!((&*owner, worker, host.as_deref(), pid), ("b", 5, Some("node-1"), Some(11)));
    assert_eq!((&seven.holding.token, fence), (&token, Some(Fence(1))));
    assert_eq!((updated, expires_at, expires_in), (at(1000.0), at(1060.0), 40.0));
    let text = refused.to_string();
    assert!(
        text.contains(
            "target 7 is held by \"b\" (worker 5, host node-1, pid 11, fence 1), 40.0 s left"
        ),
        "{text}"
    );

    assert_eq!(table.stored, before);
    table.claim(1020.0, &ask("a", 1..=6)).unwrap();
}

#[test]
fn a_control_character_in_a_stored_host_name_reaches_no_terminal() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("b", [7])).unwrap();
    table.rewrite(7, "node-1", "\\u001b[2J\\nroot");
    let text = table.claim(1001.0, &ask("a", [7])).unwrap_err().to_string();
    assert!(text.contains("host \\u{1b}[2J\\nroot,"), "{text}");
    assert!(!text.contains(char::is_control));
}

#[test]
fn a_long_list_of_conflicts_is_cut_in_the_text_and_whole_in_the_value() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("b", 1..=20)).unwrap();
    let refused = table.claim(1001.0, &ask("a", 1..=20)).unwrap_err();
    assert_eq!(refused.conflicts.len(), 20);
    let text = refused.to_string();
    assert_eq!(text.matches("held by").count(), 8);
    assert!(text.ends_with("; and 12 more"), "{text}");
}

#[test]
fn a_lease_is_taken_over_from_exactly_its_ttl_on_and_counted() {
    // The claims before, as (owner, moment); the contender; attempts, steals and previous owner.
    type Asked = (&'static str, f64);
    type Counts = (u64, u64, Option<&'static str>);
    let cases: [(&[Asked], Asked, Option<Counts>); 9] = [
        (&[("a", 1000.0)], ("b", 1000.0), None),
        (&[("a", 1000.0)], ("b", 1059.999), None),
        (&[("a", 1000.0)], ("b", 1060.0), Some((2, 1, Some("a")))),
        (&[("a", 1000.0)], ("a", 1010.0), None), // an active lease of one's own is a lease
        (&[("a", 1000.0)], ("a", 1060.0), Some((2, 0, None))),
        (&[("a", 1000.0), ("b", 1060.0)], ("b", 1120.0), Some((3, 1, Some("a")))),
        (&[("a", 1000.0), ("b", 1060.0)], ("a", 1120.0), Some((3, 2, Some("b")))),
        (&[("a", 1000.0), ("b", 1060.0)], ("c", 1119.0), None),
        (&[("a", 1000.0)], ("b", 10.0), None), // a clock that is behind steals nothing
    ];
    for (before, (owner, now), expected) in cases {
        let mut table = Table::new();
        for (owner, now) in before {
            table.claim(*now, &ask(owner, [5, 6])).unwrap();
        }
        let stored = table.stored.clone();
        let answer = table.claim(now, &ask(owner, [5, 6]));
        let Some((attempts, steals, previous)) = expected else {
            assert_eq!(conflicting(&answer.unwrap_err()), in_id_order([5, 6]));
            assert_eq!(table.stored, stored);
            continue;
        };
        assert_eq!(answer.unwrap().fence(), Some(Fence(before.len() as u64 + 1)));
        for number in [5, 6] {
            let record = table.record(number);
            assert_eq!((record.history.attempts, record.history.steals), (attempts, steals));
            assert_eq!(record.history.previous_owner.as_deref(), previous, "{before:?}");
            assert_eq!((&*record.holder.owner, record.holder.updated), (owner, at(now)));
        }
    }
}

#[test]
fn members_with_different_pasts_keep_their_own_counts() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("a", [1])).unwrap();
    table.claim(1000.0, &ask("b", [2])).unwrap();
    table.claim(1060.0, &ask("b", [1])).unwrap();
    table.claim(1120.0, &ask("b", [1, 2, 3])).unwrap();
    let counts = |number| {
        let history = table.record(number).history;
        (history.attempts, history.steals, history.previous_owner.map(|owner| owner.to_string()))
    };
    assert_eq!(counts(1), (3, 1, Some("a".into())));
    assert_eq!(counts(2), (2, 0, None));
    assert_eq!(counts(3), (1, 0, None));
}

#[test]
fn one_active_member_among_expired_and_vacant_ones_refuses_them_all() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("a", [1])).unwrap();
    table.claim(1050.0, &ask("b", [2])).unwrap();
    let before = table.stored.clone();
    let refused = table.claim(1070.0, &ask("c", [1, 2, 3])).unwrap_err();
    assert_eq!(conflicting(&refused), [2]);
    assert_eq!(table.stored, before);
}

#[test]
fn b15_the_records_ttl_rules_not_the_contenders() {
    // A holder with a long ttl, met by a contender whose own ttl is short.
    let mut table = Table::new();
    table.claim(1000.0, &ask("a", [1])).unwrap();
    table.default_ttl = ttl(5.0);
    let short = ClaimRequest { ttl: ttl(5.0), ..ask("b", [1]) };
    let refused = table.claim(1010.0, &short).unwrap_err();
    assert_eq!(refused.conflicts[0].holding.expires_at, at(1060.0));
    assert!(table.claim(1059.9, &short).is_err());

    // A dead holder with a short ttl, met after a restart with a longer one.
    let mut table = Table::new();
    table.claim(1000.0, &ClaimRequest { ttl: ttl(5.0), ..ask("a", [1]) }).unwrap();
    table.default_ttl = ttl(600.0);
    let long = ClaimRequest { ttl: ttl(600.0), ..ask("b", [1]) };
    assert!(table.claim(1004.9, &long).is_err());
    table.claim(1005.0, &long).unwrap();

    // A record of another program carries no ttl: the table's rules.
    for (default, now, granted) in
        [(60.0, 1059.0, false), (60.0, 1060.0, true), (5.0, 1005.0, true), (600.0, 1060.0, false)]
    {
        let mut table = Table::new();
        table.default_ttl = ttl(default);
        table.damage(1, foreign_line(1, "py-1", "1000.0").as_bytes());
        assert_eq!(table.claim(now, &ask("b", [1])).is_ok(), granted, "{default} {now}");
    }
}

#[test]
fn at_the_moment_a_refusal_names_as_its_end_a_lease_can_be_taken() {
    // 1786060800.1 + 0.3 is rounded down, so that the sum minus the start is under the ttl.
    for (updated, seconds) in [(1000.0, 60.0), (1_786_060_800.1, 0.3), (0.1, 0.7), (3e9, 0.001)] {
        let mut table = Table::new();
        table.claim(updated, &ClaimRequest { ttl: ttl(seconds), ..ask("a", [1]) }).unwrap();
        let refused = table.claim(updated, &ask("b", [1])).unwrap_err();
        let end = refused.conflicts[0].holding.expires_at.seconds();
        assert!((end - updated - seconds).abs() < 1e-6, "{updated} + {seconds}: {end}");
        table.claim(end, &ask("b", [1])).unwrap();
    }
}

#[test]
fn a_damaged_member_is_held_and_named_beside_the_conflicts() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("a", [1])).unwrap();
    table.damage(2, b"");
    table.damage(3, &[0; 9]);
    let before = table.stored.clone();
    let refused = table.claim(1001.0, &ask("b", 1..=4)).unwrap_err();
    assert_eq!(conflicting(&refused), [1]);
    let damaged: Vec<u64> = refused.damaged.iter().map(|member| member.target.get()).collect();
    assert_eq!(damaged, in_id_order([2, 3]));
    let text = refused.to_string();
    assert!(text.starts_with("busy: target 1 is held by \"a\""), "{text}");
    assert!(text.contains("; held: target"), "{text}");
    assert!(text.contains("has a damaged record: ") && text.contains("the record is empty"));

    // Time frees a lease; it never frees damage.
    let refused = table.claim(1e9, &ask("b", 1..=4)).unwrap_err();
    assert_eq!((refused.conflicts.len(), refused.damaged.len()), (0, 2));
    assert!(refused.to_string().starts_with("held: target"), "{refused}");
    assert_eq!(table.stored, before);
    table.claim(1e9, &ask("b", [1, 4])).unwrap();
}

#[test]
fn b38_a_contender_whose_wall_clock_jumped_ahead_takes_nothing() {
    let boot = |seconds| Some(WriterBoot { boot: "boot-1".into(), seconds, life: None });
    let mut table = Table::new();
    Arc::make_mut(&mut table.writer).boot = boot(500.0);
    table.claim(1000.0, &ask("a", [1])).unwrap();
    // Wall clock, this host's boot clock, the store's clock: is the lease run out?
    for (wall, (id, seconds), store, granted) in [
        (2800.0, ("boot-1", 501.0), None, false),
        (2800.0, ("boot-1", 559.9), Some(2800.0), false),
        (2800.0, ("boot-1", 560.0), None, true),
        (1059.0, ("boot-1", 900.0), None, false), // both must agree
        (2800.0, ("boot-2", 1.0), Some(1001.0), false),
        (2800.0, ("boot-2", 1.0), Some(1060.0), true),
        (2800.0, ("boot-2", 501.0), None, true), // another boot's reading says nothing,
        (2800.0, ("boot-2", 9000.0), Some(1001.0), false), // neither way
    ] {
        let request = ask("b", [1]);
        let mut view = table.view_of(wall, &request.group);
        view.moment.boot = Some(BootMoment { boot: id.into(), seconds, gone: Vec::new() });
        view.moment.store = store.map(at);
        assert_eq!(claim(&view, &request).is_ok(), granted, "{wall} {id} {seconds} {store:?}");
    }
}

#[test]
fn a_grants_fence_must_rise_above_that_of_every_member() {
    let mut table = Table::new();
    table.fence = 40;
    table.claim(1000.0, &ask("a", [1])).unwrap();
    table.claim(1000.0, &ask("b", [2])).unwrap();
    table.damage(3, foreign_line(3, "py-999", "1000.0").as_bytes());
    // A counter that was restored from an old backup.
    table.fence = 3;
    let request = ask("c", 1..=4);
    let Transition::Grant(grant) = claim(&table.view_of(2000.0, &request.group), &request).unwrap()
    else {
        panic!("a claim is a grant")
    };
    assert_eq!(grant.above, Fence(42));
    assert_eq!(table.claim(2000.0, &request).unwrap().fence(), Some(Fence(43)));
}

#[test]
#[should_panic(expected = "a fence must rise")]
fn a_grant_under_a_fence_that_does_not_rise_is_a_broken_engine() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("a", [1])).unwrap();
    let request = ask("b", [1]);
    match claim(&table.view_of(2000.0, &request.group), &request).unwrap() {
        Transition::Grant(grant) => drop(grant.under(FencingToken::new(Fence(1), 9))),
        Transition::Edits { .. } | Transition::Alike(_) => unreachable!("a claim is a grant"),
    }
}

#[test]
fn a_take_over_writes_a_new_record_and_drops_what_belonged_to_the_old_grant() {
    let mut table = Table::new();
    table.damage(1, foreign_line(1, "py-1", "1000.0").as_bytes());
    table.claim(1060.0, &ask("b", [1, 2])).unwrap();
    let record = table.record(1);
    assert!(record.extra.is_empty());
    assert_eq!(record.group.targets, group([1, 2]).targets().collect::<Vec<_>>());
    assert_eq!(record.holder.payload.as_str(), r#"{"seed":"s1"}"#);
    assert_eq!(record.history.previous_owner.as_deref(), Some("py"));
}

#[test]
#[should_panic(expected = "a view of the group's own keys")]
fn a_view_of_other_keys_is_a_broken_engine() {
    let table = Table::new();
    let request = ask("a", [1, 2]);
    let _ = claim(&table.view_of(1000.0, &group([1])), &request);
}
