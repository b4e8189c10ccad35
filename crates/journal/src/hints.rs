//! What the processes of one boot tell each other in shared memory.
//!
//! H1. A hint decides nothing that the files do not: with all of them wrong or gone a table works on,
//!     slower.
//! H2. The two numbers that would do harm if they were too high (what is durable, what is appended)
//!     carry a checksum bound to the table, the boot and the epoch, and are not believed without it.
//! H3. Whoever waits on a word waits for a bounded time: nobody may be left to wake him.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringfence_env::{LocalWords, SharedWords, World};
use twox_hash::XxHash3_64;

use crate::checkpoint::Head;
use crate::codec::Out;
use crate::layout::Layout;

/// Words in the file.
pub const WORDS: usize = 512;

const IDENTITY: usize = 0;
/// Rises when the append lock is given up.
pub const APPEND: usize = 8;
const APPEND_WAITERS: usize = 9;
/// Rises when a sync has ended.
pub const SYNC: usize = 16;
const SYNC_WAITERS: usize = 17;
const DURABLE: usize = 24;
const APPENDED: usize = 32;
const BATCH: usize = 40;
const NAMED: usize = 56;
const ISSUED: usize = 64;
/// Rises when something was freed.
pub const FREED: usize = 48;
const FREED_WAITERS: usize = 49;

/// The longest time between two looks of somebody who waits.
const LONGEST_WAIT: Duration = Duration::from_millis(2);

/// The hints of one table, in one boot.
#[derive(Debug)]
pub struct Hints {
    words: Box<dyn SharedWords>,
    identity: u64,
    shared: bool,
}

impl Hints {
    /// Opens those of this boot, or begins them anew. Where there can be no shared memory, this process
    /// has its own; where there is some that it cannot have now, that is an error: processes with
    /// different hints would each know of other fences.
    pub fn open(world: &World, layout: &Layout, table: u64) -> io::Result<Self> {
        let mut out = Out::default();
        out.u64(table);
        out.text(world.host.boot.as_deref().unwrap_or_default());
        let identity = XxHash3_64::oneshot(&out.0).max(1);
        // Without the name of the boot, words of an earlier one could not be told apart.
        if world.host.boot.is_none() {
            return Ok(Self::private(world, table));
        }
        let words = match world.fs.map_shared(&layout.hints(), WORDS) {
            Ok(words) => words,
            Err(error) if is_for_good(&error) => return Ok(Self::private(world, table)),
            Err(error) => return Err(error),
        };
        if words.load(IDENTITY) != identity {
            // Two may do this at once: all that they write are zeros.
            (1..WORDS).for_each(|index| words.store(index, 0));
            words.store(IDENTITY, identity);
        }
        Ok(Self { words, identity, shared: true })
    }

    /// Words that nobody else sees.
    pub fn private(world: &World, table: u64) -> Self {
        let words = Box::new(LocalWords::new(WORDS, Arc::clone(&world.clock)));
        Self { words, identity: table, shared: false }
    }

    /// Whether other processes tell something here.
    pub fn are_shared(&self) -> bool {
        self.shared
    }

    /// The last sequence number that is known to be durable in `epoch`; nothing if that cannot be
    /// told, in particular where other processes could not have said so.
    pub fn durable(&self, epoch: u64) -> Option<u64> {
        self.shared.then(|| self.number(DURABLE, epoch)).flatten()
    }

    /// The same, where this process's own knowledge is enough.
    pub fn durable_here(&self, epoch: u64) -> Option<u64> {
        self.number(DURABLE, epoch)
    }

    /// Tells what is durable.
    pub fn set_durable(&self, epoch: u64, sequence: u64) {
        self.set_number(DURABLE, epoch, sequence);
    }

    /// The last sequence number that was appended whole in `epoch`.
    pub fn appended(&self, epoch: u64) -> Option<u64> {
        self.number(APPENDED, epoch)
    }

    /// Tells what was appended.
    pub fn set_appended(&self, epoch: u64, sequence: u64) {
        self.set_number(APPENDED, epoch, sequence);
    }

    fn number(&self, index: usize, epoch: u64) -> Option<u64> {
        // Between the two stores of another process the pair does not match.
        for _ in 0..8 {
            let (number, check) = (self.words.load(index), self.words.load(index + 1));
            if check == self.check(index, epoch, number) {
                return Some(number);
            }
            std::hint::spin_loop();
        }
        None
    }

    fn set_number(&self, index: usize, epoch: u64, number: u64) {
        self.words.store(index, number);
        self.words.store(index + 1, self.check(index, epoch, number));
    }

    fn check(&self, index: usize, epoch: u64, number: u64) -> u64 {
        let mut out = Out::default();
        out.u64(index as u64);
        out.u64(epoch);
        out.u64(number);
        XxHash3_64::oneshot_with_seed(self.identity, &out.0)
    }

    /// Whether the checkpoint with this head, or a later one of its epoch, is known to be in force
    /// durably.
    pub fn is_named(&self, head: &Head) -> bool {
        self.number(NAMED, head.epoch).is_some_and(|known| known >= name(head))
    }

    /// Tells that it is.
    pub fn set_named(&self, head: &Head) {
        self.set_number(NAMED, head.epoch, name(head));
    }

    /// The highest fence that any process of this boot has put into a token, whether or not the frame
    /// with it is there; nothing if that is not known.
    pub fn issued(&self) -> Option<u64> {
        self.number(ISSUED, 0)
    }

    /// Tells it, before the frame is written.
    pub fn set_issued(&self, fence: u64) {
        self.set_number(ISSUED, 0, fence);
    }

    /// How many frames the last sync covered.
    pub fn last_batch(&self) -> u64 {
        self.words.load(BATCH)
    }

    /// Tells how many frames a sync covered.
    pub fn set_last_batch(&self, frames: u64) {
        self.words.store(BATCH, frames);
    }

    /// A word, to be handed to [`Self::wait`].
    pub fn seen(&self, word: usize) -> u64 {
        self.words.load(word)
    }

    /// Blocks until the word is no longer as seen, or for a while.
    pub fn wait(&self, word: usize, seen: u64, patience: Duration) {
        self.words.add(word + 1, 1);
        self.words.wait(word, seen, patience.min(LONGEST_WAIT));
        self.words.add(word + 1, u64::MAX);
    }

    /// Tells waiters of a word to look again: one of them, or all.
    pub fn tell(&self, word: usize, all: bool) {
        self.words.add(word, 1);
        if self.words.load(word + 1) != 0 {
            self.words.wake(word, if all { i32::MAX.unsigned_abs() } else { 1 });
        }
    }
}

/// Rises with every checkpoint of an epoch: the first one is closed, and the one that reopens the
/// journal is of the same frame.
fn name(head: &Head) -> u64 {
    head.base.sequence << 1 | u64::from(!head.is_closed())
}

/// Whether the next process will fare no better: no such file, too short, not to be mapped.
fn is_for_good(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound, Unsupported};
    matches!(error.kind(), NotFound | InvalidInput | Unsupported)
        || error.raw_os_error() == Some(ENODEV)
}

const ENODEV: i32 = 19;

const _: () = assert!(APPEND_WAITERS == APPEND + 1 && SYNC_WAITERS == SYNC + 1);
const _: () = assert!(FREED_WAITERS == FREED + 1);
