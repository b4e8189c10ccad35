//! INT, TERM and HUP as a flag, so that a wait ends promptly and nothing stays half done.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The signal that asked this process to end, if one did.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    flag: Arc<AtomicBool>,
    number: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Watches from now on. A signal that the parent had ignored (`nohup`) stays ignored.
    pub(crate) fn watch() -> io::Result<Self> {
        let interrupt = Self { flag: Arc::default(), number: Arc::default() };
        let ignored = ignored_signals();
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            // The number first: whoever sees the flag must find it.
            flag::register_usize(signal, Arc::clone(&interrupt.number), number)?;
            flag::register(signal, Arc::clone(&interrupt.flag))?;
        }
        Ok(interrupt)
    }

    /// Lets a short call on a group finish instead of ending between two of its members. Where
    /// signals cannot be watched they end the process, as a crash would.
    pub(crate) fn hold_off() -> Option<Self> {
        Self::watch().ok()
    }

    /// The flag, for whoever waits.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// The signal that came, the last one if there were several.
    pub(crate) fn received(&self) -> Option<i32> {
        match self.number.load(Ordering::SeqCst) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }
}

/// The kernel's mask of signals that this process ignores; nothing where it does not tell.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
