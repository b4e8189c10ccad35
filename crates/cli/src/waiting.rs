//! Who is being waited for: told to people while a claim waits.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence::model::rules::{self, ClaimRequest};
use ringfence::{Owner, Payload, TargetGroup, TargetTable, Timestamp};

use crate::output::note;
use crate::refusal;

/// The first notice; a wait that ends sooner is silent.
const FIRST: Duration = Duration::from_millis(500);
/// Every further one.
const LATER: Duration = Duration::from_secs(30);

/// Tells who is in the way until it is dropped.
#[must_use = "dropping it ends the notices"]
#[derive(Debug)]
pub(crate) struct Notice {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Notice {
    /// Starts telling. Without a thread to do it the wait is silent, and right all the same.
    pub(crate) fn start(table: &TargetTable, group: &TargetGroup, now: Option<Timestamp>) -> Self {
        let (stop, stopped) = channel();
        let table = table.clone();
        let Ok(owner) = Owner::new("somebody who only looks") else {
            return Self { stop: None, thread: None };
        };
        // Asks the rule what a claim would be told, without making one.
        let request = ClaimRequest {
            group: group.clone(),
            owner,
            worker: 0,
            payload: Payload::empty(),
            ttl: table.info().default_ttl,
        };
        let tell = move || {
            let mut pause = FIRST;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                note(&format!("waiting for {}", in_the_way(&table, &request, now)));
                pause = LATER;
            }
        };
        let thread = std::thread::Builder::new().name("notice".to_owned()).spawn(tell).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.stop.take();
        // So that a notice never comes after the answer.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn in_the_way(table: &TargetTable, request: &ClaimRequest, now: Option<Timestamp>) -> String {
    let view = match table.look(&request.group, now) {
        Ok(view) => view,
        Err(error) => return format!("a table that cannot be read: {error}"),
    };
    match rules::claim(&view, request) {
        Err(refused) if !refused.conflicts.is_empty() => {
            let (held, all) = (refused.conflicts.len(), request.group.len());
            format!("{held} of {all} targets{}", refusal::holders(&refused.conflicts))
        }
        _ => "the kernel locks of the group, held by another process".to_owned(),
    }
}
