//! What the processes of one boot tell each other in shared memory.
//!
//! H1. Nothing is stored on the word of a hint: with all of them gone a table works on, slower. Two of
//!     them make calls fail or be refused, never succeed: that a sync has failed is told here too, as the
//!     mark in the segment may not be writable just then; and for H4.
//! H2. The numbers that would do harm if they were wrong (what is durable, what is appended, after which
//!     frame nothing comes) carry a checksum bound to the table, the boot and the epoch, and are not
//!     believed without it.
//! H3. Whoever waits on a word waits for a bounded time: nobody may be left to wake him.
//! H4. That nothing comes after a frame is told only once it is written, and taken back before the next one
//!     is.
//! H5. The disk may have no room for a page of these words ([`SharedWords::try_store`]). What only makes
//!     others faster is given up then. Four things are not: a token is not issued whose fence cannot be
//!     told, no frame is written whose end cannot be taken back, nothing is acknowledged of which it
//!     cannot be told that it is durable (a later sync that fails would drop it), and that a sync has
//!     failed is known to this process all the same.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringfence_env::{LocalWords, SharedWords, World};
use twox_hash::XxHash3_64;

use crate::checkpoint::Head;
use crate::codec::Out;
use crate::layout::Layout;
use crate::room::NoRoomForWords;
use crate::sync::AtomicU64;

/// Words in the file.
pub const WORDS: usize = SEATS_AT + SEATS * SEAT;
const SEATS_AT: usize = 512;
/// So many may wait in the queue at once.
const SEATS: usize = 64;
/// Words of one place in the queue.
const SEAT: usize = SEAT_KEYS + 65;
/// Before the keys: ticket, checksum, stamp, number of keys, and the life in three words.
const SEAT_KEYS: usize = 7;

const IDENTITY: usize = 0;
/// Rises when the append lock is given up.
pub const APPEND: usize = 8;
const APPEND_WAITERS: usize = 9;
/// Rises when a sync has ended.
pub const SYNC: usize = 16;
const SYNC_WAITERS: usize = 17;
const DURABLE: usize = 24;
const APPENDED: usize = 32;
const EXPECTED: usize = 40;
const NAMED: usize = 56;
const ISSUED: usize = 64;
/// Rises when something was freed.
pub const FREED: usize = 48;
const FREED_WAITERS: usize = 49;
const FAILED: usize = 80;
const READY: usize = 88;
/// Nanoseconds.
const SYNC_TIME: usize = 96;
const GATHERS: usize = 112;
const END: usize = 120;
/// The last place in the queue that was given out.
const TICKET: usize = 72;

/// The longest time between two looks of somebody who waits.
pub const LONGEST_WAIT: Duration = Duration::from_millis(2);
/// How long somebody who wants to append looks before he sleeps.
const APPEND_WATCH: Duration = Duration::from_micros(20);
/// The same for somebody of whom nobody knows that he waits.
const UNCOUNTED_WAIT: Duration = Duration::from_millis(100);

/// A place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Rises with every place that is given out.
    pub(crate) ticket: u64,
    /// When its owner last looked at it, in milliseconds since the boot.
    pub(crate) stamp: u64,
    /// The life of its owner; zeros if it has none.
    pub(crate) life: [u64; 3],
    /// What it is for.
    pub(crate) keys: Vec<u64>,
}

impl Seat {
    /// Whether there is room for its keys.
    pub(crate) fn fits(&self) -> bool {
        self.keys.len() <= SEAT - SEAT_KEYS
    }
}

/// The hints of one table, in one boot.
#[derive(Debug)]
pub struct Hints {
    words: Box<dyn SharedWords>,
    identity: u64,
    shared: bool,
    /// H5. The last frame that counts, of an epoch in which a sync of ours has failed that could not be
    /// told; epoch 0 if there is none.
    untold_epoch: AtomicU64,
    untold_end: AtomicU64,
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
            // Places in the queue tell by their checksums that they are of another boot.
            let begun = words.try_store(1, &[0; SEATS_AT - 1]);
            if !begun || !words.try_store(IDENTITY, &[identity]) {
                return Err(no_room_for_words());
            }
        }
        Ok(Self::with(words, identity, true))
    }

    /// Words that nobody else sees.
    pub fn private(world: &World, table: u64) -> Self {
        let words = Box::new(LocalWords::new(WORDS, Arc::clone(&world.clock)));
        Self::with(words, table, false)
    }

    fn with(words: Box<dyn SharedWords>, identity: u64, shared: bool) -> Self {
        let (untold_epoch, untold_end) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { words, identity, shared, untold_epoch, untold_end }
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

    /// Tells what is durable. H5. Where it cannot be told a later failure would drop what comes after the
    /// last number that was.
    #[must_use = "nothing may be acknowledged that was not told"]
    pub fn set_durable(&self, epoch: u64, sequence: u64) -> bool {
        self.set_number(DURABLE, epoch, sequence)
    }

    /// The last sequence number that was appended whole in `epoch`, if that was in `segment`.
    pub fn appended(&self, epoch: u64, segment: u64) -> Option<u64> {
        self.number(APPENDED, within(epoch, segment))
    }

    /// Tells what was appended.
    pub fn set_appended(&self, epoch: u64, segment: u64, sequence: u64) {
        let _: bool = self.set_number(APPENDED, within(epoch, segment), sequence);
    }

    /// Whether nothing comes after this frame of `segment`, as far as the processes of this boot know.
    ///
    /// H4. Nobody writes a frame before he has taken this back, so it is right even if he dies before he
    /// tells what he has written: nobody is shown less than somebody else was shown before.
    pub fn is_end(&self, epoch: u64, segment: u64, sequence: u64) -> bool {
        self.shared && self.number(END, within(epoch, segment)) == Some(sequence)
    }

    /// Tells that nothing comes after this frame. The append lock is held.
    pub fn set_end(&self, epoch: u64, segment: u64, sequence: u64) {
        let _: bool = self.set_number(END, within(epoch, segment), sequence);
    }

    /// Takes that back: whoever wants to know reads the segment. The append lock is held. H5. Where it
    /// cannot be taken back no frame may be written.
    #[must_use = "no frame may be written if it is not taken back"]
    pub fn forget_end(&self) -> bool {
        let is_gone = self.words.load(END) == 0 && self.words.load(END + 1) == 0;
        is_gone || self.words.try_store(END, &[0, 0])
    }

    fn number(&self, index: usize, epoch: u64) -> Option<u64> {
        // Between the two stores of another process the pair does not match. Mostly it does not because
        // nothing was told, and then it stays as it is.
        let mut seen = (0, 0);
        for _ in 0..8 {
            let (number, check) = (self.words.load(index), self.words.load(index + 1));
            if check == self.check(index, epoch, number) {
                return Some(number);
            }
            if seen == (number, check) {
                return None;
            }
            seen = (number, check);
            std::hint::spin_loop();
        }
        None
    }

    fn set_number(&self, index: usize, epoch: u64, number: u64) -> bool {
        self.words.try_store(index, &[number, self.check(index, epoch, number)])
    }

    /// Stores what makes nothing but speed.
    fn set(&self, index: usize, value: u64) {
        if self.words.load(index) != value {
            let _: bool = self.words.try_store(index, &[value]);
        }
    }

    fn check(&self, index: usize, epoch: u64, number: u64) -> u64 {
        checksum(self.identity, index, epoch, number)
    }

    /// Whether the checkpoint with this head, or a later one of its epoch, is known to be in force
    /// durably.
    pub fn is_named(&self, head: &Head) -> bool {
        self.number(NAMED, head.epoch).is_some_and(|known| known >= name(head))
    }

    /// Tells that it is.
    pub fn set_named(&self, head: &Head) {
        let _: bool = self.set_number(NAMED, head.epoch, name(head));
    }

    /// The highest fence that any process of this boot has put into a token, whether or not the frame
    /// with it is there; nothing if that is not known.
    pub fn issued(&self) -> Option<u64> {
        self.number(ISSUED, 0)
    }

    /// Tells it, before the frame is written. H5. Where it cannot be told no token may have it.
    #[must_use = "no token may have a fence that was not told"]
    pub fn set_issued(&self, fence: u64) -> bool {
        self.set_number(ISSUED, 0, fence)
    }

    /// The last frame of `epoch` that counts, if a sync of it has failed.
    pub fn failed(&self, epoch: u64) -> Option<u64> {
        self.number(FAILED, epoch).or_else(|| {
            let ours = epoch != 0 && self.untold_epoch.load(Ordering::SeqCst) == epoch;
            ours.then(|| self.untold_end.load(Ordering::SeqCst))
        })
    }

    /// Tells that a sync has failed: also where the segment itself cannot be marked. H5. Where it cannot
    /// be told this process knows: the system tells each other one by its own next sync.
    pub fn set_failed(&self, epoch: u64, durable: u64) {
        if !self.set_number(FAILED, epoch, durable) {
            self.untold_end.store(durable, Ordering::SeqCst);
            self.untold_epoch.store(epoch, Ordering::SeqCst);
        }
    }

    /// Whether the segment of this number was made ready, durably, in this boot.
    pub fn is_ready(&self, segment: u64) -> bool {
        self.number(READY, 0) == Some(segment)
    }

    /// Tells that it was.
    #[must_use = "nobody goes on in a segment of which it was not told"]
    pub fn set_ready(&self, segment: u64) -> bool {
        self.set_number(READY, 0, segment)
    }

    /// How many frames are likely to come at one time: those that the last sync covered, and those that
    /// came while it was under way.
    pub fn expected(&self) -> u64 {
        self.words.load(EXPECTED)
    }

    /// Tells it.
    pub fn set_expected(&self, frames: u64) {
        self.set(EXPECTED, frames);
    }

    /// How long a sync takes, on an average that forgets.
    pub fn sync_time(&self) -> Duration {
        Duration::from_nanos(self.words.load(SYNC_TIME))
    }

    /// Tells how long one took.
    pub fn add_sync_time(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mean = match self.words.load(SYNC_TIME) {
            0 => took,
            mean => mean - mean / 8 + took / 8,
        };
        self.set(SYNC_TIME, mean);
    }

    /// Whether somebody looks already that a sync does not wait too long for others, after the one that
    /// made `durable` durable; if nobody does, whoever asks is to do so.
    pub fn gathers(&self, durable: u64) -> bool {
        let word = durable.wrapping_add(1);
        let somebody = self.words.load(GATHERS) == word;
        if !somebody {
            self.set(GATHERS, word);
        }
        somebody
    }

    /// The next number in the queue, if it can be given out. The append lock is held.
    pub(crate) fn next_ticket(&self) -> Option<u64> {
        let ticket = self.words.load(TICKET).wrapping_add(1);
        self.words.try_store(TICKET, &[ticket]).then_some(ticket)
    }

    /// Whether a place was given out in this boot.
    pub(crate) fn has_queued(&self) -> bool {
        self.words.load(TICKET) != 0
    }

    /// How many places there are.
    pub(crate) fn seats(&self) -> usize {
        if self.shared { SEATS } else { 0 }
    }

    /// Who is in a place; nobody if it does not read.
    pub(crate) fn seat(&self, at: usize) -> Option<Seat> {
        let first = SEATS_AT + at * SEAT;
        let word = |index: usize| self.words.load(first + index);
        let ticket = word(0);
        if ticket == 0 {
            return None;
        }
        let count = usize::try_from(word(3)).ok().filter(|count| *count <= SEAT - SEAT_KEYS)?;
        let keys = (0..count).map(|key| word(SEAT_KEYS + key)).collect();
        let seat = Seat { ticket, stamp: word(2), life: [word(4), word(5), word(6)], keys };
        (word(1) == self.check_seat(&seat)).then_some(seat)
    }

    /// Takes a place that is free, unless there is no memory for it. The append lock is held.
    #[must_use = "the place may not be taken"]
    pub(crate) fn set_seat(&self, at: usize, seat: &Seat) -> bool {
        let first = SEATS_AT + at * SEAT;
        let mut rest = vec![self.check_seat(seat), seat.stamp, seat.keys.len() as u64];
        rest.extend_from_slice(&seat.life);
        rest.extend_from_slice(&seat.keys);
        // Nobody sees it before all of it is there.
        self.words.try_store(first, &[0])
            && self.words.try_store(first + 1, &rest)
            && self.words.try_store(first, &[seat.ticket])
    }

    /// Says that somebody still looks at his place.
    pub(crate) fn set_stamp(&self, at: usize, now: u64) {
        self.set(SEATS_AT + at * SEAT + 2, now);
    }

    /// Gives a place up, if it is still this one.
    pub(crate) fn clear_seat(&self, at: usize, seat: &Seat) {
        let first = SEATS_AT + at * SEAT;
        if self.words.load(first) == seat.ticket {
            // Otherwise it ends with its life (Q2).
            self.set(first, 0);
        }
    }

    /// Of everything but the stamp.
    fn check_seat(&self, seat: &Seat) -> u64 {
        let mut out = Out::default();
        out.u64(seat.ticket);
        seat.life.iter().chain(&seat.keys).for_each(|word| out.u64(*word));
        XxHash3_64::oneshot_with_seed(self.identity, &out.0)
    }

    /// A word, to be handed to [`Self::wait`].
    pub fn seen(&self, word: usize) -> u64 {
        self.words.load(word)
    }

    /// Blocks until the word is no longer as seen, or for a while.
    pub fn wait(&self, word: usize, seen: u64, patience: Duration) {
        // That lock is held for less time than it takes to fall asleep and be woken.
        if word == APPEND && self.words.watch(word, seen, APPEND_WATCH) {
            return;
        }
        self.wait_long(word, seen, patience.min(LONGEST_WAIT));
    }

    /// Blocks until the word is no longer as seen, as long as asked for.
    pub fn wait_long(&self, word: usize, seen: u64, patience: Duration) {
        // Whoever is not counted is woken by luck.
        let counted = self.words.try_add(word + 1, 1);
        let patience = if counted { patience } else { patience.min(UNCOUNTED_WAIT) };
        self.words.wait(word, seen, patience);
        if counted {
            // One that is counted for ever costs a call each time.
            let _: bool = self.words.try_add(word + 1, -1);
        }
    }

    /// Tells waiters of a word to look again: one of them, or all.
    pub fn tell(&self, word: usize, all: bool) {
        let told = self.words.try_add(word, 1);
        if !told || self.words.load(word + 1) != 0 {
            self.words.wake(word, if all { i32::MAX.unsigned_abs() } else { 1 });
        }
    }
}

/// There is no room on the disk for a page that is to be changed in memory.
pub(crate) fn no_room_for_words() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, NoRoomForWords)
}

/// Rises with every checkpoint of an epoch: the first one is closed, and the one that reopens the
/// journal is of the same frame.
fn name(head: &Head) -> u64 {
    head.base.sequence << 1 | u64::from(!head.is_closed())
}

/// H2. What stands after a number for it to be believed, where `identity` is what the first word says.
pub fn checksum(identity: u64, index: usize, epoch: u64, number: u64) -> u64 {
    // Asked a dozen times in every call: against zeros, noise and halves of two numbers it need not
    // be more.
    let mix = |mixed: u64, word: u64| {
        let mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    };
    [index as u64, epoch, number, identity].into_iter().fold(identity, mix)
}

/// A segment of an epoch; there are far fewer of both than would make two of them one.
fn within(epoch: u64, segment: u64) -> u64 {
    epoch.rotate_left(32) ^ segment
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ringfence_engine::{Engine, Outcome, Request};
    use ringfence_env::fault::{Call, FaultFs};
    use ringfence_model::rules::{self, ClaimRequest};
    use ringfence_model::{Key, Owner, Payload, TargetGroup, Ttl};

    use super::*;
    use crate::{InitOptions, JournalEngine};

    fn claim(engine: &JournalEngine, number: u64) {
        let request = ClaimRequest {
            group: TargetGroup::from_numbers([number]).unwrap(),
            owner: Owner::new("somebody").unwrap(),
            worker: 1,
            payload: Payload::empty(),
            ttl: Ttl::from_seconds(60.0).unwrap(),
        };
        let keys: Vec<Key> = request.group.targets().map(Key::target).collect();
        let asked = Request { keys: &keys, now: None, patience: Duration::from_secs(2) };
        let outcome = engine.transact(&asked, &mut |view| rules::claim(view, &request).ok());
        assert!(matches!(outcome, Ok(Outcome::Done(_))), "{outcome:?}");
    }

    /// An engine whose calls are counted, and another one of the same table.
    struct Two {
        dir: tempfile::TempDir,
        watched: JournalEngine,
        calls: FaultFs,
        other: JournalEngine,
    }

    impl Two {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (world, root) = (World::system(), dir.path().join("store"));
            let other = JournalEngine::init(&world, &root, &InitOptions::default()).unwrap();
            let calls = FaultFs::new(Arc::clone(&world.fs));
            let world = world.with_fs(Arc::new(calls.clone()));
            let watched = JournalEngine::open(&world, &root).unwrap();
            Self { dir, watched, calls, other }
        }
    }

    /// Words that nobody stores to, and how often somebody looked.
    #[derive(Debug)]
    struct Looked(Arc<AtomicU64>);

    impl SharedWords for Looked {
        fn load(&self, index: usize) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed);
            if index == FAILED { 7 } else { 0 }
        }

        fn store(&self, _: usize, _: u64) {}

        fn add(&self, _: usize, _: u64) -> u64 {
            0
        }

        fn wait(&self, _: usize, _: u64, _: Duration) {}

        fn wake(&self, _: usize, _: u32) {}
    }

    #[test]
    fn a_number_that_stays_unreadable_is_not_looked_at_again_and_again() {
        let looked = Arc::new(AtomicU64::new(0));
        let hints = Hints::with(Box::new(Looked(Arc::clone(&looked))), 1, true);
        for (told, most) in [(DURABLE, 2), (FAILED, 4)] {
            looked.store(0, Ordering::Relaxed);
            assert_eq!(hints.number(told, 3), None);
            assert!(looked.load(Ordering::Relaxed) <= most, "{looked:?} words of {told}");
        }
    }

    /// H4. What was read up to the end that was told needs no second look.
    #[test]
    fn what_others_appended_is_read_once() {
        let Two { dir: _dir, watched: reading, calls, other } = Two::new();
        let looks = |number: u64| {
            let before = calls.count(Call::Read);
            let key = Key::target(ringfence_model::Target::new(number).unwrap());
            let view = reading.view(&[key], None).unwrap();
            assert!(matches!(view.entries[0].1, ringfence_model::Entry::Present(_)), "{view:?}");
            calls.count(Call::Read) - before
        };
        claim(&other, 1);
        assert_eq!(looks(1), 1, "the frame");
        assert_eq!(looks(1), 0, "nothing was appended since");
        claim(&other, 2);
        claim(&other, 3);
        assert_eq!(looks(3), 1, "both frames");
        assert!(reading.journal.hints.forget_end());
        assert_eq!(looks(3), 2, "where the end is not known it is looked for");
    }

    /// H4. A writer may die at any moment between the two.
    #[test]
    fn nobody_takes_a_frame_for_the_last_one_while_another_is_written_behind_it() {
        let Two { dir, watched: writing, calls, other } = Two::new();
        let root = dir.path().join("store");
        claim(&writing, 1);
        let last = other.place().unwrap();
        let is_last = move |engine: &JournalEngine| {
            engine.journal.hints.is_end(last.epoch, last.segment, last.sequence)
        };
        assert!(is_last(&other));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (looking, tell) = (other.clone(), Arc::clone(&seen));
        calls.on_call(move |call, path| {
            if call == Call::Write && path.starts_with(&root) {
                tell.lock().unwrap().push(is_last(&looking));
            }
        });
        claim(&writing, 2);
        assert_eq!(*seen.lock().unwrap(), [false], "one frame, and taken back before it");
        let next = other.place().unwrap();
        assert!(other.journal.hints.is_end(next.epoch, next.segment, last.sequence + 1));
    }
}
