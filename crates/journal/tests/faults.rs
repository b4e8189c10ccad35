//! Every call of every verb fails in turn: the answer, what stands after it, and what is left over.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test damages files and fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_engine::{Engine, Failure, Outcome, Request};
use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_env::{RealFs, World};
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{FencingToken, Key, Owner, Payload, Space, TargetGroup, Token, Ttl};

const ERRNOS: [i32; 6] =
    [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EMFILE, libc::EINTR];
/// Small enough that some of the calls go through a change of segments and a checkpoint.
const SEGMENT: u64 = 64 * 1024;

fn group(numbers: std::ops::Range<u64>) -> TargetGroup {
    TargetGroup::from_numbers(numbers).unwrap()
}

fn keys(group: &TargetGroup) -> Vec<Key> {
    group.targets().map(Key::target).collect()
}

fn claim(engine: &dyn Engine, group: &TargetGroup) -> Result<Option<FencingToken>, Failure> {
    let request = ClaimRequest {
        group: group.clone(),
        owner: Owner::new("a").unwrap(),
        worker: 1,
        payload: Payload::parse("{\"job\":1}").unwrap(),
        ttl: Ttl::from_seconds(600.0).unwrap(),
    };
    let keys = keys(group);
    let ask = Request { keys: &keys, now: None, patience: Duration::from_secs(5) };
    let outcome = engine.transact(&ask, &mut |view| rules::claim(view, &request).ok())?;
    Ok(match outcome {
        Outcome::Done(done) => done.token,
        Outcome::Refused => None,
    })
}

fn change(
    engine: &dyn Engine,
    group: &TargetGroup,
    token: FencingToken,
    verb: Verb,
) -> Result<bool, Failure> {
    let (keys, token) = (keys(group), Token::from(token));
    let ask = Request { keys: &keys, now: None, patience: Duration::from_secs(5) };
    let outcome = engine.transact(&ask, &mut |view| match verb {
        Verb::Heartbeat => rules::heartbeat(view, group, &token).ok(),
        Verb::Release => rules::release(view, group, &token).ok(),
        Verb::ForceRelease => rules::force_release(view, group, &token, "test").ok(),
    })?;
    Ok(matches!(outcome, Outcome::Done(_)))
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Heartbeat,
    Release,
    ForceRelease,
}

/// Everything, as a process sees it that has nothing in memory.
fn truth(root: &Path) -> BTreeMap<Key, String> {
    let engine = JournalEngine::open_read_only(&World::system(), root).unwrap();
    let scan = engine.scan(Space::Targets, None).unwrap();
    scan.entries.into_iter().map(|(key, entry)| (key, format!("{entry:?}"))).collect()
}

fn no_leftovers(root: &Path) {
    let mut names: Vec<String> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "audit.log")
        .collect();
    names.sort();
    let expected = [
        "append.lock",
        "checkpoint",
        "hints",
        "journal.0",
        "journal.1",
        "lives",
        "maintain.lock",
        "sync.lock",
        "table.json",
    ];
    assert_eq!(names, expected);
}

struct Bed {
    dir: tempfile::TempDir,
    faults: FaultFs,
    engine: JournalEngine,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = dir.path().join("table");
        let options = InitOptions { segment_bytes: SEGMENT, ..InitOptions::default() };
        JournalEngine::init(&World::system(), &root, &options).unwrap();
        let faults = FaultFs::new(Arc::new(RealFs));
        let world = World::system().with_fs(Arc::new(faults.clone()));
        let engine = JournalEngine::open(&world, &root).unwrap();
        Self { dir, faults, engine }
    }

    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("table")
    }
}

/// What a call did, judged by its answer; `new` says whether a state is the one asked for.
fn judge<T: std::fmt::Debug>(
    answer: &Result<T, Failure>,
    before: &BTreeMap<Key, String>,
    after: &BTreeMap<Key, String>,
    is_new: impl Fn(&BTreeMap<Key, String>) -> bool,
    what: &str,
) {
    match answer {
        Ok(_) => assert!(is_new(after), "{what}: done, but {after:?}"),
        Err(Failure::Unknown { .. }) => {
            assert!(after == before || is_new(after), "{what}: neither old nor new: {after:?}");
        }
        Err(failure) => assert!(after == before, "{what}: {failure} changed something: {after:?}"),
    }
}

#[test]
fn a_call_that_fails_anywhere_is_honest_and_the_next_one_works() {
    let others = group(900..903);
    for persistent in [false, true] {
        for errno in ERRNOS {
            let bed = Bed::new();
            let kept = claim(&bed.engine, &others).unwrap().unwrap();
            let target = group(1..9);
            let mut reached_end = 0;
            for position in 1..200 {
                let when = if persistent { When::From(position) } else { When::Nth(position) };
                let what = format!("errno {errno}, call {position}, persistent {persistent}");
                let before = truth(&bed.root());
                bed.faults.disarm();
                bed.faults.arm(when, Effect::Errno(errno));
                let answer = claim(&bed.engine, &target);
                let fired = bed.faults.fired();
                bed.faults.disarm();
                let after = truth(&bed.root());
                judge(&answer, &before, &after, |now| now.len() == before.len() + 8, &what);
                no_leftovers(&bed.root());
                // Whatever happened: the same call of the same process works, or the lease is held
                // by the call whose outcome it could not tell.
                let token = match (answer, claim(&bed.engine, &target).unwrap()) {
                    (Ok(token), None) => token.unwrap(),
                    (Err(_), Some(token)) => token,
                    (Err(Failure::Unknown { .. }), None) => held(&bed.engine, &target).unwrap(),
                    (answer, again) => panic!("{what}: {answer:?}, then {again:?}"),
                };
                let verb = [Verb::Heartbeat, Verb::Release, Verb::ForceRelease]
                    [usize::try_from(position % 3).unwrap()];
                let before = truth(&bed.root());
                bed.faults.arm(when, Effect::Errno(errno));
                let answer = change(&bed.engine, &target, token, verb);
                bed.faults.disarm();
                let after = truth(&bed.root());
                let left = if matches!(verb, Verb::Heartbeat) { 9 + 2 } else { 3 };
                judge(&answer, &before, &after, |now| now.len() == left, &what);
                if persistent {
                    // Where nothing can be removed any more, a log that was being written stays.
                    let _ = std::fs::remove_file(bed.root().join("audit.tmp"));
                }
                no_leftovers(&bed.root());
                assert!(change(&bed.engine, &others, kept, Verb::Heartbeat).unwrap(), "{what}");
                if truth(&bed.root()).len() > 3 {
                    assert!(change(&bed.engine, &target, token, Verb::Release).unwrap(), "{what}");
                }
                reached_end = if fired == 0 { reached_end + 1 } else { 0 };
                if reached_end > 3 {
                    break;
                }
            }
            assert!(reached_end > 3, "the calls were all tried");
        }
    }
}

/// What was written of a frame before the disk was full cannot be taken back, and no epoch be ended.
#[test]
fn a_frame_that_was_cut_short_on_a_full_disk_is_no_change_or_all_there_but_for_padding() {
    let (mut untouched, mut whole) = (0, 0);
    for cut in (1..2_100).step_by(19) {
        let bed = Bed::new();
        claim(&bed.engine, &group(900..903)).unwrap().unwrap();
        let before = truth(&bed.root());
        bed.faults.arm(When::NthOf(Call::Write, 1), Effect::ShortWrite(cut));
        bed.faults.arm(When::FromOf(Call::Write, 2), Effect::Errno(libc::ENOSPC));
        let answer = claim(&bed.engine, &group(1..9));
        bed.faults.disarm();
        let after = truth(&bed.root());
        let what = format!("{cut} bytes");
        judge(&answer, &before, &after, |now| now.len() == before.len() + 8, &what);
        match answer {
            Err(Failure::Untouched(_)) => untouched += 1,
            Ok(Some(_)) => whole += 1,
            other => panic!("{what}: {other:?}"),
        }
        // Its rest is in the way of nobody.
        let other = JournalEngine::open(&World::system(), &bed.root()).unwrap();
        claim(&other, &group(20..21)).unwrap().unwrap();
        claim(&bed.engine, &group(30..60)).unwrap().unwrap();
    }
    assert!(untouched > 20 && whole > 2, "{untouched}, {whole}");
}

#[test]
fn b43_a_failed_sync_is_told_to_everybody_it_should_have_covered_and_dropped_for_all() {
    let bed = Bed::new();
    let one = claim(&bed.engine, &group(1..4)).unwrap().unwrap();
    let before = truth(&bed.root());
    bed.faults.disarm();
    bed.faults.arm(When::NthOf(Call::SyncFile, 1), Effect::Errno(libc::EIO));
    let answer = claim(&bed.engine, &group(10..14));
    assert!(matches!(answer, Err(Failure::Restored(_))), "{answer:?}");
    assert_eq!(truth(&bed.root()), before, "dropped, for a process that starts afresh too");
    let other = JournalEngine::open(&World::system(), &bed.root()).unwrap();
    let two = claim(&other, &group(10..14)).unwrap().expect("free");
    assert!(two.fence() > one.fence());
    assert!(change(&bed.engine, &group(1..4), one, Verb::Release).unwrap(), "acknowledged before");
    no_leftovers(&bed.root());
}

#[test]
fn b44_a_torn_tail_is_cut_off_and_damage_is_not() {
    let bed = Bed::new();
    for first in [1, 10, 20] {
        claim(&bed.engine, &group(first..first + 3)).unwrap().unwrap();
    }
    let path = bed.root().join("journal.0");
    let good = std::fs::read(&path).unwrap();
    let frames: Vec<usize> =
        (1024..good.len()).step_by(512).filter(|&at| good[at..at + 4] == *b"RFj1").collect();
    assert_eq!(frames.len(), 3);
    let damage_of = |at: usize, len: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at..at + len].fill(byte);
        std::fs::write(&path, &bytes).unwrap();
        let opened = JournalEngine::open(&World::system(), &bed.root());
        let seen = opened.map(|engine| engine.scan(Space::Targets, None).unwrap().entries.len());
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing is written by opening");
        std::fs::write(&path, &good).unwrap();
        seen
    };
    for (byte, len) in [(0, 512), (0xff, 1), (0, 64), (7, 512)] {
        // The last frame was acknowledged, but nothing after it says so.
        assert_eq!(damage_of(frames[2] + 16, len.min(400), byte).unwrap(), 6);
        for at in &frames[..2] {
            let error = damage_of(at + 16, len.min(400), byte).unwrap_err().to_string();
            assert!(error.contains(&format!("byte {at}")), "{error}");
        }
    }
    assert_eq!(damage_of(frames[2], 512, 0).unwrap(), 6);
}

#[test]
fn a_dump_shows_every_frame_and_what_does_not_read() {
    let bed = Bed::new();
    let token = claim(&bed.engine, &group(1..4)).unwrap().unwrap();
    change(&bed.engine, &group(1..4), token, Verb::ForceRelease).unwrap();
    let token = claim(&bed.engine, &group(7..8)).unwrap().unwrap();
    assert!(change(&bed.engine, &group(7..8), token, Verb::Heartbeat).unwrap());
    let kinds = || {
        let items = ringfence_journal::dump::dump(&World::system(), &bed.root()).unwrap();
        let text: Vec<String> = items.iter().map(ToString::to_string).collect();
        let json: Vec<String> = items.iter().map(ringfence_journal::dump::Item::to_json).collect();
        (text.join("\n"), json.concat())
    };
    let (text, json) = kinds();
    assert!(text.contains("frame 1 of segment 1  stores 3, renews 0, removes 0"), "{text}");
    assert!(text.contains("frame 2 of segment 1  stores 0, renews 0, removes 3"), "{text}");
    assert!(text.contains("frame 4 of segment 1  stores 0, renews 1, removes 0"), "{text}");
    let renewed = format!(r#""renewed":[{{"key":"target {}","updated":"#, keys(&group(7..8))[0].id);
    assert!(json.contains(&renewed), "{json}");
    assert!(json.contains(r#""kind":"checkpoint""#) && json.contains(r#""audit":{"#), "{json}");
    assert!(json.contains(r#""target":7"#) && !json.contains("unreadable"), "{json}");
    let path = bed.root().join("journal.0");
    let mut bytes = std::fs::read(&path).unwrap();
    let second = (1024..).step_by(512).filter(|&at| bytes[at..at + 4] == *b"RFj1").nth(1).unwrap();
    bytes[second + 70] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (text, json) = kinds();
    assert!(json.contains(&format!(r#""kind":"unreadable","offset":{second}"#)), "{json}");
    assert!(text.contains("frame 3 of segment 1") && text.contains("not in the chain"), "{text}");
}

#[test]
fn hints_may_be_missing_wrong_or_from_another_boot() {
    let bed = Bed::new();
    let held = claim(&bed.engine, &group(1..4)).unwrap().unwrap();
    let hints = bed.root().join("hints");
    let len = usize::try_from(std::fs::metadata(&hints).unwrap().len()).unwrap();
    for round in 0..6_u8 {
        match round {
            0 => std::fs::write(&hints, vec![0xff; len]).unwrap(),
            1 => std::fs::remove_file(&hints).unwrap(),
            2 => std::fs::write(&hints, vec![0; len]).unwrap(),
            3 => std::fs::write(&hints, b"short").unwrap(),
            4 => std::fs::write(
                &hints,
                (0..u32::try_from(len).unwrap())
                    .map(|n| n.to_le_bytes()[0] ^ 0x5a)
                    .collect::<Vec<_>>(),
            )
            .unwrap(),
            _ => {}
        }
        let engine = JournalEngine::open(&World::system(), &bed.root()).unwrap();
        let number = 100 + u64::from(round) * 10;
        let token = claim(&engine, &group(number..number + 3)).unwrap().unwrap();
        assert!(token.fence() > held.fence());
        assert!(claim(&engine, &group(2..3)).unwrap().is_none(), "held");
        assert_eq!(truth(&bed.root()).len(), 3 + 3 * (usize::from(round) + 1));
    }
}

#[test]
fn threads_of_one_handle_share_syncs_and_never_block_each_other_for_good() {
    let bed = Bed::new();
    // Through many changes of segments, and with a failed sync now and then: of a commit, at the
    // border of two segments, of a checkpoint, of a segment that is made ready.
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (bed, enough) = (&bed, &enough);
            scope.spawn(move || {
                alone_with(&bed.engine, &group(thread * 100 + 1..thread * 100 + 9), enough);
            });
        }
        let mut failed = 0;
        for nth in (1..8).cycle().take(20_000) {
            bed.faults.arm(When::NthOf(Call::SyncFile, nth), Effect::Errno(libc::EIO));
            std::thread::sleep(Duration::from_millis(5));
            failed += bed.faults.fired();
            bed.faults.disarm();
            std::thread::sleep(Duration::from_millis(2));
            if failed >= 40 {
                break;
            }
        }
        enough.store(true, Ordering::SeqCst);
        assert!(failed >= 40, "syncs failed {failed} times only");
    });
    assert_eq!(truth(&bed.root()).len(), 0);
    no_leftovers(&bed.root());
}

/// Claims and releases a group that nobody else wants: every answer must fit what was before.
fn alone_with(engine: &JournalEngine, target: &TargetGroup, enough: &AtomicBool) {
    let mut last = 0;
    let mut log: Vec<String> = Vec::new();
    while !enough.load(Ordering::SeqCst) {
        let answer = claim(engine, target);
        log.push(format!("claim {answer:?}"));
        let token = match answer {
            Ok(Some(token)) => token,
            Ok(None) => panic!("nobody else wants it: {log:#?}"),
            Err(Failure::Unknown { .. }) => match held(engine, target) {
                Some(token) => token,
                None => continue,
            },
            Err(_) => continue,
        };
        assert!(token.fence().0 > last, "{log:#?}");
        last = token.fence().0;
        loop {
            let answer = change(engine, target, token, Verb::Release);
            log.push(format!("release {answer:?}"));
            match answer {
                Ok(released) => break assert!(released, "{log:#?}"),
                Err(Failure::Unknown { .. }) if held(engine, target).is_none() => break,
                Err(_) => {}
            }
        }
        log.drain(..log.len().saturating_sub(8));
    }
}

/// A read that failed behind the seal of a segment left the reader there, in the old segment: it sealed
/// that a second time, and went on in the next one in a chain that nobody else followed. What it had
/// acknowledged since was lost.
#[test]
fn whoever_fails_to_read_at_the_border_of_two_segments_goes_on_like_everybody_else() {
    let target = group(1..2);
    let beats_of = |bed: &Bed, token| {
        let first = bed.engine.place().unwrap().segment;
        let beat = || change(&bed.engine, &target, token, Verb::Heartbeat).unwrap();
        (0..1000).find(|_| beat() && bed.engine.place().unwrap().segment != first).unwrap()
    };
    let trial = Bed::new();
    let token = claim(&trial.engine, &target).unwrap().unwrap();
    let beats: usize = beats_of(&trial, token);
    let (mut read, mut fired) = (0, 1);
    while fired > 0 {
        read += 1;
        let bed = Bed::new();
        let token = claim(&bed.engine, &target).unwrap().unwrap();
        let beat = || change(&bed.engine, &target, token, Verb::Heartbeat);
        assert!((0..beats).all(|_| beat().unwrap()));
        bed.faults.disarm();
        bed.faults.arm(When::NthOf(Call::Read, read), Effect::Errno(libc::EIO));
        let _ = beat();
        fired = bed.faults.fired();
        bed.faults.disarm();
        assert!(beat().unwrap());
        let others = JournalEngine::open(&World::system(), &bed.root()).unwrap();
        assert_eq!(others.place().unwrap(), bed.engine.place().unwrap(), "read {read} failed");
    }
    assert!(read > 10, "reads at the border were tried: {read}");
}

/// Whoever opened the table while an epoch ended could find the segment gone that comes after the seal
/// of his own, and stayed behind that seal: he saw nothing of what came later. Or what had been erased
/// meanwhile was damage to him.
#[test]
fn whoever_opens_a_table_while_an_epoch_ends_sees_what_comes_later() {
    let target = group(1..2);
    let (mut read, mut came) = (0, true);
    while came {
        read += 1;
        let bed = Bed::new();
        let token = claim(&bed.engine, &target).unwrap().unwrap();
        let first = bed.engine.place().unwrap();
        while bed.engine.place().unwrap().segment <= first.segment + 1 {
            assert!(change(&bed.engine, &target, token, Verb::Heartbeat).unwrap());
        }
        let root = bed.root();
        let bed = Arc::new(bed);
        let opens = FaultFs::new(Arc::new(RealFs));
        let world = World::system().with_fs(Arc::new(opens.clone()));
        let (left, theirs) = (AtomicUsize::new(read), bed.clone());
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        opens.on_call(move |call, _| {
            if call != Call::Read || left.fetch_sub(1, Ordering::SeqCst) != 1 {
                return;
            }
            told.store(true, Ordering::SeqCst);
            theirs.faults.disarm();
            theirs.faults.arm(When::NthOf(Call::SyncFile, 1), Effect::Errno(libc::EIO));
            let target = group(1..2);
            change(&theirs.engine, &target, token, Verb::Heartbeat).unwrap_err();
            theirs.faults.disarm();
            assert!(change(&theirs.engine, &target, token, Verb::Heartbeat).unwrap());
        });
        let late = JournalEngine::open(&world, &root).unwrap();
        came = ends.load(Ordering::SeqCst);
        assert_eq!(late.place().unwrap(), bed.engine.place().unwrap(), "ended at read {read}");
        assert!(change(&late, &target, token, Verb::Heartbeat).unwrap());
        assert_eq!(late.place().unwrap(), bed.engine.place().unwrap(), "ended at read {read}");
    }
    assert!(read > 6, "reads of an opening were tried: {read}");
}

/// The token that a group is held under, once that can be told.
fn held(engine: &JournalEngine, group: &TargetGroup) -> Option<FencingToken> {
    let view = engine.view(&keys(group), None).unwrap();
    let mut tokens = view.entries.iter().map(|(_, entry)| match entry {
        ringfence_model::Entry::Present(record) => {
            let text = record.holder().token.to_string();
            let nonce = u128::from_str_radix(text.split_once('-').unwrap().1, 16).unwrap();
            Some(FencingToken::new(view.highest_fence(), nonce))
        }
        ringfence_model::Entry::Vacant => None,
        ringfence_model::Entry::Damaged(why) => panic!("{why:?}"),
    });
    let first = tokens.next().unwrap();
    assert!(tokens.all(|token| token == first), "half of a group");
    first
}

/// Others put new directories in the place of empty ones.
#[test]
fn a_root_that_another_maker_takes_away_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("table");
    let faults = FaultFs::new(Arc::new(RealFs));
    let (taken, is_first) = (root.clone(), AtomicBool::new(true));
    faults.on_call(move |call, _| {
        if call == Call::OpenLock && is_first.swap(false, Ordering::SeqCst) {
            std::fs::remove_dir(&taken).unwrap();
        }
    });
    let world = World::system().with_fs(Arc::new(faults));
    JournalEngine::init(&world, &root, &InitOptions::default()).unwrap();
    let engine = JournalEngine::open(&World::system(), &root).unwrap();
    assert!(claim(&engine, &group(1..3)).unwrap().is_some());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing beside it");
}
