//! The files engine from outside: real files, real kernel locks, real second processes.
//!
//! `table` makes a table and looks at every byte of it, `watch` records in what order calls
//! returned, `child` runs this binary again as another process. The rest mirrors `src/`.
//!
//! The tables are of durability `record` where a test does not ask for another; `files_group` runs
//! the same tests on tables of durability `group`.

#![expect(clippy::disallowed_methods, reason = "a test plays the disk and the other programs")]

#[cfg(test)]
mod barriers;
#[cfg(test)]
mod batch;
#[cfg(test)]
mod check;
#[cfg(test)]
mod child;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod fault;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod full;
#[cfg(test)]
mod group;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod locks;
#[cfg(test)]
mod open;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod probe;
#[cfg(test)]
mod race;
#[cfg(test)]
mod restored;
#[cfg(test)]
mod scan;
#[cfg(test)]
mod table;
#[cfg(test)]
mod watch;

/// What the tables of these tests promise.
#[cfg(test)]
const DURABILITY: ringfence_files::Durability = ringfence_files::Durability::Record;

#[cfg(test)]
use foreign::churn;
