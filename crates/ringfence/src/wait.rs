//! Waiting with one deadline, jitter, and a flag that ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence_env::{Deadline, World};

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A try blocks in kernel locks no longer than this, so that a cancelled wait ends soon.
const LONGEST_TRY: Duration = Duration::from_millis(200);

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
    /// `in_the_way` looks, without excluding anybody, whether a try would be refused.
    pub(crate) fn spend<T, E>(
        mut self,
        mut try_once: impl FnMut(Duration) -> Result<T, E>,
        is_worth_waiting: impl Fn(&E) -> bool,
        mut in_the_way: impl FnMut() -> Option<E>,
        cancelled: impl FnOnce() -> E,
    ) -> Result<T, E> {
        loop {
            let mut refused = match try_once(self.for_one_try()) {
                Ok(done) => return Ok(done),
                Err(error) if is_worth_waiting(&error) => error,
                Err(error) => return Err(error),
            };
            loop {
                match self.pause() {
                    Verdict::Cancelled => return Err(cancelled()),
                    Verdict::Over => return Err(refused),
                    Verdict::TryAgain => {}
                }
                match in_the_way() {
                    // So that the refusal in the end names who is in the way then.
                    Some(now) if is_worth_waiting(&now) => refused = now,
                    _ => break,
                }
            }
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
