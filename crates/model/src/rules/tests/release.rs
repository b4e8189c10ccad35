//! Release: all members or none, whatever the clock says.

use super::*;

#[test]
fn a_release_removes_every_member_once_and_the_next_claim_starts_anew() {
    let mut table = Table::new();
    table.claim(1000.0, &ask("a", [1, 2])).unwrap();
    let token = table.claim(1060.0, &ask("b", [1, 2])).unwrap();
    table.release(1061.0, &group([1, 2]), &token).unwrap();
    assert!(table.stored.is_empty());

    let lost = table.release(1062.0, &group([1, 2]), &token).unwrap_err();
    let expected: Vec<_> = in_id_order([1, 2]).into_iter().map(|n| (n, "not held")).collect();
    assert_eq!(why(&lost.members), expected);

    let next = table.claim(1063.0, &ask("c", [1, 2])).unwrap();
    assert!(next.fence() > token.fence(), "a fence rises across a release");
    assert_eq!(table.record(1).history, crate::record::History::first());
}

#[test]
fn one_stale_member_wherever_it_stands_refuses_the_release_of_all() {
    // F325 section 1.1: the old code removed the members before the stale one.
    let numbers: Vec<u64> = (1..=8).collect();
    for &stale in &numbers {
        for how in ["other token", "not held", "damaged"] {
            let mut table = Table::new();
            let token = table.claim(1000.0, &ask("a", 1..=8)).unwrap();
            match how {
                "other token" => table.rewrite(stale, token.as_str(), "new-token"),
                "not held" => drop(table.stored.remove(&Key::target(t(stale)))),
                _ => table.damage(stale, &[0; 300]),
            }
            let before = table.stored.clone();
            let lost = table.release(1001.0, &group(1..=8), &token).unwrap_err();
            assert_eq!(why(&lost.members), [(stale, how)]);
            assert_eq!(table.stored, before);
        }
    }
}

#[test]
fn an_expired_lease_that_nobody_took_over_is_released() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1])).unwrap();
    table.release(9000.0, &group([1]), &token).unwrap();
    assert!(table.stored.is_empty());
}

#[test]
fn b26_b27_a_superseded_attempt_releases_nothing_even_under_the_same_owner_and_worker() {
    for successor in ["a", "b"] {
        let mut table = Table::new();
        let first = table.claim(1000.0, &ask("a", [1, 2])).unwrap();
        let second = table.claim(1060.0, &ask(successor, [1, 2])).unwrap();
        let before = table.stored.clone();
        assert_eq!(table.release(1061.0, &group([1, 2]), &first).unwrap_err().members.len(), 2);
        assert_eq!(table.stored, before);
        table.release(1061.0, &group([1, 2]), &second).unwrap();
    }
}

#[test]
fn a_lease_of_another_program_is_released_under_its_token() {
    let mut table = Table::new();
    table.damage(1, foreign_line(1, "py-1", "1000.0").as_bytes());
    assert!(table.release(1001.0, &group([1]), &Token::new("py-2").unwrap()).is_err());
    table.release(1001.0, &group([1]), &Token::new("py-1").unwrap()).unwrap();
    assert!(table.stored.is_empty());
}
