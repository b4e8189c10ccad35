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
