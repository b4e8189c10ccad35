//! What came about in a run, counted: a storm that never kills a recoverer shows nothing about it.

use std::collections::BTreeMap;
use std::fmt;

use ringfence_model::{Key, Token};

use crate::history::{Fate, Op, Verb};

/// Something that a random run should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A process was killed.
    Kill,
    /// A process was stopped for a while.
    Stop,
    /// The power was cut.
    Cut,
    /// The wall clock was set.
    ClockJump,
    /// The host was suspended.
    Suspend,
    /// Somebody took over a lease that had run out.
    TakeOver,
    /// From another owner.
    Steal,
    /// A process was killed while its intent stood.
    KillWithIntent,
    /// The power was cut while the intent of a living process stood.
    CutWithIntent,
    /// The power was cut while the intent of a process stood that had been killed before.
    KillThenCut,
    /// A failed call marked its intent as aborted.
    Abort,
    /// Somebody began to finish a dead process's intent.
    Recovery,
    /// One that had been aborted.
    RecoveryOfAbort,
    /// A process was killed while it finished an intent.
    KillInRecovery,
    /// The power was cut while somebody finished an intent.
    CutInRecovery,
    /// A process found the intent that it wanted to finish in the hands of another.
    RecoverersMeet,
    /// Two processes finished two intents at the same time.
    RecoverersTogether,
    /// Whoever finished an intent synced what somebody else's sync had failed on.
    RecoverySyncsLost,
    /// A reader read an intent that stood.
    ReaderMeetsIntent,
    /// A reader read an intent that somebody was finishing.
    ReaderMeetsRecovery,
    /// A process went on under a lease that somebody else had taken over.
    Overtaken,
    /// The same after it had been stopped or had slept through the end of its lease.
    OvertakenAsleep,
    /// A call failed and the old state was put back.
    Restored,
    /// A call ended with an unknown outcome.
    Unknown,
    /// A call was cut short by a kill or a power cut.
    CutShort,
    /// A group and a work item were granted as one.
    JobClaimed,
    /// An item was marked as done and its group given up.
    JobCompleted,
    /// A group was given up whose item somebody else had marked as done.
    JobFinishedByAnother,
    /// Both were given up.
    JobAbandoned,
    /// A group was renewed by a rule that saw its holders alone.
    RenewedAtAGlance,
    /// And given up.
    ReleasedAtAGlance,
    /// The file of a segment was made larger.
    SegmentGrown,
    /// And smaller again.
    SegmentCut,
}

/// Every event; those of intents and of journals only come about where there are any.
pub const EVENTS: [Event; 33] = [
    Event::Kill,
    Event::Stop,
    Event::Cut,
    Event::ClockJump,
    Event::Suspend,
    Event::TakeOver,
    Event::Steal,
    Event::KillWithIntent,
    Event::CutWithIntent,
    Event::KillThenCut,
    Event::Abort,
    Event::Recovery,
    Event::RecoveryOfAbort,
    Event::KillInRecovery,
    Event::CutInRecovery,
    Event::RecoverersMeet,
    Event::RecoverersTogether,
    Event::RecoverySyncsLost,
    Event::ReaderMeetsIntent,
    Event::ReaderMeetsRecovery,
    Event::Overtaken,
    Event::OvertakenAsleep,
    Event::Restored,
    Event::Unknown,
    Event::CutShort,
    Event::JobClaimed,
    Event::JobCompleted,
    Event::JobFinishedByAnother,
    Event::JobAbandoned,
    Event::RenewedAtAGlance,
    Event::ReleasedAtAGlance,
    Event::SegmentGrown,
    Event::SegmentCut,
];

impl Event {
    /// Whether it needs intents.
    pub fn is_of_intents(self) -> bool {
        (Self::KillWithIntent..=Self::ReaderMeetsRecovery).contains(&self)
    }

    /// Whether only journals have it.
    pub fn is_of_journals(self) -> bool {
        self >= Self::RenewedAtAGlance
    }
}

/// How often each event came about, and in how many runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Event, (u64, u64)>,
}

impl Coverage {
    /// One event.
    pub fn note(&mut self, event: Event) {
        let entry = self.counts.entry(event).or_insert((0, 1));
        entry.0 += 1;
    }

    /// Adds what came about in other runs.
    pub fn add(&mut self, other: &Self) {
        for (event, (count, runs)) in &other.counts {
            let entry = self.counts.entry(*event).or_default();
            entry.0 += count;
            entry.1 += runs;
        }
    }

    /// How often an event came about.
    pub fn count(&self, event: Event) -> u64 {
        self.counts.get(&event).map_or(0, |entry| entry.0)
    }

    /// In how many runs.
    pub fn runs(&self, event: Event) -> u64 {
        self.counts.get(&event).map_or(0, |entry| entry.1)
    }

    /// What the history of one run tells.
    pub fn note_calls(&mut self, calls: &[Op]) {
        for (index, op) in calls.iter().enumerate() {
            match op.fate {
                Fate::Restored(_) => self.note(Event::Restored),
                Fate::Unknown(_) => self.note(Event::Unknown),
                Fate::Never => self.note(Event::CutShort),
                _ => {}
            }
            if op.fate == Fate::Done {
                match op.verb {
                    Verb::ClaimJob => self.note(Event::JobClaimed),
                    Verb::CompleteJob if op.was_done() => self.note(Event::JobFinishedByAnother),
                    Verb::CompleteJob => self.note(Event::JobCompleted),
                    Verb::AbandonJob => self.note(Event::JobAbandoned),
                    Verb::Heartbeat if op.at_a_glance => self.note(Event::RenewedAtAGlance),
                    Verb::Release if op.at_a_glance => self.note(Event::ReleasedAtAGlance),
                    _ => {}
                }
            }
            let Some((decided, seen)) = &op.decided else { continue };
            let earlier = calls.get(..index).unwrap_or_default();
            for (key, token) in op.keys.iter().zip(seen.iter().map(|state| &state.token)) {
                let Some(token) = token else { continue };
                match op.verb {
                    Verb::Claim | Verb::ClaimWork | Verb::ClaimJob if op.granted.is_some() => {
                        self.note(Event::TakeOver);
                        if grantee(earlier, *key, token).is_some_and(|proc| proc != op.proc) {
                            self.note(Event::Steal);
                        }
                    }
                    Verb::Claim | Verb::ClaimWork | Verb::ClaimJob => {}
                    _ if op.token.as_ref() != Some(token)
                        && token.fence() > op.token.as_ref().and_then(Token::fence)
                        && grantee(calls, *key, token).is_some_and(|proc| proc != op.proc) =>
                    {
                        self.note(Event::Overtaken);
                        // Its own last call on the record came before the other one's grant.
                        let last = earlier.iter().rev().find(|other| other.proc == op.proc);
                        let pause = last.and_then(|last| last.ended).map(|ended| ended.truth);
                        let slept = pause.is_some_and(|ended| {
                            decided.truth.saturating_sub(ended).as_secs_f64() > 1.0
                        });
                        if slept {
                            self.note(Event::OvertakenAsleep);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Who was granted a token.
fn grantee(calls: &[Op], key: Key, token: &Token) -> Option<usize> {
    let fence = token.fence()?;
    let granted = |op: &&Op| {
        op.keys.contains(&key) && op.granted.as_ref().is_some_and(|(_, mine)| mine.fence() == fence)
    };
    calls.iter().find(granted).map(|op| op.proc)
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in EVENTS {
            let name = format!("{event:?}");
            writeln!(f, "  {name:22} {:>8} in {:>6} runs", self.count(event), self.runs(event))?;
        }
        Ok(())
    }
}
