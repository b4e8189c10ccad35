//! Force-release (B66): by token and reason only, whole or not at all, one audit line each.

use super::*;

impl Table {
    fn force(&mut self, group: &TargetGroup, token: &Token, why: &str) -> Result<(), ForceRefused> {
        let released = force_release(&self.view_of(1030.5, group), group, token, why)?;
        assert_eq!(self.apply(released), None);
        Ok(())
    }
}

fn mismatch(refused: ForceRefused) -> Vec<(u64, &'static str)> {
    match refused {
        ForceRefused::Mismatch(members) => why(&members),
        other => panic!("{other}"),
    }
}

#[test]
fn b66_the_right_token_removes_an_active_lease_once_and_leaves_one_audit_line() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("协调器", [1, 2])).unwrap();
    table.force(&group([1, 2]), &token, "node-3 \"died\"\n").unwrap();
    assert!(table.stored.is_empty());
    assert_eq!(table.force(&group([1, 2]), &token, "again"), Err(ForceRefused::NotHeld));

    let [Audit(line)] = table.audit.as_slice() else { panic!("{:?}", table.audit) };
    let targets: Vec<String> = in_id_order([1, 2]).iter().map(ToString::to_string).collect();
    assert_eq!(
        line,
        &format!(
            r#"{{"at":1030.5,"event":"force-release","host":"node-1","owner":"\u534f\u8c03\u5668","pid":11,"reason":"node-3 \"died\"\n","targets":[{}],"token":"{token}"}}"#,
            targets.join(",")
        )
    );
    assert_eq!(crate::json::canonicalize(line).unwrap(), *line);
}

#[test]
fn b66_a_wrong_token_changes_nothing_and_the_right_one_is_shown() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1, 2])).unwrap();
    let before = table.stored.clone();
    let wrong = FencingToken::new(Fence(1), 0xbeef).into();
    let refused = table.force(&group([1, 2]), &wrong, "r").unwrap_err();
    let ForceRefused::Mismatch(members) = &refused else { panic!("{refused}") };
    for member in members {
        let LostMember::OtherToken(conflict) = member else { panic!("{member}") };
        assert_eq!(conflict.holding.token, token);
    }
    assert_eq!(members.len(), 2);
    assert_eq!((table.stored, table.audit.len()), (before, 0));
}

#[test]
fn a_partly_vacant_group_is_refused_and_says_which_member_is_not_held() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1, 2])).unwrap();
    let before = table.stored.clone();
    let refused = table.force(&group([1, 2, 3]), &token, "r").unwrap_err();
    assert_eq!(mismatch(refused), [(3, "not held")]);
    assert_eq!((table.stored.clone(), table.audit.len()), (before, 0));
    table.force(&group([1, 2]), &token, "r").unwrap();
    assert_eq!(table.force(&group([3]), &token, "r"), Err(ForceRefused::NotHeld));
}

#[test]
fn a_damaged_record_is_removed_by_the_digest_of_exactly_its_bytes() {
    let mut table = Table::new();
    table.damage(1, b"");
    table.damage(2, b"{\"schema\":2}\n");
    for wrong in [digest(b"{\"schema\":2}"), digest(b""), Token::new("2").unwrap()] {
        assert_eq!(mismatch(table.force(&group([2]), &wrong, "r").unwrap_err()), [(2, "damaged")]);
    }
    table.force(&group([2]), &digest(b"{\"schema\":2}\n"), "a newer version wrote it").unwrap();
    assert_eq!(table.stored.keys().collect::<Vec<_>>(), [&Key::target(t(1))]);
    let [Audit(line)] = table.audit.as_slice() else { panic!("{:?}", table.audit) };
    assert!(line.contains(r#""owner":null"#) && line.contains(r#""token":"sha256:"#), "{line}");
    assert!(table.claim(1e9, &ask("a", [1])).is_err(), "the other one is still held");
    table.claim(1031.0, &ask("a", [2])).unwrap();
}

#[test]
fn a_lease_and_a_damaged_record_are_never_removed_by_one_token() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1, 2])).unwrap();
    table.damage(2, b"");
    let refused = table.force(&group([1, 2]), &token, "r").unwrap_err();
    assert_eq!(mismatch(refused), [(2, "damaged")]);
    let refused = table.force(&group([1, 2]), &digest(b""), "r").unwrap_err();
    assert_eq!(mismatch(refused), [(1, "other token")]);
    table.force(&group([1]), &token, "r").unwrap();
    table.force(&group([2]), &digest(b""), "r").unwrap();
    assert_eq!(table.audit.len(), 2, "one line for each real release");
}

#[test]
fn a_blank_reason_is_refused_before_anything_else() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1])).unwrap();
    for blank in ["", " ", "\t\n\u{3000}"] {
        assert_eq!(table.force(&group([1]), &token, blank), Err(ForceRefused::NoReason));
    }
    assert_eq!((table.stored.len(), table.audit.len()), (1, 0));
}

#[test]
fn after_a_force_release_the_old_holder_is_refused() {
    let mut table = Table::new();
    let token = table.claim(1000.0, &ask("a", [1])).unwrap();
    table.force(&group([1]), &token, "r").unwrap();
    let next = table.claim(1031.0, &ask("a", [1])).unwrap();
    assert!(next.fence() > token.fence());
    assert!(table.heartbeat(1032.0, &group([1]), &token).is_err());
    assert!(table.release(1032.0, &group([1]), &token).is_err());
}
