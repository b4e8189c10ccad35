//! A recorded history of four threads, checked against the table as one thread would see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ringfence_model::rules::{Lost, LostMember};
use ringfence_model::{FencingToken, TargetGroup, Token};

use super::Testbed;
use super::kit::*;
use super::linear::{self, Answer, Call, Event};

const GROUPS: [&[u64]; 6] = [&[1], &[2], &[3], &[1, 2], &[3, 2], &[2, 3, 1]];
const THREADS: u64 = 4;
const OPS: usize = 75;

pub(super) fn a_random_history_is_linearizable<T: Testbed>(bed: &T) {
    let ticks = AtomicU64::new(0);
    let threads: Vec<Vec<Event>> = thread::scope(|scope| {
        let begun: Vec<_> = (1..=THREADS)
            .map(|seed| {
                let (engine, ticks) = (bed.engine(), &ticks);
                scope.spawn(move || record(&engine, Dice::new(seed), ticks))
            })
            .collect();
        begun.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let granted =
        threads.iter().flatten().filter(|event| matches!(event.answer, Answer::Granted(_)));
    assert!(granted.count() >= 10, "a history in which little happens shows little");
    if let Err(stuck) = linear::check(&threads) {
        panic!("no single order explains these answers: {stuck}");
    }
}

fn record(engine: &Handle, mut dice: Dice, ticks: &AtomicU64) -> Vec<Event> {
    let mut mine: Vec<(TargetGroup, FencingToken)> = Vec::new();
    let mut past: Vec<(TargetGroup, FencingToken)> = Vec::new();
    let mut events = Vec::with_capacity(OPS);
    for _ in 0..OPS {
        let began = ticks.fetch_add(1, Ordering::SeqCst);
        let (call, answer) = match dice.below(6) {
            0 | 1 if !mine.is_empty() => {
                let (group, token) = mine.swap_remove(dice.below(mine.len()));
                let answer = release(engine, &group, token, at(0.0));
                past.push((group.clone(), token));
                (Call::Release(numbers(&group), token.into()), told(answer))
            }
            2 if !mine.is_empty() => {
                let (group, token) = &mine[dice.below(mine.len())];
                let answer = heartbeat(engine, group, *token, at(0.0));
                (Call::Heartbeat(numbers(group), (*token).into()), told(answer))
            }
            3 if !past.is_empty() => {
                let (group, token) = &past[dice.below(past.len())];
                let answer = heartbeat(engine, group, *token, at(0.0));
                (Call::Heartbeat(numbers(group), (*token).into()), told(answer))
            }
            _ => {
                let request = ask("a", GROUPS[dice.below(GROUPS.len())].iter().copied());
                let answer = match claim(engine, &request, at(0.0)) {
                    Ok(token) => {
                        mine.push((request.group.clone(), token));
                        Answer::Granted(token.into())
                    }
                    Err(refused) => {
                        let held = |c: &ringfence_model::rules::Conflict| {
                            (c.target.get(), Some(c.holding.token.clone()))
                        };
                        Answer::refused(refused.conflicts.iter().map(held))
                    }
                };
                (Call::Claim(numbers(&request.group)), answer)
            }
        };
        let ended = ticks.fetch_add(1, Ordering::SeqCst);
        events.push(Event { call, answer, began, ended });
    }
    events
}

fn numbers(group: &TargetGroup) -> Vec<u64> {
    group.targets().map(ringfence_model::Target::get).collect()
}

fn told(answer: Result<crate::outcome::Done, Lost>) -> Answer {
    let other = |member: &LostMember| -> (u64, Option<Token>) {
        match member {
            LostMember::NotHeld(target) => (target.get(), None),
            LostMember::OtherToken(c) => (c.target.get(), Some(c.holding.token.clone())),
            other => panic!("nothing is damaged here: {other}"),
        }
    };
    match answer {
        Ok(_) => Answer::Done,
        Err(lost) => Answer::refused(lost.members.iter().map(other)),
    }
}
