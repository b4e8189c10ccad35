//! Timestamps, time-to-live, and when a lease is expired.
//!
//! A lease is active while `now - updated < ttl`; at exactly `ttl` it is expired. A contender takes
//! it over only if *every* clock it has evidence from agrees (see [`Moment::is_expired`]), so that a
//! forward jump of one clock steals nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::record::Writer;

/// Unix seconds: finite, not negative, before the year 10000.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Timestamp(f64);

impl Timestamp {
    /// The last second of the year 9999.
    pub const MAX_SECONDS: f64 = 253_402_300_799.0;

    /// Checks a number of seconds.
    pub fn from_seconds(seconds: f64) -> Result<Self, TimeError> {
        if !seconds.is_finite() {
            return Err(TimeError::NotFinite);
        }
        if seconds < 0.0 {
            return Err(TimeError::Negative(seconds));
        }
        if seconds > Self::MAX_SECONDS {
            return Err(TimeError::TooFar(seconds));
        }
        // Negative zero would be stored as `-0.0`.
        Ok(Self(seconds + 0.0))
    }

    /// From a duration since the Unix epoch; anything past the year 9999 is clamped to its end.
    pub fn from_unix(since_epoch: Duration) -> Self {
        Self(since_epoch.as_secs_f64().min(Self::MAX_SECONDS))
    }

    /// Seconds since the Unix epoch.
    pub fn seconds(self) -> f64 {
        self.0
    }

    /// This moment plus `ttl`: the first moment at which a lease renewed now is expired.
    #[must_use]
    pub fn after(self, ttl: Ttl) -> Self {
        let sum = self.0 + ttl.seconds();
        // Where the sum was rounded down, a lease would still be active at it.
        let expired = if sum - self.0 < ttl.seconds() { sum.next_up() } else { sum };
        Self(expired.min(Self::MAX_SECONDS))
    }
}

/// How long a lease lasts without a heartbeat: one millisecond to ten years, stored in the record.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ttl(f64);

impl Ttl {
    /// Ten years, in seconds.
    pub const MAX_SECONDS: f64 = 315_576_000.0;
    /// One millisecond, in seconds.
    pub const MIN_SECONDS: f64 = 0.001;

    /// Checks a number of seconds.
    pub fn from_seconds(seconds: f64) -> Result<Self, TimeError> {
        if !seconds.is_finite() {
            return Err(TimeError::NotFinite);
        }
        if (Self::MIN_SECONDS..=Self::MAX_SECONDS).contains(&seconds) {
            Ok(Self(seconds))
        } else {
            Err(TimeError::TtlRange(seconds))
        }
    }

    /// Checks a duration.
    pub fn new(duration: Duration) -> Result<Self, TimeError> {
        Self::from_seconds(duration.as_secs_f64())
    }

    /// Seconds.
    pub fn seconds(self) -> f64 {
        self.0
    }

    /// The same as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

/// A reading of the boot-time clock (it runs on in suspend), bound to one boot of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct BootMoment {
    /// The kernel's identity of this boot.
    pub boot: Arc<str>,
    /// Seconds since that boot.
    pub seconds: f64,
    /// Lives of processes of this boot that are proven to have ended; see
    /// [`WriterBoot::life`](crate::record::WriterBoot::life).
    pub gone: Vec<Arc<str>>,
}

/// The moment at which a rule decides, as far as the clocks at hand can tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// Wall clock.
    pub wall: Timestamp,
    /// Boot-time clock of this host; absent when the caller supplied `now`.
    pub boot: Option<BootMoment>,
    /// The store's own clock (a fresh file's time stamp), where the engine could ask it.
    pub store: Option<Timestamp>,
}

impl Moment {
    /// A moment that the caller supplied; it replaces every clock.
    pub fn given(now: Timestamp) -> Self {
        Self { wall: now, boot: None, store: None }
    }

    /// Whether a lease last renewed at `updated` by `writer` has run out.
    ///
    /// It has if it is tied to the life of a process that is proven to be gone. Otherwise the wall
    /// clock must say so. Where the record was last written in this boot of this host, the
    /// boot-time clock must agree; otherwise the store's clock must agree where it is known. Evidence
    /// from a boot-time clock that ran backwards is from another time namespace and is not used.
    pub fn is_expired(&self, updated: Timestamp, ttl: Ttl, writer: Option<&Writer>) -> bool {
        if self.is_gone(writer) {
            return true;
        }
        let by = |now: f64, then: f64| now - then >= ttl.seconds();
        if !by(self.wall.seconds(), updated.seconds()) {
            return false;
        }
        if let Some(age) = self.age_since_boot_reading(writer) {
            return age >= ttl.seconds();
        }
        self.store.is_none_or(|store| by(store.seconds(), updated.seconds()))
    }

    /// Whether only the store's clock could confirm that this lease has run out.
    pub fn needs_store_clock(&self, updated: Timestamp, ttl: Ttl, writer: Option<&Writer>) -> bool {
        self.boot.is_some()
            && self.store.is_none()
            && self.age_since_boot_reading(writer).is_none()
            && self.is_expired(updated, ttl, writer)
    }

    /// Whether the process that last renewed a lease tied to its life is proven to be gone.
    pub fn is_gone(&self, writer: Option<&Writer>) -> bool {
        let (Some(here), Some(there)) = (&self.boot, writer.and_then(|w| w.boot.as_ref())) else {
            return false;
        };
        here.boot == there.boot && there.life.as_ref().is_some_and(|life| here.gone.contains(life))
    }

    fn age_since_boot_reading(&self, writer: Option<&Writer>) -> Option<f64> {
        let here = self.boot.as_ref()?;
        let there = writer?.boot.as_ref()?;
        let age = here.seconds - there.seconds;
        (here.boot == there.boot && age >= 0.0).then_some(age)
    }
}

/// Why a number is no timestamp or time-to-live.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// NaN or infinite.
    #[error("the time is not a finite number")]
    NotFinite,
    /// Before 1970.
    #[error("the time {0} is negative: Unix seconds are expected")]
    Negative(f64),
    /// Past the year 9999.
    #[error("the time {0} is past the year 9999: Unix seconds (not milliseconds) are expected")]
    TooFar(f64),
    /// Out of range for a time-to-live.
    #[error("a ttl of {0} seconds is out of range: 1 millisecond to 10 years")]
    TtlRange(f64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::WriterBoot;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_seconds(seconds).unwrap()
    }

    fn writer(boot: &str, seconds: f64) -> Writer {
        tied(boot, seconds, None)
    }

    fn tied(boot: &str, seconds: f64, life: Option<&str>) -> Writer {
        let (boot, life) = (boot.into(), life.map(Into::into));
        Writer { host: "h".into(), pid: 1, boot: Some(WriterBoot { boot, seconds, life }) }
    }

    fn moment(wall: f64, boot: Option<(&str, f64)>, store: Option<f64>) -> Moment {
        let boot = boot.map(|(id, seconds)| BootMoment {
            boot: id.into(),
            seconds,
            gone: vec!["dead".into()],
        });
        Moment { wall: at(wall), boot, store: store.map(at) }
    }

    #[test]
    fn non_finite_negative_and_far_future_times_are_typed_errors() {
        assert_eq!(Timestamp::from_seconds(f64::NAN), Err(TimeError::NotFinite));
        assert_eq!(Timestamp::from_seconds(f64::INFINITY), Err(TimeError::NotFinite));
        assert_eq!(Timestamp::from_seconds(f64::NEG_INFINITY), Err(TimeError::NotFinite));
        assert_eq!(Timestamp::from_seconds(-1.0), Err(TimeError::Negative(-1.0)));
        assert_eq!(Timestamp::from_seconds(1e300), Err(TimeError::TooFar(1e300)));
        assert!(Timestamp::from_seconds(-0.0).unwrap().seconds().is_sign_positive());
        for bad in [f64::NAN, 0.0, -1.0, 0.0009, 1e10] {
            assert!(Ttl::from_seconds(bad).is_err(), "{bad}");
        }
        let far = at(Timestamp::MAX_SECONDS).after(Ttl::from_seconds(Ttl::MAX_SECONDS).unwrap());
        assert_eq!(far, at(Timestamp::MAX_SECONDS));
    }

    #[test]
    fn a_lease_is_expired_at_exactly_its_ttl_and_not_before() {
        let ttl = Ttl::from_seconds(60.0).unwrap();
        assert!(!moment(1059.999, None, None).is_expired(at(1000.0), ttl, None));
        assert!(moment(1060.0, None, None).is_expired(at(1000.0), ttl, None));
        assert!(!moment(10.0, None, None).is_expired(at(1000.0), ttl, None), "clock behind");
    }

    #[test]
    fn a_lease_tied_to_a_process_that_is_gone_is_over_at_once_on_its_own_boot_only() {
        let ttl = Ttl::from_seconds(60.0).unwrap();
        let now = moment(1001.0, Some(("b1", 501.0)), None);
        let over = |writer: &Writer| now.is_expired(at(1000.0), ttl, Some(writer));
        assert!(over(&tied("b1", 500.0, Some("dead"))));
        assert!(!over(&tied("b1", 500.0, Some("alive"))), "not proven");
        assert!(!over(&tied("b1", 500.0, None)), "not tied");
        assert!(!over(&tied("b2", 500.0, Some("dead"))), "of another boot");
        let given = Moment::given(at(1001.0));
        assert!(!given.is_expired(at(1000.0), ttl, Some(&tied("b1", 500.0, Some("dead")))));
    }

    #[test]
    fn a_forward_jump_of_the_wall_clock_does_not_expire_a_lease_of_the_same_boot() {
        let ttl = Ttl::from_seconds(60.0).unwrap();
        let w = writer("b1", 500.0);
        let jumped = moment(9000.0, Some(("b1", 501.0)), None);
        assert!(!jumped.is_expired(at(1000.0), ttl, Some(&w)));
        let slept = moment(9000.0, Some(("b1", 560.0)), None);
        assert!(slept.is_expired(at(1000.0), ttl, Some(&w)));
        let stepped_back = moment(900.0, Some(("b1", 999.0)), None);
        assert!(!stepped_back.is_expired(at(1000.0), ttl, Some(&w)), "both must agree");
        let rebooted = moment(9000.0, Some(("b2", 1.0)), None);
        assert!(rebooted.is_expired(at(1000.0), ttl, Some(&w)), "no evidence from another boot");
        let other_namespace = moment(9000.0, Some(("b1", 3.0)), None);
        assert!(other_namespace.is_expired(at(1000.0), ttl, Some(&w)));
    }

    #[test]
    fn the_stores_clock_refuses_a_contender_whose_clock_runs_ahead() {
        let ttl = Ttl::from_seconds(60.0).unwrap();
        let w = writer("other host", 500.0);
        let fast = moment(2800.0, Some(("b1", 5.0)), Some(1001.0));
        assert!(!fast.is_expired(at(1000.0), ttl, Some(&w)));
        assert!(moment(2800.0, Some(("b1", 5.0)), None).needs_store_clock(
            at(1000.0),
            ttl,
            Some(&w)
        ));
        assert!(!Moment::given(at(2800.0)).needs_store_clock(at(1000.0), ttl, Some(&w)));
        assert!(moment(2800.0, Some(("b1", 5.0)), Some(1060.0)).is_expired(
            at(1000.0),
            ttl,
            Some(&w)
        ));
    }
}
