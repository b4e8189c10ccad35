//! Every call of claim, take-over, heartbeat and release fails once, or from there on.
//!
//! The group has 8 targets in exactly 3 shards. After each run the result is compared with every
//! byte of the table, with the temporaries and kernel locks left behind, and with what the same call
//! does once the fault is gone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ringfence_engine::Failure;
use ringfence_env::fault::{Call, Effect, When};
use ringfence_files::meta::Durability;
use ringfence_files::{FilesEngine, Finding, InitOptions, Tuning};
use ringfence_model::{Fence, FencingToken};

use crate::table::{
    SERIAL, Snapshot, Table, Verbs as _, assert_no_lock_is_held, options, targets_over, temps,
};

const ERRNOS: [i32; 6] =
    [libc_errno::EIO, libc_errno::ENOSPC, libc_errno::EDQUOT, libc_errno::EROFS, 24, 4];

mod libc_errno {
    pub(super) const EIO: i32 = 5;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EDQUOT: i32 = 122;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Claim,
    TakeOver,
    TakeOverForeign,
    Heartbeat,
    Release,
}

const VERBS: [Verb; 5] =
    [Verb::Claim, Verb::TakeOver, Verb::TakeOverForeign, Verb::Heartbeat, Verb::Release];

/// A table before the call, the call, and what was seen of it.
struct Bench {
    table: Table,
    targets: Vec<u64>,
    held: FencingToken,
    base: Snapshot,
    trace: Arc<Mutex<Vec<(Call, PathBuf)>>>,
    highest: Fence,
}

impl Bench {
    fn new(verb: Verb, tuning: Tuning, durability: Durability) -> Self {
        let table = Table::made(&InitOptions { durability, ..options(8) }, tuning);
        let targets = targets_over(3, 8);
        let empty = table.snapshot();
        let held = table.engine.grab("first", &targets, Some(1000.0)).unwrap().unwrap();
        if verb == Verb::Claim {
            table.reset(&empty);
        }
        if verb == Verb::TakeOverForeign {
            // As another program would have written them: nothing of ours is in them.
            for &target in &targets {
                let line = std::fs::read_to_string(table.record(target)).unwrap();
                let ours = line.find("\"ringfence\":").unwrap();
                let end = line[ours..].find("},").unwrap() + ours + 2;
                let line = format!("{}{}", &line[..ours], &line[end..]);
                std::fs::write(table.record(target), line).unwrap();
            }
        }
        let base = table.snapshot();
        let trace = Arc::new(Mutex::new(Vec::new()));
        table.fs.on_call({
            let trace = Arc::clone(&trace);
            move |call, path| trace.lock().unwrap().push((call, path.to_owned()))
        });
        Self { table, targets, held, base, trace, highest: held.fence() }
    }

    /// `Ok` is done; a refusal would be a broken test.
    fn call(&mut self, verb: Verb) -> Result<(), Failure> {
        self.trace.lock().unwrap().clear();
        let engine = &self.table.engine;
        match verb {
            Verb::Claim | Verb::TakeOver => {
                let token = engine.grab("second", &self.targets, Some(2000.0))?.unwrap();
                self.granted(token);
            }
            // The host's clocks: only then is the store's own clock asked.
            Verb::TakeOverForeign => {
                let token = engine.grab("second", &self.targets, None)?.unwrap();
                self.granted(token);
            }
            Verb::Heartbeat => {
                engine.beat(&self.targets, self.held, Some(1030.0))?.unwrap();
            }
            Verb::Release => {
                engine.free(&self.targets, self.held)?.unwrap();
            }
        }
        Ok(())
    }

    fn granted(&mut self, token: FencingToken) {
        assert!(token.fence() > self.highest, "{token} after {}", self.highest);
        self.highest = token.fence();
    }

    fn assert_done(&self, verb: Verb, context: &str) {
        let now = self.table.snapshot();
        for &target in &self.targets {
            let path = self.table.record(target);
            if verb == Verb::Release {
                assert!(!now.contains_key(&path), "{context}");
                continue;
            }
            assert_ne!(now.get(&path), self.base.get(&path), "{context}");
            let fence = self.table.read(target).holder.token.fence().unwrap();
            let expected = if verb == Verb::Heartbeat { self.held.fence() } else { self.highest };
            assert_eq!(fence, expected, "{context}");
        }
        assert_eq!(temps(self.table.root()), Vec::<PathBuf>::new(), "{context}");
    }

    /// The records that differ from before the call.
    fn changed(&self) -> Vec<String> {
        let now = self.table.snapshot();
        self.targets
            .iter()
            .map(|&target| self.table.record(target))
            .filter(|path| now.get(path) != self.base.get(path))
            .map(|path| path.display().to_string())
            .collect()
    }

    /// Whoever comes next finishes what an intent decided: all of it, one way or the other.
    fn finish_by_another(&self, context: &str) {
        FilesEngine::open(&self.table.world, self.table.root(), SERIAL).unwrap();
        let changed = self.changed().len();
        assert!(changed == 0 || changed == 8, "{context}: {changed} of 8 changed");
        let left = self.table.engine.check().unwrap().findings;
        let stands = left.iter().any(|finding| matches!(finding, Finding::Intent { .. }));
        assert!(!stands, "{context}: {left:?}");
    }

    fn faulted(&self, nth: u64) -> (Call, PathBuf) {
        self.trace.lock().unwrap()[usize::try_from(nth).unwrap() - 1].clone()
    }
}

/// Calls whose failure loses nothing: a descriptor is closed right after them; a slot whose retirement
/// is durable is freed by the next one that meets it.
fn is_harmless(bench: &Bench, nth: u64) -> bool {
    let trace = bench.trace.lock().unwrap();
    let nth = usize::try_from(nth).unwrap();
    let synced_later = trace[nth..].iter().any(|(call, path)| is_slot(*call, path, Call::SyncFile));
    let (call, path) = &trace[nth - 1];
    *call == Call::Unlock || is_slot(*call, path, Call::Write) && !synced_later
}

fn is_slot(call: Call, path: &std::path::Path, wanted: Call) -> bool {
    call == wanted && path.extension().is_some_and(|end| end == "slot")
}

/// B1, B3, B30: a later member fails, or the restore does not say what it did.
#[test]
fn any_single_failed_call_of_any_verb_leaves_every_byte_as_it_was_and_the_call_can_be_repeated() {
    let mut runs = 0;
    let all = VERBS.into_iter().flat_map(|verb| ERRNOS.map(|errno| (verb, errno)));
    for durability in [Durability::Record, Durability::Group] {
        for (verb, errno) in all.clone() {
            let mut bench = Bench::new(verb, SERIAL, durability);
            for nth in 1.. {
                let context = format!("{durability:?}, {verb:?}, errno {errno}, call {nth}");
                bench.table.fs.arm(When::Nth(nth), Effect::Errno(errno));
                let ended = bench.call(verb);
                let fired = bench.table.fs.fired();
                bench.table.fs.disarm();
                if fired == 0 {
                    ended.unwrap();
                    assert!(nth > 40, "{context}: too few calls to be true");
                    break;
                }
                runs += 1;
                assert_no_lock_is_held(bench.table.root());
                let (call, path) = bench.faulted(nth);
                let context = format!("{context}: {call:?} {}", path.display());
                match ended {
                    Ok(()) => {
                        assert!(is_harmless(&bench, nth), "{context} failed and nobody was told");
                        bench.assert_done(verb, &context);
                    }
                    // The decision may stand: it is the group's true state, and nobody is told else.
                    Err(Failure::Unknown { members, .. }) if durability == Durability::Group => {
                        assert!(path.extension().is_some_and(|end| end == "slot"), "{context}");
                        assert_eq!(members.len(), 8, "{context}");
                        bench.finish_by_another(&context);
                        bench.table.reset(&bench.base);
                        bench.call(verb).unwrap();
                    }
                    Err(failure) => {
                        assert!(failure.restored(), "{context}: {failure:?}");
                        assert!(failure.storage().is_some(), "{context}: {failure:?}");
                        let raw = failure.storage().unwrap().source.raw_os_error();
                        assert_eq!(raw, Some(errno), "{context}");
                        assert_eq!(bench.table.snapshot(), bench.base, "{context}: {failure:?}");
                        bench.call(verb).unwrap_or_else(|again| panic!("{context}: {again}"));
                        bench.assert_done(verb, &context);
                    }
                }
                bench.table.reset(&bench.base);
            }
        }
    }
    assert!(runs > 5000, "{runs} runs");
}

/// B43: a sync that fails is never made good by asking again.
#[test]
fn a_disk_that_stays_broken_is_never_success_and_never_a_lie_about_what_was_put_back() {
    let mut unknown = 0;
    for durability in [Durability::Record, Durability::Group] {
        for verb in VERBS {
            let errno = if verb == Verb::Claim { libc_errno::ENOSPC } else { libc_errno::EIO };
            let mut bench = Bench::new(verb, SERIAL, durability);
            for nth in 1.. {
                let context = format!("{durability:?}, {verb:?}, from call {nth} on");
                bench.table.fs.arm(When::From(nth), Effect::Errno(errno));
                let ended = bench.call(verb);
                let fired = bench.table.fs.fired();
                bench.table.fs.disarm();
                if fired == 0 {
                    ended.unwrap();
                    break;
                }
                assert_no_lock_is_held(bench.table.root());
                let (call, _) = bench.faulted(nth);
                let changed = bench.changed();
                match ended {
                    Ok(()) => {
                        assert!(
                            is_harmless(&bench, nth),
                            "{context}: {call:?} failed, nobody was told"
                        );
                        bench.assert_done(verb, &context);
                    }
                    Err(Failure::Unknown { members, .. }) => {
                        unknown += 1;
                        assert!(!members.is_empty(), "{context}");
                        for path in &changed {
                            assert!(members.contains(path), "{context}: {path} is not named");
                        }
                    }
                    Err(failure) => {
                        assert_eq!(changed, Vec::<String>::new(), "{context}: {failure:?}");
                    }
                }
                for path in temps(bench.table.root()) {
                    std::fs::remove_file(path).unwrap();
                }
                if durability == Durability::Group {
                    bench.finish_by_another(&context);
                }
                bench.table.reset(&bench.base);
                bench.call(verb).unwrap_or_else(|again| panic!("{context}, then: {again}"));
                bench.assert_done(verb, &context);
                bench.table.reset(&bench.base);
            }
        }
    }
    assert!(unknown > 30, "{unknown} unknown outcomes");
}

/// B30: an unknown outcome is not a failure that cleaned up.
#[test]
fn a_failure_while_putting_back_is_unknown_and_names_exactly_the_members_that_may_differ() {
    let mut unknown = 0;
    for verb in [Verb::Claim, Verb::TakeOver, Verb::Heartbeat, Verb::Release] {
        let mut bench = Bench::new(verb, SERIAL, Durability::Record);
        bench.call(verb).unwrap();
        let calls = bench.trace.lock().unwrap().clone();
        bench.table.reset(&bench.base);
        let mutates = |(call, path): &(Call, PathBuf)| {
            matches!(call, Call::Rename | Call::Unlink | Call::SyncDir)
                && path.starts_with(bench.table.root())
                && path.to_string_lossy().len() > bench.table.root().to_string_lossy().len() + 3
        };
        // That the slot is freed in the end loses nothing when it fails.
        let freed = calls.iter().rposition(|(call, path)| is_slot(*call, path, Call::Write));
        let positions: Vec<u64> = (1u64..)
            .zip(&calls)
            .filter(|(nth, call)| mutates(call) && freed != usize::try_from(nth - 1).ok())
            .map(|(nth, _)| nth)
            .collect();
        assert_eq!(positions.len(), 11, "8 renames or unlinks, 3 barriers");
        for first in positions {
            for second in first + 1.. {
                let context = format!("{verb:?}, calls {first} and {second}");
                bench.table.fs.arm(When::Nth(first), Effect::Errno(libc_errno::EIO));
                bench.table.fs.arm(When::Nth(second), Effect::Errno(libc_errno::ENOSPC));
                let ended = bench.call(verb);
                let fired = bench.table.fs.fired();
                bench.table.fs.disarm();
                assert_no_lock_is_held(bench.table.root());
                if fired < 2 {
                    assert!(matches!(ended, Err(Failure::Restored(_))), "{context}: {ended:?}");
                    bench.table.reset(&bench.base);
                    break;
                }
                let (call, path) = bench.faulted(second);
                let context = format!("{context}: {call:?} {}", path.display());
                let changed = bench.changed();
                match ended {
                    Ok(()) => panic!("{context}: success"),
                    Err(Failure::Unknown { members, source, restore }) => {
                        unknown += 1;
                        assert_eq!(source.source.raw_os_error(), Some(libc_errno::EIO));
                        assert_eq!(restore.source.raw_os_error(), Some(libc_errno::ENOSPC));
                        for path in &changed {
                            assert!(members.contains(path), "{context}: {path} is not named");
                        }
                        if call == Call::SyncDir {
                            let dir = path.display().to_string();
                            let inside = members.iter().all(|member| member.starts_with(&dir));
                            assert!(inside, "{context}: {members:?} are not all in {dir}");
                        } else {
                            assert_eq!(members.len(), 1, "{context}");
                            assert!(call == Call::Read || members == changed, "{context}");
                        }
                    }
                    Err(failure) => {
                        let kind = call == Call::Unlock || call == Call::Unlink;
                        assert!(kind, "{context}: {failure:?}");
                        assert_eq!(changed, Vec::<String>::new(), "{context}: {failure:?}");
                    }
                }
                for path in temps(bench.table.root()) {
                    std::fs::remove_file(path).unwrap();
                }
                bench.table.reset(&bench.base);
            }
        }
    }
    assert!(unknown > 200, "{unknown} unknown outcomes");
}

/// The same where an intent decides: what is not known is finished by whoever comes next.
#[test]
fn two_failures_in_a_table_of_groups_are_told_and_the_next_one_makes_the_group_whole() {
    let mut unknown = 0;
    for verb in [Verb::Claim, Verb::TakeOver, Verb::Heartbeat, Verb::Release] {
        let mut bench = Bench::new(verb, SERIAL, Durability::Group);
        bench.call(verb).unwrap();
        let calls = bench.trace.lock().unwrap().clone();
        bench.table.reset(&bench.base);
        let slot = |path: &PathBuf| path.extension().is_some_and(|end| end == "slot");
        let mutates = |(call, path): &(Call, PathBuf)| match call {
            Call::Rename | Call::Unlink | Call::SyncDir => true,
            Call::Write | Call::SyncFile => slot(path),
            _ => false,
        };
        // That the slot is freed in the end loses nothing when it fails.
        let freed = calls.iter().rposition(|(call, path)| is_slot(*call, path, Call::Write));
        let positions: Vec<u64> = (1u64..)
            .zip(&calls)
            .filter(|(nth, call)| mutates(call) && freed != usize::try_from(nth - 1).ok())
            .map(|(nth, _)| nth)
            .collect();
        assert!(positions.len() >= 11 + 4, "with the intent and its retirement: {positions:?}");
        for first in positions {
            for second in first + 1.. {
                let context = format!("{verb:?}, calls {first} and {second}");
                bench.table.fs.arm(When::Nth(first), Effect::Errno(libc_errno::EIO));
                bench.table.fs.arm(When::Nth(second), Effect::Errno(libc_errno::ENOSPC));
                let ended = bench.call(verb);
                let fired = bench.table.fs.fired();
                bench.table.fs.disarm();
                assert_no_lock_is_held(bench.table.root());
                let changed = bench.changed();
                match &ended {
                    Ok(()) => panic!("{context}: success"),
                    Err(Failure::Unknown { members, .. }) => {
                        unknown += 1;
                        for path in &changed {
                            assert!(members.contains(path), "{context}: {path} is not named");
                        }
                    }
                    Err(failure) => {
                        assert_eq!(changed, Vec::<String>::new(), "{context}: {failure:?}");
                    }
                }
                for path in temps(bench.table.root()) {
                    std::fs::remove_file(path).unwrap();
                }
                bench.finish_by_another(&context);
                bench.table.reset(&bench.base);
                if fired < 2 {
                    break;
                }
            }
        }
    }
    assert!(unknown > 200, "{unknown} unknown outcomes");
}

fn in_both<const N: usize>(verbs: [Verb; N]) -> impl Iterator<Item = (Verb, Durability)> {
    let both = |verb| [Durability::Record, Durability::Group].map(|durability| (verb, durability));
    verbs.into_iter().flat_map(both)
}

#[test]
fn writes_of_one_byte_at_a_time_store_the_same_records() {
    for (verb, durability) in in_both(VERBS) {
        let mut bench = Bench::new(verb, SERIAL, durability);
        bench.table.fs.arm(When::From(1), Effect::ShortWrite(1));
        bench.call(verb).unwrap();
        let fired = bench.table.fs.fired();
        bench.table.fs.disarm();
        assert!(verb == Verb::Heartbeat || verb == Verb::Release || fired > 100, "{fired}");
        bench.assert_done(verb, &format!("{verb:?}, {durability:?}"));
    }
}

#[test]
fn overlapped_syncs_fail_and_put_back_like_serial_ones() {
    let tuning = Tuning { sync_width: 16, ..SERIAL };
    for (verb, durability) in in_both([Verb::Claim, Verb::TakeOver, Verb::Heartbeat]) {
        let mut bench = Bench::new(verb, tuning, durability);
        for (kind, count) in
            [(Call::SyncFile, 8), (Call::Write, 8), (Call::Rename, 8), (Call::SyncDir, 3)]
        {
            for nth in 1..=count {
                let context = format!("{durability:?}, {verb:?}, {kind:?} {nth}");
                bench.table.fs.arm(When::NthOf(kind, nth), Effect::Errno(libc_errno::EIO));
                let ended = bench.call(verb);
                assert_eq!(bench.table.fs.fired(), 1, "{context}");
                bench.table.fs.disarm();
                let failure = ended.unwrap_err();
                assert!(failure.restored(), "{context}: {failure:?}");
                assert_eq!(bench.table.snapshot(), bench.base, "{context}");
                assert_no_lock_is_held(bench.table.root());
                bench.call(verb).unwrap();
                bench.assert_done(verb, &context);
                bench.table.reset(&bench.base);
            }
        }
    }
}

#[test]
fn fences_rise_through_every_fault_in_the_counters_own_files() {
    let table = Table::new(8);
    let world = &table.world;
    let mut last = 0;
    let mut failed = 0;
    // A world without a boot identity raises the durable limit at every grant.
    let host = ringfence_env::HostIdentity { boot: None, ..(*world.host).clone() };
    let forgetful = ringfence_env::World { host: Arc::new(host), ..world.clone() };
    let forgetful = ringfence_files::FilesEngine::open(&forgetful, table.root(), SERIAL).unwrap();
    for engine in [&table.engine, &forgetful, &table.engine] {
        for errno in [libc_errno::EIO, libc_errno::ENOSPC] {
            for nth in 1.. {
                for when in [When::Nth(nth), When::From(nth)] {
                    table.fs.arm(when, Effect::Errno(errno));
                    let ended = engine.grab("a", &[7], None);
                    let fired = table.fs.fired();
                    table.fs.disarm();
                    failed += u64::from(ended.is_err());
                    let token = if let Ok(token) = ended {
                        token.unwrap()
                    } else {
                        for path in [table.record(7)].into_iter().chain(temps(table.root())) {
                            let _ = std::fs::remove_file(path);
                        }
                        engine.grab("a", &[7], None).unwrap().unwrap()
                    };
                    assert!(token.fence().0 > last, "{token} after {last}, {when:?}");
                    last = token.fence().0;
                    engine.free(&[7], token).unwrap().unwrap();
                    if fired == 0 {
                        break;
                    }
                }
                if nth > 60 {
                    break;
                }
            }
        }
    }
    assert!(failed > 100, "{failed} failures");
}
