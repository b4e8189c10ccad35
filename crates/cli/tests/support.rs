//! The real binary on a real directory.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A table of its own, removed with everything in it.
pub(crate) struct Table {
    dir: TempDir,
    pub(crate) store: PathBuf,
}

impl Table {
    /// The default engine, a ttl of one minute.
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// One record per file, in eight shards: for what other programs see or could do.
    pub(crate) fn files() -> Self {
        Self::with(&["--engine", "files"])
    }

    /// For what is the same on every engine.
    pub(crate) fn both() -> [Self; 2] {
        [Self::new(), Self::files()]
    }

    /// Files on a disk, which keep their numbers.
    pub(crate) fn files_on_disk() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self::made_in(dir, &["--engine", "files"])
    }

    pub(crate) fn with(options: &[&str]) -> Self {
        Self::made_in(tempfile::tempdir().unwrap(), options)
    }

    /// Where a sync takes no time, if the machine offers that: for leases that are to be kept.
    pub(crate) fn in_memory(options: &[&str]) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self::made_in(dir, options)
    }

    fn made_in(dir: TempDir, options: &[&str]) -> Self {
        let store = dir.path().join("store");
        let table = Self { dir, store };
        let made = table.run("init", options);
        assert_eq!(made.code, 0, "{made:?}");
        table
    }

    /// A place beside the store.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `ringfence VERB STORE ARGS..`
    pub(crate) fn command(&self, verb: &str, args: &[&str]) -> Command {
        let mut command = ringfence();
        command.arg(verb).arg(&self.store).args(args);
        command
    }

    pub(crate) fn run(&self, verb: &str, args: &[&str]) -> Ran {
        Ran::of(&mut self.command(verb, args))
    }

    /// The same with `--json`; the answer must be one object on one line.
    pub(crate) fn json(&self, verb: &str, args: &[&str]) -> (i32, Value) {
        let ran = Ran::of(self.command(verb, args).arg("--json"));
        (ran.code, ran.json())
    }

    /// Claims and returns the token.
    pub(crate) fn claim(&self, targets: &str, owner: &str, more: &[&str]) -> String {
        let mut args = vec!["--targets", targets, "--owner", owner];
        args.extend(more);
        let (code, answer) = self.json("claim", &args);
        assert_eq!((code, &answer["outcome"]), (0, &Value::from("granted")), "{answer}");
        answer["token"].as_str().unwrap().to_owned()
    }

    /// A kernel lock that a claim of this target needs.
    pub(crate) fn lock(&self, target: u64) -> PathBuf {
        let append = self.store.join("append.lock");
        if append.exists() { append } else { self.record(target).with_extension("json.lock") }
    }

    /// The record file of a target, in a table of files.
    pub(crate) fn record(&self, target: u64) -> PathBuf {
        let target = ringfence::Target::new(target).unwrap();
        let id = ringfence::RecordId::of_target(target);
        let shards = ringfence::ShardCount::new(8).unwrap();
        self.store.join(id.shard(shards).to_string()).join(format!("{id}.json"))
    }

    /// Every name below the store with its bytes, lock files and what counts for a boot left out.
    pub(crate) fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        walk(&self.store, &mut |path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let volatile = ["fence.next", "fence.mark", "hints"].contains(&name);
            if !name.ends_with(".lock") && !volatile {
                found.push((path.to_owned(), std::fs::read(path).unwrap()));
            }
        });
        found.sort();
        found
    }

    /// Asserts that no temporary is left and that every kernel lock is free.
    pub(crate) fn assert_tidy(&self) {
        walk(&self.store, &mut |path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
            assert_ne!(path.extension(), Some(OsStr::new("tmp")), "left: {name}");
            if path.extension() == Some(OsStr::new("lock")) {
                let free = Command::new("flock").arg("-n").arg(path).arg("true").status().unwrap();
                assert!(free.success(), "locked: {name}");
            }
        });
    }
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), visit);
        } else {
            visit(&entry.path());
        }
    }
}

/// The binary under test.
pub(crate) fn ringfence() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command.stdin(Stdio::null());
    command
}

/// `ringfence ARGS..`
pub(crate) fn run(args: &[&str]) -> Ran {
    Ran::of(ringfence().args(args))
}

/// How an invocation ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code as a shell shows it.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let began = Instant::now();
        let output = command.output().unwrap();
        Self::ended(&output, began.elapsed())
    }

    /// The end of a child that was spawned with pipes.
    pub(crate) fn wait(child: Child) -> Self {
        let began = Instant::now();
        let output = child.wait_with_output().unwrap();
        Self::ended(&output, began.elapsed())
    }

    fn ended(output: &Output, took: Duration) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let killed = || output.status.signal().map(|signal| 128 + signal);
        let ran = Self {
            code: output.status.code().or_else(killed).unwrap(),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8(output.stderr.clone()).unwrap(),
            took,
        };
        assert!(!ran.err.contains("panicked"), "{ran:?}");
        ran
    }

    /// Standard output as exactly one JSON object on one line.
    pub(crate) fn json(&self) -> Value {
        let line = self.out.strip_suffix('\n').unwrap_or_else(|| panic!("no answer: {self:?}"));
        assert!(!line.contains('\n'), "more than one line: {self:?}");
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        assert!(value["outcome"].is_string(), "{value}");
        assert_eq!(self.code != 0, value["error"].is_string(), "error iff not 0: {self:?}");
        value
    }
}

/// Spawns with pipes.
pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(sent.unwrap().success());
}

/// The next line that a child says to people, which is left out of how it ended.
pub(crate) fn told(child: &mut Child) -> String {
    let stderr = child.stderr.as_mut().unwrap();
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        let said = String::from_utf8_lossy(&line);
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "it ended, and had said {said:?}");
        line.extend(byte);
    }
    String::from_utf8(line).unwrap()
}

pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// `1,2,..,n`
pub(crate) fn first(n: u64) -> String {
    (1..=n).map(|target| target.to_string()).collect::<Vec<_>>().join(",")
}

/// Damages the record of a target: nothing is left in it.
pub(crate) fn damage(table: &Table, target: u64) {
    std::fs::write(table.record(target), b"").unwrap();
}

/// Runs a command under `strace -f` with these options; what strace says goes to `log`.
pub(crate) fn traced(options: &[&str], log: &Path, command: &Command) -> Command {
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o"]).arg(log).args(options).arg("--").arg(command.get_program());
    traced.args(command.get_args()).stdin(Stdio::null());
    traced
}

/// Kills a command when it is about to rename for the `nth` time.
pub(crate) fn killed_at_rename(nth: usize, command: &Command, log: &Path) -> Ran {
    let kill = format!("inject=rename,renameat,renameat2:signal=KILL:when={nth}");
    let options = ["-e", "trace=rename,renameat,renameat2", "-e", &kill];
    Ran::of(&mut traced(&options, log, command))
}

/// Runs a shell script in a mount namespace of its own; `$1..` are the arguments. What it mounts is
/// gone with it.
pub(crate) fn in_mount_namespace(script: &str, args: &[&OsStr]) -> Command {
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let mut command = Command::new("unshare");
    command.arg(if root { "-m" } else { "-rm" }).args(["--propagation", "private", "sh", "-ec"]);
    command.arg(script).arg("sh").args(args).stdin(Stdio::null());
    command
}

/// A kernel lock held by another process until dropped.
pub(crate) struct KernelLock(Child);

impl KernelLock {
    pub(crate) fn hold(path: &Path) -> Self {
        Self::taken(path, "-x")
    }

    /// One that others may share.
    pub(crate) fn share(path: &Path) -> Self {
        Self::taken(path, "-s")
    }

    fn taken(path: &Path, how: &str) -> Self {
        let mut holder = Command::new("flock");
        holder.arg(how).arg(path).args(["sh", "-c", "echo; read x"]);
        let mut child = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // One line says that the lock is held.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for KernelLock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}
