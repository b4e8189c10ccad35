//! Starting programs that must not outlive their parent.
//!
//! X1. A program started through [`Reexec::guarded`] is signalled by the kernel when the thread that
//!     started it ends, whichever way the process ends; that survives the exec. The thread that
//!     starts a program therefore lives until it has reaped it.
//! X2. A parent that ended before the signal was arranged is noticed: then nothing is started.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// How this program starts itself.
#[derive(Clone, Debug)]
pub struct Reexec {
    /// The program.
    pub program: PathBuf,
    /// The subcommand that becomes another program: `PARENT SIGNAL -- ARGV..` follow.
    pub exec: &'static str,
    /// The subcommand that runs one coordinator: `CONFIG INDEX` follow.
    pub coordinator: &'static str,
}

impl Reexec {
    /// A command that becomes `argv` and gets `signal` when this thread ends.
    pub(crate) fn guarded(&self, argv: &[String], signal: Signal) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(self.exec).arg(std::process::id().to_string());
        command.arg(signal.as_raw().to_string()).arg("--").args(argv);
        command
    }
}

/// Becomes `argv`, to be signalled by number `signal` when `parent` ends. Returns only on failure.
pub fn exec_under(parent: u32, signal: i32, argv: &[OsString]) -> io::Error {
    let bad = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    let Some(signal) = Signal::from_named_raw(signal) else { return bad("no such signal") };
    if let Err(error) = die_with(parent, signal) {
        return error;
    }
    let Some((program, args)) = argv.split_first() else { return bad("no command") };
    Command::new(program).args(args).exec()
}

/// Arranges that this process gets `signal` when its parent ends.
pub(crate) fn die_with(parent: u32, signal: Signal) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    let is = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if is.map(i32::from) == i32::try_from(parent).ok() {
        Ok(())
    } else {
        Err(io::Error::other("the process that asked for this is gone"))
    }
}
