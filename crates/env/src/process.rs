//! A second process, for proving that a lock excludes.

use std::ffi::CString;
use std::io;
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

const ADMITTED: i32 = 0;
const EXCLUDED: i32 = 1;
const FAILED_BASE: i32 = 2;

/// Forks a child that opens `path` and asks for its exclusive lock without waiting.
#[expect(unsafe_code, reason = "a second process needs fork")]
pub fn lock_in_child(path: &Path, patience: Duration) -> io::Result<ChildLock> {
    // Made before the fork: the child of a threaded process must not allocate.
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the child calls only async-signal-safe functions (open, flock, _exit) and touches no
    // memory but `path`, which was made before the fork.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: as above; `path` is a valid NUL-terminated text, and `_exit` does not return.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW);
            let answer = if fd < 0 {
                FAILED_BASE + *libc::__errno_location()
            } else if libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) == 0 {
                ADMITTED
            } else {
                match *libc::__errno_location() {
                    libc::EWOULDBLOCK => EXCLUDED,
                    errno => FAILED_BASE + errno,
                }
            };
            libc::_exit(answer);
        }
    }
    wait(child, patience)
}

#[expect(unsafe_code, reason = "waits for the forked child")]
fn wait(child: libc::pid_t, patience: Duration) -> io::Result<ChildLock> {
    let deadline = SystemClock.deadline(patience);
    let mut killed = false;
    loop {
        let mut status = 0;
        let options = if killed { 0 } else { libc::WNOHANG };
        // SAFETY: `child` is our own child, and `status` is a valid place for the answer.
        let reaped = unsafe { libc::waitpid(child, &raw mut status, options) };
        if reaped == child {
            return Ok(match (killed, libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
                (false, true, ADMITTED) => ChildLock::Admitted,
                (false, true, EXCLUDED) => ChildLock::Excluded,
                (false, true, code) => ChildLock::Failed(code - FAILED_BASE),
                _ => ChildLock::NoAnswer,
            });
        }
        if reaped < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
        if SystemClock.left(deadline).is_zero() {
            // SAFETY: `child` is our own child and was not reaped, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            killed = true;
        } else {
            SystemClock.sleep(Duration::from_micros(200));
        }
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
