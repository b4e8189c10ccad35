//! Units of one call share their frames, and a heartbeat stores what it changes and nothing else.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test damages a file and fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use ringfence_engine::{EachReport, Engine, Outcome, Request, UnitOutcome};
use ringfence_env::fault::{Call, FaultFs};
use ringfence_env::{RealFs, World};
use ringfence_journal::dump::{Changes, Item, dump};
use ringfence_journal::{InitOptions, JournalEngine};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{
    Entry, Key, Owner, Payload, Record, Space, Target, TargetGroup, Timestamp, Token, Ttl,
};

struct Bed {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Bed {
    fn new(segment_bytes: u64) -> (Self, JournalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = dir.path().join("table");
        let options = InitOptions { segment_bytes, ..InitOptions::default() };
        JournalEngine::init(&World::system(), &root, &options).unwrap();
        let bed = Self { _dir: dir, root };
        let engine = bed.open();
        (bed, engine)
    }

    fn open(&self) -> JournalEngine {
        JournalEngine::open(&World::system(), &self.root).unwrap()
    }
}

fn keys(group: &TargetGroup) -> Vec<Key> {
    group.targets().map(Key::target).collect()
}

fn ask(keys: &[Key]) -> Request<'_> {
    Request { keys, now: None, patience: Duration::from_secs(5) }
}

/// Groups of one, two and three targets, in turn.
fn claim(engine: &JournalEngine, groups: u64) -> Vec<(TargetGroup, Token)> {
    let claim = |number: u64| {
        let targets = (0..=number % 3).map(|member| number * 10 + member + 1);
        let group = TargetGroup::from_numbers(targets).unwrap();
        let request = ClaimRequest {
            group: group.clone(),
            owner: Owner::new(&format!("owner{number}")).unwrap(),
            worker: 1,
            payload: Payload::parse(&format!("{{\"job\":\"{number:0300}\"}}")).unwrap(),
            ttl: Ttl::from_seconds(600.0).unwrap(),
        };
        let keys = keys(&group);
        let done = engine.transact(&ask(&keys), &mut |view| rules::claim(view, &request).ok());
        let Outcome::Done(done) = done.unwrap() else { panic!("free") };
        (group, done.token.unwrap().into())
    };
    (0..groups).map(claim).collect()
}

fn heartbeat(engine: &JournalEngine, held: &[(TargetGroup, Token)], at: Option<f64>) -> u64 {
    let keys: Vec<Vec<Key>> = held.iter().map(|(group, _)| keys(group)).collect();
    let now = at.map(|seconds| Timestamp::from_seconds(seconds).unwrap());
    let units: Vec<Request<'_>> = keys.iter().map(|keys| Request { now, ..ask(keys) }).collect();
    let report = renew(engine, held, &units);
    assert!(report.units.iter().all(|unit| matches!(unit, UnitOutcome::Done(None))), "{report:?}");
    report.barriers
}

/// As a heartbeat of many leases asks: at a glance, and by the records where that is not enough.
fn renew(
    engine: &JournalEngine,
    held: &[(TargetGroup, Token)],
    units: &[Request<'_>],
) -> EachReport {
    engine.transact_each_at_a_glance(
        units,
        &mut |index, glance| {
            let (group, token) = held.get(index)?;
            rules::renew(glance, group, token)
        },
        &mut |index, view| {
            let (group, token) = held.get(index)?;
            rules::heartbeat(view, group, token).ok()
        },
    )
}

/// Every record as one line.
fn records(engine: &JournalEngine) -> BTreeMap<Key, Record> {
    let entries = engine.scan(Space::Targets, None).unwrap().entries.into_iter();
    let record = |(key, entry)| match entry {
        Entry::Present(record) => (key, record),
        other => panic!("{other:?}"),
    };
    entries.map(record).collect()
}

fn lines(engine: &JournalEngine) -> BTreeMap<Key, String> {
    records(engine).into_iter().map(|(key, record)| (key, record.to_line())).collect()
}

fn frames(root: &Path) -> Vec<(usize, Changes)> {
    let items = dump(&World::system(), root).unwrap().into_iter();
    let frames = items.filter_map(|item| match item {
        Item::Frame { checked, changes, .. } => Some((checked.len, changes.unwrap())),
        _ => None,
    });
    frames.collect()
}

#[test]
fn a_thousand_heartbeats_of_one_call_are_one_frame_and_one_sync() {
    let (bed, engine) = Bed::new(4 << 20);
    let held = claim(&engine, 1000);
    let before = frames(&bed.root).len();
    let faults = FaultFs::new(Arc::new(RealFs));
    let world = World::system().with_fs(Arc::new(faults.clone()));
    let engine = JournalEngine::open(&world, &bed.root).unwrap();
    // The first change of a process looks whether what it found is durable.
    heartbeat(&engine, &held[..1], None);
    let [syncs, writes] = [Call::SyncFile, Call::Write].map(|call| faults.count(call));
    assert_eq!(heartbeat(&engine, &held, None), 1);
    assert_eq!(faults.count(Call::SyncFile) - syncs, 1);
    assert_eq!(faults.count(Call::Write) - writes, 1);
    let all = frames(&bed.root);
    let [(bytes, changes)] = all.get(before + 1..).unwrap() else { panic!("one frame") };
    let targets: usize = held.iter().map(|(group, _)| group.len()).sum();
    assert_eq!(
        (changes.renewed.len(), changes.stored.len(), changes.removed.len()),
        (targets, 0, 0)
    );
    assert!(*bytes < targets * 38 + 1024, "{bytes} bytes for {targets} targets");
}

#[test]
fn what_was_renewed_at_this_moment_already_is_not_written_again() {
    let (bed, engine) = Bed::new(1 << 20);
    let held = claim(&engine, 3);
    let (whole, token) = held.last().unwrap();
    assert_eq!(whole.len(), 3);
    let part = (TargetGroup::new(whole.targets().take(1)).unwrap(), token.clone());
    heartbeat(&engine, std::slice::from_ref(&part), Some(2e9));
    let before = frames(&bed.root).len();
    heartbeat(&engine, &held, Some(2e9));
    let all = frames(&bed.root);
    let [(_, changes)] = all.get(before..).unwrap() else { panic!("one frame") };
    // One of one, two of two, and the two others of three.
    assert_eq!((changes.renewed.len(), changes.stored.len(), changes.removed.len()), (5, 0, 0));
    heartbeat(&engine, &held, Some(2e9));
    assert_eq!(frames(&bed.root).len(), all.len(), "nothing is left to write");
    let at = Timestamp::from_seconds(2e9).unwrap();
    assert!(records(&engine).values().all(|record| record.holder().updated == at));
}

#[test]
fn renewed_leases_are_the_same_for_everybody_and_after_a_change_of_segments() {
    // Room for about two hundred leases.
    let (bed, engine) = Bed::new(256 * 1024);
    let other = bed.open();
    let held = claim(&engine, 60);
    let before = records(&engine);
    // So many that the segments change several times, and leases that only the checkpoint has whole are
    // renewed as well.
    let mut segments = std::collections::BTreeSet::new();
    for round in 0..300_u32 {
        let at = 2e9 + f64::from(round);
        heartbeat(if round % 3 == 0 { &other } else { &engine }, &held, Some(at));
        let first = dump(&World::system(), &bed.root).unwrap().remove(0);
        let Item::Checkpoint(head) = first else { panic!("{first}") };
        segments.insert(head.base.segment);
        if round % 50 == 49 {
            let lines = lines(&engine);
            assert_eq!(lines, self::lines(&other));
            assert_eq!(lines, self::lines(&bed.open()));
            let after = records(&engine);
            assert!(after.keys().eq(before.keys()));
            for (key, record) in &after {
                assert_eq!(record.holder().updated.seconds().to_bits(), at.to_bits());
                let (new, old) = (record.holder(), before.get(key).unwrap().holder());
                assert_eq!((&new.token, &new.owner), (&old.token, &old.owner));
                assert_eq!((&new.payload, new.ttl), (&old.payload, old.ttl));
            }
        }
    }
    assert!(segments.len() > 2, "the segments changed: {segments:?}");
    // Nothing of it is in the way of the end.
    for (group, token) in &held {
        let keys = keys(group);
        let done = other.transact(&ask(&keys), &mut |view| rules::release(view, group, token).ok());
        assert!(matches!(done, Ok(Outcome::Done(_))), "{done:?}");
    }
    assert!(records(&engine).is_empty() && records(&bed.open()).is_empty());
}

#[test]
fn what_does_not_fit_goes_on_in_the_next_segment() {
    let (bed, engine) = Bed::new(64 * 1024);
    let held = claim(&engine, 60);
    // One batch fills a third of a segment after the other.
    for round in 0..200_u32 {
        let syncs = heartbeat(&engine, &held, Some(2e9 + f64::from(round)));
        assert_eq!(syncs, 1);
    }
    assert_eq!(lines(&engine), lines(&bed.open()));
}

#[test]
fn a_batch_of_heartbeats_and_lost_leases_renews_what_is_held() {
    let (bed, engine) = Bed::new(4 << 20);
    let mut held = claim(&engine, 9);
    let wrong: Token = Token::new("lost").unwrap();
    held.get_mut(4).unwrap().1 = wrong;
    let before = lines(&engine);
    let keys: Vec<Vec<Key>> = held.iter().map(|(group, _)| keys(group)).collect();
    let units: Vec<Request<'_>> = keys.iter().map(|keys| ask(keys)).collect();
    let report = renew(&engine, &held, &units);
    for (index, unit) in report.units.iter().enumerate() {
        let expected = if index == 4 {
            matches!(unit, UnitOutcome::Refused)
        } else {
            matches!(unit, UnitOutcome::Done(None))
        };
        assert!(expected, "{index}: {unit:?}");
    }
    let after = lines(&bed.open());
    let lost: Vec<Key> = held.get(4).unwrap().0.targets().map(Key::target).collect();
    for (key, line) in &before {
        assert_eq!(after.get(key) == Some(line), lost.contains(key), "{line}");
    }
}

#[test]
fn who_takes_leases_over_while_they_are_renewed_finds_nothing_of_it_afterwards() {
    let (bed, engine) = Bed::new(4 << 20);
    let held = claim(&engine, 60);
    let (begun, over) = (Barrier::new(2), AtomicBool::new(false));
    let at = |seconds| Some(Timestamp::from_seconds(seconds).unwrap());
    let keys_of = |held: &[(TargetGroup, Token)]| -> Vec<Vec<Key>> {
        held.iter().map(|(group, _)| keys(group)).collect()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (engine, keys) = (bed.open(), keys_of(&held));
            let units = |now| keys.iter().map(move |keys| Request { now, ..ask(keys) }).collect();
            for round in 0..u32::MAX {
                let last = over.load(Ordering::SeqCst);
                let units: Vec<Request<'_>> = units(at(1e9 + f64::from(round) / 1e4));
                let report = renew(&engine, &held, &units);
                let done = report.units.iter().filter(|u| matches!(u, UnitOutcome::Done(None)));
                let done = done.count();
                let refused = report.units.iter().filter(|u| matches!(u, UnitOutcome::Refused));
                assert_eq!(done + refused.count(), held.len(), "{report:?}");
                if round == 0 {
                    assert_eq!(done, held.len());
                    begun.wait();
                }
                if last {
                    assert_eq!(done, 0, "a lease that was taken over was renewed");
                    break;
                }
            }
        });
        begun.wait();
        for (number, (group, _)) in held.iter().enumerate() {
            let request = ClaimRequest {
                group: group.clone(),
                owner: Owner::new("successor").unwrap(),
                worker: 1,
                payload: Payload::empty(),
                ttl: Ttl::from_seconds(600.0).unwrap(),
            };
            let keys = keys(group);
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let now = at(3e9 + number as f64);
            let take = Request { now, ..ask(&keys) };
            let done = engine.transact(&take, &mut |view| rules::claim(view, &request).ok());
            assert!(matches!(done.unwrap(), Outcome::Done(_)));
        }
        over.store(true, Ordering::SeqCst);
    });
    for (_, record) in records(&bed.open()) {
        assert_eq!(&*record.holder().owner, "successor");
        assert!(record.holder().updated.seconds() >= 3e9, "{}", record.to_line());
    }
}

#[test]
fn a_renewal_in_a_table_of_which_the_lease_is_not_there_is_damage() {
    // A frame as nobody writes it: it renews what nobody claimed.
    let (bed, engine) = Bed::new(64 * 1024);
    let held = claim(&engine, 1);
    heartbeat(&engine, &held, None);
    drop(engine);
    let path = bed.root.join("journal.0");
    let good = std::fs::read(&path).unwrap();
    let other = Key::target(Target::new(999).unwrap());
    let bytes = common::renewing_another(&bed.root, &good, other);
    std::fs::write(&path, &bytes).unwrap();
    let error = JournalEngine::open(&World::system(), &bed.root).unwrap_err().to_string();
    assert!(error.contains("a renewal of nothing"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing is written");
}

mod common {
    use std::path::Path;

    use ringfence_env::World;
    use ringfence_journal::frame::{self, HEADER, Kind};
    use ringfence_journal::layout::Layout;
    use ringfence_journal::meta::TableMeta;
    use ringfence_model::Key;
    use twox_hash::XxHash3_64;

    /// The segment with its last frame made to renew another key, and whole again otherwise.
    pub(super) fn renewing_another(root: &Path, segment: &[u8], key: Key) -> Vec<u8> {
        let meta = TableMeta::read(&*World::system().fs, &Layout::new(root)).unwrap();
        let table = XxHash3_64::oneshot(meta.table.as_bytes());
        let mut at = 1024;
        let mut last = None;
        while let Ok(checked) = frame::read(segment.get(at..).unwrap(), table, segment.len() - at) {
            last = Some((at, checked));
            at += checked.len;
        }
        let (at, checked) = last.unwrap();
        assert_eq!(checked.header.kind, Kind::Changes);
        let mut body = segment.get(at + HEADER..at + HEADER + checked.body).unwrap().to_vec();
        // Its one member ends with the key, the kind and the number of the body.
        let from = body.len() - 32 - 1 - 4;
        body.get_mut(from..from + 32).unwrap().copy_from_slice(key.id.as_bytes());
        let (frame, _) = frame::encode(&checked.header, table, |out| out.raw(&body));
        let mut bytes = segment.to_vec();
        bytes.get_mut(at..at + frame.len()).unwrap().copy_from_slice(&frame);
        bytes
    }
}

/// Invariant L4 of looks: the age of a record that is newer than the moment could not be told.
#[test]
fn a_unit_that_sees_what_came_during_the_batch_is_decided_at_a_later_moment() {
    let (_bed, engine) = Bed::new(4 << 20);
    let held = claim(&engine, 2);
    let keys: Vec<Vec<Key>> = held.iter().map(|(group, _)| keys(group)).collect();
    let units: Vec<Request<'_>> = keys.iter().map(|keys| ask(keys)).collect();
    let mut asked = Vec::new();
    let report = engine.transact_each(&units, &mut |index, view| {
        let Entry::Present(record) = &view.entries[0].1 else { panic!("it is held") };
        assert!(view.moment.wall >= record.holder().updated, "decided before it was written");
        asked.push(index);
        if let [_] = asked[..] {
            // By another thread of the same process, as it were.
            let other = 1 - index;
            std::thread::sleep(Duration::from_millis(2));
            let (group, token) = &held[other];
            let renewed = engine.clone().transact(&ask(&keys[other]), &mut |view| {
                rules::heartbeat(view, group, token).ok()
            });
            assert!(matches!(renewed, Ok(Outcome::Done(_))), "{renewed:?}");
        }
        None
    });
    assert!(report.units.iter().all(|unit| matches!(unit, UnitOutcome::Refused)), "{report:?}");
    assert_eq!(asked.len(), 2);
}
