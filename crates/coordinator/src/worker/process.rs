//! One worker process and its two pipes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_env::World;
use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answers::{Hello, PROTOCOL};
use crate::exec::Reexec;

/// The longest line that is read: a trace of a long replay.
const MAX_LINE: u64 = 32 << 20;
/// How often a waiting request looks at its flag.
const SLICE: Duration = Duration::from_millis(50);
/// How long a worker may take to say hello: it loads an image first.
const HELLO_SILENCE: Duration = Duration::from_secs(30);
/// How long a worker that was told to shut down may take.
const FAREWELL: Duration = Duration::from_millis(500);
/// How much of what it says to people is kept.
const TAIL: usize = 2000;

/// How to start a worker.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) reexec: Reexec,
    pub(crate) argv: Vec<String>,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The longest time without a line.
    pub(crate) silence: Duration,
    /// The longest time in all, however lively the worker is.
    pub(crate) total: Duration,
}

/// A running worker. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Worker {
    world: World,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Line>,
    tail: Arc<Mutex<Vec<u8>>>,
    next_id: u64,
}

#[derive(Debug)]
enum Line {
    Text(Vec<u8>),
    TooLong,
}

impl Worker {
    /// Starts the command and asks it who it is.
    pub(crate) fn start(
        world: &World,
        launch: &Launch,
        stop: &AtomicBool,
    ) -> Result<(Self, Hello), WorkerError> {
        let mut command = launch.reexec.guarded(&launch.argv, Signal::KILL);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: a terminal's signals are the supervisor's to pass on.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| WorkerError::Start(error.to_string()))?;
        let stdin = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || read_lines(stdout, &sender));
        }
        let tail = Arc::new(Mutex::new(Vec::new()));
        if let Some(stderr) = child.stderr.take() {
            let tail = Arc::clone(&tail);
            std::thread::spawn(move || keep_tail(stderr, &tail));
        }
        let mut worker = Self { world: world.clone(), child, stdin, lines, tail, next_id: 1 };
        let patience = Patience { silence: HELLO_SILENCE, total: HELLO_SILENCE };
        let hello: Hello =
            worker.request("hello", json!({ "protocol": PROTOCOL }), patience, stop)?;
        if hello.protocol != PROTOCOL {
            return Err(WorkerError::Garbage(format!("it speaks protocol {}", hello.protocol)));
        }
        Ok((worker, hello))
    }

    /// Its process id, which is its process group too.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one request and waits for its answer.
    ///
    /// After an error of any kind but [`WorkerError::Refused`] the worker is of no more use.
    pub(crate) fn request<T: DeserializeOwned>(
        &mut self,
        op: &str,
        mut fields: Value,
        patience: Patience,
        cancelled: &AtomicBool,
    ) -> Result<T, WorkerError> {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(object) = fields.as_object_mut() {
            object.insert("id".to_owned(), json!(id));
            object.insert("op".to_owned(), json!(op));
        }
        self.send(&fields)?;
        let clock = &self.world.clock;
        let deadline = clock.deadline(patience.total);
        let mut silent_until = clock.deadline(patience.silence);
        loop {
            if cancelled.load(Ordering::Relaxed) {
                return Err(WorkerError::Cancelled);
            }
            let line = match self.lines.recv_timeout(SLICE) {
                Ok(Line::Text(line)) => line,
                Ok(Line::TooLong) => {
                    return Err(WorkerError::Garbage(format!("a line of over {MAX_LINE} bytes")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.death()),
                Err(RecvTimeoutError::Timeout) => {
                    if clock.left(deadline).is_zero() {
                        return Err(WorkerError::Slow(patience.total));
                    }
                    if clock.left(silent_until).is_zero() {
                        return Err(WorkerError::Silent(patience.silence));
                    }
                    continue;
                }
            };
            silent_until = clock.deadline(patience.silence);
            if let Some(answer) = read_answer(&line, id)? {
                return serde_json::from_value(answer)
                    .map_err(|error| WorkerError::Garbage(error.to_string()));
            }
            if clock.left(deadline).is_zero() {
                return Err(WorkerError::Slow(patience.total));
            }
        }
    }

    /// Ends it politely, then not.
    pub(crate) fn shut_down(mut self) {
        let id = self.next_id;
        let _ = self.send(&json!({ "id": id, "op": "shutdown" }));
        self.stdin = None;
        let deadline = self.world.clock.deadline(FAREWELL);
        while !self.world.clock.left(deadline).is_zero() {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            self.world.clock.sleep(Duration::from_millis(5));
        }
        // The drop does the rest.
    }

    fn send(&mut self, message: &Value) -> Result<(), WorkerError> {
        let mut line = message.to_string();
        line.push('\n');
        let sent = match &mut self.stdin {
            Some(stdin) => stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()),
            None => return Err(WorkerError::Died("its standard input is closed".to_owned())),
        };
        sent.map_err(|_| self.death())
    }

    fn death(&mut self) -> WorkerError {
        let status = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "it closed its output".to_owned(),
        };
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&tail);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
        let gap = if last.is_empty() { "" } else { ": " };
        WorkerError::Died(format!("{status}{gap}{}", last.trim().escape_debug()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
            && !matches!(self.child.try_wait(), Ok(Some(_)))
        {
            // The leader was not reaped, so the group is still its own.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// The answer of request `id`, if the line is one; `None` for what a reader skips (P2).
fn read_answer(line: &[u8], id: u64) -> Result<Option<Value>, WorkerError> {
    let shown =
        || String::from_utf8_lossy(line.get(..120).unwrap_or(line)).escape_debug().to_string();
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        return Err(WorkerError::Garbage(format!("not JSON: {}", shown())));
    };
    if value.get("event").is_some() {
        return Ok(None);
    }
    if value.get("id").and_then(Value::as_u64) != Some(id) {
        return Err(WorkerError::Garbage(format!("no answer to request {id}: {}", shown())));
    }
    match value.get("ok").and_then(Value::as_bool) {
        Some(true) => Ok(Some(value)),
        Some(false) => {
            let text = |field| {
                let found = value.get("error").and_then(|error| error.get(field));
                found.and_then(Value::as_str).unwrap_or("?").to_owned()
            };
            Err(WorkerError::Refused { kind: text("kind"), message: text("message") })
        }
        None => Err(WorkerError::Garbage(format!("no `ok`: {}", shown()))),
    }
}

fn read_lines(stdout: impl std::io::Read, sender: &mpsc::Sender<Line>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let whole = line.last() == Some(&b'\n');
        let over = !whole && line.len() as u64 >= MAX_LINE;
        // A line without its end is the death of the worker, which the closed channel tells.
        if !whole && !over {
            return;
        }
        let sent = sender.send(if over { Line::TooLong } else { Line::Text(line) });
        if sent.is_err() || over {
            return;
        }
    }
}

fn keep_tail(mut stderr: impl std::io::Read, tail: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        match stderr.read(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(count) if count > 0 => {
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(buffer.get(..count).unwrap_or_default());
                let over = tail.len().saturating_sub(TAIL);
                tail.drain(..over);
            }
            _ => return,
        }
    }
}

/// How a request ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WorkerError {
    /// It did not start.
    #[error("it does not start: {0}")]
    Start(String),
    /// It ended.
    #[error("it died: {0}")]
    Died(String),
    /// It said nothing for this long.
    #[error("it was silent for {0:?}")]
    Silent(Duration),
    /// It took longer than a request may take.
    #[error("it did not answer within {0:?}")]
    Slow(Duration),
    /// It said what is no protocol.
    #[error("it does not speak the protocol: {0}")]
    Garbage(String),
    /// It cannot do this request; it is well otherwise.
    #[error("it refused ({kind}): {message}")]
    Refused {
        /// The protocol's kind of error.
        kind: String,
        /// For people.
        message: String,
    },
    /// The request was given up.
    #[error("the request was given up")]
    Cancelled,
}

impl WorkerError {
    /// Whether the worker can take another request.
    pub(crate) fn worker_lives(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// The word for it in a report.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Start(_) => "no-start",
            Self::Died(_) => "died",
            Self::Silent(_) => "silent",
            Self::Slow(_) => "slow",
            Self::Garbage(_) => "garbage",
            Self::Refused { .. } => "refused",
            Self::Cancelled => "cancelled",
        }
    }
}
