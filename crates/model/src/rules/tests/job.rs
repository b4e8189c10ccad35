//! A group and a work item as one.

use super::*;

fn item(owner: &str) -> WorkClaim {
    WorkClaim {
        payload: Payload::parse(r#"{"seed":"s1","targets":[1,2]}"#).unwrap(),
        owner: Owner::new(owner).unwrap(),
        worker: 1,
        ttl: ttl(60.0),
    }
}

fn keys() -> Vec<Key> {
    let mut keys: Vec<Key> = group([1, 2]).targets().map(Key::target).collect();
    keys.push(Key::work(item("a").id()));
    keys
}

impl Table {
    fn job_view(&self, now: f64) -> View {
        self.view(now, keys())
    }

    fn claim_job(&mut self, now: f64, owner: &str) -> Result<Token, JobRefused> {
        let granted = claim_job(&self.job_view(now), &ask(owner, [1, 2]), &item(owner))?;
        Ok(self.apply(granted).expect("a claim is a grant"))
    }
}

#[test]
fn a_job_is_granted_under_one_token_and_completed_as_one() {
    let mut table = Table::new();
    let token = table.claim_job(1000.0, "a").unwrap();
    assert_eq!(table.stored.len(), 3);
    for key in keys() {
        let Entry::Present(record) = table.entry(key) else { panic!() };
        assert_eq!(record.holder().token, token);
    }
    let early = complete_job(&table.job_view(1001.0), &group([1, 2]), &token).unwrap_err();
    assert_eq!(early, JobCompleteRefused::Work(CompleteRefused::NotCommitting));
    let view = table.view(1001.0, [keys()[2]]);
    let decided = begin_commit(&view, &token, &Payload::empty()).unwrap();
    let _ = table.apply(decided);
    let done = complete_job(&table.job_view(1002.0), &group([1, 2]), &token).unwrap();
    let _ = table.apply(done);
    assert_eq!(table.stored.keys().copied().collect::<Vec<_>>(), [keys()[2]]);
    let again = table.claim_job(2000.0, "b").unwrap_err();
    assert_eq!(again, JobRefused::Work(WorkClaimRefused::Done));
    assert_eq!(table.stored.len(), 1, "a job that is done takes no targets");
}

#[test]
fn a_job_is_refused_whole_whichever_part_is_in_the_way() {
    let mut table = Table::new();
    let other = claim(&table.view(1000.0, [keys()[1]]), &{
        let Entry::Vacant = table.entry(keys()[1]) else { panic!() };
        let target = group([1, 2]).targets().nth(1).unwrap();
        ask("other", [target.get()])
    });
    let _ = table.apply(other.unwrap());
    let before = table.stored.clone();
    assert!(matches!(table.claim_job(1001.0, "a"), Err(JobRefused::Group(_))));
    assert_eq!(table.stored, before);
    // Once the other's lease has run out both parts are free.
    let first = table.claim_job(1060.0, "a").unwrap();
    let taken = table.claim_job(1120.0, "b").unwrap();
    assert!(taken.fence() > first.fence());
    let late = complete_job(&table.job_view(1121.0), &group([1, 2]), &first).unwrap_err();
    assert!(matches!(late, JobCompleteRefused::Work(CompleteRefused::Stale(_))));
}

fn decide_commit(table: &mut Table, token: &Token) {
    let view = table.view(1001.0, [keys()[2]]);
    let decided = begin_commit(&view, token, &Payload::empty()).unwrap();
    let _ = table.apply(decided);
}

#[test]
fn a_job_whose_item_somebody_else_completed_gives_up_its_group_alone() {
    let mut table = Table::new();
    let token = table.claim_job(1000.0, "a").unwrap();
    decide_commit(&mut table, &token);
    let recovered = complete(&table.view(1002.0, [keys()[2]]), &token).unwrap();
    let _ = table.apply(recovered);
    let released = complete_job(&table.job_view(1003.0), &group([1, 2]), &token).unwrap();
    let _ = table.apply(released);
    assert_eq!(table.stored.keys().copied().collect::<Vec<_>>(), [keys()[2]]);
    let again = complete_job(&table.job_view(1004.0), &group([1, 2]), &token).unwrap_err();
    assert_eq!(again, JobCompleteRefused::Work(CompleteRefused::Already));
}

#[test]
fn a_job_of_which_a_member_is_lost_is_neither_completed_nor_given_up() {
    for done_before in [false, true] {
        let mut table = Table::new();
        let token = table.claim_job(1000.0, "a").unwrap();
        let _ = table.stored.remove(&keys()[0]);
        let before = table.stored.clone();
        let refused = abandon_job(&table.job_view(1001.0), &group([1, 2]), &token).unwrap_err();
        assert!(matches!(refused, JobAbandonRefused::Group(ref lost) if lost.members.len() == 1));
        assert_eq!(table.stored, before);
        decide_commit(&mut table, &token);
        if done_before {
            let recovered = complete(&table.view(1002.0, [keys()[2]]), &token).unwrap();
            let _ = table.apply(recovered);
        }
        let before = table.stored.clone();
        let refused = complete_job(&table.job_view(1003.0), &group([1, 2]), &token).unwrap_err();
        assert!(matches!(refused, JobCompleteRefused::Group(_)), "{refused}");
        assert_eq!(table.stored, before);
    }
}

#[test]
fn a_job_is_given_up_whole_until_its_commit_is_decided() {
    let mut table = Table::new();
    let token = table.claim_job(1000.0, "a").unwrap();
    let gone = abandon_job(&table.job_view(1001.0), &group([1, 2]), &token).unwrap();
    let _ = table.apply(gone);
    assert!(table.stored.is_empty());
    let next = table.claim_job(1002.0, "a").unwrap();
    let late = abandon_job(&table.job_view(1003.0), &group([1, 2]), &token).unwrap_err();
    assert!(matches!(late, JobAbandonRefused::Work(AbandonRefused::Stale(_))));
    decide_commit(&mut table, &next);
    let late = abandon_job(&table.job_view(1003.0), &group([1, 2]), &next).unwrap_err();
    assert_eq!(late, JobAbandonRefused::Work(AbandonRefused::Committing));
    assert_eq!(table.stored.len(), 3);
}
