//! How the last part of a ttl is spent when the lease cannot be kept.
//!
//! ```text
//! renewed ............................ TERM ....... KILL ..... expiry
//!         heartbeats every third of ttl |-- grace --|-- slack --|
//!                                       |------- margin --------|
//! ```

use std::time::Duration;

/// The most that is kept back for a killed process to be gone.
const LONGEST_SLACK: Duration = Duration::from_secs(1);
/// The longest grace that is given unasked.
const LONGEST_DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Times before expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Between TERM and KILL.
    pub(super) grace: Duration,
    /// Between KILL and expiry.
    pub(super) slack: Duration,
    /// How often the lease and the child are looked at unasked.
    pub(super) slice: Duration,
}

impl Budget {
    /// Divides a ttl; a grace that would end after expiry is refused.
    pub(super) fn new(ttl: Duration, grace: Option<Duration>) -> Result<Self, String> {
        let slack = (ttl / 12).min(LONGEST_SLACK);
        let grace = grace.unwrap_or((ttl / 6).min(LONGEST_DEFAULT_GRACE));
        let most = (ttl / 2).saturating_sub(slack);
        if grace > most {
            return Err(format!(
                "a grace of {grace:?} is too long for a ttl of {ttl:?}: at most {most:?}, so that \
                 the command is dead before the lease expires and a heartbeat can fail once"
            ));
        }
        let slice = (ttl / 20).clamp(Duration::from_millis(1), Duration::from_millis(100));
        Ok(Self { grace, slack, slice })
    }

    /// How long before expiry the lease counts as lost.
    pub(super) fn margin(self) -> Duration {
        self.grace + self.slack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_grace_and_kill_end_before_expiry_for_every_ttl() {
        for millis in [1, 50, 1000, 3000, 60_000, 86_400_000] {
            let ttl = Duration::from_millis(millis);
            let budget = Budget::new(ttl, None).unwrap();
            assert!(budget.margin() <= ttl / 2, "{ttl:?}: {budget:?}");
            assert!(budget.slack > Duration::ZERO, "{ttl:?}");
            assert!(budget.grace <= Duration::from_secs(5), "{ttl:?}");
        }
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused_with_the_longest_that_does() {
        let ttl = Duration::from_secs(3);
        assert!(Budget::new(ttl, Some(Duration::from_millis(1250))).is_ok());
        let error = Budget::new(ttl, Some(Duration::from_millis(1251))).unwrap_err();
        assert!(error.contains("at most 1.25s"), "{error}");
        assert!(Budget::new(ttl, Some(Duration::MAX)).is_err());
    }
}
