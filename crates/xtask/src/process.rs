//! Child processes: started in a group of their own, heard, limited in time, and never left behind.
//!
//! P1. Whatever a child starts stays a descendant of this process, even when its parent dies:
//!     [`guard_descendants`] makes this process the one that orphans are handed to.
//! P2. When a child has ended, everything it started has ended too, or is ended here and reported.
//! P3. INT, TERM and HUP end every descendant before this process ends.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, PipeReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// How often a child is looked at while it is silent.
const POLL: Duration = Duration::from_millis(50);

/// How long an ending process may take before it counts as left behind, and how long a process
/// that was asked to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// How often a child that runs long is reported on.
const PROGRESS: Duration = Duration::from_secs(30);

/// Held during a run: two at once could not tell what each of them left behind.
static RUN: Mutex<()> = Mutex::new(());

/// Held while a child is being started, and for good once a signal ends everything.
static GATE: Mutex<()> = Mutex::new(());

/// What a child may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Wall time after which it is ended.
    pub(crate) time: Duration,
}

/// A child that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// What it printed, standard output and standard error in one order.
    pub(crate) output: String,
    status: ExitStatus,
    timed_out: Option<Duration>,
    left_behind: Vec<String>,
}

impl Finished {
    /// Whether it exited with 0, in time, and left nothing running.
    pub(crate) fn exited_well(&self) -> bool {
        self.status.success() && self.timed_out.is_none() && self.left_behind.is_empty()
    }

    /// What it exited with, if it exited by itself.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code().filter(|_| self.timed_out.is_none())
    }

    /// How it ended, in a few words.
    pub(crate) fn verdict(&self) -> String {
        let mut words = match (self.timed_out, self.status.code(), self.status.signal()) {
            (Some(limit), ..) => format!("ended after its limit of {} s", limit.as_secs()),
            (None, Some(code), _) => format!("exit code {code}"),
            (None, None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None, None) => "ended in an unknown way".to_owned(),
        };
        if !self.left_behind.is_empty() {
            words.push_str("; left running: ");
            words.push_str(&self.left_behind.join(", "));
        }
        words
    }
}

/// Runs `command` to its end without standard input and returns what it printed.
///
/// While it runs longer than half a minute, a line on standard error tells what it said last. Runs
/// take turns, and every process that descends from this one counts as part of the run.
pub(crate) fn run(command: Command, limits: &Limits) -> Result<Finished, StartError> {
    let _run = RUN.lock();
    let mut finished = run_until(command, Instant::now(), limits)?;
    finished.left_behind = end_what_is_left();
    Ok(finished)
}

/// Does the same with all of `commands`, so many at once, in their order as far as that allows.
///
/// Each is heard by itself. The limit is that of all together, and what any of them left running is
/// told of the one that came last.
pub(crate) fn run_side_by_side(
    commands: Vec<Command>,
    at_once: usize,
    limits: &Limits,
) -> Vec<Result<Finished, StartError>> {
    let _run = RUN.lock();
    let started = Instant::now();
    let (next, ended) = (Mutex::new(commands.into_iter().enumerate()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                loop {
                    let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, command)) = taken else { return };
                    let finished = run_until(command, started, limits);
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    ended.push((number, finished));
                }
            });
        }
    });
    let left_behind = end_what_is_left();
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    ended.sort_by_key(|(number, _)| *number);
    if let Some((_, Ok(last))) = ended.iter_mut().rev().find(|(_, finished)| finished.is_ok()) {
        last.left_behind = left_behind;
    }
    ended.into_iter().map(|(_, finished)| finished).collect()
}

/// Runs `command` to its end, or to the end of a time that began at `began`: then everything ends that
/// descends from this process.
fn run_until(
    mut command: Command,
    began: Instant,
    limits: &Limits,
) -> Result<Finished, StartError> {
    let start_error = |source| StartError { program: program_of(&command), source };
    if began.elapsed() >= limits.time {
        return Err(start_error(io::Error::other("the time is over")));
    }
    let (reader, writer) = io::pipe().map_err(start_error)?;
    let writer_again = writer.try_clone().map_err(start_error)?;
    command.stdin(Stdio::null()).stdout(writer).stderr(writer_again).process_group(0);
    let mut child = spawn(&mut command)?;
    let name = name_of(&command);
    // The command holds both write ends; the reader sees the end only after they are closed.
    drop(command);

    let started = Instant::now();
    let chunks = read_in_background(reader);
    let mut heard = Heard { name, bytes: Vec::new(), next_report: PROGRESS };
    let mut timed_out = None;
    let status = loop {
        heard.listen(&chunks, POLL);
        heard.report(started.elapsed());
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < limits.time => {}
            Ok(None) => {
                timed_out = Some(limits.time);
                end_descendants(GRACE);
                break child.wait().unwrap_or_else(|_| ExitStatus::from_raw(-1));
            }
            // Only a lost child can cause this; there is nothing to wait for.
            Err(_) => break ExitStatus::from_raw(-1),
        }
    };
    // What it left running may hold its output open, and go on writing to it.
    let ended = Instant::now();
    while heard.listen(&chunks, GRACE) && ended.elapsed() < GRACE {}
    pass_gate();
    let output = String::from_utf8_lossy(&heard.bytes).into_owned();
    Ok(Finished { output, status, timed_out, left_behind: Vec::new() })
}

/// Ends what runs though its starter has ended, and names it.
fn end_what_is_left() -> Vec<String> {
    let left_behind = wait_for_descendants(GRACE);
    if !left_behind.is_empty() {
        end_descendants(GRACE);
    }
    left_behind
}

/// Runs `command` to its end without standard input, its output going where this process's goes.
pub(crate) fn show(mut command: Command) -> Result<ExitStatus, StartError> {
    command.stdin(Stdio::null()).process_group(0);
    let status = spawn(&mut command)?.wait();
    pass_gate();
    status.map_err(|source| StartError { program: program_of(&command), source })
}

fn spawn(command: &mut Command) -> Result<Child, StartError> {
    let _gate = GATE.lock();
    command.spawn().map_err(|source| StartError { program: program_of(command), source })
}

/// Goes no further once a signal ends everything: what it ended is no result.
fn pass_gate() {
    drop(GATE.lock());
}

/// Turns this process into `command`. Returns only when that fails.
pub(crate) fn become_command(mut command: Command) -> StartError {
    // The new program answers for its own children.
    let _ = rustix::process::set_child_subreaper(None);
    let source = command.exec();
    StartError { program: program_of(&command), source }
}

fn program_of(command: &Command) -> String {
    command.get_program().display().to_string()
}

/// Makes orphaned descendants come to this process and arranges P3. Call it once, first.
pub(crate) fn guard_descendants() -> io::Result<()> {
    // The value does not matter, only that there is one.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Also those that a shell ignores for what it runs in the background: what is started here is not to
    // inherit that.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _gate = GATE.lock();
            eprintln!("\nxtask: signal {signal}; ending what was started");
            end_descendants(GRACE);
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// Asks every descendant to end, and kills those that have not ended after `grace`.
fn end_descendants(grace: Duration) {
    let started = Instant::now();
    for pid in descendants() {
        signal(pid.pid, Signal::TERM);
        // A stopped process acts on TERM only once it runs again.
        signal(pid.pid, Signal::CONT);
    }
    while started.elapsed() < grace && !descendants().is_empty() {
        thread::sleep(POLL);
    }
    // A process that starts others while it is being looked for needs another look.
    for _ in 0..100 {
        let alive = descendants();
        if alive.is_empty() {
            break;
        }
        for process in alive {
            signal(process.pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits up to `grace` for all descendants to end; returns those that have not, for people.
///
/// No child of this process may be waited for elsewhere at the same time.
fn wait_for_descendants(grace: Duration) -> Vec<String> {
    let started = Instant::now();
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let alive = descendants();
        if alive.is_empty() || started.elapsed() >= grace {
            return alive
                .into_iter()
                .map(|process| format!("{} ({})", process.name, process.pid))
                .collect();
        }
        thread::sleep(POLL);
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended since it was listed; then there is nothing to do.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    name: String,
}

/// The running descendants of this process; those that have ended do not count.
fn descendants() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let all = entries.filter_map(Result::ok).filter_map(|entry| {
        entry.file_name().to_str()?.parse::<i32>().ok()?;
        parse_stat(&std::fs::read_to_string(entry.path().join("stat")).ok()?)
    });
    descendants_among(all.collect(), rustix::process::getpid().as_raw_nonzero().get())
}

fn descendants_among(mut rest: Vec<Process>, root: i32) -> Vec<Process> {
    let mut family = vec![root];
    let mut found = Vec::new();
    loop {
        let (next, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|process| family.contains(&process.parent));
        if next.is_empty() {
            return found;
        }
        family = next.iter().map(|process| process.pid).collect();
        found.extend(next);
        rest = others;
    }
}

/// Reads `PID (NAME) STATE PARENT ..`; the name may hold any character. `None` for a process that
/// has ended and only waits to be reaped.
fn parse_stat(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    Some(Process { pid: pid.parse().ok()?, parent, name: name.to_owned() })
}

/// What a child has said so far.
struct Heard {
    name: String,
    bytes: Vec<u8>,
    next_report: Duration,
}

impl Heard {
    /// Takes in what arrives within `wait`; false when nothing more will come.
    fn listen(&mut self, chunks: &Receiver<Vec<u8>>, wait: Duration) -> bool {
        match chunks.recv_timeout(wait) {
            Ok(chunk) => {
                self.bytes.extend(chunk);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                // The child may outlive its output; do not spin while it does.
                thread::sleep(wait.min(POLL));
                false
            }
        }
    }

    fn report(&mut self, elapsed: Duration) {
        if elapsed >= self.next_report {
            self.next_report = elapsed + PROGRESS;
            let last = last_for_people(&self.bytes);
            eprintln!("    .. {} s, {}: {last}", elapsed.as_secs(), self.name);
        }
    }
}

/// What is shown of a command while it runs: itself and its first argument, without folders.
fn name_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args().take(1));
    let name = |word: &OsStr| Path::new(word).file_name().unwrap_or(word).to_string_lossy().into();
    words.map(name).collect::<Vec<String>>().join(" ")
}

/// The last line that is not meant for a program.
fn last_for_people(said: &[u8]) -> Cow<'_, str> {
    let is_for_people = |line: &&[u8]| !line.is_empty() && !line.starts_with(b"{");
    let mut lines = said.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.find(is_for_people).map_or(Cow::Borrowed(""), String::from_utf8_lossy)
}

fn read_in_background(mut reader: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            match reader.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(length) if length > 0 => {
                    let chunk = buffer.get(..length).unwrap_or_default().to_vec();
                    if sender.send(chunk).is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    });
    receiver
}

/// A program that could not be started.
#[derive(Debug)]
pub(crate) struct StartError {
    /// Its name.
    pub(crate) program: String,
    /// Why.
    pub(crate) source: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start {}: {}", self.program, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, name: "x".to_owned() }
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_whole() {
        let read = parse_stat("42 (a) b (c) S 7 42 42 0 -1").unwrap();
        assert_eq!(read, Process { pid: 42, parent: 7, name: "a) b (c".to_owned() });
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_is_not_running() {
        assert_eq!(parse_stat("42 (sh) Z 7 42 42 0 -1"), None);
        assert_eq!(parse_stat("42 (sh"), None);
    }

    fn shell(script: &str, limit: Duration) -> Finished {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, &Limits { time: limit }).unwrap()
    }

    // One test, because a run takes every descendant of this process for its own.
    #[test]
    fn a_child_is_heard_limited_and_leaves_nothing_behind() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let long = Duration::from_mins(5);

        let said = shell("echo out; echo err >&2; exit 3", long);
        assert_eq!(said.output, "out\nerr\n");
        assert!(!said.exited_well());
        assert_eq!(said.verdict(), "exit code 3");

        let silent = shell("exec >/dev/null 2>&1; sleep 0.2; exec cat", long);
        assert!(silent.exited_well(), "no standard input: {}", silent.verdict());

        let hung = shell("echo before; sleep 600 & sleep 600", Duration::from_secs(2));
        assert_eq!(hung.output, "before\n");
        assert!(!hung.exited_well() && hung.verdict().contains("limit"), "{}", hung.verdict());
        assert_eq!(descendants(), []);

        // Each is what it is called before the shell ends.
        let careless = "for _ in 1 2; do\n\
                            setsid sleep 600 & until grep -qx sleep /proc/$!/comm; do :; done\n\
                        done";
        let careless = shell(careless, long);
        assert!(!careless.exited_well());
        assert_eq!(careless.verdict().matches("sleep").count(), 2, "{}", careless.verdict());
        assert_eq!(descendants(), []);

        assert!(run(Command::new("no-such-program-here"), &Limits { time: long }).is_err());

        several_at_once(long);
    }

    /// Part of the test above.
    fn several_at_once(long: Duration) {
        let shells = |scripts: &[&str], limit| {
            let command = |script: &&str| {
                let mut command = Command::new("sh");
                command.args(["-c", script]);
                command
            };
            let commands = scripts.iter().map(command).collect();
            run_side_by_side(commands, 2, &Limits { time: limit })
        };
        let dir = tempfile_name("meeting");
        // Each of the two waits for the other, so they run at the same time; the third for neither.
        let meet = |own: &str, other: &str| {
            format!(
                "touch {dir}-{own}; until test -e {dir}-{other}; do sleep 0.01; done; echo {own}"
            )
        };
        let (one, two) = (meet("one", "two"), meet("two", "one"));
        let all = shells(&[&one, &two, "echo three; exit 3"], long);
        let _ = Command::new("sh").args(["-c", &format!("rm -f {dir}-*")]).status();
        let said: Vec<&str> =
            all.iter().map(|ended| ended.as_ref().unwrap().output.as_str()).collect();
        assert_eq!(said, ["one\n", "two\n", "three\n"]);
        let fine: Vec<bool> =
            all.iter().map(|ended| ended.as_ref().unwrap().exited_well()).collect();
        assert_eq!(fine, [true, true, false]);

        let late = shells(&["sleep 600", "sleep 600", "echo never"], Duration::from_millis(200));
        assert!(late.iter().all(|ended| !ended.as_ref().is_ok_and(Finished::exited_well)));
        assert_eq!(descendants(), []);

        let careless = shells(&["(setsid sleep 600 &) ; exit 0", "exit 0"], long);
        assert!(careless.iter().any(|ended| !ended.as_ref().unwrap().exited_well()));
        assert_eq!(descendants(), []);
    }

    #[test]
    fn what_is_shown_meanwhile_names_the_command_and_is_meant_for_people() {
        let mut command = Command::new("nice");
        command.args(["/t/debug/deps/exhaustive-1", "--quiet"]);
        assert_eq!(name_of(&command), "nice exhaustive-1");
        assert_eq!(name_of(&Command::new("/bin/true")), "true");
        let said = "   Compiling model\n{\"reason\":\"compiler-artifact\"}\n\n";
        assert_eq!(last_for_people(said.as_bytes()), "Compiling model");
        let long = format!("{said}{{{}", "\"fresh\":false,".repeat(2000));
        assert_eq!(last_for_people(long.as_bytes()), "Compiling model");
        assert_eq!(last_for_people(b"{}"), "");
    }

    fn tempfile_name(what: &str) -> String {
        std::env::temp_dir()
            .join(format!("xtask-{what}-{}", std::process::id()))
            .display()
            .to_string()
    }

    #[test]
    fn descendants_are_found_over_several_generations() {
        let all = vec![process(9, 5), process(5, 2), process(3, 1), process(2, 1), process(7, 3)];
        let mut found: Vec<i32> =
            descendants_among(all, 2).iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [5, 9]);
    }
}
