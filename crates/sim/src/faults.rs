//! What may go wrong, and how often.

use std::path::Path;

pub use ringfence_env::fault::Call;

use crate::rng::Rng;

/// Whether a crash just before and just after a call may differ.
pub(crate) fn mutates(call: Call) -> bool {
    use Call::{List, LockInChild, Read, Stat, TryLock, Unlock};
    !matches!(call, Read | Stat | List | TryLock | Unlock | LockInChild)
}

/// Whether an error of a call may come after its effect.
fn may_be_late(call: Call) -> bool {
    use Call::{Mkdir, Rename, SyncDir, SyncFile, Unlink};
    matches!(call, Rename | Unlink | Mkdir | SyncFile | SyncDir)
}

/// What strikes one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    None,
    /// Fails without effect.
    Before(i32),
    /// Has its effect, and fails all the same. A sync that fails like this is final.
    After(i32),
}

/// Rates are per million calls.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// Hand the baton to somebody else.
    pub switch_rate: u32,
    /// Stop a process for a while (SIGSTOP).
    pub stop_rate: u32,
    /// The longest stop.
    pub longest_stop_ms: u64,
    /// Kill a process.
    pub kill_rate: u32,
    /// Cut the power.
    pub cut_rate: u32,
    /// Set the wall clock.
    pub jump_rate: u32,
    /// Suspend the host.
    pub suspend_rate: u32,
    /// Begin a run of errors.
    pub error_rate: u32,
    /// Kill, cut and switch more where a group is half done: while somebody's intent stands, and
    /// while somebody finishes one.
    pub hunt_rate: u32,
    /// Only calls of this kind fail.
    pub only: Option<Call>,
    /// Write less than was asked for.
    pub short_write_rate: u32,
    /// Fails exactly the calls with these numbers, counted from 1 over mutating calls.
    pub fail_calls: Vec<u64>,
    /// Cuts the write with this number short by one byte.
    pub short_call: Option<u64>,
    /// Fails every mutating call from this number on.
    pub fail_from: Option<u64>,
    /// Whether those calls have their effect before they fail.
    pub fail_late: bool,
    /// The error of those calls.
    pub fail_errno: i32,
    rng: Rng,
    mutating: u64,
    burst: u64,
    strikes: u64,
}

impl Chaos {
    /// Nothing goes wrong, and nobody is preempted.
    pub fn none() -> Self {
        Self {
            switch_rate: 0,
            stop_rate: 0,
            longest_stop_ms: 1,
            kill_rate: 0,
            cut_rate: 0,
            jump_rate: 0,
            suspend_rate: 0,
            error_rate: 0,
            hunt_rate: 0,
            only: None,
            short_write_rate: 0,
            fail_calls: Vec::new(),
            short_call: None,
            fail_from: None,
            fail_late: false,
            fail_errno: 5,
            rng: Rng::new(0),
            mutating: 0,
            burst: 0,
            strikes: 0,
        }
    }

    /// Processes take turns; nothing else goes wrong.
    pub fn turns() -> Self {
        Self { switch_rate: 300_000, ..Self::none() }
    }

    /// Everything goes wrong now and then, in a mixture that the seed decides: some runs are mostly
    /// kills, some mostly errors, some calm.
    pub fn storm(seed: u64) -> Self {
        let mut rng = Rng::new(seed).fork(77);
        let mut rate = |most: u32| {
            let level = [0, 1, 4, 10][rng.index(4)];
            most * level / 10
        };
        Self {
            switch_rate: 50_000 + rate(500_000),
            stop_rate: rate(2_000),
            longest_stop_ms: 40_000,
            kill_rate: rate(2_500),
            cut_rate: rate(700),
            jump_rate: rate(600),
            suspend_rate: rate(600),
            error_rate: rate(2_000),
            short_write_rate: rate(50_000),
            hunt_rate: rate(40_000),
            rng: Rng::new(seed).fork(78),
            ..Self::none()
        }
    }

    /// Exactly one mutating call fails.
    pub fn fail_one(number: u64, late: bool, errno: i32) -> Self {
        Self { fail_calls: vec![number], fail_late: late, fail_errno: errno, ..Self::none() }
    }

    /// One mutating call fails, with its effect if that may be, and the next one does.
    pub fn fail_two(number: u64, errno: i32) -> Self {
        Self { fail_calls: vec![number, number + 1], ..Self::fail_one(number, true, errno) }
    }

    /// One write is cut short, and writing the rest fails.
    pub fn fail_rest(number: u64) -> Self {
        Self { short_call: Some(number), ..Self::fail_one(number + 1, false, 28) }
    }

    /// Every mutating call fails from one on.
    pub fn fail_from(number: u64, late: bool, errno: i32) -> Self {
        Self { fail_from: Some(number), fail_late: late, fail_errno: errno, ..Self::none() }
    }

    /// Processes are killed while their intents stand or while they finish one, and nothing else
    /// goes wrong.
    pub fn finishers(seed: u64) -> Self {
        let rng = Rng::new(seed).fork(80);
        Self { switch_rate: 300_000, hunt_rate: 60_000, rng, ..Self::none() }
    }

    /// Only directory syncs fail, and often.
    pub fn barriers(seed: u64) -> Self {
        let rng = Rng::new(seed).fork(79);
        let only = Some(Call::SyncDir);
        Self { switch_rate: 400_000, error_rate: 100_000, only, rng, ..Self::none() }
    }

    /// Whether nobody is stopped, killed or struck.
    pub fn is_calm(&self) -> bool {
        let rates = [
            self.stop_rate,
            self.kill_rate,
            self.hunt_rate,
            self.cut_rate,
            self.suspend_rate,
            self.error_rate,
        ];
        rates.iter().all(|rate| *rate == 0)
    }

    /// Whether processes are killed.
    pub fn kills(&self) -> bool {
        self.kill_rate > 0 || self.hunt_rate > 0
    }

    /// Whether the call that is under way is to be cut short.
    pub(crate) fn is_short(&self) -> bool {
        self.short_call == Some(self.mutating)
    }

    /// How many mutating calls were made under this.
    pub fn mutating(&self) -> u64 {
        self.mutating
    }

    pub(crate) fn strikes(&self) -> u64 {
        self.strikes
    }

    /// What strikes this call; `tense` while an intent of its process stands.
    pub(crate) fn strike(&mut self, call: Call, path: &Path, tense: bool) -> Strike {
        let strike = self.choose(call, path, tense);
        self.strikes += u64::from(strike != Strike::None);
        strike
    }

    fn choose(&mut self, call: Call, path: &Path, tense: bool) -> Strike {
        if mutates(call) {
            self.mutating += 1;
            let from = self.fail_from.is_some_and(|from| self.mutating >= from);
            if from || self.fail_calls.contains(&self.mutating) {
                return Self::fail(call, self.fail_errno, self.fail_late);
            }
        }
        // Errors come in runs, so that an undo fails too now and then. The probe is left alone: its
        // own tests are elsewhere, and a run in which no table opens shows nothing.
        let probing = path.to_string_lossy().contains(".probe-");
        let spared = self.only.is_some_and(|only| only != call);
        if probing || spared || matches!(call, Call::Unlock | Call::TryLock) {
            return Strike::None;
        }
        // An intent is only ever aborted if one of these fails.
        let aborts = tense && matches!(call, Call::Rename | Call::Unlink | Call::SyncDir);
        let rate = self.error_rate + if aborts { self.hunt_rate / 2 } else { 0 };
        if self.burst > 0 {
            self.burst -= 1;
        } else if self.rng.chance(rate) {
            self.burst = [0, 0, 2, 12][self.rng.index(4)];
        } else {
            return Strike::None;
        }
        let errno = match call {
            Call::Write | Call::OpenWrite | Call::Mkdir | Call::Rename => [5, 28, 122, 30],
            Call::SyncFile | Call::SyncDir => [5, 5, 28, 4],
            _ => [5, 5, 24, 30],
        }[self.rng.index(4)];
        let late = self.rng.chance(400_000);
        Self::fail(call, errno, late)
    }

    fn fail(call: Call, errno: i32, late: bool) -> Strike {
        if late && may_be_late(call) { Strike::After(errno) } else { Strike::Before(errno) }
    }
}
