//! This binary again, as another process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use ringfence_env::World;
use ringfence_files::{FilesEngine, Tuning};

use crate::table::{Verbs as _, ask, options};

const ROLE: &str = "RINGFENCE_TEST_ROLE";
const ROOT: &str = "RINGFENCE_TEST_ROOT";

/// A command that plays `role` on the table at `root`.
pub(crate) fn command(role: &str, root: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child::another_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ROOT, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// A running process; killed and reaped when dropped.
pub(crate) struct Other {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(role: &str, root: &Path) -> Self {
        Self::spawn(&mut command(role, root))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that starts with `> `, without it.
    pub(crate) fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim_end().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
        stdin.flush().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout();
    writeln!(out, "> {text}").unwrap();
    out.flush().unwrap();
}

fn wait_for_a_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Does nothing unless a test started it with a role.
#[test]
fn another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let world = World::system();
    // Whoever is told to begin must not be gone by then: these wait for it, every one.
    if ["init", "open", "read"].contains(&role.as_str()) {
        wait_for_a_line();
    }
    match role.as_str() {
        "init" => match FilesEngine::init(&world, &root, &options(8)) {
            Ok(engine) => say(&engine.meta().table),
            Err(error) => say(format!("error: {error}")),
        },
        "open" => match FilesEngine::open(&world, &root, Tuning::default()) {
            Ok(_) => say("opened"),
            Err(error) => say(format!("error: {error}")),
        },
        "hold" => crate::locks::hold_members_until_killed(&world, &root, || say("holding")),
        "read" => say(crate::open::read_everything(&world, &root)),
        role => match role.split_once(' ') {
            Some(("claim", owner)) => {
                let engine = FilesEngine::open(&world, &root, Tuning::default()).unwrap();
                let targets: Vec<u64> =
                    wait_for_a_line().split(',').map(|number| number.parse().unwrap()).collect();
                match engine.ask(&ask(owner, &targets), None, Duration::from_secs(20)) {
                    Ok(Ok(token)) => say(token),
                    Ok(Err(_)) => say("refused"),
                    Err(failure) => say(format!("failed: {failure}")),
                }
            }
            Some(("churn", owner)) => crate::churn(&world, &root, owner),
            Some(("opposite", first)) => {
                crate::locks::claim_and_release(&world, &root, first);
                say("done");
            }
            _ => panic!("no such role: {role}"),
        },
    }
}
