//! Answers: one JSON object on standard output, or text for people.
//!
//! A reader that has gone away or a full disk is an error like any other: it is told on standard
//! error and in the exit code, never by a panic.

use std::fmt::Display;
use std::io::{self, Write as _};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::exit::Exit;

/// How this invocation answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// One JSON object instead of text.
    pub(crate) json: bool,
}

/// What went wrong, for people and for tools.
#[derive(Debug)]
pub(crate) struct Complaint {
    /// The exit code.
    pub(crate) exit: Exit,
    /// The word that tools compare.
    pub(crate) outcome: &'static str,
    /// The sentence that people read; in JSON the field `error`.
    pub(crate) message: String,
    /// Further fields of the JSON answer.
    pub(crate) fields: Map<String, Value>,
}

#[derive(Serialize)]
struct Unhappy {
    outcome: &'static str,
    error: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl Complaint {
    /// A complaint without further fields.
    pub(crate) fn new(exit: Exit, outcome: &'static str, message: impl Display) -> Self {
        Self { exit, outcome, message: message.to_string(), fields: Map::new() }
    }

    /// The command line asks for something that cannot be.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(Exit::USAGE, "usage", message)
    }

    /// Adds a field to the JSON answer.
    pub(crate) fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.fields.insert(name.to_owned(), value);
        self
    }
}

impl Output {
    /// Answers for tools and people.
    pub(crate) fn of(json: bool) -> Self {
        Self { json }
    }

    /// Writes the answer of a verb that did what it was asked to. `human` may be empty.
    ///
    /// If it cannot be written the command has failed, whatever it did.
    pub(crate) fn answer(self, json: &impl Serialize, human: &str) -> Exit {
        match self.try_answer(json, human) {
            Ok(()) => Exit::DONE,
            Err(error) => unwritten(&error),
        }
    }

    /// The same, for a verb that has something to undo if nobody got the answer.
    pub(crate) fn try_answer(self, json: &impl Serialize, human: &str) -> io::Result<()> {
        if self.json {
            let mut line = serde_json::to_string(json)?;
            line.push('\n');
            print(&line)
        } else {
            print(human)
        }
    }

    /// Tells what went wrong: people on standard error, tools on standard output.
    pub(crate) fn complain(self, complaint: Complaint) -> Exit {
        note(&complaint.message);
        self.complain_silently(complaint)
    }

    /// The same, where people were told already.
    pub(crate) fn complain_silently(self, complaint: Complaint) -> Exit {
        if !self.json {
            return complaint.exit;
        }
        let object = Unhappy {
            outcome: complaint.outcome,
            error: complaint.message,
            fields: complaint.fields,
        };
        match self.try_answer(&object, "") {
            Ok(()) => complaint.exit,
            Err(error) => {
                let _ = unwritten(&error);
                complaint.exit
            }
        }
    }

    /// Ends a verb either way.
    pub(crate) fn finish(self, ended: Result<Exit, Complaint>) -> Exit {
        ended.unwrap_or_else(|complaint| self.complain(complaint))
    }
}

/// Writes text to standard output, all of it, now.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Says something to people on standard error, in one write. That nobody listens is no error.
pub(crate) fn note(text: &str) {
    let _ = io::stderr().write_all(format!("ringfence: {text}\n").as_bytes());
}

fn unwritten(error: &io::Error) -> Exit {
    note(&format!("cannot write the answer: {error}"));
    Exit::FAILED
}
