//! Stored records: other programs' forms, our own, round trips, damage.

mod damage;
mod foreign;
mod own;
mod round_trip;
