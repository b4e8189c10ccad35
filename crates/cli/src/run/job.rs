//! The child while it runs: heartbeats behind it, signals passed on, its end.

use std::time::Duration;

use ringfence::{KeepAlive, LostReason};
use ringfence_env::Clock;
use ringfence_env::child::{
    Received, Sender, SignalQueue, leads_session, living_descendants, shares_group,
    signal_descendants, signal_process,
};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};

use super::budget::Budget;
use super::voice::Voice;

/// The signals that are passed on; a stop takes this process along.
pub(super) const FORWARDED: [i32; 7] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP];

/// A running child and all that watches it.
pub(super) struct Job<'a> {
    /// The child, not reaped yet.
    pub(super) child: Pid,
    /// What renews its lease.
    pub(super) keep: &'a KeepAlive,
    /// What arrives here.
    pub(super) signals: &'a SignalQueue,
    /// The boot-time clock runs on while the machine sleeps.
    pub(super) clock: &'a dyn Clock,
    /// When it has to be dead.
    pub(super) budget: Budget,
    /// Who tells people; nothing here may wait for a listener.
    pub(super) voice: Voice,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The child's status.
    pub(super) status: WaitStatus,
    /// Why the lease was lost, if it was.
    pub(super) lost: Option<LostReason>,
}

/// What is left to do after the loss.
struct Ending {
    reason: LostReason,
    kill_at: Duration,
}

/// After KILL, processes below the child are looked for this often until none is left.
const REAP_PAUSE: Duration = Duration::from_millis(10);
/// A killed process that is not gone by then sits in a call that cannot be interrupted.
const LONGEST_REAP: Duration = Duration::from_secs(1);

impl Job<'_> {
    /// Returns once the child is reaped; after a loss, once everything below this process is dead.
    pub(super) fn supervise(self) -> Ended {
        let mut ending: Option<Ending> = None;
        let mut status = None;
        let mut failures = 0;
        loop {
            // The lease first: after a stop or a suspend nothing else may be done for it.
            let keeping = self.keep.status();
            if keeping.failures > failures && ending.is_none() {
                failures = keeping.failures;
                let why = keeping.last_failure.unwrap_or_default();
                self.voice.say(format!("heartbeat {failures} failed, trying again: {why}"));
            }
            if let (None, Some(reason)) = (&ending, keeping.lost) {
                ending = Some(self.begin_end(reason));
            }
            if let Some(at) = ending.as_ref().map(|ending| ending.kill_at)
                && self.clock.boottime() >= at
            {
                self.send(Signal::KILL, status.is_none());
                return self.reap_all(status, ending);
            }
            self.reap(&mut status);
            match (status, &ending) {
                (Some(status), None) => return Ended { status, lost: None },
                // Everything the child started worked under the same lease.
                (Some(_), Some(_)) if living_descendants().is_ok_and(|living| living == 0) => {
                    return self.reap_all(status, ending);
                }
                _ => {}
            }
            if let Err(error) = self.signals.wait(self.until_next_look(ending.as_ref())) {
                self.voice.say(format!("cannot wait for signals: {error}"));
                self.clock.sleep(self.budget.slice);
            }
            // Only one at a time: the lease is looked at between any two.
            if let Ok(Some(received)) = self.signals.take()
                && status.is_none()
                && !self.keep.is_lost()
            {
                self.pass_on(received);
            }
        }
    }

    fn until_next_look(&self, ending: Option<&Ending>) -> Duration {
        let now = self.clock.boottime();
        let due = match ending {
            Some(ending) => ending.kill_at,
            None => self.keep.expires_boottime().saturating_sub(self.budget.margin()),
        };
        let slice = if ending.is_some() { REAP_PAUSE } else { self.budget.slice };
        due.saturating_sub(now).min(slice)
    }

    /// TERM, and a time for KILL that leaves the slack before expiry: none if somebody else may
    /// work already.
    fn begin_end(&self, reason: LostReason) -> Ending {
        let now = self.clock.boottime();
        let last = self.keep.expires_boottime().saturating_sub(self.budget.slack);
        let kill_at = match reason {
            LostReason::RanOut => now.saturating_add(self.budget.grace).min(last),
            _ => now,
        };
        self.send(Signal::TERM, true);
        // One that is stopped would not see it.
        self.send(Signal::CONT, true);
        let grace = kill_at.saturating_sub(now);
        self.voice.say(format!(
            "lease lost: {reason}; the command got TERM, and gets KILL after {grace:.1?}"
        ));
        Ending { reason, kill_at }
    }

    /// Sends a signal to the child, unless it was reaped, and to everything below it.
    fn send(&self, signal: Signal, child_is_ours: bool) {
        // The child first, and without looking for it: it may be hidden from us.
        if child_is_ours {
            let _ = signal_process(self.child, signal.as_raw());
        }
        if let Err(error) = signal_descendants(signal, self.child) {
            self.voice.say(format!("cannot look for the command's processes: {error}"));
        }
    }

    fn reap(&self, status: &mut Option<WaitStatus>) {
        while let Ok(Some((pid, ended))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == self.child {
                *status = Some(ended);
            }
        }
    }

    /// Waits for the end of the killed, and kills what was born meanwhile.
    fn reap_all(&self, mut status: Option<WaitStatus>, ending: Option<Ending>) -> Ended {
        let deadline = self.clock.deadline(LONGEST_REAP);
        let mut pause = REAP_PAUSE;
        loop {
            self.reap(&mut status);
            let left = signal_descendants(Signal::KILL, self.child).unwrap_or(0);
            let late = self.clock.left(deadline).is_zero();
            match status {
                Some(status) if left == 0 || late => {
                    if left > 0 {
                        self.voice.say(format!("{left} killed processes are not gone yet"));
                    }
                    return Ended { status, lost: ending.map(|ending| ending.reason) };
                }
                _ => {}
            }
            self.clock.sleep(pause);
            pause = (pause * 2).min(self.budget.slice);
        }
    }

    /// Passes a signal on unless the terminal gave it to the child as well.
    fn pass_on(&self, received: Received) {
        if received.number == SIGCHLD {
            return;
        }
        let forwarded = !self.has_it_already(received);
        if forwarded {
            let _ = signal_process(self.child, received.number);
        }
        if received.number != SIGTSTP {
            return;
        }
        self.signals.stop_as(SIGTSTP);
        // Going on again. The child was stopped by us, so nobody else will wake it; but not into a
        // lease that is over.
        if forwarded && !self.keep.is_lost() {
            let _ = signal_process(self.child, SIGCONT);
        }
    }

    /// The kernel sends a terminal's keys to a whole process group, but its hang-up to the session
    /// leader alone.
    fn has_it_already(&self, received: Received) -> bool {
        received.sender == Sender::Kernel
            && shares_group(self.child)
            && !(received.number == SIGHUP && leads_session())
    }
}
