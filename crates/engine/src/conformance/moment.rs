//! The moment of a decision: given, or read off every clock of the host under exclusion.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ringfence_model::rules::ClaimRequest;
use ringfence_model::{Key, Moment, Space, Transition};

use super::Testbed;
use super::kit::*;
use crate::traits::Request;

pub(super) fn a_given_now_replaces_every_clock<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let now = at(123.5);
    let given = Moment::given(now.unwrap());
    let keys = keys_of([1]);
    let looked = decide(&engine, &keys, now, |view| {
        assert_eq!(view.moment, given);
        assert_eq!(view.writer.boot, None, "no reading of a clock is stored");
        Err::<Transition, _>("looked")
    });
    looked.unwrap_err();
    let mut asked = 0;
    let unit = Request { keys: &keys, now, patience: PATIENCE };
    let _ = engine.transact_each(&[unit], &mut |_, view| {
        asked += 1;
        assert_eq!(view.moment, given);
        None
    });
    assert!(asked > 0);
    assert_eq!(engine.view(&keys, now).unwrap().moment, given);
    assert_eq!(engine.scan(Space::Targets, now).unwrap().moment, given);
    claim(&engine, &ask("a", [1]), now).unwrap();
    let record = target_record(&engine, 1);
    assert_eq!(record.holder.updated, now.unwrap());
    assert!(record.holder.writer.as_ref().is_none_or(|writer| writer.boot.is_none()));
}

pub(super) fn a_lease_is_active_until_exactly_its_ttl<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mine = ClaimRequest { ttl: ttl(10.0), ..ask("a", [1, 2]) };
    claim(&engine, &mine, at(0.0)).unwrap();
    for now in [0.0, 5.0, 9.999, -50.0] {
        claim(&engine, &ask("b", [2, 3]), at(now)).expect_err("active");
    }
    claim(&engine, &ask("b", [2, 3]), at(10.0)).expect("expired at exactly ten seconds");
}

pub(super) fn the_ttl_of_the_record_rules<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let long = ClaimRequest { ttl: ttl(600.0), ..ask("a", [1]) };
    claim(&engine, &long, at(0.0)).unwrap();
    let short = ClaimRequest { ttl: ttl(1.0), ..ask("b", [1]) };
    claim(&engine, &short, at(599.0)).expect_err("the holder's ttl rules");
    claim(&engine, &short, at(600.0)).unwrap();
    claim(&engine, &long, at(601.0)).expect("the new holder's ttl rules");
}

pub(super) fn a_record_without_ttl_has_the_ttl_of_the_table<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    put(&engine, &[foreign(1, "theirs", at(0.0).unwrap())]);
    let default = engine.info().default_ttl.seconds();
    claim(&engine, &ask("a", [1]), at(default - 0.5)).expect_err("active");
    claim(&engine, &ask("a", [1]), at(default)).unwrap();
}

pub(super) fn a_lease_runs_out_by_the_clocks_of_the_host<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    let mine = ClaimRequest { ttl: ttl(0.2), ..ask("a", [1]) };
    let long = ClaimRequest { ttl: ttl(600.0), ..ask("a", [2]) };
    claim(&engine, &mine, None).unwrap();
    claim(&engine, &long, None).unwrap();
    let mut attempts = 0;
    while let Err(refused) = claim(&bed.engine(), &ask("b", [1]), None) {
        assert!(refused.conflicts[0].holding.expires_in <= 0.2, "{refused}");
        attempts += 1;
        assert!(attempts < 1000, "a lease of 200 ms does not run out: {refused}");
        pass(Duration::from_millis(10));
    }
    let refused = claim(&bed.engine(), &ask("b", [2]), None).expect_err("active for 600 s");
    let left = refused.conflicts[0].holding.expires_in;
    assert!((500.0..=600.0).contains(&left), "{left}");
}

pub(super) fn a_forward_jump_of_the_wall_clock_steals_nothing<T: Testbed>(bed: &T) {
    let engine = bed.engine();
    claim(&engine, &ask("a", [1, 2]), None).unwrap();
    claim_work(&engine, &ask_work("a", 1), None).unwrap();
    let ahead = bed.ahead(Duration::from_hours(1));
    let keys = keys_of([9]);
    let here = engine.view(&keys, None).unwrap().moment.wall.seconds();
    let there = ahead.view(&keys, None).unwrap().moment.wall.seconds();
    assert!(there - here > 3000.0, "the testbed's clock is ahead");
    claim(&ahead, &ask("b", [2, 3]), None).expect_err("the lease is seconds old");
    claim_work(&ahead, &ask_work("b", 1), None).expect_err("the lease is seconds old");
}

pub(super) fn the_moment_is_read_under_exclusion<T: Testbed>(bed: &T) {
    let stopped = Stopped::incrementing(bed, &[1]);
    let (engine, reader) = (bed.engine(), bed.engine());
    let (tell, told) = channel();
    let waiter = thread::spawn(move || {
        let mut last = None;
        let decided = decide(&engine, &keys_of([1]), None, |view| {
            last = Some(view.moment.clone());
            Ok::<_, ()>(increment(view, &[1]))
        });
        decided.unwrap();
        let _ = tell.send(());
        last.unwrap()
    });
    // An optimistic engine is through by now; then it had nothing to wait for.
    let waits = told.recv_timeout(Duration::from_millis(300)).is_err();
    let before = reader.view(&[Key::target(target(9))], None).unwrap().moment;
    let _ = stopped.finish();
    let decided = waiter.join().unwrap();
    if waits {
        // The boot-time clock cannot be set, so it is the better witness where there is one.
        let (then, now) = match (&before.boot, &decided.boot) {
            (Some(then), Some(now)) => (then.seconds, now.seconds),
            _ => (before.wall.seconds(), decided.wall.seconds()),
        };
        assert!(now >= then, "decided by a moment from before it had the exclusion");
    }
}
