//! What a process writes down of its calls, each line in one write before it goes on.
//!
//! ```text
//! begin ID NS                            the call is about to be made
//! saw ID KEY=STATE,..                    its rule was asked, and saw this; the last time counts
//! stores ID KEY=STATE,..                 its rule stores this
//! token ID FENCE                         it was put into a token
//! end ID NS done|refused|failed|unknown  the call has returned
//! ```
//! `KEY` is an index, `STATE` a digest, 0 for nothing. A process that was killed leaves a call without
//! an end, and perhaps a line without one.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ringfence_engine::{
    Decide, DecideAtAGlance, DecideEach, EachReport, Engine, EngineInfo, Failure, Outcome, Place,
    Request, Scan, StorageError,
};
use ringfence_env::{Clock as _, SystemClock};
use ringfence_model::{Edit, Entry, Glance, Grant, Key, Space, Timestamp, Transition, View};

use crate::history::State;
use crate::real::worker::Lie;
use crate::remembered::Remembered;

/// How a call ended, for whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Acknowledged.
    Done,
    /// Refused by its rule.
    Refused,
    /// Failed; nothing was changed.
    Failed,
    /// It may have happened or not.
    Unknown,
}

/// One call as it was written down.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// For reports: the process and the call.
    pub name: String,
    /// Nanoseconds of the clock that all processes share.
    pub began: u64,
    /// When it returned and how.
    pub ended: Option<(u64, End)>,
    /// What its rule saw, if it was asked.
    pub reads: Option<Vec<(usize, u64)>>,
    /// What its rule stored.
    pub writes: Vec<(usize, u64)>,
    /// Fences that were put into tokens for it; the last one is that of `writes`.
    pub fences: Vec<u64>,
}

impl Call {
    /// Whether it was granted something.
    pub fn is_granted(&self) -> bool {
        self.ended.is_some_and(|(_, end)| end == End::Done) && !self.fences.is_empty()
    }
}

/// Reads what a process wrote.
pub fn parse(text: &str, of: usize) -> Vec<Call> {
    let mut calls: std::collections::BTreeMap<u64, Call> = std::collections::BTreeMap::new();
    // A line that is not whole was being written when its process was killed.
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let id: u64 = words[1].parse().expect("a number");
        let call = calls.entry(id).or_default();
        match words[0] {
            "begin" => {
                call.name = format!("call {id} of process {of}");
                call.began = words[2].parse().expect("a time");
            }
            "saw" => {
                call.reads = Some(pairs(words[2]));
                call.writes.clear();
            }
            "stores" => call.writes = pairs(words[2]),
            "token" => call.fences.push(words[2].parse().expect("a fence")),
            "end" => {
                let end = match words[3] {
                    "done" => End::Done,
                    "refused" => End::Refused,
                    "failed" => End::Failed,
                    _ => End::Unknown,
                };
                call.ended = Some((words[2].parse().expect("a time"), end));
            }
            other => panic!("a line begins with {other}"),
        }
    }
    calls.into_values().collect()
}

fn pairs(text: &str) -> Vec<(usize, u64)> {
    let pair = |pair: &str| {
        let (key, state) = pair.split_once('=').expect("a key and a state");
        (key.parse().expect("a key"), u64::from_str_radix(state, 16).expect("a state"))
    };
    text.split(',').filter(|pair| !pair.is_empty()).map(pair).collect()
}

/// Where lines go.
#[derive(Debug)]
struct Lines {
    file: Mutex<std::fs::File>,
    keys: Vec<Key>,
    remembered: Remembered,
}

impl Lines {
    fn say(&self, line: &str) {
        // In one write, and past every buffer of this process.
        self.file.lock().unwrap().write_all(line.as_bytes()).expect("the log is written");
    }

    fn states<'a>(&self, states: impl Iterator<Item = (&'a Key, u64)>) -> String {
        let mut text = String::new();
        for (key, state) in states {
            let at = self.keys.iter().position(|known| known == key).expect("a key of the log");
            let _ = write!(text, "{at}={state:x},");
        }
        text
    }

    fn stores(&self, id: u64, edits: &[Edit]) {
        self.remembered.learn(edits);
        let state = |edit: &Edit| edit.to.as_ref().map_or(0, |record| State::of(record).digest);
        let states = self.states(edits.iter().map(|edit| (&edit.key, state(edit))));
        self.say(&format!("stores {id} {states}\n"));
    }
}

fn now() -> u64 {
    u64::try_from(SystemClock.monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// An engine whose calls are written down.
#[derive(Debug)]
pub struct Logged {
    inner: Arc<dyn Engine>,
    lines: Arc<Lines>,
    next: AtomicU64,
    lie: Option<Lie>,
}

impl Logged {
    /// Writes down the calls on `inner`, whose keys are named by their places in `keys`.
    pub fn new(
        inner: Arc<dyn Engine>,
        file: std::fs::File,
        keys: Vec<Key>,
        lie: Option<Lie>,
    ) -> Self {
        let lines =
            Arc::new(Lines { file: Mutex::new(file), keys, remembered: Remembered::default() });
        Self { inner, lines, next: AtomicU64::new(1), lie }
    }

    fn begin(&self) -> u64 {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        self.lines.say(&format!("begin {id} {}\n", now()));
        id
    }

    fn end(&self, id: u64, how: &str) {
        self.lines.say(&format!("end {id} {} {how}\n", now()));
    }

    fn saw(&self, id: u64, entries: &[(Key, Entry)]) {
        let seen = entries.iter().map(|(key, entry)| (key, State::seen(entry).digest));
        self.lines.say(&format!("saw {id} {}\n", self.lines.states(seen)));
    }

    fn ask(&self, id: u64, decide: &mut Decide<'_>, view: &View) -> Option<Transition> {
        self.saw(id, &view.entries);
        match decide(view)? {
            Transition::Edits { edits, audit } => {
                self.lines.stores(id, &edits);
                Some(Transition::Edits { edits, audit })
            }
            Transition::Alike(alike) => {
                self.lines.stores(id, &view.after(&alike));
                Some(Transition::Alike(alike))
            }
            Transition::Grant(grant) => {
                let lines = Arc::clone(&self.lines);
                Some(Transition::Grant(Grant::new(grant.above, move |token| {
                    let edits = grant.under(token);
                    lines.stores(id, &edits);
                    lines.say(&format!("token {id} {}\n", token.fence().0));
                    edits
                })))
            }
        }
    }
}

impl Engine for Logged {
    fn info(&self) -> EngineInfo {
        self.inner.info()
    }

    fn transact(&self, request: &Request<'_>, decide: &mut Decide<'_>) -> Result<Outcome, Failure> {
        self.transact_at_a_glance(request, &mut |_| None, decide)
    }

    fn transact_at_a_glance(
        &self,
        request: &Request<'_>,
        glance: &mut DecideAtAGlance<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Outcome, Failure> {
        let id = self.begin();
        if self.lie == Some(Lie::Acknowledges) && id.is_multiple_of(3) {
            let view = self.inner.view(request.keys, request.now).map_err(Failure::Untouched)?;
            // Nothing of it is stored.
            if let Some(Transition::Edits { .. } | Transition::Alike(_)) =
                self.ask(id, decide, &view)
            {
                self.end(id, "done");
                return Ok(Outcome::Done(ringfence_engine::Done { token: None, barriers: 0 }));
            }
        }
        let mut at_a_glance = |shown: &Glance| {
            let view = self.lines.remembered.view(shown)?;
            let alike = glance(shown)?;
            match self.ask(id, &mut |_| Some(Transition::Alike(alike.clone())), &view)? {
                Transition::Alike(alike) => Some(alike),
                _ => None,
            }
        };
        let outcome = self.inner.transact_at_a_glance(request, &mut at_a_glance, &mut |view| {
            self.ask(id, decide, view)
        });
        let how = match &outcome {
            Ok(Outcome::Done(_)) => "done",
            Ok(Outcome::Refused) => "refused",
            Err(Failure::Unknown { .. }) => "unknown",
            Err(_) => "failed",
        };
        self.end(id, how);
        outcome
    }

    fn transact_each(&self, _: &[Request<'_>], _: &mut DecideEach<'_>) -> EachReport {
        unreachable!("no worker makes batches")
    }

    /// Of one key: that of several is not promised to be of one moment.
    fn view(&self, keys: &[Key], now: Option<Timestamp>) -> Result<View, StorageError> {
        let id = self.begin();
        let view = self.inner.view(keys, now)?;
        if let [_] = keys {
            self.saw(id, &view.entries);
        }
        self.end(id, "refused");
        Ok(view)
    }

    fn scan(&self, space: Space, now: Option<Timestamp>) -> Result<Scan, StorageError> {
        self.inner.scan(space, now)
    }

    fn queue(&self, keys: &[Key]) -> Result<Option<Box<dyn Place>>, StorageError> {
        self.inner.queue(keys)
    }

    fn waiting(&self, keys: &[Key]) -> usize {
        self.inner.waiting(keys)
    }
}
