//! How soon a blocked claim has what another process releases.
//!
//! The first process holds a group, waits until the second one is blocked in its claim, releases, and
//! notes when the release has returned; the second one says when its claim has. Both by the clock that all
//! processes of a boot share. A cycle of this work is the time between the two.

use std::path::Path;
use std::time::Duration;

use ringfence_env::SharedWords;

use crate::contender::{Claimed, Session};
use crate::worker::{Order, Told, Until, ready, tell};
use crate::{Result, shim};

/// Words beside those of the holders: how many rounds have begun and are done, and when the last claim
/// returned. The second process may be done before the first one has come back from its release.
const BEGUN: usize = 0;
const GRANTED: usize = 1;
const OVER: usize = 2;
const DONE: usize = 3;
const WORDS: usize = 4;
/// By then the second process sleeps in its claim.
const SETTLED: Duration = Duration::from_millis(3);
/// Nobody waits longer for the other.
const LONGEST: Duration = Duration::from_secs(10);
const TARGETS: [u64; 8] =
    [2_000_001, 2_000_002, 2_000_003, 2_000_004, 2_000_005, 2_000_006, 2_000_007, 2_000_008];

/// Makes the file that the two share.
pub(crate) fn prepare(path: &Path) -> Result<()> {
    shim::shared_file(path, WORDS).map(drop)
}

pub(crate) fn run(order: &Order) -> Result<()> {
    let mut session = order.contender.open(&order.place, order.index)?;
    let words = shim::map(&order.meeting, WORDS)?;
    if order.index == 0 {
        for word in [BEGUN, OVER, DONE] {
            words.store(word, 0);
        }
    }
    if !ready()? {
        return Ok(());
    }
    let mut told = Told::default();
    match order.index {
        0 => release(order, &mut *session, &*words, &mut told)?,
        _ => claim(&mut *session, &*words)?,
    }
    tell(&told)
}

fn release(
    order: &Order,
    session: &mut dyn Session,
    words: &dyn SharedWords,
    told: &mut Told,
) -> Result<()> {
    let until = Until::new(order);
    let mut round = 0;
    while !until.is_over(told) {
        let Claimed::Held(held) = session.claim(&TARGETS)? else {
            return Err("somebody holds the group that is passed on".into());
        };
        round += 1;
        words.store(GRANTED, 0);
        words.store(BEGUN, round);
        words.wake(BEGUN, 1);
        std::thread::sleep(SETTLED);
        session.release(&held)?;
        let returned = now();
        let granted = wait(words, GRANTED, 0)?;
        told.nanos.push(granted.saturating_sub(returned));
        told.in_time += 1;
        // Until the other one has released it.
        wait(words, DONE, round - 1)?;
    }
    words.store(OVER, 1);
    words.store(BEGUN, u64::MAX);
    words.wake(BEGUN, 1);
    Ok(())
}

fn claim(session: &mut dyn Session, words: &dyn SharedWords) -> Result<()> {
    let mut seen = 0;
    loop {
        seen = wait(words, BEGUN, seen)?;
        if words.load(OVER) == 1 {
            return Ok(());
        }
        let held = session.claim_waiting(&TARGETS, LONGEST)?;
        let granted = now();
        words.store(GRANTED, granted);
        words.wake(GRANTED, 1);
        session.release(&held)?;
        words.store(DONE, seen);
        words.wake(DONE, 1);
    }
}

/// The word once it is no longer as seen.
fn wait(words: &dyn SharedWords, word: usize, seen: u64) -> Result<u64> {
    let until = std::time::Instant::now() + LONGEST;
    loop {
        let value = words.load(word);
        if value != seen {
            return Ok(value);
        }
        if std::time::Instant::now() >= until {
            return Err("the other process does not answer".into());
        }
        words.wait(word, seen, Duration::from_millis(100));
    }
}

/// Nanoseconds by the clock that the processes share.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}
