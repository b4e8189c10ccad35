//! Every verb, killed at every call, then recovered; and recovery killed at every call of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_engine::{Done, Engine, Failure, Request};
use ringfence_env::World;
use ringfence_env::fault::{Call, Effect, FaultFs, When};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{
    Entry, Fence, Key, Owner, Payload, ShardCount, TargetGroup, Timestamp, Token, Transition, Ttl,
    View,
};

use super::Standing;
use crate::FilesEngine;
use crate::meta::Durability;
use crate::open::{InitOptions, Tuning};

const OLD: f64 = 1000.0;
const NEW: f64 = 1020.0;

/// In memory where possible: every call of every verb is a kill point of its own.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

struct Bed {
    dir: tempfile::TempDir,
    group: TargetGroup,
}

/// What one verb does to a group that stands as `before` says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Claim,
    TakeOver,
    Heartbeat,
    Release,
    Force,
}

impl Bed {
    fn new(verb: Verb) -> (Self, Token) {
        let dir = scratch();
        let options = InitOptions {
            shards: ShardCount::new(2).unwrap(),
            work_shards: ShardCount::new(1).unwrap(),
            ttl: Ttl::from_seconds(10.0).unwrap(),
            durability: Durability::Group,
        };
        let engine = FilesEngine::init(&World::system(), dir.path(), &options).unwrap();
        let bed = Self { dir, group: TargetGroup::from_numbers([1, 2, 3]).unwrap() };
        let token = match verb {
            Verb::Claim => Token::new("none").unwrap(),
            _ => claim(&engine, &bed.group, "old", OLD).unwrap().token.unwrap().into(),
        };
        (bed, token)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn world(fs: Option<&FaultFs>) -> World {
        let world = World::system();
        match fs {
            Some(fs) => world.with_fs(Arc::new(fs.clone())),
            None => world,
        }
    }

    fn open(&self, fs: Option<&FaultFs>) -> FilesEngine {
        FilesEngine::open_read_only(&Self::world(fs), self.path())
            .map(|engine| FilesEngine { read_only: false, tuning: serial(), ..engine })
            .unwrap()
    }
}

fn serial() -> Tuning {
    Tuning { sync_width: 1, ..Tuning::default() }
}

#[expect(clippy::unnecessary_wraps, reason = "as requests take it")]
fn at(seconds: f64) -> Option<Timestamp> {
    Some(Timestamp::from_seconds(seconds).unwrap())
}

fn run(
    engine: &FilesEngine,
    group: &TargetGroup,
    now: f64,
    rule: impl Fn(&View) -> Option<Transition>,
) -> Result<Option<Done>, Failure> {
    let keys: Vec<Key> = group.targets().map(Key::target).collect();
    let request = Request { keys: &keys, now: at(now), patience: Duration::from_secs(2) };
    let engine: &dyn Engine = engine;
    Ok(engine.decide(&request, |view| rule(view).ok_or(()))?.ok())
}

fn claim(
    engine: &FilesEngine,
    group: &TargetGroup,
    owner: &str,
    now: f64,
) -> Result<Done, Failure> {
    let request = ClaimRequest {
        group: group.clone(),
        owner: Owner::new(owner).unwrap(),
        worker: 0,
        payload: Payload::empty(),
        ttl: Ttl::from_seconds(10.0).unwrap(),
    };
    run(engine, group, now, |view| rules::claim(view, &request).ok()).map(Option::unwrap)
}

fn act(engine: &FilesEngine, bed: &Bed, verb: Verb, token: &Token) -> Result<(), Failure> {
    let group = &bed.group;
    match verb {
        Verb::Claim | Verb::TakeOver => claim(engine, group, "new", NEW).map(|_| ()),
        Verb::Heartbeat => {
            run(engine, group, NEW, |view| rules::heartbeat(view, group, token).ok()).map(|_| ())
        }
        Verb::Release => {
            run(engine, group, NEW, |view| rules::release(view, group, token).ok()).map(|_| ())
        }
        Verb::Force => {
            run(engine, group, NEW, |view| rules::force_release(view, group, token, "gone").ok())
                .map(|_| ())
        }
    }
}

/// The group's state as a reader sees it: every member vacant, or by whom and since when.
fn state(engine: &FilesEngine, group: &TargetGroup) -> Vec<Option<(String, f64)>> {
    let keys: Vec<Key> = group.targets().map(Key::target).collect();
    let view = engine.view(&keys, at(NEW)).unwrap();
    view.entries
        .iter()
        .map(|(_, entry)| match entry {
            Entry::Vacant => None,
            Entry::Present(record) => {
                let holder = record.holder();
                Some((holder.token.to_string(), holder.updated.seconds()))
            }
            Entry::Damaged(damage) => panic!("{damage}"),
        })
        .collect()
}

/// Recovers until nothing stands. A lock whose holder "died" here may live on for a moment in a
/// process that some other test is just forking (B71), and then looks like a living writer's.
fn recover(engine: &FilesEngine) -> crate::Recovered {
    let deadline = engine.world.clock.deadline(Duration::from_secs(10));
    let mut sum = crate::Recovered::default();
    loop {
        let one = engine.recover(None, deadline).unwrap();
        sum.redone += one.redone;
        sum.undone += one.undone;
        sum.left_alone.extend(one.left_alone);
        let standing = super::standing_intents(&engine.world, &engine.layout, None).unwrap();
        if standing.is_empty() {
            return sum;
        }
        assert!(!engine.world.clock.left(deadline).is_zero(), "never finished: {standing:?}");
    }
}

fn is_whole(state: &[Option<(String, f64)>]) -> bool {
    state.windows(2).all(|pair| pair[0] == pair[1])
}

fn is_new(verb: Verb, token: &Token, state: &[Option<(String, f64)>]) -> bool {
    match verb {
        Verb::Claim => state.iter().all(Option::is_some),
        Verb::TakeOver => state.iter().all(|s| s.as_ref().is_some_and(|s| s.0 != token.as_str())),
        Verb::Heartbeat => state.iter().all(|s| s.as_ref().is_some_and(|s| s.1 >= NEW)),
        Verb::Release | Verb::Force => state.iter().all(Option::is_none),
    }
}

const VERBS: [Verb; 5] = [Verb::Claim, Verb::TakeOver, Verb::Heartbeat, Verb::Release, Verb::Force];

/// A process whose every call fails from the N-th on is dead to the world: the disk stays as the
/// calls before it left it, and its locks are freed when its files are closed.
#[test]
fn killed_at_any_call_a_group_is_whole_for_readers_and_for_whoever_comes_next() {
    for verb in VERBS {
        let mut seen = [0; 2];
        for n in 1.. {
            let (bed, token) = Bed::new(verb);
            let fs = FaultFs::new(World::system().fs);
            let dying = bed.open(Some(&fs));
            fs.arm(When::From(n), Effect::Errno(5));
            let outcome = act(&dying, &bed, verb, &token);
            let done = fs.fired() == 0;
            drop(dying);

            let next = bed.open(None);
            let read = state(&next, &bed.group);
            assert!(is_whole(&read), "{verb:?} killed at {n}: a reader sees {read:?}");
            assert_eq!(recover(&next).left_alone, []);
            let after = state(&next, &bed.group);
            assert_eq!(after, read, "{verb:?} killed at {n}: recovery agrees with readers");
            let new = is_new(verb, &token, &after);
            seen[usize::from(new)] += 1;
            match outcome {
                Ok(()) => assert!(new, "{verb:?} at {n}: acknowledged and lost"),
                // A kill shows as a failing restore; before the decision it is truly untouched.
                Err(failure) if failure.restored() => {
                    assert!(!new, "{verb:?} at {n}: said restored, is new");
                }
                Err(_) => {}
            }
            assert_eq!(next.repair().unwrap().recovered, crate::Recovered::default());
            if new || verb != Verb::Claim {
                let _ = claim(&next, &bed.group, "third", NEW + 100.0).unwrap();
            } else {
                let _ = claim(&next, &bed.group, "third", NEW).unwrap();
            }
            if done {
                break;
            }
        }
        assert!(seen[0] > 3 && seen[1] > 3, "{verb:?}: old and new both happened: {seen:?}");
    }
}

#[test]
fn recovery_killed_at_any_call_is_finished_by_the_next_one() {
    for verb in VERBS {
        // Killed in the middle of the renames, or of the putting back.
        for n in 1.. {
            let (bed, token) = Bed::new(verb);
            let fs = FaultFs::new(World::system().fs);
            let dying = bed.open(Some(&fs));
            fs.arm(When::From(n), Effect::Errno(5));
            let _ = act(&dying, &bed, verb, &token);
            let done = fs.fired() == 0;
            drop(dying);
            let standing = super::standing_intents(&World::system(), &bed.open(None).layout, None);
            if standing.unwrap().is_empty() {
                if done {
                    break;
                }
                continue;
            }
            let truth = state(&bed.open(None), &bed.group);
            for m in 1.. {
                let fs = FaultFs::new(World::system().fs);
                let second = bed.open(Some(&fs));
                fs.arm(When::From(m), Effect::Errno(5));
                let _ = second.recover(None, second.world.clock.deadline(Duration::from_secs(5)));
                let done = fs.fired() == 0;
                drop(second);
                let read = state(&bed.open(None), &bed.group);
                assert_eq!(read, truth, "{verb:?} killed at {n}, its recovery at {m}");
                if done {
                    break;
                }
            }
            let last = bed.open(None);
            recover(&last);
            assert_eq!(state(&last, &bed.group), truth);
            let findings = last.check().unwrap().findings;
            assert!(!findings.iter().any(is_intent), "{verb:?} killed at {n}: {findings:?}");
        }
    }
}

fn is_intent(finding: &crate::Finding) -> bool {
    matches!(finding, crate::Finding::Intent { .. })
}

#[test]
fn an_intent_whose_writer_lives_is_left_to_it() {
    let (bed, token) = Bed::new(Verb::Release);
    let fs = FaultFs::new(World::system().fs);
    let writer = bed.open(Some(&fs));
    let other = bed.open(None);
    let group = bed.group.clone();
    fs.on_call(move |call, path| {
        if call == ringfence_env::fault::Call::Unlink
            && path.extension().is_some_and(|e| e == "json")
        {
            let recovered = other.recover(None, other.world.clock.deadline(Duration::from_secs(1)));
            assert_eq!(recovered.unwrap(), crate::Recovered::default());
            assert!(is_new(Verb::Release, &token, &state(&other, &group)), "decided");
        }
    });
    act(&writer, &bed, Verb::Release, &{
        let keys: Vec<Key> = bed.group.targets().map(Key::target).collect();
        let view = writer.view(&keys, at(NEW)).unwrap();
        let Entry::Present(record) = &view.entries[0].1 else { panic!() };
        record.holder().token.clone()
    })
    .unwrap();
    assert!(fs.fired() == 0);
}

#[test]
fn a_record_that_somebody_else_changed_is_left_alone_and_reported() {
    let (bed, next, found) = (1..)
        .find_map(|n| {
            let (bed, token) = Bed::new(Verb::Release);
            let fs = FaultFs::new(World::system().fs);
            let dying = bed.open(Some(&fs));
            fs.arm(When::From(n), Effect::Errno(5));
            let outcome = act(&dying, &bed, Verb::Release, &token);
            assert!(outcome.is_err(), "no intent was left standing by any kill");
            drop(dying);
            let next = bed.open(None);
            let standing = super::standing_intents(&next.world, &next.layout, None).unwrap();
            standing.into_iter().next().map(|found| (bed, next, found))
        })
        .unwrap();
    let path = next.layout.record(found.intent.members[2].key).record;
    let mut file =
        next.world.fs.open_write(&path, ringfence_env::OpenWrite::Overwrite, 0o600).unwrap();
    file.write(b"[]").unwrap();
    let recovered = recover(&next);
    assert_eq!(recovered.left_alone.len(), 1, "{recovered:?}");
    assert_eq!(recovered.left_alone[0].path, path);
    let audit = next.world.fs.read(&bed.path().join("audit.log"), 10_000).unwrap();
    let ringfence_env::Read::Bytes(audit) = audit else { panic!("{audit:?}") };
    assert!(String::from_utf8(audit).unwrap().contains("left-alone"));
}

/// What a power cut brings back of a failed take-over is of a later token than both images of a renewal.
#[test]
fn a_lease_that_was_issued_before_the_intent_gives_way_to_it_and_a_later_one_does_not() {
    let mut met = [0, 0];
    for (nth, later) in (1..).flat_map(|nth| [(nth, 0_u8), (nth, 1)]) {
        let (bed, token) = Bed::new(Verb::Heartbeat);
        // Taken over and put back: that fence is spent, and no image tells of it.
        let one = TargetGroup::from_numbers([1]).unwrap();
        let fs = FaultFs::new(World::system().fs);
        fs.arm(When::NthOf(Call::SyncDir, 1), Effect::Errno(5));
        claim(&bed.open(Some(&fs)), &one, "another", NEW).unwrap_err();
        let fs = FaultFs::new(World::system().fs);
        let dying = bed.open(Some(&fs));
        fs.arm(When::From(nth), Effect::Errno(5));
        let ended = act(&dying, &bed, Verb::Heartbeat, &token);
        drop(dying);
        if ended.is_ok() {
            break;
        }
        let next = bed.open(None);
        let standing = super::standing_intents(&next.world, &next.layout, None).unwrap();
        let Some(found) = standing.into_iter().find(|it| it.standing != Standing::Retired) else {
            continue;
        };
        met[usize::from(later)] += 1;
        let spent = token_fence(&token) + 1;
        assert_eq!(found.intent.issued, Fence(spent));
        let first = next.layout.record(found.intent.members[0].key).record;
        let shown = std::fs::read_to_string(&first).unwrap();
        let other = format!("{:020}-{:032x}", spent + u64::from(later), 7);
        put(&first, shown.replace(token.as_str(), &other).as_bytes());
        let read = state(&next, &bed.group);
        let left = recover(&next).left_alone;
        assert_eq!(left.len(), usize::from(later), "{later} after the last one issued: {left:?}");
        assert_eq!(state(&next, &bed.group), read, "readers are shown the same");
        assert_eq!(is_whole(&read), later == 0, "{read:?}");
    }
    assert!(met[0] > 2 && met[1] > 2, "{met:?}");
}

fn put(path: &Path, bytes: &[u8]) {
    let fs = World::system().fs;
    let mut file = fs.open_write(path, ringfence_env::OpenWrite::Overwrite, 0o600).unwrap();
    file.set_len(0).and_then(|()| ringfence_env::steps::write_all(&mut *file, bytes)).unwrap();
}

/// Only what is issued from now on needs it.
#[test]
fn a_counter_that_is_damaged_or_gone_keeps_nobody_from_renewing_or_giving_up_a_group() {
    for verb in [Verb::Heartbeat, Verb::Release] {
        for gone in [false, true] {
            let (bed, token) = Bed::new(verb);
            let fence = bed.path().join("fence");
            if gone {
                World::system().fs.unlink(&fence).unwrap();
            } else {
                put(&fence, b"junk");
            }
            act(&bed.open(None), &bed, verb, &token).unwrap();
        }
    }
}

fn token_fence(token: &Token) -> u64 {
    token.fence().unwrap().0
}

#[test]
fn a_single_record_and_a_table_of_durability_record_write_no_intent() {
    for durability in [Durability::Group, Durability::Record] {
        let dir = scratch();
        let options = InitOptions { durability, ..InitOptions::default() };
        let fs = FaultFs::new(World::system().fs);
        let world = World::system().with_fs(Arc::new(fs.clone()));
        let engine = FilesEngine::init(&world, dir.path(), &options).unwrap();
        let one = TargetGroup::from_numbers([1]).unwrap();
        let _ = claim(&engine, &one, "a", NEW).unwrap();
        let slots = || world.fs.list(&engine.layout.intents()).map_or(0, |names| names.len());
        let two = TargetGroup::from_numbers([2, 3]).unwrap();
        let _ = claim(&engine, &two, "a", NEW).unwrap();
        let expected = usize::from(durability == Durability::Group);
        assert_eq!(slots(), expected, "one process needs one slot");
        let syncs = fs.count(ringfence_env::fault::Call::SyncFile);
        let _ = claim(&engine, &two, "b", NEW + 1000.0).unwrap();
        let intent = if durability == Durability::Group { 2 } else { 0 };
        assert_eq!(fs.count(ringfence_env::fault::Call::SyncFile) - syncs, 2 + intent);
    }
}

/// A power cut would bring the intent back over what is acknowledged now.
#[test]
fn a_retirement_that_may_not_be_durable_is_made_so_before_a_record_of_it_changes_again() {
    let slot = |bed: &Bed| std::fs::read(bed.path().join("intents/00000.slot")).unwrap();
    let mut met = false;
    for nth in 1.. {
        let (bed, token) = Bed::new(Verb::Release);
        let fs = FaultFs::new(World::system().fs);
        let dying = bed.open(Some(&fs));
        fs.arm(When::From(nth), Effect::Errno(5));
        let ended = act(&dying, &bed, Verb::Release, &token);
        if fs.fired() == 0 {
            ended.unwrap();
            break;
        }
        if !slot(&bed).starts_with(b"RFRETIRE") {
            continue;
        }
        met = true;
        // Its writer died before the sync. A call on one record of it needs no intent of its own.
        let one = TargetGroup::from_numbers([2]).unwrap();
        let counted = FaultFs::new(World::system().fs);
        let synced = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&synced);
        counted.on_call(move |call, path| {
            seen.lock().unwrap().push((call, path.to_owned()));
        });
        claim(&bed.open(Some(&counted)), &one, "new", NEW).unwrap();
        let calls = synced.lock().unwrap();
        let position = |wanted, end: &str| {
            calls
                .iter()
                .position(|(call, path)| *call == wanted && path.to_string_lossy().ends_with(end))
        };
        let sync = position(Call::SyncFile, ".slot").expect("the slot is synced");
        let rename = position(Call::Rename, ".json").expect("the record is written");
        assert!(sync < rename, "the retirement is durable first");
        assert!(slot(&bed).starts_with(&[0; 512]), "and the slot is free");
    }
    assert!(met, "some call was the sync of the retirement");
}

/// Its writer's sync may have failed, which was told to nobody else: no sync of the same file proves
/// anything, and a power cut may take the decision away from under what recovery has done.
#[test]
fn a_dead_writers_intent_is_written_anew_and_synced_before_a_record_changes() {
    let first = |bed: &Bed| std::fs::read(bed.path().join("intents/00000.slot")).unwrap();
    let mut met = 0;
    for nth in 1.. {
        let (bed, token) = Bed::new(Verb::Heartbeat);
        let fs = FaultFs::new(World::system().fs);
        let dying = bed.open(Some(&fs));
        fs.arm(When::From(nth), Effect::Errno(5));
        let ended = act(&dying, &bed, Verb::Heartbeat, &token);
        drop(dying);
        if fs.fired() == 0 {
            ended.unwrap();
            break;
        }
        if !first(&bed).starts_with(b"RFINTENT") {
            continue;
        }
        met += 1;
        let aborted = first(&bed)[512..].starts_with(b"RFABORT.");
        let found = super::standing_intents(&World::system(), &bed.open(None).layout, None);
        let found = found.unwrap().remove(0).intent;
        let counted = FaultFs::new(World::system().fs);
        let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
        let copy = bed.path().join("intents/00001.slot");
        counted.on_call({
            let (calls, copy) = (Arc::clone(&calls), copy.clone());
            move |call, path| {
                let shown = std::fs::read(&copy).unwrap_or_default();
                calls.lock().unwrap().push((call, path.to_owned(), shown));
            }
        });
        let next = bed.open(Some(&counted));
        recover(&next);
        let calls = calls.lock().unwrap().split_off(0);
        let is_record = |path: &Path| path.to_string_lossy().ends_with(".json");
        let rename = calls.iter().position(|(call, path, _)| {
            matches!(call, Call::Rename | Call::Unlink) && is_record(path)
        });
        let rename = rename.expect("every record is made anew");
        let (before, _) = calls.split_at(rename);
        let sync = before.iter().rfind(|(call, path, _)| *call == Call::SyncFile && *path == copy);
        let (_, _, synced) = sync.expect("synced before that");
        let head = super::codec::Head::decode(synced).expect("a whole intent");
        let again = head.body(synced).expect("of this version").expect("with its body");
        assert_eq!(head.standing, super::Standing::Committed);
        let decided = |member: &super::Member| {
            let image = if aborted { &member.before } else { &member.after };
            image.clone()
        };
        assert!(
            again.members.iter().map(|member| &member.after).eq(&found
                .members
                .iter()
                .map(decided)
                .collect::<Vec<_>>())
        );
        assert!(super::standing_intents(&next.world, &next.layout, None).unwrap().is_empty());
    }
    assert!(met > 3, "an intent stood at some points: {met}");
}

fn make_empty(slot: &Path) {
    let fs = World::system().fs;
    fs.open_write(slot, ringfence_env::OpenWrite::Overwrite, 0o600).unwrap().set_len(0).unwrap();
}

/// The maker of a slot may have been told that the sync of its name failed; a later one proves nothing.
#[test]
fn a_slot_that_is_found_empty_is_put_in_place_anew_before_it_holds_a_decision() {
    use std::os::unix::fs::MetadataExt as _;
    let (bed, _) = Bed::new(Verb::Claim);
    let slot = bed.path().join("intents/00000.slot");
    make_empty(&slot);
    let held = std::fs::File::open(&slot).unwrap();
    let _ = claim(&bed.open(None), &bed.group, "new", NEW).unwrap();
    let (old, new) = (held.metadata().unwrap(), std::fs::metadata(&slot).unwrap());
    assert_ne!(old.ino(), new.ino());
    assert_eq!(old.nlink(), 0, "nothing was written into the old one: {}", old.len());
    // Who had the old one open gets no slot, though nobody holds its lock any more.
    let names = std::fs::read_dir(bed.path().join("intents")).unwrap().count();
    assert_eq!(names, 1, "and no temporary stays");
}

#[test]
fn a_slot_that_cannot_be_put_in_place_leaves_nothing_beside_it() {
    let mut failed = 0;
    for n in 1.. {
        let (bed, _) = Bed::new(Verb::Claim);
        let slot = bed.path().join("intents/00000.slot");
        make_empty(&slot);
        let fs = FaultFs::new(World::system().fs);
        let engine = bed.open(Some(&fs));
        fs.arm(When::Nth(n), Effect::Errno(4));
        let claimed = claim(&engine, &bed.group, "new", NEW);
        if fs.fired() == 0 {
            break;
        }
        if claimed.is_err_and(|failure| failure.restored()) {
            assert_eq!(state(&bed.open(None), &bed.group), [None, None, None], "call {n}");
            failed += 1;
        }
        let names = std::fs::read_dir(bed.path().join("intents")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["00000.slot"], "call {n} failed");
    }
    assert!(failed > 3, "the slot was on the way: {failed}");
}

#[test]
fn an_intent_of_an_unknown_form_keeps_its_slot_and_stops_only_what_it_covers() {
    let (bed, _) = Bed::new(Verb::Claim);
    let open = bed.open(None);
    let _ = claim(&open, &bed.group, "old", OLD).unwrap();
    let slot = bed.path().join("intents/00000.slot");
    let found = super::codec::unknown(&bed.group.targets().map(Key::target).collect::<Vec<_>>());
    put(&slot, &found);
    let other = TargetGroup::from_numbers([7, 8]).unwrap();
    let _ = claim(&open, &other, "other", NEW).unwrap();
    let refused = claim(&open, &bed.group, "new", NEW).unwrap_err();
    assert!(refused.storage().unwrap().to_string().contains("another version"), "{refused:?}");
    assert_eq!(std::fs::read(&slot).unwrap(), found, "held as it was");
    let opened = FilesEngine::open(&Bed::world(None), bed.path(), serial());
    let refused = format!("{:?}", opened.unwrap_err());
    assert!(refused.contains("Unknown"), "{refused}");
}
