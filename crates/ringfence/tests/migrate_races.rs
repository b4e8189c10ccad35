//! Moving a table that others use, and moving two tables at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use ringfence::{Claim, JournalOptions, MigrateError, Store, World};
use ringfence_env::fault::{Call, FaultFs};

use crate::migrate::{beside, destinations, told};
use crate::support::{Bed, group, ttl};

/// Whoever moves a table is let in by those that use it without a pause.
#[test]
fn operations_that_meet_a_move_are_made_before_it_or_refused_and_none_is_lost() {
    for into in destinations() {
        let bed = Bed::new();
        let to = beside(&bed.path, "new");
        let (began, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let claimed: Vec<u64> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let (store, began, ended) = (bed.other(), &began, &ended);
                    scope.spawn(move || {
                        let mut done = Vec::new();
                        for number in 1.. {
                            let target = worker * 1_000_000 + number;
                            let claim = Claim::by("w").unwrap().ttl(ttl(600.0));
                            match store.targets().claim(&group(&[target]), &claim) {
                                Ok(_lease) => done.push(target),
                                Err(_) => break,
                            }
                            began.fetch_add(1, Ordering::SeqCst);
                            if ended.load(Ordering::SeqCst) {
                                break;
                            }
                        }
                        done
                    })
                })
                .collect();
            while began.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            let moved = Store::migrate(&bed.path, &to, &into);
            ended.store(moved.is_err(), Ordering::SeqCst);
            moved.unwrap();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        let listing = Store::open(&to).unwrap().targets().list(None).unwrap();
        let mut there: Vec<u64> = listing
            .leases
            .iter()
            .map(|listed| listed.state.record().unwrap().target.get())
            .collect();
        let mut claimed = claimed;
        there.sort_unstable();
        claimed.sort_unstable();
        assert_eq!(there, claimed, "every acknowledged claim is there, and no other");
    }
}

/// A process begins to make the next segment ready and is stopped; others make it ready, write in it,
/// and move the table. When it goes on it finds no header where the next segment should be: it must not
/// take that for room, which would open the old table again for handles that have it open.
#[test]
fn a_late_maker_of_a_segment_does_not_open_a_table_that_was_moved_meanwhile() {
    let bed = tempfile::tempdir().unwrap();
    let (from, to) = (bed.path().join("old"), bed.path().join("new"));
    let small = JournalOptions { segment_bytes: 64 * 1024, ..JournalOptions::default() };
    let store = Store::init(&from, &small.into()).unwrap();
    let fs = FaultFs::new(World::system().fs.clone());
    let late = Store::open_in(&World::system().with_fs(Arc::new(fs.clone())), &from).unwrap();
    let (stopped, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let cycle = |store: &Store, target: u64| {
        let claim = Claim::by("a").unwrap();
        let lease = store.targets().claim(&group(&[target]), &claim).map_err(|e| told(&e))?;
        lease.release().map_err(|refused| told(&refused.error))
    };
    let segment = || store.journal().unwrap().unwrap().segment;
    cycle(&late, 2).unwrap();
    cycle(&store, 1).unwrap();
    let (tries, at) = (AtomicU64::new(0), (stopped.clone(), go_on.clone()));
    fs.on_call(move |call, path| {
        let maintains = call == Call::TryLock && path.ends_with("maintain.lock");
        // The first try only asks whether somebody else is at it.
        if maintains && tries.fetch_add(1, Ordering::SeqCst) == 1 {
            at.0.wait();
            at.1.wait();
        }
    });
    std::thread::scope(|scope| {
        let (late, began) = (&late, segment());
        let maker = scope.spawn(move || (0..500).find_map(|_| cycle(late, 2).err()));
        stopped.wait();
        let here = segment();
        let cycles =
            (0..5000).take_while(|_| segment() == began && cycle(&store, 1).is_ok()).count();
        let moved = (segment() > began).then(|| {
            let moved = Store::migrate(&from, &to, &destinations()[1]);
            moved.map_err(Box::new)
        });
        go_on.wait();
        assert_eq!(here, began);
        assert!(matches!(moved, Some(Ok(_))), "after {cycles}: {moved:?}");
        let refused = maker.join().unwrap().expect("the old table is closed");
        assert!(refused.ends_with(&format!("it is {} now", to.display())), "{refused}");
    });
    for handle in [&store, &late] {
        assert!(cycle(handle, 3).is_err(), "the old table is closed");
    }
    let line = ringfence_journal::moving::closed(&World::system(), &from).unwrap();
    assert!(line.is_some_and(|line| line.contains(to.to_str().unwrap())));
    cycle(&Store::open(&to).unwrap(), 1).unwrap();
}

/// Each of two moves to one place finds nothing there when it begins.
#[test]
fn two_tables_on_their_way_to_one_place_never_become_one() {
    for round in 0..12 {
        let bed = tempfile::tempdir().unwrap();
        let to = bed.path().join("new");
        let small = JournalOptions { segment_bytes: 64 * 1024, ..JournalOptions::default() };
        let tables = [1, 2].map(|target| {
            let from = bed.path().join(format!("old{target}"));
            let store = Store::init(&from, &small.into()).unwrap();
            let claim = Claim::by("a").unwrap().ttl(ttl(600.0));
            let _held = store.targets().claim(&group(&[target]), &claim).unwrap();
            (target, from)
        });
        let ended = std::thread::scope(|scope| {
            let movers = [0, 1].map(|number| {
                let (from, to) = (&tables[number].1, &to);
                let into = destinations()[(round + number) % 2];
                scope.spawn(move || Store::migrate(from, to, &into).map_err(Box::new))
            });
            movers.map(|mover| mover.join().unwrap())
        });
        let moved: Vec<bool> = ended.iter().map(Result::is_ok).collect();
        assert_eq!(moved.iter().filter(|moved| **moved).count(), 1, "{ended:?}");
        for ((target, from), moved) in tables.iter().zip(moved) {
            let at = if moved { &to } else { from };
            let leases = Store::open(at).unwrap().targets().list(None).unwrap().leases;
            let there: Vec<u64> =
                leases.iter().map(|lease| lease.state.record().unwrap().target.get()).collect();
            assert_eq!(there, [*target], "round {round}");
            assert_eq!(Store::open(from).is_err(), moved);
        }
        let names = std::fs::read_dir(bed.path()).unwrap();
        assert_eq!(names.count(), 3, "nothing is left beside");
    }
}

/// One has looked, and found nothing; before it takes the place the other one has come and is settled.
#[test]
fn a_table_that_arrived_since_it_was_looked_is_not_moved_over() {
    let bed = tempfile::tempdir().unwrap();
    let (first, second) = (bed.path().join("old1"), bed.path().join("old2"));
    let to = bed.path().join("new");
    let claim = Claim::by("a").unwrap().ttl(ttl(600.0));
    for (target, from) in [(1, &first), (2, &second)] {
        let store = Store::init(from, &JournalOptions::default().into()).unwrap();
        let _held = store.targets().claim(&group(&[target]), &claim).unwrap();
    }
    let fs = FaultFs::new(World::system().fs);
    let (met, from, place) = (AtomicU64::new(0), first.clone(), to.clone());
    fs.on_call(move |call, path| {
        let begins = call == Call::Mkdir && path.to_string_lossy().contains(".arriving.");
        if begins && met.fetch_add(1, Ordering::SeqCst) == 0 {
            Store::migrate(&from, &place, &destinations()[1]).unwrap();
        }
    });
    let world = World::system().with_fs(Arc::new(fs));
    let ended = Store::migrate_in(&world, &second, &to, &destinations()[0]);
    assert!(matches!(ended, Err(MigrateError::Exists { .. })), "{ended:?}");
    for (target, at) in [(1, &to), (2, &second)] {
        let leases = Store::open(at).unwrap().targets().list(None).unwrap().leases;
        let there: Vec<u64> =
            leases.iter().map(|lease| lease.state.record().unwrap().target.get()).collect();
        assert_eq!(there, [target]);
    }
    assert_eq!(std::fs::read_dir(bed.path()).unwrap().count(), 3, "nothing is left beside");
}
