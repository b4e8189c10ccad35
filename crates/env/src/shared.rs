//! Words of memory that several processes share.
//!
//! S1. What is in them is a hint. Any process may die while it changes them, and anybody who may
//!     write the file may put anything in them: nothing may rest on a word alone.
//! S2. They are lost with the power and say nothing about what is durable.
//! S3. Where the file system may want room for a page that is changed, a change is tried by a system call,
//!     and given up where there is none. Nobody is killed for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::ferry::{self, Ferry};

/// 64-bit words that several processes see alike; sequentially consistent.
///
/// An index past the end reads as 0 and is not stored.
pub trait SharedWords: Send + Sync + fmt::Debug {
    /// The word at `index`.
    fn load(&self, index: usize) -> u64;

    /// Sets a word. Where there may be no memory for it, this process may be killed.
    fn store(&self, index: usize, value: u64);

    /// Adds to a word, wrapping, and returns what it was. Where there may be no memory for it, this
    /// process may be killed.
    fn add(&self, index: usize, value: u64) -> u64;

    /// Sets the words from `index` on, in no certain order; `false` if there is no memory for one of
    /// them: then it and those behind it are as they were. Somebody may see a word half changed.
    #[must_use = "it may not be stored"]
    fn try_store(&self, index: usize, values: &[u64]) -> bool {
        (index..).zip(values).for_each(|(index, value)| self.store(index, *value));
        true
    }

    /// Adds to a word, wrapping; `false` if there is no memory for it: then it is as it was. Only the
    /// lower half of the word may be counted in.
    #[must_use = "it may not be stored"]
    fn try_add(&self, index: usize, value: i8) -> bool {
        self.add(index, i64::from(value).cast_unsigned());
        true
    }

    /// Blocks while the lower half of a word is that of `seen`, until woken, at most `patience`.
    /// May return early.
    fn wait(&self, index: usize, seen: u64, patience: Duration);

    /// Wakes up to `count` waiters of a word.
    fn wake(&self, index: usize, count: u32);

    /// Looks at a word without sleeping until it is no longer `seen`, at most `longest`; whether it is
    /// another one. Where nobody else can change it meanwhile it looks once.
    fn watch(&self, index: usize, seen: u64, longest: Duration) -> bool {
        let _ = longest;
        self.load(index) != seen
    }
}

/// Words that only this process sees: where memory cannot be shared, waiting becomes polling.
#[derive(Debug)]
pub struct LocalWords {
    words: Vec<AtomicU64>,
    clock: Arc<dyn Clock>,
}

/// How often a waiter looks that nobody can wake.
const POLL: Duration = Duration::from_micros(200);

impl LocalWords {
    /// As many zeros.
    pub fn new(words: usize, clock: Arc<dyn Clock>) -> Self {
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), clock }
    }
}

impl SharedWords for LocalWords {
    fn load(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.words.get(index) {
            word.store(value, Ordering::SeqCst);
        }
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.words.get(index).map_or(0, |word| word.fetch_add(value, Ordering::SeqCst))
    }

    fn wait(&self, _index: usize, _seen: u64, patience: Duration) {
        self.clock.sleep(patience.min(POLL));
    }

    fn wake(&self, _index: usize, _count: u32) {}
}

/// Looks at a word between two at the clock.
const LOOKS: u32 = 16;

/// A file of words mapped into this process.
#[derive(Debug)]
pub(crate) struct MappedWords {
    base: std::ptr::NonNull<AtomicU64>,
    words: usize,
    /// S3. Where the memory of a page that is mapped is always there, none is needed.
    ferry: Option<Ferry>,
}

// SAFETY: the mapping is only used through atomics and lives as long as the value.
#[expect(unsafe_code, reason = "a shared mapping")]
unsafe impl Send for MappedWords {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a shared mapping")]
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps the first `words` words of an open file that is at least that long. A page of it may want
    /// room where `carefully`.
    #[expect(unsafe_code, reason = "memory that is shared with other processes")]
    pub(crate) fn map(
        file: &std::fs::File,
        words: usize,
        carefully: bool,
    ) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        let ferry = if carefully { Some(Ferry::new()?) } else { None };
        let bytes = words.saturating_mul(size_of::<AtomicU64>());
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = std::ptr::NonNull::new(at.cast())
            .ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        // A page that was taken away is read in again; not having to is only better.
        // SAFETY: the mapping exists.
        unsafe { libc::mlock(at, bytes) };
        Ok(Self { base, words, ferry })
    }

    #[expect(unsafe_code, reason = "memory that is shared with other processes")]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: within the mapping, aligned, and every access to it in any process is atomic.
        (index < self.words).then(|| unsafe { self.base.add(index).as_ref() })
    }

    /// As many words as there are from `index` on.
    #[expect(unsafe_code, reason = "memory that is shared with other processes")]
    fn rest(&self, index: usize) -> &[AtomicU64] {
        let at = index.min(self.words);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), self.words - at) }
    }
}

impl Drop for MappedWords {
    #[expect(unsafe_code, reason = "memory that is shared with other processes")]
    fn drop(&mut self) {
        // SAFETY: ours, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

/// The half of a word that the kernel compares.
fn futex_half(word: &AtomicU64) -> *const u32 {
    let low: *const u32 = std::ptr::from_ref(word).cast();
    if cfg!(target_endian = "little") { low } else { low.wrapping_add(1) }
}

impl SharedWords for MappedWords {
    fn load(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::SeqCst);
        }
    }

    fn add(&self, index: usize, value: u64) -> u64 {
        self.word(index).map_or(0, |word| word.fetch_add(value, Ordering::SeqCst))
    }

    fn try_store(&self, index: usize, values: &[u64]) -> bool {
        if let Some(ferry) = &self.ferry {
            let at = self.rest(index);
            return ferry.put(at, values.get(..at.len()).unwrap_or(values));
        }
        (index..).zip(values).for_each(|(index, value)| self.store(index, *value));
        true
    }

    fn try_add(&self, index: usize, value: i8) -> bool {
        if let (Some(word), Some(_)) = (self.word(index), &self.ferry) {
            return ferry::add(futex_half(word), value);
        }
        self.add(index, i64::from(value).cast_unsigned());
        true
    }

    #[expect(unsafe_code, reason = "futexes have no safe interface")]
    fn wait(&self, index: usize, seen: u64, patience: Duration) {
        let Some(word) = self.word(index) else { return };
        let patience = libc::timespec {
            tv_sec: libc::time_t::try_from(patience.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        };
        let low = u32::try_from(seen & u64::from(u32::MAX)).unwrap_or(0);
        // SAFETY: an aligned word that stays mapped during the call, and a valid time.
        unsafe {
            let op = libc::FUTEX_WAIT;
            libc::syscall(libc::SYS_futex, futex_half(word), op, low, &raw const patience);
        }
    }

    fn watch(&self, index: usize, seen: u64, longest: Duration) -> bool {
        let until = SystemClock.deadline(longest);
        loop {
            for _ in 0..LOOKS {
                if self.load(index) != seen {
                    return true;
                }
                std::hint::spin_loop();
            }
            if SystemClock.left(until).is_zero() {
                return false;
            }
        }
    }

    #[expect(unsafe_code, reason = "futexes have no safe interface")]
    fn wake(&self, index: usize, count: u32) {
        let Some(word) = self.word(index) else { return };
        // SAFETY: an aligned word that stays mapped during the call.
        unsafe { libc::syscall(libc::SYS_futex, futex_half(word), libc::FUTEX_WAKE, count) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, RealFs, steps};

    #[test]
    fn two_mappings_of_a_file_share_its_words_and_wake_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        steps::stage_words(&RealFs, &path, 8, 0o600).unwrap();
        let (one, two) =
            (RealFs.map_shared(&path, 8).unwrap(), RealFs.map_shared(&path, 8).unwrap());
        one.store(3, 7);
        assert_eq!((two.load(3), two.add(3, 2), one.load(3)), (7, 7, 9));
        assert_eq!((one.load(8), one.add(99, 1)), (0, 0), "past the end");
        let late = SystemClock.deadline(Duration::from_mins(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while two.load(4) == 0 {
                    two.wait(4, 0, Duration::from_mins(10));
                }
            });
            SystemClock.sleep(Duration::from_millis(50));
            one.store(4, 1);
            one.wake(4, u32::MAX);
        });
        assert!(!SystemClock.left(late).is_zero(), "woken, not timed out");
        one.wait(4, 0, Duration::from_mins(10)); // another value: at once
        one.wait(4, 1, Duration::from_millis(1)); // nobody wakes: until the time is over
        assert!(!one.watch(4, 1, Duration::from_millis(1)) && one.watch(4, 0, Duration::MAX));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(two.watch(4, 1, Duration::MAX)));
            one.store(4, 2);
        });
    }

    /// S3. A page behind the end of the file is one that nobody can have: to store there kills.
    #[test]
    fn a_change_of_memory_that_cannot_be_had_is_given_up() {
        const PAGE: usize = 512;
        let file = tempfile::tempfile().unwrap();
        let set_len = |pages: u64| rustix::fs::ftruncate(&file, pages * PAGE as u64 * 8).unwrap();
        set_len(3);
        let words = MappedWords::map(&file, 3 * PAGE, true).unwrap();
        let other = MappedWords::map(&file, 3 * PAGE, false).unwrap();
        assert!(words.try_store(PAGE - 1, &[1, 2]) && words.try_add(PAGE, 5));
        assert!(words.try_add(PAGE - 1, -1) && words.try_add(PAGE, -1));
        assert_eq!([PAGE - 1, PAGE].map(|at| other.load(at)), [0, 6]);
        set_len(1);
        assert!(!words.try_store(PAGE, &[3]) && !words.try_add(PAGE, 1));
        assert!(!words.try_store(PAGE - 1, &[7, 8]), "over the border");
        assert!(words.try_store(3, &[9, 10]) && words.try_add(3, 1), "what is there is there");
        assert_eq!([3, 4].map(|at| other.load(at)), [10, 10]);
        set_len(3);
        assert!(words.try_store(3 * PAGE - 1, &[11, 12]), "the last one, and what is not stored");
        assert_eq!(other.load(3 * PAGE - 1), 11);
    }

    #[test]
    fn a_file_that_is_too_short_or_no_file_is_not_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        steps::stage_synced(&RealFs, &path, &[0; 63], 0o600).unwrap();
        steps::stage_words(&RealFs, &path, 8, 0o600).unwrap_err();
        assert!(RealFs.map_shared(&path, 8).is_err());
        assert!(RealFs.map_shared(dir.path(), 8).is_err());
        assert!(RealFs.map_shared(&dir.path().join("none"), 8).is_err());
    }
}
