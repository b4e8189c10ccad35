//! A child process, and the signals that are meant for it.
//!
//! C1. Signals of the chosen set are queued from before the child exists, so none is missed between
//!     its birth and the first look; each is handed out once, with the kind of its sender.
//! C2. The child starts with the signal mask that this process was started with.
//! C3. A child that shares its parent's fate is killed when the *thread* that spawned it ends, so it
//!     is spawned by a thread that lives as long as the process; the parent's death between fork and
//!     the request is noticed too.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};

mod tree;

pub use tree::{living_descendants, signal_descendants, signal_process};

/// Signals that are blocked and read from a queue.
#[derive(Debug)]
pub struct SignalQueue {
    fd: OwnedFd,
    inherited: Mask,
    ignored: Vec<i32>,
}

/// One signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: i32,
    /// Who sent it.
    pub sender: Sender,
}

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A process, by `kill` and its kin.
    Process,
    /// The kernel: a terminal's interrupt key or hang-up, the end of a child.
    Kernel,
}

#[derive(Clone, Copy)]
struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl SignalQueue {
    /// Blocks `numbers` and the end of children for this thread and those it starts from now on.
    ///
    /// To be called by the main thread before any other exists. The end of children gets its
    /// default disposition: where it was inherited as ignored, no child could be waited for.
    #[expect(unsafe_code, reason = "signal masks and signalfd have no safe interface")]
    pub fn block(numbers: &[i32]) -> io::Result<Self> {
        let ignored = numbers.iter().copied().filter(|&number| is_ignored(number)).collect();
        // SAFETY: SIG_DFL is a valid disposition for SIGCHLD; no handler of ours is replaced.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let set = set_of(numbers.iter().copied().chain([libc::SIGCHLD]));
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both pointers are valid for the call; `old` is filled when it succeeds.
        let inherited = unsafe {
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, old.as_mut_ptr()) {
                0 => old.assume_init(),
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        };
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: `set` is a valid set; the answer is a new descriptor that nobody else owns.
        let fd = unsafe {
            match libc::signalfd(-1, &raw const set, flags) {
                fd if fd >= 0 => OwnedFd::from_raw_fd(fd),
                _ => return Err(io::Error::last_os_error()),
            }
        };
        Ok(Self { fd, inherited: Mask(inherited), ignored })
    }

    /// Whether this process was started with the signal ignored, as `nohup` does.
    pub fn was_ignored(&self, number: i32) -> bool {
        self.ignored.contains(&number)
    }

    /// The next signal that arrived, without waiting.
    #[expect(unsafe_code, reason = "signalfd has no safe interface")]
    pub fn take(&self) -> io::Result<Option<Received>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has `size` writable bytes.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        if usize::try_from(read) != Ok(size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the kernel filled the whole structure.
        let info = unsafe { info.assume_init() };
        let number = i32::try_from(info.ssi_signo).unwrap_or(0);
        // Positive codes are the kernel's; SI_USER is 0, those of other processes are negative.
        let sender = if info.ssi_code > 0 { Sender::Kernel } else { Sender::Process };
        Ok(Some(Received { number, sender }))
    }

    /// Waits until a signal arrived, at most `patience`. May return early.
    #[expect(unsafe_code, reason = "poll through the C library, as everything else here")]
    pub fn wait(&self, patience: Duration) -> io::Result<()> {
        let mut ready = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let whole = patience.as_nanos().div_ceil(1_000_000);
        let millis = i32::try_from(whole).unwrap_or(i32::MAX);
        // SAFETY: one valid structure.
        if unsafe { libc::poll(&raw mut ready, 1, millis) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Lets a stop signal have its default effect on this process, and returns when it goes on.
    ///
    /// Where a stop would be for ever (no shell to continue us) the kernel ignores it, and so does
    /// this.
    #[expect(unsafe_code, reason = "signal masks have no safe interface")]
    pub fn stop_as(&self, number: i32) {
        let set = set_of([number]);
        // SAFETY: a valid set; the signal is raised and let through on this thread only, and its
        // default effect stops the whole process.
        unsafe {
            libc::raise(number);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        }
    }

    /// Starts `command` with the signal mask this process was started with. If `dies_with_us` it is
    /// killed when the calling thread ends, so that must be the main thread.
    ///
    /// An error from the program's own start (not found, not executable) is the error of `exec`.
    #[expect(unsafe_code, reason = "what a child does before exec is unsafe by nature")]
    pub fn spawn(&self, command: &mut Command, dies_with_us: bool) -> io::Result<Pid> {
        let mask = self.inherited;
        let parent = rustix::process::getpid();
        // SAFETY: the closure runs in the forked child and only makes system calls that are
        // async-signal-safe; it allocates nothing.
        unsafe {
            command.pre_exec(move || {
                if dies_with_us {
                    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                    // The parent may have died before the request: then nobody would kill us.
                    if rustix::process::getppid() != Some(parent) {
                        libc::_exit(0);
                    }
                }
                match libc::pthread_sigmask(
                    libc::SIG_SETMASK,
                    &raw const mask.0,
                    std::ptr::null_mut(),
                ) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            });
        }
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::Error::other("the child has no process id"))
    }
}

/// Lets processes that lose their parent become children of this one instead of init's, so that
/// they can be found and reaped.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Whether a child that was not reaped yet is in our process group.
///
/// Asked of the C library: in a PID namespace whose first process was put there from outside, the
/// number of a group is 0, which rustix takes for impossible.
#[expect(unsafe_code, reason = "asks for a number that rustix cannot represent")]
pub fn shares_group(child: Pid) -> bool {
    // SAFETY: both calls only ask.
    let (its, ours) = unsafe { (libc::getpgid(child.as_raw_nonzero().get()), libc::getpgid(0)) };
    its >= 0 && its == ours
}

/// Whether this process leads its session. One whose session began outside of its PID namespace,
/// which is told as 0, does not.
#[expect(unsafe_code, reason = "asks for a number that rustix cannot represent")]
pub fn leads_session() -> bool {
    // SAFETY: both calls only ask.
    unsafe { libc::getsid(0) == libc::getpid() }
}

#[expect(unsafe_code, reason = "asks for a disposition")]
fn is_ignored(number: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; the kernel fills `action` when it succeeds, and zeroes are a valid value.
    unsafe {
        libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[expect(unsafe_code, reason = "signal sets have no safe interface")]
fn set_of(numbers: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set; a number that is no signal is refused and left out.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    }
}
