//! The processes below this one.
//!
//! Complete only while this process adopts orphans. A process that is forked during the look may
//! be missed; the caller looks again until nobody is left.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::fs::{Fs, Read};
use crate::real::RealFs;

/// Enough for one line of `/proc/PID/stat`.
const STAT_BYTES: usize = 4096;

/// Sends `signal` to every living process below this one but `except`, and says how many there
/// were.
///
/// Each is addressed by a handle and its parent is looked up again, so that a process which
/// happened to get the number of one that ended is left alone.
pub fn signal_descendants(signal: Signal, except: Pid) -> io::Result<usize> {
    let except = except.as_raw_nonzero().get();
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let mut found = 0;
    for (pid, parent) in descendants()?.into_iter().filter(|(pid, _)| *pid != except) {
        let Some(handle) = Pid::from_raw(pid) else { continue };
        let Ok(handle) = pidfd_open(handle, PidfdFlags::empty()) else { continue };
        // An orphan is ours by now.
        if parent_of(pid).is_some_and(|now| now == parent || now == me)
            && pidfd_send_signal(&handle, signal).is_ok()
        {
            found += 1;
        }
    }
    Ok(found)
}

/// How many living processes there are below this one.
pub fn living_descendants() -> io::Result<usize> {
    Ok(descendants()?.len())
}

/// Every living process below this one, with its parent.
fn descendants() -> io::Result<Vec<(i32, i32)>> {
    let parents = parents()?;
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let below = parents.iter().filter(|&(&pid, _)| is_below(&parents, pid, me));
    Ok(below.map(|(&pid, &parent)| (pid, parent)).collect())
}

/// Sends `signal` to a child that was not reaped yet, so its number is still its own.
pub fn signal_process(child: Pid, number: i32) -> io::Result<()> {
    let Some(signal) = Signal::from_named_raw(number) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok(rustix::process::kill_process(child, signal)?)
}

fn is_below(parents: &BTreeMap<i32, i32>, pid: i32, root: i32) -> bool {
    let mut at = pid;
    // A snapshot that was torn by reused numbers could hold a circle.
    for _ in 0..parents.len() {
        match parents.get(&at) {
            Some(&parent) if parent == root => return true,
            Some(&parent) => at = parent,
            None => return false,
        }
    }
    false
}

/// Every living process that we may see, with its parent.
fn parents() -> io::Result<BTreeMap<i32, i32>> {
    let mut parents = BTreeMap::new();
    for name in RealFs.list(Path::new("/proc"))? {
        let Some(pid) = name.name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent_of(pid) {
            parents.insert(pid, parent);
        }
    }
    Ok(parents)
}

/// The parent of a process; `None` if it is gone or dead.
fn parent_of(pid: i32) -> Option<i32> {
    let path = format!("/proc/{pid}/stat");
    let Ok(Read::Bytes(line)) = RealFs.read(Path::new(&path), STAT_BYTES) else { return None };
    parse(&String::from_utf8_lossy(&line))
}

/// Reads `PID (NAME) STATE PARENT ..`; the name may hold anything, parentheses too.
fn parse(line: &str) -> Option<i32> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_parent_and_the_dead_have_none() {
        assert_eq!(parse("12 (a) S 9) R 7 12 12 0"), Some(7));
        assert_eq!(parse("12 (sh) Z 7 12 12 0"), None);
        assert_eq!(parse("12 sh"), None);
    }

    #[test]
    fn a_process_is_below_its_grandparent_and_a_circle_ends() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 1), (8, 9), (9, 8)]);
        assert!(is_below(&parents, 3, 2) && is_below(&parents, 3, 1));
        assert!(!is_below(&parents, 4, 2) && !is_below(&parents, 8, 1));
    }
}
