//! Clocks, and waiting with a deadline.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The clocks of this host.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since the Unix epoch; people and time daemons set it, it may jump either way.
    fn wall(&self) -> Duration;

    /// Time since boot, including suspend; never set, valid within one boot.
    fn boottime(&self) -> Duration;

    /// Time that a waiting process experiences; never set, stands still in suspend.
    fn monotonic(&self) -> Duration;

    /// Blocks this thread.
    fn sleep(&self, duration: Duration);

    /// A deadline this far from now on the monotonic clock.
    fn deadline(&self, patience: Duration) -> Deadline {
        Deadline(self.monotonic().saturating_add(patience))
    }

    /// The time left until `deadline`; zero once it has passed.
    fn left(&self, deadline: Deadline) -> Duration {
        deadline.0.saturating_sub(self.monotonic())
    }
}

/// A point on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Duration);

/// The kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

fn now(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    // Before 1970 or before boot there is nothing to tell apart.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

impl Clock for SystemClock {
    fn wall(&self) -> Duration {
        now(ClockId::Realtime)
    }

    fn boottime(&self) -> Duration {
        now(ClockId::Boottime)
    }

    fn monotonic(&self) -> Duration {
        now(ClockId::Monotonic)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
