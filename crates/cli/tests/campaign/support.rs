//! A campaign under test, and what can be seen of it from outside.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::stopping::stop_between_steps;

/// Nothing that is waited for takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// For a run that a test ends when it has seen what it waits for.
pub(crate) const LONG: &str = "--seconds 3600";

/// A campaign's directory, its seeds, and its process once it was started.
pub(crate) struct Campaign {
    scratch: tempfile::TempDir,
    seeds: PathBuf,
    child: Option<Child>,
    /// How often it was started.
    run: u32,
}

/// The end of a campaign.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stderr: String,
}

pub(crate) fn engine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../campaign/engine").join(name)
}

/// The made-up worker with these flags.
pub(crate) fn fake(flags: &str) -> Vec<String> {
    let mut argv = vec!["python3".to_owned(), engine("fake_worker.py").display().to_string()];
    argv.extend(flags.split_whitespace().map(str::to_owned));
    argv
}

impl Campaign {
    pub(crate) fn new() -> Self {
        Self::made_in(tempfile::tempdir().unwrap())
    }

    /// Where a sync takes no time, if the machine offers that: for ttls of a few seconds.
    pub(crate) fn in_memory() -> Self {
        Self::made_in(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn made_in(scratch: tempfile::TempDir) -> Self {
        let seeds = scratch.path().join("seeds");
        std::fs::create_dir(&seeds).unwrap();
        std::fs::write(seeds.join("zeros"), [0; 24]).unwrap();
        std::fs::write(seeds.join("text"), "thirty-two bytes of a first seed").unwrap();
        Self { scratch, seeds, child: None, run: 0 }
    }

    /// A campaign on seeds that are there already.
    #[cfg(feature = "real-campaign")]
    pub(crate) fn on(seeds: PathBuf) -> Self {
        let mut campaign = Self::new();
        campaign.seeds = seeds;
        campaign
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.path().join("campaign")
    }

    /// Starts it, with frozen seeds, on the given worker.
    pub(crate) fn start(&mut self, flags: &str, worker: &[String]) {
        self.start_with(&format!("--frozen {flags}"), worker);
    }

    /// The same, frozen or not.
    pub(crate) fn start_with(&mut self, flags: &str, worker: &[String]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command.arg("campaign").arg("--dir").arg(self.dir());
        command.arg("--seeds").arg(&self.seeds);
        command.arg("--json").arg(self.report_path());
        command.args(flags.split_whitespace()).arg("--").args(worker);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let stderr = std::fs::File::create(self.scratch.path().join("stderr")).unwrap();
        command.stderr(stderr);
        self.child = Some(command.spawn().unwrap());
        self.run += 1;
    }

    pub(crate) fn supervisor(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn wait(&mut self) -> Ended {
        let mut child = self.child.take().unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("the campaign hangs: {:?}", child.wait());
            }
            pause();
        };
        let stderr = std::fs::read_to_string(self.scratch.path().join("stderr")).unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        Ended { code: status.code(), signal, stderr }
    }

    /// Starts it and waits for its end, which must be a good one: what was begun is finished, however
    /// long that takes.
    pub(crate) fn run(&mut self, flags: &str, worker: &[String]) -> Value {
        self.start(&format!("--drain 10m {flags}"), worker);
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        self.report()
    }

    /// Ends a run that has seen enough, and takes its report.
    pub(crate) fn stop(&mut self) -> Value {
        signal(self.supervisor(), "TERM");
        let ended = self.wait();
        assert_eq!(ended.code, Some(143), "{}", ended.stderr);
        self.report()
    }

    fn report_path(&self) -> PathBuf {
        self.scratch.path().join("report.json")
    }

    pub(crate) fn report(&self) -> Value {
        let text = std::fs::read(self.report_path()).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    fn run_dir(&self) -> PathBuf {
        self.dir().join(format!("runs/{:03}", self.run))
    }

    /// What a coordinator wrote down so far.
    pub(crate) fn events(&self, index: u32) -> Vec<Value> {
        let path = self.run_dir().join(format!("{index:02}/events.jsonl"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until a coordinator wrote an event of this name that `wanted` likes.
    pub(crate) fn await_event(
        &self,
        index: u32,
        name: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let began = Instant::now();
        loop {
            let found = self.events(index).into_iter().find(|e| e["event"] == name && wanted(e));
            if let Some(event) = found {
                return event;
            }
            let events = || self.events(index);
            assert!(
                began.elapsed() < PATIENCE,
                "no {name} of coordinator {index}: {:#?}",
                events()
            );
            pause();
        }
    }

    /// Waits until a coordinator wrote more events of this name than it had before.
    pub(crate) fn await_more(&self, index: u32, name: &str, before: &[Value], more: usize) {
        let count = |events: &[Value]| events.iter().filter(|e| e["event"] == name).count();
        let began = Instant::now();
        while count(&self.events(index)) < count(before) + more {
            let events = || self.events(index);
            assert!(began.elapsed() < PATIENCE, "not {more} more {name}: {:#?}", events());
            pause();
        }
    }

    /// Waits until a dead attempt is superseded: another coordinator has committed the same item, or has
    /// removed it, because its own outputs reached meanwhile what the item was for.
    pub(crate) fn await_superseded(&self, by: u32, work: &str) {
        let began = Instant::now();
        loop {
            let committed = |e: &Value| e["event"] == "committed" && e["work"] == work;
            let stands = self.work().iter().any(|(id, _)| id == work);
            if !stands || self.events(by).iter().any(committed) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{work} stands: {:#?}", self.events(by));
            pause();
        }
    }

    /// Stops a coordinator while it has a job in hand that is not solved, and would be solved again by
    /// whoever takes over. Gives its process, the work item, and the token of both.
    pub(crate) fn stop_in_a_job(&self, index: u32) -> (u32, String, String) {
        let pid = self.coordinator(index);
        let in_hand = |granted: &Value| {
            let work = granted["work"].as_str().unwrap();
            let solved = |event: &Value| event["event"] == "solved" && event["work"] == work;
            let token = self.token_of(work)?;
            (!self.events(index).iter().any(solved)).then(|| (pid, work.to_owned(), token))
        };
        loop {
            let granted = self.await_event(index, "granted", |event| in_hand(event).is_some());
            stop_between_steps(pid, &self.dir());
            if let Some(found) = in_hand(&granted) {
                return found;
            }
            signal(pid, "CONT");
        }
    }

    pub(crate) fn coordinator(&self, index: u32) -> u32 {
        let start = self.await_event(index, "start", |_| true);
        u32::try_from(start["pid"].as_u64().unwrap()).unwrap()
    }

    /// Targets under a live lease at this moment, with their tokens. What has run out is free, whether
    /// or not somebody has taken it over yet.
    pub(crate) fn leased(&self) -> Vec<(u64, String)> {
        let table = ringfence::Store::open_read_only(self.dir().join("store")).unwrap().targets();
        let mut leased = Vec::new();
        for listed in table.list(None).unwrap().leases {
            match listed.state {
                ringfence::LeaseState::Active(record) => {
                    leased.push((record.target.get(), record.holder.token.to_string()));
                }
                ringfence::LeaseState::Expired(_) => {}
                ringfence::LeaseState::Corrupt(damage) => panic!("{damage}"),
            }
        }
        leased
    }

    /// The targets whose lease is live under this token, in rising order.
    pub(crate) fn targets_under(&self, token: &str) -> Vec<u64> {
        let leased = self.leased().into_iter();
        let mut targets: Vec<u64> =
            leased.filter(|(_, under)| under == token).map(|(target, _)| target).collect();
        targets.sort_unstable();
        targets
    }

    /// The token under which a work item stands. Its text rises with the fence.
    pub(crate) fn token_of(&self, work: &str) -> Option<String> {
        let table = ringfence::Store::open_read_only(self.dir().join("store")).unwrap().work();
        let items = table.list(None).unwrap();
        let item = items.into_iter().find(|item| item.id.to_string() == work)?;
        Some(item.record.unwrap().holder.token.to_string())
    }

    /// The status of every work item by id.
    pub(crate) fn work(&self) -> Vec<(String, &'static str)> {
        let work = ringfence::Store::open_read_only(self.dir().join("store")).unwrap().work();
        let items = work.list(None).unwrap().into_iter();
        items.map(|item| (item.id.to_string(), item.record.unwrap().status.as_str())).collect()
    }

    /// The names in our peer queue, which must have dense ids and distinct digests.
    pub(crate) fn assert_queue_is_dense(&self) -> usize {
        let queue = self.run_dir().join("sync/ringfence/queue");
        let mut names: Vec<String> = names(&queue);
        names.sort();
        let mut digests = std::collections::BTreeSet::new();
        for (id, name) in names.iter().enumerate() {
            let digest = name.strip_prefix(&format!("id:{id:06},digest:"));
            let digest = digest.unwrap_or_else(|| panic!("{name} has id {id}: {names:?}"));
            assert!(digests.insert(digest.to_owned()), "{digest} is there twice");
            assert!(self.dir().join("objects").join(digest).is_file(), "{digest} is an object");
        }
        names.len()
    }

    /// Nothing of the run is left but its results: no lease, no half-done work, no staged file.
    pub(crate) fn assert_nothing_is_left(&self) {
        assert_eq!(self.leased(), [], "no group is leased");
        let unfinished: Vec<_> = self.work().into_iter().filter(|(_, s)| *s != "done").collect();
        assert_eq!(unfinished, [], "no work is unfinished");
        assert_eq!(names(&self.dir().join("stage")), [] as [String; 0]);
        assert_eq!(names(&self.run_dir().join("staging")), [] as [String; 0]);
        self.assert_no_process_is_left();
    }

    /// No coordinator and no worker of this campaign runs, shortly.
    pub(crate) fn assert_no_process_is_left(&self) {
        let marker = self.scratch.path().display().to_string();
        let began = Instant::now();
        loop {
            let left = processes_with(&marker);
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "left running: {left:?}");
            pause();
        }
    }

    /// A worker's command line has no path of the campaign in it; this one has.
    pub(crate) fn marked(&self, mut worker: Vec<String>) -> Vec<String> {
        let wrapper = "exec \"$@\" # $0";
        let marker = self.scratch.path().display().to_string();
        let mut argv = vec!["sh".to_owned(), "-c".to_owned(), wrapper.to_owned(), marker];
        argv.append(&mut worker);
        argv
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), "TERM");
            let _ = child.wait();
        }
    }
}

/// Tries what lasts so many seconds, and then longer, until enough came about in it to judge by: how much
/// that is in a given time is up to the machine. What must hold holds in every try.
pub(crate) fn until_enough(seconds: u32, attempt: impl Fn(u32) -> Result<(), TooLittle>) {
    for seconds in [seconds, seconds * 5] {
        if attempt(seconds).is_ok() {
            return;
        }
    }
    if let Err(TooLittle(seen)) = attempt(seconds * 20) {
        panic!("too little in {} seconds: {seen}", seconds * 20);
    }
}

/// What came about, which is too little to judge by.
pub(crate) struct TooLittle(String);

pub(crate) fn enough(is: bool, seen: &impl std::fmt::Debug) -> Result<(), TooLittle> {
    if is { Ok(()) } else { Err(TooLittle(format!("{seen:#?}"))) }
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success(), "kill -{name} {pid}");
}

/// Whether a process runs (one that waits to be reaped does not).
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn await_end(pid: u32) {
    let began = Instant::now();
    while runs(pid) {
        assert!(began.elapsed() < PATIENCE, "process {pid} still runs");
        pause();
    }
}

/// Processes whose command line contains `text`.
fn processes_with(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (line.contains(text) && runs(pid)).then_some(format!("{pid}: {line}"))
        })
        .collect()
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
