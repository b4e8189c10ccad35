//! What the world gives: a file system, kernel locks, clocks, randomness, other processes.
//!
//! Every input or output of the product goes through this crate, so that one seam serves fault
//! injection, simulation and the counters of the benchmarks. `clippy.toml` bans the same calls
//! everywhere else.
//!
//! | module | holds |
//! |---|---|
//! | [`fs`] | the file-system trait and its contract |
//! | [`real`] | Linux |
//! | [`lock`] | a kernel lock with a deadline |
//! | [`clock`], [`entropy`], [`world`] | the rest of the world, bundled |
//! | [`shared`] | memory that processes share, and waking each other |
//! | [`steps`] | named durable steps: the order of calls is the content |
//! | [`fault`] | a wrapper that counts calls, fails the N-th, cuts writes short |
//! | [`child`] | a child, its signals, its descendants |
//! | [`process`], [`mount`] | a second process for the lock probe; what is mounted where |

pub mod binding;
pub mod child;
pub mod clock;
pub mod entropy;
pub mod fault;
mod ferry;
pub mod fs;
pub mod lock;
pub mod mount;
pub mod process;
mod process_id;
pub mod real;
pub mod shared;
pub mod steps;
pub mod world;

pub use binding::Binding;
pub use clock::{Clock, Deadline, SystemClock};
pub use entropy::{Entropy, SystemEntropy};
pub use fs::{
    FileKind, Fs, Identity, LockFd, LockMode, Name, OpenWrite, RandomFile, Read, Stat, WriteFile,
};
pub use lock::{FileLock, LockError};
pub use process_id::process_id;
pub use real::RealFs;
pub use shared::{LocalWords, SharedWords};
pub use world::{HostIdentity, World};
