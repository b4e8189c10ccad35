//! Running the program, alone or under strace.
//!
//! strace counts per system call number and per thread, so a place is a call and a count in whichever
//! thread first reaches it; and it injects a signal only without its seccomp filter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::guard::Process;

/// Longer than any call takes; after it the call is said to hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is done to one system call of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The process is killed on its entry: the call is not made.
    Kill,
    /// It is not made and fails, this once.
    Fail(&'static str),
    /// It is not made and fails, this time and from then on.
    FailOn(&'static str),
    /// It is not made and seems to succeed.
    Lie(u64),
    /// The same, this time and from then on.
    LieOn(u64),
}

/// A blow and where it strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) blow: Blow,
    pub(crate) call: String,
    /// The how manyeth call of that kind in its thread.
    pub(crate) when: u64,
}

impl Place {
    fn words(&self) -> String {
        let Self { call, when, .. } = self;
        match self.blow {
            Blow::Kill => format!("inject={call}:signal=KILL:when={when}"),
            Blow::Fail(error) => format!("inject={call}:error={error}:when={when}"),
            Blow::FailOn(error) => format!("inject={call}:error={error}:when={when}+"),
            Blow::Lie(value) => format!("inject={call}:retval={value}:when={when}"),
            Blow::LieOn(value) => format!("inject={call}:retval={value}:when={when}+"),
        }
    }
}

impl Place {
    /// Whether a sync is made to fail, for good.
    pub(crate) fn fails_a_sync(&self) -> bool {
        let failed = match self.blow {
            Blow::Fail(error) => error != "EINTR",
            Blow::FailOn(_) => true,
            _ => false,
        };
        failed && (self.call == "fsync" || self.call == "fdatasync")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words())
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// Its exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal.
    pub(crate) signal: Option<i32>,
    /// What it said to tools.
    pub(crate) out: Vec<u8>,
    /// What it said to people.
    pub(crate) err: String,
    /// What strace wrote down.
    pub(crate) log: String,
    /// Whether it had to be killed at the end of all patience.
    pub(crate) hung: bool,
}

impl Ran {
    /// Its answer, if it gave a whole one.
    pub(crate) fn answer(&self) -> Option<Value> {
        self.out.strip_suffix(b"\n").and_then(|line| serde_json::from_slice(line).ok())
    }

    /// Whether the blow struck.
    pub(crate) fn struck(&self) -> bool {
        self.log.contains("(INJECTED)") || self.log.contains("+++ killed by SIGKILL +++")
    }

    /// Whether what was struck was the writing of an answer.
    pub(crate) fn struck_the_answer(&self) -> bool {
        struck_calls(&self.log)
            .iter()
            .any(|call| call.starts_with("write(1<") || call.starts_with("write(2<"))
    }

    /// In few words.
    pub(crate) fn ending(&self) -> String {
        let end = match (self.code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let said = String::from_utf8_lossy(&self.out);
        format!("{end}, {} {}", said.trim(), self.err.trim())
    }
}

/// One that runs programs, with a directory for what they say.
#[derive(Debug)]
pub(crate) struct Runner {
    dir: PathBuf,
}

impl Runner {
    /// Whose files are in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Runs it with blows; an empty list only writes down every call that it makes.
    pub(crate) fn traced(
        &self,
        places: &[Place],
        program: &Path,
        args: &[String],
    ) -> io::Result<Ran> {
        let mut command = Command::new("strace");
        command.args(self.strace(places)).arg(program).args(args);
        let log = self.dir.join("log");
        // Of the run before.
        let _ = std::fs::remove_file(&log);
        let mut ran = run(command)?;
        ran.log = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        Ok(ran)
    }

    /// The flags of strace.
    pub(crate) fn strace(&self, places: &[Place]) -> Vec<String> {
        let mut flags: Vec<String> = ["-f", "-q", "-y", "-s", "8", "-o"].map(str::to_owned).into();
        flags.push(self.dir.join("log").to_string_lossy().into_owned());
        if !places.is_empty() {
            if places.iter().all(|place| place.blow != Blow::Kill) {
                flags.push("--seccomp-bpf".to_owned());
            }
            let calls: Vec<&str> = places.iter().map(|place| place.call.as_str()).collect();
            flags.extend(["-e".to_owned(), format!("trace={}", calls.join(","))]);
        }
        for place in places {
            flags.extend(["-e".to_owned(), place.words()]);
        }
        flags
    }
}

/// Runs a program by itself.
pub(crate) fn plain(program: &Path, args: &[String]) -> io::Result<Ran> {
    let mut command = Command::new(program);
    command.args(args);
    run(command)
}

fn run(mut command: Command) -> io::Result<Ran> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut process = Process::start(&mut command)?;
    let (out, err) = (process.child.stdout.take(), process.child.stderr.take());
    std::thread::scope(|scope| {
        let out = scope.spawn(|| all_of(out));
        let err = scope.spawn(|| all_of(err));
        let (status, hung) = end_of(&mut process)?;
        Ok(Ran {
            code: status.code(),
            signal: status.signal(),
            out: out.join().unwrap_or_default(),
            err: String::from_utf8_lossy(&err.join().unwrap_or_default()).into_owned(),
            log: String::new(),
            hung,
        })
    })
}

fn all_of(pipe: Option<impl io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What came before an error counts.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

/// The calls that a blow fell on, as they began: strace breaks a line up where another thread came in
/// between.
fn struck_calls(log: &str) -> Vec<&str> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut struck = Vec::new();
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if !rest.starts_with("<... ") {
            begun.insert(thread, rest);
        }
        if line.contains("(INJECTED)") {
            struck.extend(begun.get(thread));
        }
    }
    struck
}

fn end_of(process: &mut Process) -> io::Result<(ExitStatus, bool)> {
    let began = Instant::now();
    loop {
        if let Some(status) = process.child.try_wait()? {
            // Reaped: only what is held is to be forgotten.
            process.wait()?;
            return Ok((status, false));
        }
        if began.elapsed() > PATIENCE {
            let group =
                i32::try_from(process.child.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            return Ok((process.wait()?, true));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// How often each system call was made in any one thread, and how often by the main thread before the
/// program itself began.
pub(crate) fn counts(log: &str) -> BTreeMap<String, (u64, u64)> {
    let mut threads: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut before: BTreeMap<&str, u64> = BTreeMap::new();
    let main = log.split_whitespace().next().unwrap_or_default();
    let mut began = false;
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, _)) = rest.trim_start().split_once('(') else { continue };
        if call.is_empty() || !call.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        // The run-time library gives the main thread a stack for signals just before `main`.
        began |= thread == main && call == "sigaltstack";
        *threads.entry((call, thread)).or_default() += 1;
        if !began {
            *before.entry(call).or_default() += 1;
        }
    }
    let mut counts = BTreeMap::new();
    for ((call, _), count) in threads {
        let entry: &mut (u64, u64) = counts.entry(call.to_owned()).or_default();
        entry.0 = entry.0.max(count);
        entry.1 = before.get(call).copied().unwrap_or(0);
    }
    counts
}

/// Which syncs of the main thread, by number, only serve the note of what the probe has found: it is
/// made again when it is lost, and nobody is promised that it is kept.
pub(crate) fn unpromised(log: &str) -> BTreeSet<u64> {
    let main = log.split_whitespace().next().unwrap_or_default();
    let (mut number, mut noted, mut found) = (0, false, BTreeSet::new());
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if thread != main {
            continue;
        }
        if rest.starts_with("rename(") {
            noted = rest.contains("/probe.json\")");
        } else if rest.starts_with("fsync(") {
            number += 1;
            if rest.contains("/probe.json.") || (noted && rest.contains("/table>")) {
                found.insert(number);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_per_thread_and_those_of_the_loader_apart() {
        let log = "7 execve(\"x\") = 0\n7 openat(AT_FDCWD, \"libc\") = 3\n7 sigaltstack(NULL) = 0\n\
                   7 openat(AT_FDCWD, \"t\" <unfinished ...>\n8 openat(AT_FDCWD, \"u\") = 4\n\
                   7 <... openat resumed>) = 5\n8 fsync(4) = 0\n8 fsync(4) = 0\n7 fsync(5) = 0\n\
                   8 +++ exited with 0 +++\n";
        let counts = counts(log);
        assert_eq!(counts["openat"], (2, 1));
        assert_eq!(counts["fsync"], (2, 0));
        assert_eq!(counts["execve"], (1, 1));
        let struck = "7 write(1<pipe:[9]>, \"x\", 1 <unfinished ...>\n8 +++ exited with 0 +++\n\
                      7 <... write resumed>) = -1 EIO (Input/output error) (INJECTED)\n\
                      9 read(3) = -1 EIO (INJECTED)\n9 write(1, \"y\", 1) = 1\n";
        assert_eq!(
            struck_calls(struck),
            ["write(1<pipe:[9]>, \"x\", 1 <unfinished ...>", "read(3) = -1 EIO (INJECTED)"]
        );
        assert!(!counts.keys().any(|call| call.contains('+') || call.contains('<')));
    }
}
