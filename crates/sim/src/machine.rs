//! One simulated host: a disk, kernel locks, clocks and processes, all decided by one seed.
//!
//! Each simulated process is a closure on a thread of its own, but exactly one of them runs at any
//! moment: it has the *baton*. At every call into the world the scheduler may hand the baton on,
//! stop a process, kill it, or cut the power. A process that is killed unwinds at its next call by a
//! panic that only the top of its thread catches; until then none of its calls has any effect.
//!
//! Time is virtual. It moves a little with every call, and jumps when everybody sleeps.

mod host;
mod run;
mod watch;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_env::{HostIdentity, LockMode, World};

use crate::clock::{SimClock, SimEntropy};
use crate::coverage::Coverage;
use crate::disk::{Disk, EIO, Ino};
use crate::faults::{Call, Chaos, Strike};
use crate::fs::SimFs;
use crate::rng::Rng;
use host::plain;
pub(crate) use watch::{Watch, has_intent, is_slot};
pub(crate) use words::WORD;

/// A simulated host. Clones share it.
#[derive(Clone)]
pub struct Machine(Arc<Shared>);

struct Shared {
    core: Mutex<Core>,
    /// One per process, for the baton.
    turns: Vec<Condvar>,
}

/// How a simulated process ended its last life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its closure returned.
    Returned,
    /// It panicked: a bug in what was simulated.
    Panicked(String),
}

/// A moment at which the power went.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The step.
    pub step: u64,
    /// What was left.
    pub disk: Disk,
    /// The boot that began then.
    pub boot: u64,
    /// The wall clock then.
    pub wall: Duration,
}

/// The state of a disk just before one call.
#[derive(Clone, Debug)]
pub struct Point {
    /// The call, as `sync 001/ab12.json`.
    pub label: String,
    /// The calls before it.
    pub step: u64,
    /// The disk.
    pub disk: Disk,
}

/// What the scheduler knows of one process.
#[derive(Clone, Debug)]
struct Proc {
    state: State,
    /// To unwind at its next call.
    doomed: bool,
    /// Unwinding: no call of it has an effect.
    dead: bool,
    life: u32,
    record_changes: u64,
    /// The word of shared memory that it waits for.
    awaits: Option<(Ino, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Until(Duration),
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Lock {
    fd: u64,
    proc: usize,
    mode: LockMode,
}

#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) disk: Disk,
    /// Since the simulation began, suspend left out.
    now: Duration,
    slept: Duration,
    skew: i64,
    boot: u64,
    /// `now` and `now + slept` when this boot began.
    booted: (Duration, Duration),
    locks: BTreeMap<Ino, Vec<Lock>>,
    fds: u64,
    procs: Vec<Proc>,
    current: usize,
    scheduled: bool,
    rng: Rng,
    entropy: Rng,
    chaos: Chaos,
    steps: u64,
    trace: u64,
    /// The step of the first call that a fault struck.
    first_strike: Option<u64>,
    log: Option<Vec<String>>,
    recorder: Option<Vec<Point>>,
    pub(crate) watch: Watch,
    cuts: Vec<Cut>,
}

/// The wall clock when a simulation begins.
const EPOCH: u64 = 1_700_000_000;

impl Machine {
    /// A host with this disk, of this boot, for one process that nobody disturbs.
    pub fn solo(seed: u64, disk: Disk, boot: u64) -> Self {
        Self::new(seed, disk, boot, 1, Chaos::none())
    }

    /// A host for several processes.
    pub fn new(seed: u64, disk: Disk, boot: u64, procs: usize, chaos: Chaos) -> Self {
        let rng = Rng::new(seed);
        let proc = Proc {
            state: State::Ready,
            doomed: false,
            dead: false,
            life: 0,
            record_changes: 0,
            awaits: None,
        };
        let core = Core {
            disk,
            now: Duration::from_secs(boot * 1000),
            slept: Duration::ZERO,
            skew: 0,
            boot,
            booted: (Duration::from_secs(boot * 1000), Duration::from_secs(boot * 1000)),
            locks: BTreeMap::new(),
            fds: 0,
            procs: vec![proc; procs],
            current: 0,
            scheduled: false,
            entropy: rng.fork(1),
            rng: rng.fork(2),
            chaos,
            steps: 0,
            trace: 0,
            first_strike: None,
            log: None,
            recorder: None,
            watch: Watch::default(),
            cuts: Vec::new(),
        };
        Self(Arc::new(Shared {
            core: Mutex::new(core),
            turns: (0..procs).map(|_| Condvar::new()).collect(),
        }))
    }

    /// This host later, with nobody running: killed processes are gone and their locks are free. With
    /// `reboot` it is the next boot of the same host; `disk` is then what the power cut left.
    #[must_use]
    pub fn later(&self, disk: Disk, reboot: bool) -> Self {
        let mut core = self.core().clone();
        core.disk = disk;
        core.locks.clear();
        core.recorder = None;
        core.first_strike = None;
        core.cuts.clear();
        core.chaos = Chaos::none();
        core.procs.iter_mut().for_each(|proc| proc.record_changes = 0);
        if reboot {
            core.now += Duration::from_secs(1);
            core.boot += 1;
            core.booted = (core.now, core.now + core.slept);
        }
        let turns = core.procs.iter().map(|_| Condvar::new()).collect();
        Self(Arc::new(Shared { core: Mutex::new(core), turns }))
    }

    /// The same host at the same moment, for a trial: what is locked stays locked.
    #[must_use]
    pub fn copy(&self) -> Self {
        let core = self.core().clone();
        let turns = core.procs.iter().map(|_| Condvar::new()).collect();
        Self(Arc::new(Shared { core: Mutex::new(core), turns }))
    }

    /// Puts another disk in, under the processes that run.
    pub fn set_disk(&self, disk: Disk) {
        self.core().disk = disk;
    }

    /// The world as one process of this host sees it in the present boot.
    pub fn world(&self, proc: usize) -> World {
        let boot = self.core().boot;
        World {
            fs: Arc::new(SimFs::new(self.clone(), proc)),
            clock: Arc::new(SimClock::new(self.clone(), proc)),
            entropy: Arc::new(SimEntropy::new(self.clone())),
            host: Arc::new(HostIdentity {
                name: "sim".into(),
                boot: Some(format!("boot-{boot}").into()),
                uid: 0,
            }),
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every call into the file system begins here. The error, if any, is what the call returns
    /// before it has any effect.
    pub(crate) fn enter(&self, proc: usize, call: Call, path: &Path) -> io::Result<Turn<'_>> {
        let mut core = self.core();
        if core.procs[proc].dead {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if core.scheduled {
            core.tick(call);
            core.disturb(proc);
            core = Self::die_if_doomed(proc, core);
            core = self.yield_turn(proc, core);
        }
        if !core.scheduled {
            // Whoever tries again and again comes to the end of its patience.
            core.now += Duration::from_micros(50);
        }
        core.steps += 1;
        if core.scheduled {
            let boot = core.boot;
            core.mix(&(proc, call, plain(path), boot));
        }
        if core.log.is_some() {
            let line = format!("{} p{proc} {call:?} {}", core.steps, path.display());
            core.log.as_mut().expect("asked for").push(line);
        }
        core.record(call, path);
        let tense = core.watch.has_own_intent(proc);
        let strike = core.chaos.strike(call, path, tense);
        if strike != Strike::None {
            core.first_strike = core.first_strike.or(Some(core.steps));
        }
        if let Strike::Before(errno) = strike {
            core.mix(&errno);
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(Turn { machine: self, core, strike })
    }

    pub(crate) fn sleep(&self, proc: usize, duration: Duration) {
        let mut core = self.core();
        if core.procs[proc].dead {
            return;
        }
        if !core.scheduled {
            core.now += duration;
            return;
        }
        core = Self::die_if_doomed(proc, core);
        core.disturb(proc);
        let wake = core.now + duration;
        core.procs[proc].state = State::Until(wake);
        drop(self.yield_turn(proc, core));
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        let mut core = self.core();
        for byte in bytes {
            *byte = u8::try_from(core.entropy.below(256)).unwrap_or(0);
        }
    }

    pub(crate) fn wall(&self) -> Duration {
        self.core().wall()
    }

    pub(crate) fn boottime(&self) -> Duration {
        let core = self.core();
        (core.now + core.slept).saturating_sub(core.booted.1)
    }

    pub(crate) fn monotonic(&self) -> Duration {
        let core = self.core();
        core.now.saturating_sub(core.booted.0)
    }

    /// The time that really passed since the simulation began, whatever any clock says.
    pub fn truth(&self) -> Duration {
        let core = self.core();
        core.now + core.slept
    }

    /// How many calls were made so far.
    pub fn steps(&self) -> u64 {
        self.core().steps
    }

    /// The number of this boot.
    pub fn boot(&self) -> u64 {
        self.core().boot
    }

    /// A number for everything that happened; the same seed gives the same number.
    pub fn trace(&self) -> u64 {
        self.core().trace
    }

    /// Keeps a line per call from now on.
    pub fn keep_log(&self) {
        self.core().log = Some(Vec::new());
    }

    /// The lines kept.
    pub fn log(&self) -> Vec<String> {
        self.core().log.clone().unwrap_or_default()
    }

    /// The disk as programs see it, with what a power cut may do to it.
    pub fn disk(&self) -> Disk {
        self.core().disk.clone()
    }

    /// Every power cut so far.
    pub fn cuts(&self) -> Vec<Cut> {
        self.core().cuts.clone()
    }

    /// What came about so far, as far as the host can tell.
    pub fn coverage(&self) -> Coverage {
        self.core().watch.coverage.clone()
    }

    /// Whether the intent of a dead process waits to be finished, or is being finished.
    pub fn has_unfinished(&self) -> bool {
        self.core().watch.is_unfinished()
    }

    /// Says that what a process does now is reading.
    pub fn set_reading(&self, proc: usize, reading: bool) {
        self.core().watch.set_reading(proc, reading);
    }

    /// How many names of records this process changed so far.
    pub fn record_changes(&self, proc: usize) -> u64 {
        self.core().procs[proc].record_changes
    }

    /// What the kernel still has locked.
    pub fn held_locks(&self) -> usize {
        self.core().locks.values().map(Vec::len).sum()
    }

    /// Changes what may go wrong from now on.
    pub fn set_chaos(&self, chaos: Chaos) {
        self.core().chaos = chaos;
    }

    /// How many mutating calls were made since [`Machine::set_chaos`].
    pub fn mutating(&self) -> u64 {
        self.core().chaos.mutating()
    }

    /// How many calls were struck by a fault.
    pub fn strikes(&self) -> u64 {
        self.core().chaos.strikes()
    }

    /// The step of the first call that was struck.
    pub fn first_strike(&self) -> Option<u64> {
        self.core().first_strike
    }

    /// Lets time pass for everybody.
    pub fn advance(&self, by: Duration) {
        self.core().now += by;
    }

    /// Sets the wall clock this many milliseconds off.
    pub fn set_skew(&self, milliseconds: i64) {
        self.core().skew = milliseconds;
    }

    /// Keeps the disk before each mutating call from now on.
    pub fn start_recording(&self) {
        self.core().recorder = Some(Vec::new());
    }

    /// The disks kept, with the present one at the end.
    pub fn stop_recording(&self) -> Vec<Point> {
        let mut core = self.core();
        let mut points = core.recorder.take().unwrap_or_default();
        points.push(Point { label: "end".into(), step: u64::MAX, disk: core.disk.clone() });
        points
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

/// A call that is under way: nobody else runs.
pub(crate) struct Turn<'a> {
    machine: &'a Machine,
    pub(crate) core: MutexGuard<'a, Core>,
    pub(crate) strike: Strike,
}

impl Turn<'_> {
    /// The call takes long: others run meanwhile, and its process may not live to see its end.
    pub(crate) fn linger(mut self, proc: usize) -> Self {
        if self.core.scheduled {
            self.core.disturb(proc);
            self.core = Machine::die_if_doomed(proc, self.core);
            self.core = self.machine.yield_turn(proc, self.core);
        }
        self
    }

    /// The error of a call that had its effect all the same.
    pub(crate) fn late<T>(&self, done: io::Result<T>) -> io::Result<T> {
        match (done, self.strike) {
            (Ok(_), Strike::After(errno)) => Err(io::Error::from_raw_os_error(errno)),
            (done, _) => done,
        }
    }
}

impl Machine {
    /// A slot of an intent was read whole.
    pub(crate) fn note_slot_read(&self, proc: usize, path: &Path) {
        let mut core = self.core();
        if let Ok(ino) = core.disk.lookup(path) {
            core.watch.read(proc, ino);
        }
    }

    /// Gives a lock up as its descriptor is closed; no schedule point, and nothing if dead.
    pub(crate) fn close_lock(&self, proc: usize, ino: Ino, fd: u64) {
        let mut core = self.core();
        if !core.is_dead(proc) {
            core.unlock(ino, fd);
        }
    }
}
