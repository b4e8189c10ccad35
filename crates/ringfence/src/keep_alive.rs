//! A thread that renews a lease and tells when it is lost.
//!
//! K1. Renewals are at most a third of the ttl apart; a failed one is tried again sooner.
//! K2. A lease is lost exactly once, at the latest `margin` before it expires, and then it is never
//!     renewed again: work stops before somebody else may begin.
//! K3. Expiry is counted on the boot-time clock from *before* the last successful renewal began, so
//!     neither a suspended machine nor a slow renewal makes it seem later than it is.
//! K4. Whoever asks gets the truth even if the thread is stuck in a call that does not return.
//!
//! ```text
//! Held -[renewed]-> Held      Held -[taken over, released, past expiry - margin]-> Lost
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence_env::World;
use ringfence_model::rules::Lost;

use crate::heartbeat::HeartbeatError;
use crate::lease::Lease;

/// How a lease is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAliveOptions {
    /// How long before expiry the lease counts as lost; by default a sixth of the ttl, at most half.
    pub margin: Option<Duration>,
}

/// A lease that is renewed until it is stopped or lost.
#[must_use = "a keep-alive that is dropped stops renewing; stop it to get the lease back"]
#[derive(Debug)]
pub struct KeepAlive {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Lease>>,
}

/// How the keeping goes.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepAliveStatus {
    /// Successful renewals.
    pub renewals: u64,
    /// Failed attempts, all of them tried again.
    pub failures: u64,
    /// The longest time between two successful renewals.
    pub longest_gap: Duration,
    /// Why the lease is lost, if it is.
    pub lost: Option<LostReason>,
    /// The last failure, for people.
    pub last_failure: Option<String>,
}

/// Why a lease is lost.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// Somebody else holds it, or it was released.
    #[error(transparent)]
    Gone(#[from] Lost),
    /// It could not be renewed in time, or this process did not run for too long.
    #[error("the lease could not be renewed before it ran out")]
    RanOut,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    world: World,
    margin: Duration,
}

#[derive(Debug)]
struct State {
    expires: Duration,
    renewed: Duration,
    stop: bool,
    status: KeepAliveStatus,
}

/// How often the thread looks at the boot-time clock, which a timed wait does not follow.
const SLICE: Duration = Duration::from_millis(100);

impl KeepAlive {
    /// Starts renewing. If no thread can be had the lease is handed back, still held.
    pub fn start(lease: Lease, options: KeepAliveOptions) -> Result<Self, StartError> {
        let ttl = lease.ttl().duration();
        let margin = options.margin.unwrap_or(ttl / 6).min(ttl / 2);
        let world = lease.table().world.clone();
        let expires = lease.expires_boottime();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                expires,
                renewed: expires.saturating_sub(ttl),
                stop: false,
                status: KeepAliveStatus {
                    renewals: 0,
                    failures: 0,
                    longest_gap: Duration::ZERO,
                    lost: None,
                    last_failure: None,
                },
            }),
            changed: Condvar::new(),
            world,
            margin,
        });
        // The lease waits in a slot, so that it is not lost with a thread that never starts.
        let slot = Arc::new(Mutex::new(Some(lease)));
        let thread = std::thread::Builder::new().name("ringfence-keep-alive".to_owned()).spawn({
            let (shared, slot) = (Arc::clone(&shared), Arc::clone(&slot));
            move || {
                let lease = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(lease) = lease else {
                    unreachable!("the slot is filled before the start")
                };
                keep(&shared, lease)
            }
        });
        match thread {
            Ok(thread) => Ok(Self { shared, thread: Some(thread) }),
            Err(source) => {
                let lease = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(lease) = lease else { unreachable!("no thread took the lease") };
                Err(StartError { lease: Box::new(lease), source })
            }
        }
    }

    /// Whether the lease is lost, by the thread's word or by the clock.
    pub fn is_lost(&self) -> bool {
        self.shared.settle(&mut self.shared.lock()).is_some()
    }

    /// How it goes.
    pub fn status(&self) -> KeepAliveStatus {
        let mut state = self.shared.lock();
        self.shared.settle(&mut state);
        state.status.clone()
    }

    /// The boot-time clock at which the lease expires unless it is renewed.
    pub fn expires_boottime(&self) -> Duration {
        self.shared.lock().expires
    }

    /// Waits until the lease is lost, at most `patience`; `true` if it is.
    pub fn wait_lost(&self, patience: Duration) -> bool {
        let clock = &self.shared.world.clock;
        let deadline = clock.deadline(patience);
        let mut state = self.shared.lock();
        loop {
            if self.shared.settle(&mut state).is_some() {
                return true;
            }
            let left = clock.left(deadline);
            if left.is_zero() {
                return false;
            }
            state = self.shared.wait(state, left.min(SLICE));
        }
    }

    /// Stops renewing and hands the lease back, lost or not; see [`KeepAlive::status`] for that.
    ///
    /// Waits for a renewal that is under way.
    pub fn stop(mut self) -> Lease {
        self.shared.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(lease)) => lease,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("stopped once"),
        }
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        // Does not wait: the thread ends by itself and the lease runs out.
        self.shared.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, timeout: Duration) -> MutexGuard<'s, State> {
        match self.changed.wait_timeout(state, timeout) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Marks the lease lost if its time is over, and says why it is lost.
    fn settle(&self, state: &mut State) -> Option<LostReason> {
        let now = self.world.clock.boottime();
        if state.status.lost.is_none() && now.saturating_add(self.margin) >= state.expires {
            state.status.lost = Some(LostReason::RanOut);
            self.changed.notify_all();
        }
        state.status.lost.clone()
    }
}

/// The thread: renews until stopped or lost, then hands the lease back.
fn keep(shared: &Shared, mut lease: Lease) -> Lease {
    let ttl = lease.ttl().duration();
    let period = ttl / 3;
    let retry = ttl / 12;
    let mut next = lease.expires_boottime().saturating_sub(ttl).saturating_add(period);
    loop {
        let mut state = shared.lock();
        loop {
            if state.stop || shared.settle(&mut state).is_some() {
                return lease;
            }
            let now = shared.world.clock.boottime();
            let Some(left) = next.checked_sub(now).filter(|left| !left.is_zero()) else { break };
            state = shared.wait(state, left.min(SLICE));
        }
        drop(state);
        let outcome = lease.heartbeat();
        let mut state = shared.lock();
        match outcome {
            // A renewal that came back after the loss was told is not taken: K2.
            Ok(()) if shared.settle(&mut state).is_some() => return lease,
            Ok(()) => {
                let renewed = lease.expires_boottime().saturating_sub(ttl);
                let gap = renewed.saturating_sub(state.renewed);
                state.status.longest_gap = state.status.longest_gap.max(gap);
                state.status.renewals += 1;
                state.renewed = renewed;
                state.expires = lease.expires_boottime();
                next = renewed.saturating_add(period);
            }
            Err(HeartbeatError::Lost(lost)) => {
                state.status.lost.get_or_insert(LostReason::Gone(lost));
                shared.changed.notify_all();
                return lease;
            }
            Err(error) => {
                state.status.failures += 1;
                state.status.last_failure = Some(error.to_string());
                next = shared.world.clock.boottime().saturating_add(retry);
            }
        }
    }
}

/// No thread could be started; the lease is still held.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the keep-alive thread")]
pub struct StartError {
    /// The lease, to be released.
    pub lease: Box<Lease>,
    /// Why.
    #[source]
    pub source: std::io::Error,
}
