//! A disk that takes no more, as an intent meets it: what was decided, and which slot still does.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ringfence_engine::Failure;
use ringfence_env::fault::{Call, Effect, When};
use ringfence_env::{Fs as _, LockFd, LockMode, RealFs, World};
use ringfence_files::meta::Durability;
use ringfence_files::{FilesEngine, Finding, InitOptions};

use crate::disk::{Mount, may_mount};
use crate::table::{SERIAL, Table, Verbs as _, options, scratch, snapshot, targets_over, temps};

const EIO: i32 = 5;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

fn of_groups() -> InitOptions {
    InitOptions { durability: Durability::Group, ..options(8) }
}

fn slot(engine: &FilesEngine, number: u16) -> PathBuf {
    engine.root().join(format!("intents/{number:05}.slot"))
}

fn len(engine: &FilesEngine, number: u16) -> u64 {
    fs::metadata(slot(engine, number)).unwrap().len()
}

/// Keeps the slot from everybody, as a call that is under way does.
fn occupy(engine: &FilesEngine, number: u16) -> Box<dyn LockFd> {
    let lock = RealFs.open_lock(&slot(engine, number), true, 0o600).unwrap();
    assert!(lock.try_lock(LockMode::Exclusive).unwrap());
    lock
}

fn an_intent_stands(engine: &FilesEngine) -> bool {
    let findings = engine.check().unwrap().findings;
    findings.iter().any(|finding| matches!(finding, Finding::Intent { .. }))
}

/// On a full btrfs quota, and under a limit of file size, not a byte of an intent could be written, nor
/// could anything be written over it; and the call said that the new state was decided.
#[test]
fn where_writing_an_intent_fails_the_outcome_is_unknown_if_one_stands_and_only_then() {
    const KEPT: [usize; 10] = [1, 8, 479, 511, 512, 600, 1023, 1024, 2000, 1 << 20];
    let targets = targets_over(3, 8);
    let mut seen = [0; 2];
    // The writes of 8 temporaries come before the intent of a heartbeat.
    for (renew, before) in [(false, 0), (true, 8)] {
        for errno in [ENOSPC, EDQUOT, EFBIG, EIO] {
            let shorts = KEPT.into_iter().map(Some).chain([None]);
            for (nth, kept) in shorts.flat_map(|kept| [(1, kept), (2, kept)]) {
                let table = Table::made(&of_groups(), SERIAL);
                let engine = &table.engine;
                let token = engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
                let base = table.snapshot();
                let call = || {
                    if renew {
                        engine.beat(&targets, token, Some(1030.0))
                    } else {
                        engine.free(&targets, token)
                    }
                };
                let nth = before + nth;
                let context = format!("heartbeat {renew}, errno {errno}, write {nth}, {kept:?}");
                // So many bytes of one write, and no more after it.
                if let Some(kept) = kept {
                    table.fs.arm(When::NthOf(Call::Write, nth), Effect::ShortWrite(kept));
                }
                let from = nth + u64::from(kept.is_some());
                table.fs.arm(When::FromOf(Call::Write, from), Effect::Errno(errno));
                let failure = call().unwrap_err();
                table.fs.disarm();
                let stands = an_intent_stands(engine);
                seen[usize::from(stands)] += 1;
                let unknown = matches!(failure, Failure::Unknown { .. });
                assert_eq!(unknown, stands, "{context}: {failure:?}");
                assert_eq!(failure.storage().unwrap().source.raw_os_error(), Some(errno));
                if !stands {
                    assert_eq!(table.snapshot(), base, "{context}");
                    call().unwrap().unwrap();
                    continue;
                }
                // Whoever comes next makes all of it new.
                FilesEngine::open(&World::system(), engine.root(), SERIAL).unwrap();
                let now = table.snapshot();
                for path in targets.iter().map(|&target| table.record(target)) {
                    assert_ne!(now.get(&path), base.get(&path), "{context}");
                }
            }
        }
    }
    assert!(seen[0] > 80 && seen[1] > 8, "{seen:?}");
}

/// Whatever of a body becomes durable decides nothing as long as no head names it.
#[test]
fn the_head_of_an_intent_is_written_after_all_of_its_body() {
    let table = Table::made(&of_groups(), SERIAL);
    let targets = targets_over(3, 8);
    let token = table.engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    let path = slot(&table.engine, 0);
    fs::write(&path, [0; 1024]).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    table.fs.on_call({
        let seen = Arc::clone(&seen);
        move |call, at| {
            if call == Call::Write && at == path {
                let bytes = fs::read(&path).unwrap();
                seen.lock().unwrap().push((bytes.starts_with(b"RFINTENT"), bytes.len()));
            }
        }
    });
    table.fs.arm(When::From(1), Effect::ShortWrite(300));
    table.engine.free(&targets, token).unwrap().unwrap();
    let seen = seen.lock().unwrap();
    let (_, whole) = *seen.last().unwrap();
    let first = seen.iter().position(|(head, _)| *head).unwrap();
    assert!(first > 10, "pieces of 300 bytes: {seen:?}");
    assert!(seen[first..].iter().all(|(_, len)| *len == whole), "{seen:?}");
}

#[test]
fn an_intent_that_finds_no_room_in_one_free_slot_goes_into_the_next_one() {
    let table = Table::made(&of_groups(), SERIAL);
    let engine = &table.engine;
    let targets = targets_over(3, 8);
    let short = len(engine, 0);
    let first = occupy(engine, 0);
    let token = engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    first.unlock().unwrap();
    let long = len(engine, 1);
    assert!(len(engine, 0) == short && long > short, "the claim's intent is in the other");
    let free = |engine: &FilesEngine, errno| {
        table.fs.arm(When::NthOf(Call::Write, 1), Effect::Errno(errno));
        let ended = engine.free(&targets, token);
        assert_eq!(table.fs.fired(), 1);
        table.fs.disarm();
        ended
    };
    let base = table.snapshot();
    let second = occupy(engine, 1);
    let failure = free(engine, ENOSPC).unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "another call uses it: {failure:?}");
    second.unlock().unwrap();
    // Such a disk is not full but broken.
    assert!(free(engine, EIO).unwrap_err().restored());
    assert_eq!(table.snapshot(), base);
    assert!(!an_intent_stands(engine));
    for errno in [ENOSPC, EDQUOT] {
        free(engine, errno).unwrap().unwrap();
        assert!(!an_intent_stands(engine));
        assert_eq!(len(engine, 1), long, "what a release needs, its claim has written before");
        table.reset(&base);
    }
}

#[test]
fn a_group_is_released_on_a_full_disk_where_the_first_free_slots_are_too_short_for_its_intent() {
    if !may_mount() {
        return;
    }
    let dir = scratch();
    let point = dir.path().join("small");
    fs::create_dir(&point).unwrap();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=1m,mode=700", "none"], &point);
    let root = point.join("table");
    let engine = FilesEngine::init(&World::system(), &root, &of_groups()).unwrap();
    let targets = targets_over(3, 16);
    let first = occupy(&engine, 0);
    // So that the second slot is longer than the first, and too short all the same.
    let small = engine.grab("a", &targets[..2], Some(1000.0)).unwrap().unwrap();
    engine.free(&targets[..2], small).unwrap().unwrap();
    let second = occupy(&engine, 1);
    let held = engine.grab("a", &targets, Some(1000.0)).unwrap().unwrap();
    first.unlock().unwrap();
    second.unlock().unwrap();
    assert!(len(&engine, 0) < len(&engine, 1) && len(&engine, 1) < len(&engine, 2));
    let filler = point.join("filler");
    let mut bytes = vec![b'x'; 1024 * 1024];
    while fs::write(&filler, &bytes).is_err() {
        bytes.truncate(bytes.len() - 4096);
    }
    let base = snapshot(&root);
    let third = occupy(&engine, 2);
    let failure = engine.free(&targets, held).unwrap_err();
    assert!(matches!(failure, Failure::Untouched(_)), "{failure:?}");
    assert_eq!(failure.storage().unwrap().source.raw_os_error(), Some(ENOSPC));
    assert_eq!(snapshot(&root), base);
    third.unlock().unwrap();
    engine.free(&targets, held).unwrap().unwrap();
    assert_eq!(temps(&root), Vec::<PathBuf>::new());
    engine.beat(&targets, held, Some(1001.0)).unwrap().unwrap_err();
    drop(mount);
}
