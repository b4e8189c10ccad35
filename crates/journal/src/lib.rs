//! The journal engine: one host, one file that is appended to, one sync for all who commit at once.

pub mod audit;
pub mod checkpoint;
pub mod codec;
mod commit;
mod each;
pub mod engine;
pub mod frame;
pub mod hints;
pub mod journal;
pub mod layout;
mod maintain;
pub mod meta;
pub mod open;
mod recover;
pub mod replica;
pub mod segment;

pub use engine::JournalEngine;
pub use open::{InitError, InitOptions, OpenError};
