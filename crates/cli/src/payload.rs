//! `--payload`: an object on the command line, in a file, or on standard input.

use std::fs::File;
use std::io::{self, Read};

use ringfence::Payload;
use ringfence::model::payload::MAX_PAYLOAD_BYTES;

use crate::output::Complaint;

/// A text of over twice the limit cannot become a payload within it.
const MOST_BYTES: u64 = 2 * MAX_PAYLOAD_BYTES as u64 + 1;

/// Reads the payload that the flag names; none is the empty object.
pub(crate) fn read(flag: Option<&str>) -> Result<Payload, Complaint> {
    let text = match flag {
        None => return Ok(Payload::empty()),
        Some("@-") => slurp(io::stdin().lock())
            .map_err(|error| unreadable("standard input", &error.to_string()))?,
        Some(text) => match text.strip_prefix('@') {
            None => text.to_owned(),
            Some(path) => File::open(path)
                .and_then(slurp)
                .map_err(|error| unreadable(path, &error.to_string()))?,
        },
    };
    Payload::parse(&text).map_err(Complaint::usage)
}

fn slurp(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn unreadable(source: &str, why: &str) -> Complaint {
    Complaint::usage(format!("cannot read the payload from {source}: {why}"))
}
