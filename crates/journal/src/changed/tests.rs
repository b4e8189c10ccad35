//! The changes against a map of records that are applied one by one.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ringfence_env::World;
use ringfence_model::{Record, Space, Target, Timestamp};

use super::*;
use crate::checkpoint::{self, Head, Position};
use crate::codec::Out;
use crate::codec::page::PageWriter;
use crate::codec::renewal;
use crate::layout::Layout;

const TABLE: u64 = 5;

fn key(number: u64) -> Key {
    Key::target(Target::new(number + 1).unwrap())
}

/// A record that tells by its worker when it was stored.
fn record(number: u64, stamp: u64) -> Record {
    let (key, target) = (key(number), number + 1);
    let line = format!(
        r#"{{"schema":1,"id":"{}","status":"leased","owner":"o","worker":{stamp},"token":"t",
        "updated":1.0,"payload":{{}},"attempts":1,"steals":0,"previous_owner":null,
        "target":{target},"targets":[{target}]}}"#,
        key.id,
    );
    Record::parse(Space::Targets, key.id, line.as_bytes()).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Remove,
    Store,
    Renew,
}

fn renewal(stamp: u64) -> renewal::Renewal {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let updated = Timestamp::from_seconds(100.0 + stamp as f64).unwrap();
    renewal::Renewal { updated, writer: None }
}

/// A checkpoint with records of the keys below `count`.
fn checkpoint(dir: &std::path::Path, count: u64) -> Checkpoint {
    let world = World::system();
    let layout = Layout::new(dir);
    let base = Position { segment: 1, offset: 1024, sequence: 0, chain: 0 };
    let head = Head { epoch: 1, base, fence: 0, records: 0, ended: Vec::new() };
    let mut records: Vec<_> = (0..count).map(|number| (key(number), record(number, 0))).collect();
    records.sort_by_key(|(key, _)| *key);
    let mut page = PageWriter::default();
    for (key, record) in &records {
        page.push(*key, Some(record));
    }
    let mut out = Out::default();
    page.finish(None, &mut out);
    let members = Page::read(out.0, 0).unwrap().members;
    let stored = members.into_iter().map(|(key, change)| Ok((key, change.after(None).unwrap())));
    checkpoint::write::<CheckpointError>(&*world.fs, &layout, TABLE, &head, stored).unwrap();
    Checkpoint::open(&*world.fs, &layout, TABLE).unwrap()
}

/// The page of a frame with these steps.
fn page(stamp: u64, steps: &[(u64, Step)]) -> (Page, Vec<(Key, Said)>) {
    let mut page = PageWriter::default();
    for &(number, step) in steps {
        match step {
            Step::Remove => page.push(key(number), None),
            Step::Store => page.push(key(number), Some(&record(number, stamp))),
            Step::Renew => page.push_renewals(&[key(number)], &renewal(stamp)),
        }
    }
    let mut out = Out::default();
    page.finish(None, &mut out);
    let mut members = Vec::new();
    (Page::walk(out.0, 0, &mut members).unwrap(), members)
}

/// The pages that a state is in.
fn users_of(state: State) -> impl Iterator<Item = u32> {
    let (of, by) = match state {
        State::Removed => (None, None),
        State::Stored(at) => (Some(at.page), None),
        State::Renewed(Of::Page(at), by) => (Some(at.page), Some(by.page)),
        State::Renewed(Of::Checkpoint(_), by) => (None, Some(by.page)),
    };
    of.into_iter().chain(by)
}

/// What is stored under a key.
fn shown(changed: &Changed, key: Key, checkpoint: &Checkpoint) -> Option<Record> {
    let latest = changed.find(&key, checkpoint).unwrap()?;
    let record = latest.record().unwrap();
    assert_eq!(latest.holder().unwrap(), *record.holder());
    Some(record)
}

/// What the steps make of the records; `None` if one of them renews nothing.
fn apply(model: &mut BTreeMap<Key, Record>, stamp: u64, steps: &[(u64, Step)]) -> Option<()> {
    for &(number, step) in steps {
        let key = key(number);
        match step {
            Step::Remove => drop(model.remove(&key)),
            Step::Store => drop(model.insert(key, record(number, stamp))),
            Step::Renew => {
                let Record::Target(mut record) = model.get(&key)?.clone() else { panic!() };
                record.holder.updated = renewal(stamp).updated;
                record.holder.writer = None;
                model.insert(key, Record::Target(record));
            }
        }
    }
    Some(())
}

fn all(changed: &Changed, checkpoint: &Checkpoint) -> BTreeMap<Key, Record> {
    let mut found = BTreeMap::new();
    for number in 0..12 {
        if let Some(record) = shown(changed, key(number), checkpoint) {
            found.insert(key(number), record);
        }
    }
    found
}

/// The pages that some entry is in.
fn needed(changed: &Changed) -> std::collections::BTreeSet<u32> {
    changed.keys.values().flat_map(|latest| users_of(latest.state)).collect()
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let kind = prop_oneof![Just(Step::Remove), Just(Step::Store), Just(Step::Renew)];
    (0_u64..12, kind)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn it_holds_what_the_frames_say_and_no_page_more(
        frames in prop::collection::vec(prop::collection::vec(step(), 1..6), 1..30),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = checkpoint(dir.path(), 5);
        let mut changed = Changed::default();
        let mut model: BTreeMap<Key, Record> =
            (0..5).map(|number| (key(number), record(number, 0))).collect();
        for (stamp, steps) in (1..).zip(&frames) {
            let (page, members) = page(stamp, steps);
            let applied = changed.apply(stamp, page, &members, &checkpoint);
            let expected = apply(&mut model, stamp, steps);
            prop_assert_eq!(applied.is_ok(), expected.is_some());
            prop_assert_eq!(all(&changed, &checkpoint), model.clone());
            if expected.is_some() {
                for (number, _) in steps {
                    prop_assert_eq!(changed.sequence(key(*number)), Some(stamp));
                }
            }
            // D1.
            let kept = changed.pages.slots.iter().flatten().count();
            prop_assert_eq!(kept, needed(&changed).len());
            for (slot, kept) in (0..).zip(&changed.pages.slots) {
                let users = changed.keys.values().flat_map(|latest| users_of(latest.state));
                let users = users.filter(|page| *page == slot).count();
                prop_assert_eq!(kept.as_ref().map_or(0, |kept| kept.users), users);
            }
        }
        // Somebody who goes through all of them sees the same.
        for change in changed.all() {
            let (key, change) = change.unwrap();
            let stored = change.after(checkpoint.get(key).unwrap().cloned()).unwrap();
            prop_assert_eq!(stored.record().unwrap(), model.get(&key).cloned());
        }
    }
}

#[test]
fn a_key_of_the_checkpoint_can_be_renewed_and_one_of_nobody_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(dir.path(), 1);
    let mut changed = Changed::default();
    let (first, members) = page(7, &[(0, Step::Renew)]);
    changed.apply(7, first, &members, &checkpoint).unwrap();
    let found = shown(&changed, key(0), &checkpoint).unwrap();
    assert_eq!(found.holder().updated, renewal(7).updated);
    let (second, members) = page(8, &[(1, Step::Renew)]);
    let refused = changed.apply(8, second, &members, &checkpoint);
    assert!(matches!(refused, Err(Unread::Malformed(NOTHING))), "{refused:?}");
    assert_eq!(changed.pages.slots.iter().flatten().count(), 1, "and its page is not kept");
}
