//! The end: the release, and the exit code.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ringfence::{ReleaseError, TargetGroup, TargetTable, Token};
use rustix::process::WaitStatus;

use super::job::Ended;
use crate::exit::Exit;
use crate::output::note;
use crate::store::chain;

/// What has to be given back.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Where.
    pub(super) table: TargetTable,
    /// What.
    pub(super) group: TargetGroup,
    /// Under which token.
    pub(super) token: Token,
}

/// A release that fails is tried this often.
const TRIES: u32 = 3;
/// A store that does not answer must not keep the exit code from the caller.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a release ended.
enum Release {
    Done,
    /// Somebody else holds it, or it was removed by force: the command was not alone to the end.
    Lost(String),
    Failed(String),
}

impl Held {
    /// Releases, or says why not; the lease then runs out by itself.
    pub(super) fn give_back(&self) {
        if let Release::Lost(why) | Release::Failed(why) = self.release() {
            say_not_released(&why);
        }
    }

    fn release(&self) -> Release {
        let (answer, answered) = channel();
        let held = self.clone();
        // On a thread of its own: a store that hangs, hangs that thread.
        let spawned = std::thread::Builder::new().name("release".to_owned()).spawn(move || {
            let _ = answer.send(held.release_now());
        });
        if spawned.is_err() {
            return self.release_now();
        }
        match answered.recv_timeout(PATIENCE) {
            Ok(release) => release,
            Err(RecvTimeoutError::Timeout) => Release::Failed("the store does not answer".into()),
            Err(RecvTimeoutError::Disconnected) => Release::Failed("the release panicked".into()),
        }
    }

    fn release_now(&self) -> Release {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            match self.table.release(&self.group, &self.token, None) {
                Ok(()) => return Release::Done,
                Err(error @ ReleaseError::Lost(_)) => return Release::Lost(chain(&error)),
                Err(error) if tries == 0 || !error.is_retryable() => {
                    return Release::Failed(chain(&error));
                }
                Err(_) => {}
            }
        }
    }
}

fn say_not_released(why: &str) {
    note(&format!("the lease was not released, it runs out by itself: {why}"));
}

/// Gives the lease back and decides the exit code.
///
/// A release that fails does not change the command's own exit code: its work was done under the
/// lease. One that is refused does, because then somebody else may have worked at the same time.
pub(super) fn settle(held: &Held, ended: Ended) -> Exit {
    let own = of(ended.status);
    if let Some(reason) = ended.lost {
        // Lost to us, but perhaps to nobody else: then the targets are free at once.
        let _ = held.release();
        note(&format!("the command ended with {} after its lease was lost: {reason}", own.0));
        return Exit::LOST;
    }
    match held.release() {
        Release::Done => own,
        Release::Failed(why) => {
            say_not_released(&why);
            own
        }
        Release::Lost(why) => {
            note(&format!("the command ended with {}, but: {why}", own.0));
            Exit::LOST
        }
    }
}

/// The exit code of a child, as a shell reports it.
fn of(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(number)) => Exit::signal(number),
        (None, None) => Exit::FAILED,
    }
}

/// The exit code for a command that could not be started, as a shell reports it.
pub(super) fn not_started(error: &io::Error) -> Exit {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => Exit(127),
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => Exit::FAILED,
        _ if error.kind() == io::ErrorKind::InvalidInput => Exit::USAGE,
        _ => Exit(126),
    }
}
