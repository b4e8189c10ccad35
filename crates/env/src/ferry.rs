//! Memory that is changed by the kernel, which can say that it cannot be.
//!
//! A page of a file that is mapped may need room on the disk before it is changed. Where there is none, an
//! instruction that changes it kills its process by SIGBUS; and to look first does not help, because the
//! system may write the page back, and want room anew, between the look and the change. A system call
//! that is handed such an address answers `EFAULT` instead.

use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use crate::process_id::process_id;

/// As much as a pipe takes at once.
const LONGEST: usize = 4096;

/// A pipe that words go through on their way into memory.
#[derive(Debug)]
pub(crate) struct Ferry {
    /// Empty whenever it is not locked.
    pipe: Mutex<Option<(io::PipeReader, io::PipeWriter)>>,
    /// A forked child has the same pipe as its parent, and its words would come out there.
    process: u32,
}

impl Ferry {
    pub(crate) fn new() -> io::Result<Self> {
        let pipe = Mutex::new(Some(io::pipe()?));
        Ok(Self { pipe, process: process_id() })
    }

    /// Puts `values` into the words from `at` on; `false` if memory for them cannot be had. Then those on
    /// pages before the first one of that kind may have been put there. A word may be seen half changed.
    ///
    /// `at` and what follows it are mapped, and nobody accesses them but by atomics.
    #[expect(unsafe_code, reason = "the kernel is to store to memory that may not be there")]
    pub(crate) fn put(&self, at: &[AtomicU64], values: &[u64]) -> bool {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        if bytes.len() > LONGEST || values.len() > at.len() || self.process != process_id() {
            return false;
        }
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.is_none() {
            *pipe = io::pipe().ok();
        }
        let Some((from, into)) = pipe.as_mut() else { return false };
        let written = into.write_all(&bytes);
        let address = at.as_ptr().cast_mut().cast();
        // SAFETY: within what is mapped; every access to it in any process is atomic or the kernel's.
        let done = written.map(|()| unsafe { libc::read(from.as_raw_fd(), address, bytes.len()) });
        let is_done = done.is_ok_and(|done| usize::try_from(done) == Ok(bytes.len()));
        if !is_done {
            // What did not get there is still in it.
            *pipe = None;
        }
        is_done
    }
}

/// Adds to the lower half of a word, wrapping; `false` if memory for it cannot be had.
#[expect(unsafe_code, reason = "the kernel is to store to memory that may not be there")]
pub(crate) fn add(half: *const u32, value: i8) -> bool {
    // What is woken besides is whoever waits for this one: nobody. The comparison is one that holds for
    // few numbers, and then somebody looks once too often.
    let nobody = 0_u32;
    let operation = libc::FUTEX_OP_ADD << 28
        | libc::FUTEX_OP_CMP_LT << 24
        | (i32::from(value) & 0xfff) << 12
        | -2048 & 0xfff;
    // SAFETY: two aligned halves of words; the second one is mapped and only accessed by atomics.
    let done = unsafe {
        let op = libc::FUTEX_WAKE_OP;
        libc::syscall(libc::SYS_futex, &raw const nobody, op, 0, 0_usize, half, operation)
    };
    done >= 0
}
