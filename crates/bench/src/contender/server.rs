//! Servers that the benchmark starts, and stops when it ends, however it ends.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::shim::Shim;
use crate::{Result, during};

const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(5);

/// A running server; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    stop: Signal,
}

/// What a server gets besides its own flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    /// What is preloaded, and where it counts.
    pub(crate) shim: Option<(&'a Shim, &'a Path)>,
}

impl Server {
    /// Starts `command` and waits until `answers`. `stop` makes it end in order.
    ///
    /// It runs in a process group of its own, so that a signal from the keyboard reaches only this
    /// program, which stops it. If this program is killed, the kernel tells the server to stop.
    pub(crate) fn start(
        command: &[&str],
        log: &Path,
        stop: Signal,
        user: Option<&str>,
        around: Around<'_>,
        mut answers: impl FnMut() -> bool,
    ) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let name = command.first().copied().unwrap_or_default();
        let output = std::fs::File::create(log).map_err(during("make a log"))?;
        let errors = output.try_clone().map_err(during("make a log"))?;
        let mut start = as_user(user, stop);
        start.args(command).process_group(0);
        start.stdin(Stdio::null()).stdout(output).stderr(errors);
        if let Some((shim, counter)) = around.shim {
            shim.preload(&mut start, counter);
        }
        let child = start.spawn().map_err(during(&format!("start {name}")))?;
        let mut server = Self { child, stop };
        let began = Instant::now();
        while !answers() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{name} ended with {status}: {}", last_words(log)).into());
            }
            if began.elapsed() > START {
                return Err(format!("{name} does not answer: {}", last_words(log)).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, self.stop);
        let began = Instant::now();
        while began.elapsed() < STOP {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A command that runs what follows as `user`, if this process may choose, and that is told to stop,
/// by `INT` or `TERM`, when this process is gone.
pub(crate) fn as_user(user: Option<&str>, stop: Signal) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user.filter(|_| rustix::process::geteuid().is_root()) {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command.args(["--pdeathsig", if stop == Signal::INT { "INT" } else { "TERM" }, "--"]);
    command
}

/// Runs a tool to its end; its own words are the error.
pub(crate) fn call(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).output().map_err(during(&format!("start {name}")))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&ended.stderr).trim()).into())
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.reverse();
    lines.join(" / ")
}
