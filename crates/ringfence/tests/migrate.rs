//! Moving a table, from and to either engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence::model::WorkStatus;
use ringfence::{
    Claim, Destination, Fence, FilesOptions, JournalOptions, MigrateError, Migrated, OpenError,
    Owner, Payload, ShardCount, Store, Token, World,
};
use ringfence_env::fault::{Call, Effect, FaultFs, When};

use crate::support::{Bed, at, group, ttl};

fn shards(count: u16) -> ShardCount {
    ShardCount::new(count).unwrap()
}

/// Either engine, small.
pub(crate) fn destinations() -> [Destination; 2] {
    let files =
        FilesOptions { shards: shards(3), work_shards: shards(2), ..FilesOptions::default() };
    let journal = JournalOptions { segment_bytes: 64 * 1024, ..JournalOptions::default() };
    [Destination::Files(files), Destination::Journal(journal)]
}

pub(crate) fn beside(path: &Path, name: &str) -> PathBuf {
    path.with_file_name(name)
}

/// An error and its causes, in words.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Everything in both tables, in words.
fn contents(store: &Store) -> Vec<String> {
    let targets = store.targets().list(at(2000.0)).unwrap();
    assert!(targets.consistent);
    let work = store.work().list(at(2000.0)).unwrap();
    let targets = targets.leases.iter().map(|listed| format!("{:?}", listed.state));
    targets.chain(work.iter().map(|item| format!("{:?} {}", item.record, item.expired))).collect()
}

struct Held {
    active: Token,
    committing: (ringfence::RecordId, Token),
    fence: Fence,
}

/// A table with leases of every kind, work items in every state, and a fence that no record shows.
fn fill(store: &Store) -> Held {
    let (targets, work) = (store.targets(), store.work());
    let claim = |owner: &str, now: f64, seconds: f64| {
        let payload = Payload::parse(r#"{"seed":"ab","n":1.50}"#).unwrap();
        let claim = Claim::by(owner).unwrap().worker(-3).ttl(ttl(seconds)).payload(payload);
        claim.now(at(now).unwrap())
    };
    let _old = targets.claim(&group(&[5, 6]), &claim("first", 1000.0, 10.0)).unwrap();
    let taken = targets.claim(&group(&[6, 5, 7]), &claim("second", 1010.0, 1e6)).unwrap();
    let _expired = targets.claim(&group(&[8]), &claim("gone", 1000.0, 1.0)).unwrap();
    let owner = Owner::new("worker").unwrap();
    let item = |text: &str| Payload::parse(&format!(r#"{{"seed":"{text}"}}"#)).unwrap();
    let claim_work = |text| work.claim(&item(text), &owner, 1, Some(ttl(1e6)), at(1000.0)).unwrap();
    let _leased = claim_work("leased");
    let committing = claim_work("committing");
    let manifest = Payload::parse(r#"{"outputs":["d1"]}"#).unwrap();
    work.begin_commit(committing.id, &committing.token, &manifest, at(1001.0)).unwrap();
    let done = claim_work("done");
    work.begin_commit(done.id, &done.token, &manifest, at(1001.0)).unwrap();
    work.complete_once(done.id, &done.token, at(1002.0)).unwrap();
    let released = targets.claim(&group(&[99]), &claim("short", 1000.0, 10.0)).unwrap();
    let fence = released.fence();
    released.release().unwrap();
    let committing = (committing.id, committing.token);
    Held { active: taken.token().clone(), committing, fence }
}

fn check_moved(from: &Path, to: &Path, before: &[String], held: &Held, moved: &Migrated) {
    assert_eq!(moved.records, (4, 3));
    assert!(moved.fence >= held.fence);
    let store = Store::open(to).unwrap();
    assert_eq!(contents(&store), before);
    assert!(store.check().unwrap().findings.is_empty(), "{:?}", store.check());
    // Holders go on under their tokens.
    store.targets().heartbeat(&group(&[5, 6, 7]), &held.active, at(2001.0)).unwrap();
    let (id, token) = &held.committing;
    store.work().complete_once(*id, token, at(2001.0)).unwrap();
    let next = store.targets().claim(&group(&[100]), &Claim::by("new").unwrap()).unwrap();
    assert!(next.fence() > moved.fence, "{} after {}", next.fence(), moved.fence);
    let items = store.work().list(at(2001.0)).unwrap();
    let done = |s: &ringfence::WorkItem| s.record.as_ref().unwrap().status == WorkStatus::Done;
    assert_eq!(items.iter().filter(|item| done(item)).count(), 2);
    for open in [Store::open(from), Store::open_read_only(from)] {
        let Err(OpenError::Moved { to: says, .. }) = open else { panic!("the old one is closed") };
        assert_eq!(says, to);
    }
    assert!(Store::repair_at(from, ringfence::Repair::default()).is_err());
    // Programs that know nothing of moves look here.
    let description = std::fs::read_to_string(from.join("table.json")).unwrap();
    assert!(description.contains(r#""engine":"moved""#), "{description}");
    let staging = to.with_file_name(format!(".{}.arriving", to.file_name().unwrap().display()));
    assert!(!staging.exists(), "nothing is left beside");
}

#[test]
fn a_table_is_moved_with_every_record_and_fences_go_on_above_all_that_were() {
    for into in destinations() {
        let bed = Bed::new();
        let held = fill(&bed.store);
        let before = contents(&bed.store);
        let to = beside(&bed.path, "new");
        let moved = Store::migrate(&bed.path, &to, &into).unwrap();
        check_moved(&bed.path, &to, &before, &held, &moved);
        let again = Store::migrate(&bed.path, &to, &into).unwrap();
        assert_eq!((again.records, again.fence), (moved.records, moved.fence));
        let elsewhere = Store::migrate(&bed.path, beside(&bed.path, "third"), &into);
        assert!(matches!(elsewhere, Err(MigrateError::Open(OpenError::Moved { .. }))));
        // And on.
        let third = beside(&bed.path, "third");
        let further = Store::migrate(&to, &third, &destinations()[0]).unwrap();
        assert!(further.fence > moved.fence);
        let next = Store::open(&third).unwrap().targets();
        let next = next.claim(&group(&[101]), &Claim::by("new").unwrap()).unwrap();
        assert!(next.fence() > further.fence);
    }
}

/// What "by mistake" looks like: a process that had the old place open all the time.
#[test]
fn a_handle_that_was_open_before_is_refused_for_ever_and_changes_nothing() {
    for into in destinations() {
        let bed = Bed::new();
        let old = bed.other();
        let lease = old.targets().claim(&group(&[1, 2]), &Claim::by("a").unwrap()).unwrap();
        let to = beside(&bed.path, "new");
        Store::migrate(&bed.path, &to, &into).unwrap();
        let before = contents(&Store::open(&to).unwrap());
        for _ in 0..3 {
            for store in [&old, &bed.store] {
                // What would be granted, and what would be refused.
                for targets in [3, 1] {
                    let claim = Claim::by("b").unwrap();
                    let why = told(&store.targets().claim(&group(&[targets]), &claim).unwrap_err());
                    assert!(why.ends_with(&format!("it is {} now", to.display())), "{why}");
                }
                let beat = store.targets().heartbeat(lease.group(), lease.token(), None);
                assert!(beat.is_err(), "{beat:?}");
                let released = store.targets().release(lease.group(), lease.token(), None);
                assert!(released.is_err(), "{released:?}");
                assert!(store.repair().is_err());
            }
        }
        assert_eq!(contents(&Store::open(&to).unwrap()), before);
        let new = Store::open(&to).unwrap().targets();
        new.release(lease.group(), lease.token(), None).unwrap();
    }
}

#[test]
fn what_is_at_the_new_place_is_left_alone_and_the_old_table_goes_on() {
    let bed = Bed::new();
    let into = &destinations()[1];
    let goes_on = || {
        let claim = Claim::by("a").unwrap();
        bed.other().targets().claim(&group(&[1]), &claim).unwrap().release().unwrap();
    };
    let file = beside(&bed.path, "file");
    std::fs::write(&file, "x").unwrap();
    let empty = beside(&bed.path, "empty");
    std::fs::create_dir(&empty).unwrap();
    let same = Store::migrate(&bed.path, &bed.path, into);
    assert!(matches!(same, Err(MigrateError::Same { .. })), "{same:?}");
    let link = beside(&bed.path, "link");
    std::os::unix::fs::symlink(&bed.path, &link).unwrap();
    let refused = Store::migrate(&bed.path, link.join("new"), into);
    assert!(matches!(refused, Err(MigrateError::Nested { .. })), "{refused:?}");
    for taken in [&file, &empty, &link] {
        let refused = Store::migrate(&bed.path, taken, into);
        assert!(matches!(refused, Err(MigrateError::Exists { .. })), "{refused:?}");
        goes_on();
    }
    for within in [bed.path.join("new"), bed.path.join("a/../b")] {
        let refused = Store::migrate(&bed.path, &within, into);
        assert!(matches!(refused, Err(MigrateError::Nested { .. })), "{refused:?}");
    }
    let no_parent = Store::migrate(&bed.path, beside(&bed.path, "no/such"), into);
    assert!(matches!(no_parent, Err(MigrateError::Storage(_))), "{no_parent:?}");
    let no_table = Store::migrate(&empty, beside(&bed.path, "new"), into);
    assert!(matches!(no_table, Err(MigrateError::Open(OpenError::Files(_)))), "{no_table:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    goes_on();
    // Somebody else's move to the same place.
    let other = beside(&bed.path, ".new.arriving");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("arriving.json"), r#"{"from":"/x","table":"ab"}"#).unwrap();
    let refused = Store::migrate(&bed.path, beside(&bed.path, "new"), into);
    assert!(matches!(refused, Err(MigrateError::Occupied { .. })), "{refused:?}");
    assert!(other.join("arriving.json").exists());
    goes_on();
}

/// How the tables stand after a crash.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Old,
    New,
}

/// Opens both places as somebody would who knows nothing of the move: exactly one opens.
fn standing(from: &Path, to: &Path) -> Standing {
    let (old, new) = (Store::open(from), Store::open(to));
    match (old, new) {
        (Ok(_), Err(OpenError::Arriving { .. } | OpenError::Files(_))) => Standing::Old,
        (Err(OpenError::Moved { .. }), Ok(_)) => Standing::New,
        (old, new) => panic!("not exactly one table: {old:?} and {new:?}"),
    }
}

/// A world that dies at its `n`-th call of the file system, and does nothing any more after that.
fn dying(n: u64) -> World {
    let world = World::system();
    let fs = FaultFs::new(world.fs.clone());
    let count = AtomicU64::new(0);
    fs.on_call(move |call, path| {
        // Locks end with a process; everything else that it would do, it does not.
        let ends = call == Call::Unlock;
        let lives = count.fetch_add(1, Ordering::SeqCst) < n;
        let may = lives || ends || std::thread::panicking();
        assert!(may, "killed before {call:?} of {}", path.display());
    });
    world.with_fs(Arc::new(fs))
}

/// Kills the move before every call it makes, then goes on in every way there is.
#[test]
fn a_move_that_is_killed_anywhere_leaves_exactly_one_table_and_can_be_made_again() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let told = catch_unwind(|| {
        for (number, into) in destinations().into_iter().enumerate() {
            let mut seen = Vec::new();
            let mut step = 0;
            loop {
                let bed = Bed::small();
                let held = fill(&bed.store);
                let before = contents(&bed.store);
                let to = beside(&bed.path, "new");
                let world = dying(step);
                let attempt = catch_unwind(AssertUnwindSafe(|| {
                    Store::migrate_in(&world, &bed.path, &to, &into).map_err(Box::new)
                }));
                // Readers neither fail in another way nor finish anything.
                let readable = Store::open_read_only(&bed.path).is_ok();
                let stands = standing(&bed.path, &to);
                if stands == Standing::Old {
                    assert!(readable && contents(&bed.other()) == before, "step {step}");
                    let old = bed.store.targets();
                    old.claim(&group(&[50]), &Claim::by("x").unwrap()).unwrap().release().unwrap();
                } else {
                    assert!(!readable);
                    let claim = Claim::by("x").unwrap();
                    assert!(bed.store.targets().claim(&group(&[50]), &claim).is_err());
                    assert_eq!(contents(&Store::open(&to).unwrap()), before, "step {step}");
                }
                seen.push(stands);
                let moved = Store::migrate(&bed.path, &to, &into).unwrap();
                check_moved(&bed.path, &to, &before, &held, &moved);
                match attempt {
                    Ok(done) => {
                        done.unwrap();
                        break;
                    }
                    // Most calls are of filling the new table, which nobody sees.
                    Err(_) => step += 1,
                }
            }
            let old = seen.iter().filter(|stands| **stands == Standing::Old).count();
            let new = seen.len() - old;
            assert!(old > 20 && new > 3, "destination {number}: {old} before, {new} after");
            let decided = seen.iter().position(|stands| *stands == Standing::New).unwrap();
            assert!(seen[decided..].iter().all(|stands| *stands == Standing::New), "never back");
        }
    });
    std::panic::set_hook(hook);
    if let Err(panic) = told {
        std::panic::resume_unwind(panic);
    }
}

/// Fails every call of the move in turn.
#[test]
fn a_move_whose_storage_fails_leaves_exactly_one_table_and_says_which() {
    for into in destinations() {
        for nth in 1.. {
            let bed = Bed::small();
            let held = fill(&bed.store);
            let before = contents(&bed.store);
            let to = beside(&bed.path, "new");
            let world = World::system();
            let fs = FaultFs::new(world.fs.clone());
            fs.arm(When::Nth(nth), Effect::Errno(28));
            let outcome =
                Store::migrate_in(&world.with_fs(Arc::new(fs.clone())), &bed.path, &to, &into);
            let (stands, fired) = (standing(&bed.path, &to), fs.fired() > 0);
            match &outcome {
                Ok(_) | Err(MigrateError::Unfinished(_)) => assert_eq!(stands, Standing::New),
                Err(_) => assert_eq!(stands, Standing::Old, "call {nth}: {outcome:?}"),
            }
            let moved = Store::migrate(&bed.path, &to, &into).unwrap();
            check_moved(&bed.path, &to, &before, &held, &moved);
            if !fired {
                assert!(outcome.is_ok() && nth > 20, "{outcome:?}");
                break;
            }
        }
    }
}
