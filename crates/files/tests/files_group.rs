//! The tests of `files` again, on tables of durability `group`.
//!
//! Left out is what makes tables of both durabilities by itself (`barriers`, `fault`, `full`, `scan`), what
//! is about a table that other programs use (`foreign`), and what makes no call on a table (`probe`).

#![expect(clippy::disallowed_methods, reason = "a test plays the disk and the other programs")]

#[cfg(test)]
#[path = "files/batch.rs"]
mod batch;
#[cfg(test)]
#[path = "files/check.rs"]
mod check;
#[cfg(test)]
#[path = "files/child.rs"]
mod child;
#[cfg(test)]
#[path = "files/damage.rs"]
mod damage;
#[cfg(test)]
#[path = "files/disk.rs"]
mod disk;
#[cfg(test)]
#[path = "files/group.rs"]
mod group;
#[cfg(test)]
#[path = "files/invariants.rs"]
mod invariants;
#[cfg(test)]
#[path = "files/locks.rs"]
mod locks;
#[cfg(test)]
#[path = "files/open.rs"]
mod open;
#[cfg(test)]
#[path = "files/parts.rs"]
mod parts;
#[cfg(test)]
#[path = "files/race.rs"]
mod race;
#[cfg(test)]
#[path = "files/restored.rs"]
mod restored;
#[cfg(test)]
#[path = "files/table.rs"]
mod table;
#[cfg(test)]
#[path = "files/watch.rs"]
mod watch;

/// What the tables of these tests promise.
#[cfg(test)]
const DURABILITY: ringfence_files::Durability = ringfence_files::Durability::Group;

#[cfg(test)]
fn churn(_: &ringfence_env::World, _: &std::path::Path, _: &str) {
    panic!("this role is played beside another program, on a table of durability `record`");
}
