//! The work fence: every verb in every state, under its own and under another attempt's token.

use std::fmt::Debug;

use super::*;
use crate::record::{History, WorkStatus};

/// Where an item can be when a verb meets it; leases here last 60 s from 1000.
const STATES: [&str; 6] = ["vacant", "leased", "expired", "committing", "done", "damaged"];

/// When the verbs of the tables happen: in state `expired` past the ttl, else before it.
fn moment_of(state: &str) -> f64 {
    if state == "expired" { 1060.0 } else { 1030.0 }
}

/// What every verb under a token that was superseded answers.
const STALE: [&str; 5] =
    ["OtherToken", "Stale/OtherToken", "Stale/OtherToken", "Stale/OtherToken", "Stale/OtherToken"];

fn job(owner: &str) -> WorkClaim {
    WorkClaim {
        payload: Payload::parse(r#"{"seed":"s1","primary":77}"#).unwrap(),
        owner: Owner::new(owner).unwrap(),
        worker: 1,
        ttl: ttl(60.0),
    }
}

fn key() -> Key {
    Key::work(job("a").id())
}

fn manifest(number: u32) -> Payload {
    Payload::parse(&format!(r#"{{"inputs":[{number}]}}"#)).unwrap()
}

/// The answer to a heartbeat, spelled out.
fn renewed(view: &View, token: &Token) -> Result<Transition, WorkStale> {
    heartbeat_work(view, token).map(|renewed| renewed.spelled_out(view))
}

impl Table {
    fn item_view(&self, now: f64) -> View {
        self.view(now, [key()])
    }

    fn claim_item(&mut self, now: f64, owner: &str) -> Result<Token, WorkClaimRefused> {
        let granted = claim_work(&self.item_view(now), &job(owner))?;
        Ok(self.apply(granted).expect("a claim is a grant"))
    }

    fn item(&self) -> WorkRecord {
        match self.entry(key()) {
            Entry::Present(Record::Work(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    /// The item in a state, with the token of the attempt that brought it there.
    fn in_state(state: &str) -> (Self, Token) {
        let mut table = Self::new();
        let token = table.claim_item(1000.0, "a").unwrap();
        if state == "committing" || state == "done" {
            let decided = begin_commit(&table.item_view(1010.0), &token, &manifest(1)).unwrap();
            table.apply(decided);
        }
        match state {
            "done" => {
                let done = complete(&table.item_view(1020.0), &token).unwrap();
                table.apply(done);
            }
            "vacant" => table.stored.clear(),
            "damaged" => drop(table.stored.insert(key(), b"{\"schema\":1".to_vec())),
            _ => {}
        }
        (table, token)
    }

    /// Applies an answer and puts it in a word: the state after it, or the refusal.
    fn outcome<E: Debug>(&mut self, answer: Result<Transition, E>) -> String {
        let before = self.stored.clone();
        match answer {
            Err(refused) => variant(&refused),
            Ok(transition) => {
                self.apply(transition);
                if self.stored == before {
                    return "unchanged".to_owned();
                }
                match self.entry(key()) {
                    Entry::Vacant => "removed".to_owned(),
                    Entry::Present(Record::Work(record)) => record.status.as_str().to_owned(),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// `Stale(OtherToken(Holding { .. }))` as `Stale/OtherToken`.
fn variant(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let head: String = text.chars().take_while(|ch| ch.is_alphanumeric() || *ch == '(').collect();
    let words = head.split('(').filter(|word| !["", "Holding", "Damage"].contains(word));
    words.collect::<Vec<_>>().join("/")
}

#[test]
fn every_verb_under_a_token_answers_by_state_and_token() {
    // heartbeat, begin_commit with manifest 1 and with manifest 2, complete, abandon
    let own: [(&str, [&str; 5]); 6] = [
        ("vacant", ["NotHeld", "Stale/NotHeld", "Stale/NotHeld", "Stale/NotHeld", "Stale/NotHeld"]),
        ("leased", ["leased", "committing", "committing", "NotCommitting", "removed"]),
        ("expired", ["leased", "committing", "committing", "NotCommitting", "removed"]),
        ("committing", ["NotLeased", "unchanged", "OtherManifest", "done", "Committing"]),
        ("done", ["NotLeased", "Done", "Done", "Already", "Done"]),
        (
            "damaged",
            ["Damaged", "Stale/Damaged", "Stale/Damaged", "Stale/Damaged", "Stale/Damaged"],
        ),
    ];
    let other: [(&str, [&str; 5]); 6] = [
        own[0],
        ("leased", STALE),
        ("expired", STALE),
        ("committing", STALE),
        ("done", STALE),
        own[5],
    ];
    for (rows, is_own) in [(own, true), (other, false)] {
        assert_eq!(rows.map(|(state, _)| state), STATES);
        for (state, expected) in rows {
            let now = moment_of(state);
            for (verb, expected) in expected.into_iter().enumerate() {
                let (mut table, token) = Table::in_state(state);
                let token = if is_own { token } else { FencingToken::new(Fence(1), 7).into() };
                let (view, before) = (table.item_view(now), table.stored.clone());
                let outcome = match verb {
                    0 => table.outcome(renewed(&view, &token)),
                    1 => table.outcome(begin_commit(&view, &token, &manifest(1))),
                    2 => table.outcome(begin_commit(&view, &token, &manifest(2))),
                    3 => table.outcome(complete(&view, &token)),
                    _ => table.outcome(abandon(&view, &token)),
                };
                assert_eq!(outcome, expected, "{state}, verb {verb}, own token: {is_own}");
                let written = ["leased", "committing", "done", "removed"].contains(&expected);
                assert_eq!(table.stored != before, written);
            }
        }
    }
}

#[test]
fn a_claim_answers_by_state() {
    let expected = ["leased", "Leased", "leased", "Committing", "Done", "Damaged"];
    for (state, expected) in STATES.into_iter().zip(expected) {
        for owner in ["a", "b"] {
            let (mut table, _) = Table::in_state(state);
            let view = table.item_view(moment_of(state));
            let outcome = table.outcome(claim_work(&view, &job(owner)));
            assert_eq!(outcome, expected, "{state} by {owner}");
        }
    }
}

#[test]
fn no_clock_takes_a_committing_or_done_or_damaged_item_away() {
    for (state, expected) in
        [("committing", "Committing"), ("done", "Done"), ("damaged", "Damaged")]
    {
        let (mut table, _) = Table::in_state(state);
        let view = table.item_view(Timestamp::MAX_SECONDS);
        assert_eq!(table.outcome(claim_work(&view, &job("b"))), expected);
    }
}

#[test]
fn pruning_removes_only_what_was_done_before_the_moment() {
    // Completed at 1020.
    for (state, before, removed) in [
        ("vacant", 9000.0, false),
        ("leased", 9000.0, false),
        ("expired", 9000.0, false),
        ("committing", 9000.0, false),
        ("damaged", 9000.0, false),
        ("done", 1020.0, false),
        ("done", 1020.1, true),
    ] {
        let (mut table, _) = Table::in_state(state);
        let pruned = prune_done(&table.item_view(9000.0), at(before));
        assert_eq!(pruned.is_some(), removed, "{state} before {before}");
        if let Some(transition) = pruned {
            assert_eq!(table.outcome::<()>(Ok(transition)), "removed");
        }
    }
}

#[test]
fn a_first_claim_stores_the_execution_under_the_digest_of_its_payload() {
    let mut table = Table::new();
    table.fence = 16;
    let token = table.claim_item(1000.5, "a").unwrap();
    let item = table.item();
    let canonical = r#"{"primary":77,"seed":"s1"}"#;
    assert_eq!(item.id, RecordId::of_work(canonical));
    assert_eq!((item.status, item.generation), (WorkStatus::Leased, 17));
    assert_eq!(item.holder.payload.as_str(), canonical);
    assert_eq!((&*item.holder.owner, item.holder.worker), ("a", 1));
    assert_eq!((&item.holder.token, item.holder.ttl), (&token, Some(ttl(60.0))));
    assert_eq!(item.holder.updated, at(1000.5));
    assert_eq!(item.holder.writer.as_ref(), Some(&table.writer));
    assert_eq!((item.history, item.manifest), (History::first(), None));
}

#[test]
fn a_work_lease_is_taken_over_from_exactly_its_ttl_on_and_counted() {
    for (owner, now, expected) in [
        ("b", 1059.999, None),
        ("a", 1059.999, None),
        ("b", 1060.0, Some((2, 1, Some("a")))),
        ("a", 1060.0, Some((2, 0, None))),
    ] {
        let mut table = Table::new();
        table.claim_item(1000.0, "a").unwrap();
        let answer = table.claim_item(now, owner);
        let Some((attempts, steals, previous)) = expected else {
            let WorkClaimRefused::Leased(holding) = answer.unwrap_err() else { panic!() };
            assert_eq!((&*holding.owner, holding.expires_at), ("a", at(1060.0)));
            continue;
        };
        answer.unwrap();
        let history = table.item().history;
        assert_eq!((history.attempts, history.steals), (attempts, steals));
        assert_eq!(history.previous_owner.as_deref(), previous);
    }
}

#[test]
fn the_manifest_outlives_completion_and_ends_with_the_item() {
    let (mut table, token) = Table::in_state("committing");
    let item = table.item();
    assert_eq!(item.manifest, Some(manifest(1)));
    assert_eq!(item.holder.updated, at(1010.0));
    let done = complete(&table.item_view(1500.0), &token).unwrap();
    table.apply(done);
    let item = table.item();
    assert_eq!((item.manifest, item.status), (Some(manifest(1)), WorkStatus::Done));
    assert_eq!(item.holder.updated, at(1500.0), "the moment that pruning compares");
}

#[test]
fn b26_b27_a_superseded_attempt_neither_commits_nor_fails_for_its_successor() {
    for successor in ["a", "b"] {
        let mut table = Table::new();
        let first = table.claim_item(1000.0, "a").unwrap();
        let second = table.claim_item(1060.0, successor).unwrap();
        assert!(second.fence() > first.fence());
        for late in ["leased", "committing", "done"] {
            let view = table.item_view(1061.0);
            assert_eq!(table.outcome(renewed(&view, &first)), "OtherToken", "{late}");
            let begun = begin_commit(&view, &first, &manifest(1));
            assert_eq!(table.outcome(begun), "Stale/OtherToken", "{late}");
            assert_eq!(table.outcome(complete(&view, &first)), "Stale/OtherToken", "{late}");
            assert_eq!(table.outcome(abandon(&view, &first)), "Stale/OtherToken", "{late}");
            let step = match late {
                "leased" => begin_commit(&view, &second, &manifest(2)).unwrap(),
                "committing" => complete(&view, &second).unwrap(),
                _ => break,
            };
            table.apply(step);
        }
        assert_eq!(table.item().manifest, Some(manifest(2)));
    }
}

#[test]
fn b28_a_late_writer_of_a_pruned_or_abandoned_item_is_stale() {
    for ended in ["pruned", "abandoned"] {
        let mut table = Table::new();
        let first = table.claim_item(1000.0, "a").unwrap();
        let second = table.claim_item(1060.0, "a").unwrap();
        if ended == "pruned" {
            let decided = begin_commit(&table.item_view(1061.0), &second, &manifest(1)).unwrap();
            table.apply(decided);
            let done = complete(&table.item_view(1062.0), &second).unwrap();
            table.apply(done);
            let pruned = prune_done(&table.item_view(2000.0), at(1900.0)).unwrap();
            table.apply(pruned);
        } else {
            let abandoned = abandon(&table.item_view(1061.0), &second).unwrap();
            table.apply(abandoned);
        }
        assert!(table.stored.is_empty());
        for late in [&first, &second] {
            let view = table.item_view(2001.0);
            let begun = begin_commit(&view, late, &manifest(1));
            assert_eq!(table.outcome(begun), "Stale/NotHeld", "{ended}");
            assert_eq!(table.outcome(complete(&view, late)), "Stale/NotHeld", "{ended}");
        }
        // A new attempt does not let the old ones in.
        let third = table.claim_item(2002.0, "a").unwrap();
        assert!(third.fence() > second.fence());
        let view = table.item_view(2003.0);
        assert_eq!(table.outcome(begin_commit(&view, &second, &manifest(1))), "Stale/OtherToken");
    }
}

#[test]
fn a_dispatch_generation_rises_with_each_claim_also_across_an_abandoned_one() {
    let mut table = Table::new();
    let mut last = 0;
    for round in 0..6 {
        let now = 1000.0 + 100.0 * f64::from(round);
        let token = table.claim_item(now, if round % 2 == 0 { "a" } else { "b" }).unwrap();
        let generation = table.item().generation;
        assert!(generation > last, "{generation} after {last}");
        assert_eq!(Some(Fence(generation)), token.fence());
        last = generation;
        if round % 3 == 2 {
            let abandoned = abandon(&table.item_view(now), &token).unwrap();
            table.apply(abandoned);
        }
    }
}

#[test]
fn a_generation_rises_above_that_of_another_programs_attempt() {
    // To be above every fence in the view is not enough: another program's token has none, and its
    // generation may be above our counter.
    let mut table = Table::new();
    let line = format!(
        "{{\"dispatch_generation\":900,\"id\":\"{}\",\"schema\":1,\"status\":\"leased\",\
         \"token\":\"py-1\",\"updated\":1000.0}}\n",
        key().id
    );
    table.stored.insert(key(), line.into_bytes());
    assert_eq!(table.item().generation, 900);
    let token = table.claim_item(1060.0, "a").unwrap();
    assert_eq!(token.fence(), Some(Fence(901)));
    assert_eq!(table.item().generation, 901);
}

#[test]
fn any_coordinator_finishes_a_committing_item_of_another_program() {
    let line = format!(
        "{{\"dispatch_generation\":3,\"id\":\"{}\",\"lane\":\"x\",\"manifest\":{{\"inputs\":[1]}},\
         \"schema\":1,\"status\":\"committing\",\"token\":\"py-1\",\"updated\":1000.0}}\n",
        key().id
    );
    let mut table = Table::new();
    table.stored.insert(key(), line.into_bytes());
    let token = Token::new("py-1").unwrap();
    let view = table.item_view(5000.0);
    assert_eq!(table.outcome(begin_commit(&view, &token, &manifest(1))), "committing");
    assert_eq!(table.outcome(complete(&view, &token)), "done");
    let item = table.item();
    assert_eq!((item.generation, item.manifest), (3, Some(manifest(1))));
    assert_eq!(item.extra["lane"].get(), "\"x\"");
}

#[test]
#[should_panic(expected = "a view of this item")]
fn a_view_of_another_item_is_a_broken_engine() {
    let view = Table::new().view(1000.0, [Key::work(RecordId::of_work("{}"))]);
    let _ = claim_work(&view, &job("a"));
}
