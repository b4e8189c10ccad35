//! Whether a history of calls can be explained by one order of them.
//!
//! An order explains a history if each call, made alone in that order on an empty table, gets the
//! answer that was recorded, and no call stands before one that had ended before it began. The
//! search tries every order that real time allows and remembers where it has been; calls of one
//! thread follow each other, so a place is how far each thread is, and who holds what.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::Token;

/// What was asked.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// Of these targets.
    Claim(Vec<u64>),
    /// Of these targets under this token.
    Heartbeat(Vec<u64>, Token),
    /// The same.
    Release(Vec<u64>, Token),
}

/// What was answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Granted(Token),
    Done,
    /// With each target in the way and who holds it.
    Refused(BTreeMap<u64, Option<Token>>),
}

impl Answer {
    pub(super) fn refused(members: impl Iterator<Item = (u64, Option<Token>)>) -> Self {
        Self::Refused(members.collect())
    }
}

/// One call, by ticks that all threads share.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) call: Call,
    pub(super) answer: Answer,
    pub(super) began: u64,
    pub(super) ended: u64,
}

/// Who holds what.
type Held = BTreeMap<u64, Token>;

/// The table after `event`, if its answer is the one that the table would give.
fn step(held: &Held, event: &Event) -> Option<Held> {
    let mut next = held.clone();
    let answer = match &event.call {
        Call::Claim(targets) => {
            let conflicts: BTreeMap<_, _> = targets
                .iter()
                .filter_map(|target| Some((*target, Some(held.get(target)?.clone()))))
                .collect();
            if conflicts.is_empty() {
                // Any token will do; that it is a new one is what the fence checks are for.
                let Answer::Granted(token) = &event.answer else { return None };
                next.extend(targets.iter().map(|target| (*target, token.clone())));
                event.answer.clone()
            } else {
                Answer::Refused(conflicts)
            }
        }
        Call::Heartbeat(targets, token) | Call::Release(targets, token) => {
            let lost: BTreeMap<_, _> = targets
                .iter()
                .filter(|target| held.get(target) != Some(token))
                .map(|target| (*target, held.get(target).cloned()))
                .collect();
            if lost.is_empty() {
                if matches!(event.call, Call::Release(..)) {
                    next.retain(|target, _| !targets.contains(target));
                }
                Answer::Done
            } else {
                Answer::Refused(lost)
            }
        }
    };
    (answer == event.answer).then_some(next)
}

/// Searches an order of the events of all threads; where there is none, says what is stuck where
/// the search came farthest.
pub(super) fn check(threads: &[Vec<Event>]) -> Result<(), String> {
    let start = (vec![0; threads.len()], Held::new());
    let mut seen = BTreeSet::from([start.clone()]);
    let mut open = vec![start];
    let mut farthest = (0, String::new());
    while let Some((places, held)) = open.pop() {
        let next: Vec<Option<&Event>> =
            threads.iter().zip(&places).map(|(thread, place)| thread.get(*place)).collect();
        if next.iter().all(Option::is_none) {
            return Ok(());
        }
        let done: usize = places.iter().sum();
        if farthest.1.is_empty() || done > farthest.0 {
            farthest = (done, format!("after {done} calls, with {held:?}: {next:#?}"));
        }
        let first_end = next.iter().flatten().map(|event| event.ended).min().unwrap_or(u64::MAX);
        for (thread, event) in next.iter().enumerate() {
            let Some(event) = event.filter(|event| event.began < first_end) else { continue };
            if let Some(held) = step(&held, event) {
                let mut places = places.clone();
                places[thread] += 1;
                if seen.insert((places.clone(), held.clone())) {
                    open.push((places, held));
                }
            }
        }
    }
    Err(farthest.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> Token {
        Token::new(name).unwrap()
    }

    fn claim(targets: &[u64], answer: Answer, began: u64, ended: u64) -> Event {
        Event { call: Call::Claim(targets.to_vec()), answer, began, ended }
    }

    fn granted(name: &str) -> Answer {
        Answer::Granted(token(name))
    }

    fn held(target: u64, name: &str) -> Answer {
        Answer::refused([(target, Some(token(name)))].into_iter())
    }

    fn release(targets: &[u64], name: &str, began: u64, ended: u64) -> Event {
        let call = Call::Release(targets.to_vec(), token(name));
        Event { call, answer: Answer::Done, began, ended }
    }

    #[test]
    fn calls_that_overlap_may_have_happened_in_either_order() {
        for (one, two) in [(granted("a"), held(1, "a")), (held(1, "b"), granted("b"))] {
            let history = [vec![claim(&[1], one, 0, 3)], vec![claim(&[1], two, 1, 2)]];
            check(&history).unwrap();
        }
    }

    #[test]
    fn two_grants_of_one_target_without_a_release_are_no_history() {
        let history =
            [vec![claim(&[1], granted("a"), 0, 3)], vec![claim(&[1, 2], granted("b"), 1, 2)]];
        check(&history).unwrap_err();
    }

    #[test]
    fn an_answer_may_not_rest_on_what_had_not_begun_or_was_over() {
        let over = [
            vec![claim(&[1], granted("a"), 0, 1), release(&[1], "a", 2, 3)],
            vec![claim(&[1], held(1, "a"), 4, 5)],
        ];
        check(&over).unwrap_err();
        let not_begun =
            [vec![claim(&[1], held(1, "a"), 0, 1)], vec![claim(&[1], granted("a"), 2, 3)]];
        check(&not_begun).unwrap_err();
    }

    #[test]
    fn a_group_that_was_half_visible_is_no_history() {
        let half = [
            vec![claim(&[1, 2], granted("a"), 0, 9)],
            // One member is held already, the other not yet, though the calls follow each other.
            vec![claim(&[1], held(1, "a"), 1, 2), claim(&[2], granted("b"), 3, 4)],
        ];
        check(&half).unwrap_err();
    }

    #[test]
    fn a_refusal_that_leaves_out_a_holder_is_no_history() {
        let history = [vec![
            claim(&[1], granted("a"), 0, 1),
            claim(&[2], granted("b"), 2, 3),
            claim(&[1, 2], held(1, "a"), 4, 5),
        ]];
        check(&history).unwrap_err();
    }
}
