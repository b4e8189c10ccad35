//! A second process, for proving that a lock excludes.

use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use crate::clock::{Clock as _, SystemClock};

/// What a second process saw when it asked for a lock without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildLock {
    /// It got the lock (and gave it up again).
    Admitted,
    /// The lock was held.
    Excluded,
    /// The call failed with this error number.
    Failed(i32),
    /// The call did not return in time; the process was killed.
    NoAnswer,
}

const ADMITTED: u8 = 0;
const EXCLUDED: u8 = 1;
const FAILED_BASE: u8 = 2;

/// How long a killed child is waited for: one that hangs in the kernel cannot die.
const REAP_PATIENCE: Duration = Duration::from_millis(200);

/// Forks a child that opens `path` and asks for its exclusive lock without waiting.
///
/// The child answers through a pipe, because a program that ignores `SIGCHLD` never learns how its
/// children ended.
#[expect(unsafe_code, reason = "a second process needs fork")]
pub fn lock_in_child(path: &Path, patience: Duration) -> io::Result<ChildLock> {
    // Made before the fork: the child of a threaded process must not allocate.
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (reader, writer) = io::pipe()?;
    let answer_to = writer.as_raw_fd();
    // SAFETY: the child calls only async-signal-safe functions (open, flock, write, _exit) and
    // touches no memory but `path` and `answer_to`, which were made before the fork.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: as above; `path` is a valid NUL-terminated text, `answer` a byte on this stack,
        // and `_exit` does not return.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW);
            let failed = || {
                let errno = u8::try_from(*libc::__errno_location()).unwrap_or(u8::MAX);
                FAILED_BASE.saturating_add(errno)
            };
            let answer = if fd < 0 {
                failed()
            } else if libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) == 0 {
                ADMITTED
            } else if *libc::__errno_location() == libc::EWOULDBLOCK {
                EXCLUDED
            } else {
                failed()
            };
            libc::write(answer_to, (&raw const answer).cast(), 1);
            libc::_exit(0);
        }
    }
    drop(writer);
    let answer = read_answer(reader, patience);
    reap(child, !matches!(answer, Ok(Some(_))));
    Ok(match answer? {
        None => ChildLock::NoAnswer,
        Some(ADMITTED) => ChildLock::Admitted,
        Some(EXCLUDED) => ChildLock::Excluded,
        Some(code) => ChildLock::Failed(i32::from(code - FAILED_BASE)),
    })
}

#[expect(unsafe_code, reason = "waits for a pipe with a deadline")]
fn read_answer(mut reader: io::PipeReader, patience: Duration) -> io::Result<Option<u8>> {
    let deadline = SystemClock.deadline(patience);
    loop {
        let left = SystemClock.left(deadline);
        let mut waits = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
        // SAFETY: one valid entry that outlives the call.
        let ready = unsafe { libc::poll(&raw mut waits, 1, millis) };
        if ready > 0 {
            let mut answer = [0];
            // Nothing at all: the child ended without an answer.
            return Ok((reader.read(&mut answer)? == 1).then_some(answer[0]));
        }
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
        if SystemClock.left(deadline).is_zero() {
            return Ok(None);
        }
    }
}

/// Waits for the child; one that gave no answer is killed first, and left behind if even that takes
/// too long.
#[expect(unsafe_code, reason = "waits for the forked child")]
fn reap(child: libc::pid_t, kill: bool) {
    if kill {
        // SAFETY: `child` is our own child and was not reaped, so the number is still its own.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    let deadline = SystemClock.deadline(REAP_PATIENCE);
    loop {
        // SAFETY: `child` is our own child; its status is not asked for.
        let reaped = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) };
        let gone = reaped == child
            || (reaped < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted);
        if gone || SystemClock.left(deadline).is_zero() {
            return;
        }
        SystemClock.sleep(Duration::from_micros(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Fs as _, LockMode};
    use crate::real::RealFs;

    #[test]
    fn a_second_process_is_excluded_while_held_and_admitted_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let fd = RealFs.open_lock(&path, true, 0o600).unwrap();
        assert!(fd.try_lock(LockMode::Exclusive).unwrap());
        let patience = Duration::from_secs(5);
        assert_eq!(lock_in_child(&path, patience).unwrap(), ChildLock::Excluded);
        fd.unlock().unwrap();
        assert_eq!(lock_in_child(&path, patience).unwrap(), ChildLock::Admitted);
        let missing = lock_in_child(&dir.path().join("none"), patience).unwrap();
        assert_eq!(missing, ChildLock::Failed(libc::ENOENT));
    }
}
