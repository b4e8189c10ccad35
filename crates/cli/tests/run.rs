//! `ringfence run` with real children, signals and terminals.
//!
//! Tables stand in memory where the machine offers that, because these tests are about time: a sync there
//! takes none. A lease that must be kept for a while has a ttl of some seconds all the same, as a busy
//! machine may let a process wait for its turn; children end when they are told to, not after a time.

mod codes;
mod ends;
mod lost;
mod signals;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use crate::support::{Ran, ringfence, sleep, spawn};

/// Nothing that must come takes longer, on a machine that is slow and busy with other things.
const PATIENCE: Duration = Duration::from_mins(1);

/// A table in memory, and room for what children write.
pub(crate) struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    /// Of the default engine.
    pub(crate) fn new() -> Self {
        Self::made(&[])
    }

    /// For what a journal does not have: names that are looked up again at every call.
    pub(crate) fn files() -> Self {
        Self::made(&["--engine", "files", "--shards", "2"])
    }

    pub(crate) fn both() -> [Self; 2] {
        [Self::new(), Self::files()]
    }

    /// Does the same on each engine, side by side: most of it is waiting.
    pub(crate) fn on_both(test: impl Fn(&Self) + Sync) {
        let [journal, files] = &Self::both();
        std::thread::scope(|scope| {
            scope.spawn(|| test(journal));
            test(files);
        });
    }

    fn made(options: &[&str]) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        let bed = Self { dir };
        let made = Ran::of(ringfence().arg("init").arg(bed.store()).args(options));
        assert_eq!(made.code, 0, "{made:?}");
        bed
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `ringfence VERB STORE ARGS..`
    pub(crate) fn command(&self, verb: &str, args: &[&str]) -> Command {
        let mut command = ringfence();
        command.arg(verb).arg(self.store()).args(args);
        command
    }

    /// `ringfence run STORE --targets 1,2 --owner a OPTIONS.. -- COMMAND..`
    pub(crate) fn run(&self, options: &[&str], child: &[&str]) -> Command {
        let mut command = self.command("run", &["--targets", "1,2", "--owner", "a"]);
        command.args(options).arg("--").args(child);
        command
    }

    /// Claims the same group as somebody else; the exit code.
    pub(crate) fn contend(&self) -> i32 {
        Ran::of(&mut self.contender()).code
    }

    /// Claims it as soon as it can be had.
    pub(crate) fn until_contended(&self) {
        until_done("the group to be free", || {
            let ran = Ran::of(&mut self.contender());
            if ran.code == 0 { Ok(()) } else { Err(format!("{ran:?}")) }
        });
    }

    fn contender(&self) -> Command {
        self.command("claim", &["--targets", "2,3", "--owner", "b"])
    }

    /// Waits until somebody waits for target 2, of a journal.
    pub(crate) fn until_waited_for(&self) {
        let table = ringfence::Store::open(self.store()).unwrap().targets();
        let group = ringfence::TargetGroup::from_numbers([2]).unwrap();
        until("somebody to wait", || table.waiting(&group) > 0);
    }

    /// Asserts that nothing is held and nothing was left behind.
    pub(crate) fn assert_free(&self) {
        assert_eq!(self.records().len(), 0);
        let check = ringfence::Store::open_read_only(self.store()).unwrap().check().unwrap();
        assert!(check.findings.is_empty(), "{check:?}");
    }

    /// Every target's record, live or not.
    pub(crate) fn records(&self) -> Vec<ringfence::model::TargetRecord> {
        let table = ringfence::Store::open_read_only(self.store()).unwrap().targets();
        let leases = table.list(None).unwrap().leases;
        leases.iter().map(|listed| listed.state.record().unwrap().clone()).collect()
    }

    /// When the lease on a target was last renewed, Unix seconds.
    pub(crate) fn updated(&self, target: u64) -> f64 {
        let records = self.records();
        let record = records.iter().find(|record| record.target.get() == target).unwrap();
        record.holder.updated.seconds()
    }

    /// A script that logs each signal it gets, with its code and sender. Told to end it listens for
    /// what came twice, and ends with 7.
    pub(crate) fn counter(&self) -> (String, Log) {
        let script = self.path("count.py");
        std::fs::write(&script, COUNTER).unwrap();
        (script.to_str().unwrap().to_owned(), Log(self.path("signals")))
    }
}

const COUNTER: &str = "\
import os, signal, sys, time
log = open(sys.argv[1], 'a', buffering=1)
names = ['HUP', 'INT', 'QUIT', 'TERM', 'USR1', 'USR2']
numbers = {getattr(signal, 'SIG' + name) for name in names}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
log.write('ready\\n')
ends, late = False, time.time() + 300
while True:
    info = signal.sigtimedwait(numbers, 0.3 if ends else 0.02)
    if info is not None:
        log.write(f'{info.si_signo} {info.si_code} {info.si_pid}\\n')
    elif ends:
        sys.exit(7)
    else:
        ends = os.path.exists(sys.argv[1] + '.end') or time.time() > late
";

/// What children wrote, line by line.
pub(crate) struct Log(pub(crate) PathBuf);

impl Log {
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until there are so many whole lines, which what was spawned as `child` writes.
    #[track_caller]
    pub(crate) fn wait(&self, count: usize, child: &mut Child) -> Vec<String> {
        let began = Instant::now();
        loop {
            // Before the lines, so that what it wrote at its end is among them.
            let ended = child.try_wait().unwrap();
            let text = std::fs::read_to_string(&self.0).unwrap_or_default();
            if text.matches('\n').count() >= count {
                return self.lines();
            }
            if let Some(why) = ended.map(|status| status.to_string()).or_else(|| late(began)) {
                panic!("not {count} lines, but {text:?}: {why}; it said {:?}", last_words(child));
            }
            sleep(LOOK);
        }
    }

    /// Where children look whether they are to end.
    pub(crate) fn end_path(&self) -> PathBuf {
        PathBuf::from(format!("{}.end", self.path()))
    }

    /// Tells a child that looks there to end.
    pub(crate) fn end(&self) {
        std::fs::write(self.end_path(), "").unwrap();
    }
}

const LOOK: Duration = Duration::from_millis(10);

fn late(began: Instant) -> Option<String> {
    (began.elapsed() > PATIENCE).then(|| format!("waited {PATIENCE:?}"))
}

/// Kills a child, and gives what it said to people.
pub(crate) fn last_words(child: &mut Child) -> String {
    let _ = child.kill();
    let Some(mut stderr) = child.stderr.take() else { return String::new() };
    // Whatever it started may hold the pipe open.
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = std::io::Read::read(&mut stderr, &mut part) {
            let _ = say.send(part[..count].to_vec());
        }
    });
    let mut words = Vec::new();
    while let Ok(part) = said.recv_timeout(Duration::from_secs(1)) {
        words.extend(part);
    }
    String::from_utf8_lossy(&words).into_owned()
}

/// Waits for something that must come.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    until_done(what, || if is() { Ok(()) } else { Err("it is not".to_owned()) });
}

/// The same where more can be said of what is seen instead.
#[track_caller]
pub(crate) fn until_done<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match (look(), late(began)) {
            (Ok(done), _) => return done,
            (Err(seen), Some(late)) => panic!("{late} for {what}; at last: {seen}"),
            (Err(_), None) => sleep(LOOK),
        }
    }
}

/// Seconds since the epoch, as children log them.
pub(crate) fn now() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "a test compares with what a child logged")]
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Whether a process runs; one that is dead and not reaped does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
