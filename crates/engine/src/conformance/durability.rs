//! E3, as far as a restart can show it: what was acknowledged is there, what was removed is not.

use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Payload, Token};

use super::Testbed;
use super::kit::*;

pub(super) fn whatever_was_acknowledged_outlives_a_restart<T: Testbed>(bed: &T) {
    let mut dice = Dice::new(7);
    let mut held = Vec::new();
    let mut now = 0.0;
    for _ in 0..5 {
        let engine = bed.reopen();
        for _ in 0..12 {
            now += 1.0;
            let first = u64::try_from(dice.below(20)).unwrap() + 1;
            let size = u64::try_from(dice.below(4)).unwrap() + 1;
            let request = ask("a", first..first + size);
            match dice.below(4) {
                0 if !held.is_empty() => {
                    let (group, token) = held.swap_remove(dice.below(held.len()));
                    release(&engine, &group, token, at(now)).unwrap();
                }
                1 if !held.is_empty() => {
                    let (group, token) = &held[dice.below(held.len())];
                    heartbeat(&engine, group, *token, at(now)).unwrap();
                }
                _ => {
                    let free = held.iter().all(|(group, _): &(ringfence_model::TargetGroup, _)| {
                        group.targets().all(|target| !request.group.contains(target))
                    });
                    let request = ClaimRequest { ttl: ttl(1e6), ..request };
                    let answer = claim(&engine, &request, at(now));
                    assert_eq!(answer.is_ok(), free, "{answer:?}");
                    if let Ok(token) = answer {
                        held.push((request.group, token));
                    }
                }
            }
        }
        let before = everything(&engine);
        drop(engine);
        let engine = bed.reopen();
        assert_eq!(everything(&engine), before);
        for (group, token) in &held {
            for target in group.targets() {
                assert_eq!(target_record(&engine, target.get()).holder.token, (*token).into());
            }
        }
    }
}

pub(super) fn a_full_group_with_the_largest_payload_outlives_a_restart<T: Testbed>(bed: &T) {
    let request = ClaimRequest { payload: largest_payload(), ..ask("a", 1..=64) };
    let token = claim(&bed.engine(), &request, at(0.0)).unwrap();
    let engine = bed.reopen();
    for number in 1..=64 {
        let record = target_record(&engine, number);
        assert_eq!(record.holder.token, token.into());
        assert!(record.holder.payload == request.payload, "{number}");
    }
    heartbeat(&engine, &request.group, token, at(1.0)).unwrap();
}

pub(super) fn what_was_removed_stays_removed<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let request = ask("a", 1..=16);
    let token = claim(&engine, &request, at(0.0)).unwrap();
    release(&engine, &request.group, token, at(1.0)).unwrap();
    let (given_up, done) = (ask_work("a", 1), ask_work("a", 2));
    let token: Token = claim_work(&engine, &given_up, at(0.0)).unwrap().into();
    on_work(&engine, &given_up, at(1.0), |v| rules::abandon(v, &token)).unwrap();
    let token: Token = claim_work(&engine, &done, at(0.0)).unwrap().into();
    let nothing = Payload::empty();
    on_work(&engine, &done, at(1.0), |v| rules::begin_commit(v, &token, &nothing)).unwrap();
    on_work(&engine, &done, at(2.0), |v| rules::complete(v, &token)).unwrap();
    let before = everything(&engine);
    assert_eq!(before.len(), 1);
    drop(engine);
    assert_eq!(everything(&bed.reopen()), before);
}
