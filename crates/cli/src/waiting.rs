//! Who is being waited for: told to people while a claim waits.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence::model::rules::{self, ClaimRequest};
use ringfence::{ClaimRefused, Owner, Payload, TargetGroup, TargetTable, Timestamp};

use crate::output::note;
use crate::refusal;

/// The first notice; a wait that ends sooner is silent.
const FIRST: Duration = Duration::from_millis(500);
const _: () = assert!(FIRST.as_millis() < 1000, "who waits is told within a second");
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
        let (table, group) = (table.clone(), group.clone());
        let tell = move || {
            let mut pause = FIRST;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                note(&format!("waiting for {}", in_the_way(&table, &group, now)));
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

fn in_the_way(table: &TargetTable, group: &TargetGroup, now: Option<Timestamp>) -> String {
    match refused(table, group, now) {
        Some(refused) if !refused.conflicts.is_empty() => {
            let (held, all) = (refused.conflicts.len(), group.len());
            format!("{held} of {all} targets{}", refusal::holders(&refused.conflicts))
        }
        _ => "the kernel locks of the group: no lease is in the way at this moment".to_owned(),
    }
}

/// What a claim of `group` would be refused with at this moment, without making one.
pub(crate) fn refused(
    table: &TargetTable,
    group: &TargetGroup,
    now: Option<Timestamp>,
) -> Option<ClaimRefused> {
    let request = ClaimRequest {
        group: group.clone(),
        owner: Owner::new("somebody who only looks").ok()?,
        worker: 0,
        payload: Payload::empty(),
        ttl: table.info().default_ttl,
    };
    rules::claim(&table.look(group, now).ok()?, &request).err()
}
