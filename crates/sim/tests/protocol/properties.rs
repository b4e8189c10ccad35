//! The invariants M1 to M9 of the protocol, the property of groups, and what leases promise; and
//! that everything worth checking comes about at all.

use stateright::Property;

use crate::state::{
    COPIED, COPIED_COPY, COPIED_LOST, Pc, Promise, REDONE, RELEASED, RESTORED, State, TOOK_OVER,
    UNDONE, Val,
};
use crate::variant::Protocol;

/// The property of groups.
const GROUP: &str = "G: groups are whole and what was acknowledged survives";

/// What takes a second crash to come about.
pub(crate) const COPIES_LOST: &str = "an intent whose sync had failed is written anew";
pub(crate) const COPIES_TWICE: &str = "one that stands twice is written anew";

macro_rules! kept {
    ($promise:ident, $name:expr) => {
        Property::always($name, |_: &Protocol, s: &State| s.broken != Some(Promise::$promise))
    };
}

pub(crate) fn all() -> Vec<Property<Protocol>> {
    let mut all = invariants();
    all.extend(leases());
    all.extend(events());
    all
}

fn invariants() -> Vec<Property<Protocol>> {
    vec![
        Property::always("M1: somebody can always go on", |model: &Protocol, s: &State| {
            s.is_quiet()
                || (0..2).any(|c| {
                    let mut next = s.clone();
                    s.procs[c].pc != Pc::Idle && model.step(&mut next, c).is_some()
                })
        }),
        kept!(M2, "M2: a refused release removes nothing"),
        kept!(M3, "M3: what cannot be written down publishes nothing"),
        Property::always("M4: no record is torn", |_: &Protocol, s: &State| {
            s.records.iter().all(|cell| *cell.now() != Val::Torn)
        }),
        kept!(M5, "M5: one barrier per shard"),
        kept!(M6, "M6: success only after every directory was synced"),
        kept!(M7, "M7: a failed call puts back exactly what was there"),
        kept!(M8, "M8: what was put back is durable"),
        kept!(M9, "M9: no replacement crosses directories"),
        kept!(DecidedFirst, "I2: the decision is durable before anything is put back"),
        kept!(Finished, "I3: whoever finished an intent leaves nothing of it standing"),
        Property::always(GROUP, |_: &Protocol, s: &State| s.is_explained()),
    ]
}

fn leases() -> Vec<Property<Protocol>> {
    vec![
        Property::always("a target has one holder", |_: &Protocol, s: &State| s.has_one_holder()),
        kept!(FencesRise, "fences rise"),
        kept!(Explained, "what a call saw can be explained"),
    ]
}

macro_rules! happens {
    ($event:ident, $name:expr) => {
        Property::sometimes($name, |_: &Protocol, s: &State| s.happened & $event != 0)
    };
}

fn events() -> Vec<Property<Protocol>> {
    vec![
        happens!(TOOK_OVER, "a lease is taken over"),
        happens!(REDONE, "a dead writer's group is redone"),
        happens!(UNDONE, "a dead writer's group is undone"),
        happens!(RESTORED, "a failed call is put back"),
        happens!(COPIED, "a dead writer's intent is written anew"),
        happens!(COPIED_LOST, COPIES_LOST),
        happens!(COPIED_COPY, COPIES_TWICE),
        happens!(RELEASED, "a group is released"),
    ]
}
