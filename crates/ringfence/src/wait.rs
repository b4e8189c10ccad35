//! Waiting with one deadline and a flag that ends it: in the engine's queue where it has one, else with
//! pauses and jitter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence_engine::Place;
use ringfence_env::{Deadline, World};
use ringfence_model::rules::{Conflict, Holding};

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A try blocks in kernel locks no longer than this, so that a cancelled wait ends soon.
const LONGEST_TRY: Duration = Duration::from_millis(200);
/// How soon a waiter in a queue notices that it was cancelled, or that a holder that leases are tied to
/// is gone: nobody wakes it then.
const LONGEST_DEAFNESS: Duration = Duration::from_millis(100);

/// What to do after a pause.
enum Verdict {
    TryAgain,
    Over,
    Cancelled,
}

/// The patience of one waiter.
pub(crate) struct Patience<'w> {
    world: &'w World,
    deadline: Deadline,
    pause: Duration,
    cancelled: Option<Arc<AtomicBool>>,
}

impl<'w> Patience<'w> {
    pub(crate) fn new(
        world: &'w World,
        wait: Duration,
        cancelled: Option<Arc<AtomicBool>>,
    ) -> Self {
        let deadline = world.clock.deadline(wait);
        Self { world, deadline, pause: FIRST_PAUSE, cancelled }
    }

    /// Tries until it is done, until it is refused for what is not worth waiting for, or until the time
    /// is over: then the last refusal is the answer.
    ///
    /// With a place in a queue it tries only when it is first, and sleeps until something is freed or
    /// until what it was refused for may have changed by itself.
    pub(crate) fn spend<T, E>(
        mut self,
        place: Option<&dyn Place>,
        mut try_once: impl FnMut(Duration) -> Result<T, E>,
        mut wait: impl Wait<E>,
    ) -> Result<T, E> {
        let mut refused: Option<E> = None;
        loop {
            let seen = place.map_or(0, Place::seen);
            let obstacle = if place.is_some_and(|place| !place.is_first()) {
                Some(wait.behind_others())
            } else if refused.is_some() {
                // So that the refusal in the end names who is in the way then.
                wait.in_the_way().filter(|error| wait.is_worth_it(error))
            } else {
                None
            };
            let error = match obstacle {
                Some(error) => error,
                None => match try_once(self.for_one_try()) {
                    Ok(done) => return Ok(done),
                    Err(error) if wait.is_worth_it(&error) => error,
                    Err(error) => return Err(error),
                },
            };
            let verdict = match (place, wait.changes_within(&error)) {
                (Some(place), Some(longest)) => self.sleep(place, seen, longest),
                _ => self.pause(),
            };
            match verdict {
                Verdict::Cancelled => return Err(wait.cancelled()),
                Verdict::Over => return Err(error),
                Verdict::TryAgain => refused = Some(error),
            }
        }
    }

    /// Sleeps until somebody frees something, at most `longest`.
    fn sleep(&self, place: &dyn Place, seen: u64, longest: Duration) -> Verdict {
        let until = self.world.clock.deadline(longest);
        loop {
            if self.is_cancelled() {
                return Verdict::Cancelled;
            }
            if self.world.clock.left(self.deadline).is_zero() {
                return Verdict::Over;
            }
            let left = self.world.clock.left(until).min(self.world.clock.left(self.deadline));
            if place.seen() != seen || self.world.clock.left(until).is_zero() {
                return Verdict::TryAgain;
            }
            let deaf = if self.cancelled.is_some() { LONGEST_DEAFNESS } else { Duration::MAX };
            place.wait(seen, left.min(deaf));
        }
    }

    /// How long one try may block in kernel locks.
    fn for_one_try(&self) -> Duration {
        self.world.clock.left(self.deadline).min(LONGEST_TRY)
    }

    /// Sleeps a little, longer each time, by a random share so that waiters spread out.
    fn pause(&mut self) -> Verdict {
        if self.is_cancelled() {
            return Verdict::Cancelled;
        }
        let left = self.world.clock.left(self.deadline);
        if left.is_zero() {
            return Verdict::Over;
        }
        let mut byte = [128];
        // Without randomness every waiter pauses equally long: slower, not wrong.
        let _ = self.world.entropy.fill(&mut byte);
        let share = 0.5 + f64::from(byte[0]) / 256.0;
        self.world.clock.sleep(self.pause.mul_f64(share).min(left));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if self.is_cancelled() { Verdict::Cancelled } else { Verdict::TryAgain }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// What a kind of claim knows of waiting.
pub(crate) trait Wait<E> {
    /// Whether the same claim may succeed later.
    fn is_worth_it(&self, error: &E) -> bool;

    /// Looks, without excluding anybody, what a try would be refused with.
    fn in_the_way(&mut self) -> Option<E>;

    /// What is said to whoever did not wait long enough for his turn.
    fn behind_others(&self) -> E;

    /// How soon what it was refused for may change though nobody tells; `None` if nobody would tell.
    fn changes_within(&self, error: &E) -> Option<Duration>;

    /// The answer to a wait that was ended.
    fn cancelled(&self) -> E;
}

/// How soon one of these holders may be gone though nobody tells.
pub(crate) fn until_changed(conflicts: &[Conflict], period: Duration) -> Duration {
    let ends = conflicts.iter().map(|conflict| until_over(&conflict.holding, period));
    ends.min().unwrap_or(period)
}

/// The same of one holder: its lease runs out, or its process ends without a word.
pub(crate) fn until_over(holding: &Holding, period: Duration) -> Duration {
    let left = Duration::try_from_secs_f64(holding.expires_in.max(0.0)).unwrap_or(Duration::MAX);
    // It is judged by two clocks, and never early.
    let over = left.saturating_add(FIRST_PAUSE).min(period);
    if holding.tied { over.min(LONGEST_DEAFNESS) } else { over }
}
