//! `ringfence run` with real children, signals and terminals.
//!
//! Tables stand in memory where the machine offers that, because these tests are about time.

mod codes;
mod ends;
mod lost;
mod signals;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::{Ran, ringfence, sleep};

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
        Ran::of(&mut self.command("claim", &["--targets", "2,3", "--owner", "b"])).code
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

    /// A script that logs each signal it gets, with its code and sender, and ends with 7 a while
    /// after the last.
    pub(crate) fn counter(&self) -> (String, Log) {
        let script = self.path("count.py");
        std::fs::write(&script, COUNTER).unwrap();
        (script.to_str().unwrap().to_owned(), Log(self.path("signals")))
    }
}

const COUNTER: &str = "\
import signal, sys, time
log = open(sys.argv[1], 'a', buffering=1)
names = ['HUP', 'INT', 'QUIT', 'TERM', 'USR1', 'USR2']
numbers = {getattr(signal, 'SIG' + name) for name in names}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
log.write('ready\\n')
patience = 20
while True:
    info = signal.sigtimedwait(numbers, patience)
    if info is None:
        sys.exit(7)
    log.write(f'{info.si_signo} {info.si_code} {info.si_pid}\\n')
    patience = float(sys.argv[2])
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

    /// Waits until there are so many whole lines.
    pub(crate) fn wait(&self, count: usize) -> Vec<String> {
        until("lines in the log", || {
            let text = std::fs::read_to_string(&self.0).unwrap_or_default();
            text.matches('\n').count() >= count
        });
        self.lines()
    }
}

/// Waits for something that must come.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("waited 20 s for {what}");
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

pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}
