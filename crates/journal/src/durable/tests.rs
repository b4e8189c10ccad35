//! Who waits for whom before a sync.

use std::sync::Arc;

use ringfence_engine::{Engine as _, Outcome, Request};
use ringfence_env::fault::{Call, FaultFs};
use ringfence_env::{Clock, World};
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Key, Owner, Payload, TargetGroup, Ttl};

use super::*;
use crate::sync::AtomicU64;
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

/// Microseconds that pass only when it is told to.
#[derive(Debug, Default)]
struct Still(AtomicU64);

impl Clock for Still {
    fn wall(&self) -> Duration {
        self.monotonic()
    }
    fn boottime(&self) -> Duration {
        self.monotonic()
    }
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }
    fn sleep(&self, duration: Duration) {
        let passed = u64::try_from(duration.as_micros()).unwrap();
        self.0.fetch_add(passed, Ordering::SeqCst);
    }
}

#[test]
fn one_of_those_who_wait_for_others_sees_that_they_do_not_come_and_the_rest_that_he_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(Still::default());
    let world = World { clock: clock.clone(), ..World::system() };
    let engine = JournalEngine::init(&world, &dir.path().join("store"), &InitOptions::default());
    let journal = engine.unwrap().journal;
    let place = journal.replica().place();
    let durable = place.at.sequence;
    let micros = |wait: Option<Duration>| wait.map(|wait| wait.as_micros());
    let appended = |more| journal.hints.set_appended(place.epoch, place.at.segment, durable + more);
    let (mut first, mut second, mut last) = (None, None, None);
    let gather = |turn: &mut Option<Turn>, durable| micros(journal.gather(&place, durable, turn));

    journal.hints.set_expected(1);
    assert_eq!(gather(&mut first, durable), None, "alone");
    journal.hints.set_expected(3);
    appended(1);
    assert_eq!(gather(&mut first, durable), Some(300));
    appended(2);
    assert_eq!(gather(&mut second, durable), Some(2_600));
    clock.sleep(Duration::from_micros(299));
    assert_eq!(gather(&mut first, durable), Some(1));
    clock.sleep(Duration::from_micros(1));
    assert_eq!(gather(&mut first, durable), None, "who is missing does not come");
    assert_eq!(gather(&mut second, durable), Some(2_300), "the first one is about to sync");
    appended(3);
    assert_eq!(gather(&mut last, durable), None, "all are there");
    assert_eq!(gather(&mut second, durable), None);
    // Another sync was made, and none of the three frames was in it.
    appended(4);
    assert_eq!(gather(&mut second, durable + 2), Some(300), "a turn of its own");
    assert_eq!(gather(&mut first, durable + 2), Some(2_600));
    clock.sleep(Duration::from_micros(2_600));
    assert_eq!(gather(&mut first, durable + 2), None, "nobody synced");
}

#[test]
fn whoever_comes_last_syncs_for_all_and_nobody_waits_long_for_one_who_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (world, root) = (World::system(), dir.path().join("store"));
    JournalEngine::init(&world, &root, &InitOptions::default()).unwrap();
    let open = || {
        let faults = FaultFs::new(Arc::clone(&world.fs));
        let world = world.clone().with_fs(Arc::new(faults.clone()));
        (JournalEngine::open(&world, &root).unwrap(), faults)
    };
    let ((first, of_first), (last, of_last)) = (open(), open());
    claim(&first, 1);
    claim(&last, 2);
    let syncs = || (of_first.count(Call::SyncFile), of_last.count(Call::SyncFile));
    let hints = &first.journal.hints;
    // The last one may be kept from coming in time, but not always.
    let has_led = (0..100).any(|round| {
        hints.set_expected(2);
        for _ in 0..64 {
            hints.add_sync_time(Duration::from_secs(1));
        }
        let (before, place) = (syncs(), first.place().unwrap());
        let number = 10 + 2 * round;
        std::thread::scope(|scope| {
            scope.spawn(|| claim(&first, number));
            let appended = || hints.appended(place.epoch, place.segment).unwrap_or(0);
            while appended() == place.sequence {
                std::hint::spin_loop();
            }
            claim(&last, number + 1);
        });
        let after = syncs();
        (after.0 - before.0, after.1 - before.1) == (0, 1)
    });
    assert!(has_led, "{:?}", syncs());
    // Somebody who was to see that the others do not come was killed.
    hints.set_expected(2);
    let durable = hints.durable_here(first.place().unwrap().epoch).unwrap();
    assert!(!hints.gathers(durable));
    claim(&first, 1000);
}
