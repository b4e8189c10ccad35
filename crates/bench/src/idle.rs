//! Whether the machine has time for a measurement.
//!
//! A busy machine lengthens every contender by the scheduler's slices and so pulls all ratios towards 1.

use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(200);
/// The share of all processors' time that must be idle.
const QUIET: f64 = 0.7;

/// Waits for quiet moments, and counts them.
#[derive(Debug)]
pub(crate) struct Gate {
    /// How long one round waits.
    patience: Duration,
    /// How long all rounds together may still wait.
    left: Duration,
    /// Rounds that began on a quiet machine.
    pub(crate) quiet: u32,
    /// Rounds.
    pub(crate) rounds: u32,
}

impl Gate {
    /// A gate that holds one round for at most `patience`, and all together for at most `in_all`.
    pub(crate) fn new(patience: Duration, in_all: Duration) -> Self {
        Self { patience, left: in_all, quiet: 0, rounds: 0 }
    }

    /// Whether it has given up waiting.
    pub(crate) fn has_given_up(&self) -> bool {
        self.left.is_zero() && self.quiet < self.rounds
    }

    /// Waits until the machine is quiet, or for as long as it may.
    pub(crate) fn pass(&mut self) {
        let began = Instant::now();
        let patience = self.patience.min(self.left);
        let quiet = loop {
            let before = times();
            std::thread::sleep(LOOK);
            let (Some(before), Some(after)) = (before, times()) else { break false };
            if share(before, after) >= QUIET {
                break true;
            }
            if began.elapsed() >= patience {
                break false;
            }
        };
        // The first look is part of every round and no waiting.
        self.left = self.left.saturating_sub(began.elapsed().saturating_sub(2 * LOOK));
        self.rounds += 1;
        self.quiet += u32::from(quiet);
    }
}

/// Idle and total time of all processors since boot, in the kernel's ticks.
fn times() -> Option<(u64, u64)> {
    parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn parse(stat: &str) -> Option<(u64, u64)> {
    let mut words = stat.lines().next()?.split_whitespace();
    if words.next()? != "cpu" {
        return None;
    }
    // The ninth and tenth are guests' time, which is in the first two already.
    let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((idle, ticks.iter().sum()))
}

fn share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (idle, total) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if total == 0 { 0.0 } else { idle as f64 / total as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_stolen_time_is_not() {
        let before = parse("cpu  100 0 100 700 100 0 0 0 9 9\ncpu0 1").unwrap();
        let after = parse("cpu  110 0 110 760 110 0 0 10 9 9\ncpu0 1").unwrap();
        assert_eq!((before, after), ((800, 1000), (870, 1100)));
        assert!((share(before, after) - 0.7).abs() < 1e-9);
        assert!(parse("intr 1 2 3").is_none() && parse("").is_none());
    }
}
