//! The syncs of a recording: where each is, what it is for, and what else does its work.

use std::collections::BTreeMap;

use super::needless::{Calls, Needless};
use crate::marks::Begin;
use crate::weak::{self, Recording};
use crate::weakfs::Event;

/// A sync that a call of the workload made.
#[derive(Clone, Debug)]
pub(super) struct Sync {
    pub(super) place: usize,
    /// What it is for.
    pub(super) site: String,
    /// Whether a file system with one log for everything hides that it is missing: another sync of the
    /// call writes the same log, or it is that of an intent, which such a log makes needless.
    pub(super) is_masked: bool,
    /// Why the call could do without it, if another of its syncs does the work.
    pub(super) needless: Option<Needless>,
}

/// Every sync of a recording.
pub(super) fn syncs(recording: &Recording) -> Vec<Sync> {
    let calls = Calls::of(&recording.log);
    let mut names = BTreeMap::new();
    let mut writes: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut verb = String::new();
    let mut found: Vec<Sync> = Vec::new();
    // Directory syncs of the call at hand, and those of them that no other sync followed.
    let (mut dirs, mut open): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for (place, event) in recording.log.iter().enumerate() {
        let line = weak::describe(event, &mut names);
        let in_call = place >= recording.start && !verb.is_empty();
        match event {
            Event::Mark(mark) => {
                if dirs.len() > 1 {
                    for &sync in &dirs {
                        found[sync].is_masked = true;
                    }
                }
                dirs.clear();
                open.clear();
                if mark.first() == Some(&b'B') {
                    verb = in_words(&mark[1..]);
                }
            }
            Event::Write { ino, at, bytes } => {
                writes.insert(*ino, (*at, bytes.len()));
            }
            Event::SyncFile { ino } if in_call => {
                let step = match writes.get(ino) {
                    Some((0, 512)) if line.contains("intents/") => "retire",
                    Some((512, _)) if line.contains("intents/") => "abort",
                    _ => "write",
                };
                if step != "retire" {
                    open.drain(..).for_each(|sync| found[sync].is_masked = true);
                }
                let site = format!("{verb}: {} ({step})", general(&line));
                let needless = calls.needless(place, &names);
                let is_masked =
                    (step == "write" && line.contains("intents/")) || needless.is_some();
                found.push(Sync { place, site, is_masked, needless });
            }
            Event::SyncDir { .. } if in_call => {
                open.drain(..).for_each(|sync| found[sync].is_masked = true);
                open.push(found.len());
                dirs.push(found.len());
                let site = format!("{verb}: {}", general(&line));
                let needless = calls.needless(place, &names);
                found.push(Sync { place, site, is_masked: needless.is_some(), needless });
            }
            _ => {}
        }
    }
    found
}

/// The call of a mark.
fn in_words(mark: &[u8]) -> String {
    let begins: Vec<Begin> = serde_json::from_slice(mark).unwrap_or_default();
    begins.first().map_or(String::new(), |begin| {
        let many = if begins.len() > 1 { " (batch)" } else { "" };
        let size = if begin.items.len() > 1 { "a group" } else { "one" };
        format!("{:?} of {size}{many}", begin.verb)
    })
}

/// A line without the names that differ from call to call.
fn general(line: &str) -> String {
    let (what, path) = line.rsplit_once(' ').unwrap_or((line, ""));
    let name = path.rsplit('/').next().unwrap_or(path);
    let kind = match name.rsplit_once('.') {
        None if name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_digit()) => "a shard",
        Some((stem, "tmp")) if stem.starts_with("fence") => "the fence's temporary",
        Some(("checkpoint", "tmp")) => "the checkpoint's temporary",
        Some((_, "tmp")) => "a record's temporary",
        Some((_, "slot")) => "a slot",
        Some(("journal", _)) => "a segment",
        _ => name,
    };
    format!("{what} {kind}")
}
