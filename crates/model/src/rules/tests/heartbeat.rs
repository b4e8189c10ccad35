//! Heartbeat: one common moment, and every way to have lost the lease.

use super::*;

#[test]
fn every_member_gets_one_common_moment_and_nothing_else_changes() {
    let mut table = Table::new();
    let request = ClaimRequest { ttl: ttl(30.0), ..ask("a", [1, 2, 3]) };
    let token = table.claim(1000.0, &request).unwrap();
    let before: Vec<_> = (1..=3).map(|number| table.record(number)).collect();
    table.writer = Arc::new(Writer { host: "node-2".into(), pid: 22, boot: None });
    table.default_ttl = ttl(5.0);
    table.heartbeat(1020.5, &request.group, &token).unwrap();
    for old in before {
        let new = table.record(old.target.get());
        assert_eq!(new.holder.updated, at(1020.5));
        assert_eq!(new.holder.writer.as_ref(), Some(&table.writer));
        assert_eq!(new.holder.token, token);
        assert_eq!(new.holder.ttl, Some(ttl(30.0)), "a heartbeat does not change whose ttl rules");
        assert_eq!((&new.holder.payload, new.holder.worker), (&old.holder.payload, 1));
        assert_eq!((new.history, new.group), (old.history, old.group));
    }
    assert_eq!(table.fence, 1, "a heartbeat is no grant");
    assert!(table.claim(1050.4, &ask("b", [3])).is_err());
    table.claim(1050.5, &ask("b", [3])).unwrap();
}

#[test]
fn a_group_that_expired_but_that_nobody_took_over_may_still_be_renewed() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1, 2])).unwrap();
    table.heartbeat(5000.0, &group([1, 2]), &token).unwrap();
    assert!(table.claim(5059.0, &ask("b", [2])).is_err());
}

#[test]
fn b26_b27_a_superseded_attempt_is_refused_even_under_the_same_owner_and_worker() {
    for successor in ["a", "b"] {
        let mut table = Table::new();
        let first = table.claim(1000.0, &ask("a", [1, 2])).unwrap();
        let second = table.claim(1060.0, &ask(successor, [1, 2])).unwrap();
        assert!(second.fence() > first.fence());
        let before = table.stored.clone();
        for now in [1061.0, 1059.0, 9000.0] {
            let lost = table.heartbeat(now, &group([1, 2]), &first).unwrap_err();
            assert_eq!(
                why(&lost.members),
                in_id_order([1, 2]).iter().map(|&n| (n, "other token")).collect::<Vec<_>>()
            );
            let LostMember::OtherToken(conflict) = &lost.members[0] else { panic!("{lost}") };
            assert_eq!(conflict.holding.token, second);
            assert!(lost.to_string().starts_with("the lease is lost: target"), "{lost}");
        }
        assert_eq!(table.stored, before);
        table.heartbeat(1062.0, &group([1, 2]), &second).unwrap();
    }
}

#[test]
fn mixed_members_refuse_the_whole_group_and_each_lost_one_is_named() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", 1..=6)).unwrap();
    table.stored.remove(&Key::target(t(2)));
    table.damage(3, b"{\"schema\":1");
    table.claim(1060.0, &ask("b", [4])).unwrap();
    let before = table.stored.clone();
    let lost = table.heartbeat(1061.0, &group(1..=6), &token).unwrap_err();
    let expected: Vec<_> = in_id_order(1..=6)
        .into_iter()
        .filter_map(|number| match number {
            2 => Some((2, "not held")),
            3 => Some((3, "damaged")),
            4 => Some((4, "other token")),
            _ => None,
        })
        .collect();
    assert_eq!(why(&lost.members), expected);
    assert_eq!(table.stored, before);
}

#[test]
fn a_group_that_was_never_claimed_is_not_held() {
    let mut table = Table::new();
    let token = Token::new("00000000000000000001-00000000000000000000000000000000").unwrap();
    let lost = table.heartbeat(1000.0, &group([1, 2]), &token).unwrap_err();
    assert_eq!(lost.members.len(), 2);
    assert!(lost.to_string().contains("target 1 is not held"), "{lost}");
}

#[test]
fn a_token_is_compared_whole() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1])).unwrap();
    let text = token.as_str();
    let same_fence = FencingToken::new(Fence(1), 0xbeef).into();
    let others = [
        same_fence,
        Token::new(&text[..text.len() - 1]).unwrap(),
        Token::new(&format!("{text}0")).unwrap(),
        Token::new(&text.to_uppercase()).unwrap(),
        Token::new(&format!(" {text}")).unwrap(),
    ];
    for other in others {
        assert!(table.heartbeat(1001.0, &group([1]), &other).is_err(), "{other}");
        assert!(table.release(1001.0, &group([1]), &other).is_err(), "{other}");
    }
    table.heartbeat(1001.0, &group([1]), &token).unwrap();
}

#[test]
fn members_that_another_program_left_at_different_moments_get_one() {
    let mut table = Table::new();
    for (number, updated) in [(1, "1000.0"), (2, "1001.5"), (3, "1000.0")] {
        table.damage(number, foreign_line(number, "py-1", updated).as_bytes());
    }
    let token = Token::new("py-1").unwrap();
    table.heartbeat(1030.0, &group(1..=3), &token).unwrap();
    for number in 1..=3 {
        // The line is theirs but for the moment: their fields and numbers to the digit.
        let line = table.record(number).to_line();
        assert_eq!(line, foreign_line(number, "py-1", "1030.0"));
    }
}

#[test]
fn a_heartbeat_keeps_what_each_member_holds_of_its_own() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", 1..=3)).unwrap();
    table.rewrite(2, "\"seed\":\"s1\"", "\"seed\":\"other\"");
    table.heartbeat(1001.0, &group(1..=3), &token).unwrap();
    for (number, seed) in [(1, "s1"), (2, "other"), (3, "s1")] {
        let record = table.record(number);
        assert_eq!(record.holder.payload.as_str(), format!(r#"{{"seed":"{seed}"}}"#));
        assert_eq!(record.holder.updated, at(1001.0));
    }
}
