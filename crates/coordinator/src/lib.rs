//! Campaigns: several coordinators that share one lease store, each with warm workers.
//!
//! A *coordinator* turns seeds into directed replay jobs, leases the targets of a job as one group,
//! has a worker solve them, and publishes what was found exactly once. Coordinators are processes of
//! their own; a *supervisor* starts them, and the fuzzer, and reports.
//!
//! ```text
//! seeds -> trace -> propose -> reserve -> look -> claim group and execution -> solve, verify
//!       -> stage -> begin_commit -> publish -> complete -> release
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `supervisor`, `fuzzer` | the processes of a run: started, watched, ended, reaped |
//! | `coordinator` | the loop of one coordinator |
//! | `seeds`, `ledger`, `knowledge`, `propose`, `job` | what there is to do |
//! | `admit`, `keeper` | leases: taken whole, renewed in one batch, given back |
//! | `slot`, `worker`, `showmap` | workers: started, heard, checked, replaced |
//! | `commit`, `publish`, `recover` | results: fenced, published once, finished for the dead |
//! | `events`, `report` | what happened, and what it comes to |

mod admit;
mod commit;
mod config;
mod context;
mod coordinator;
mod digest;
mod error;
mod events;
mod exec;
mod files;
mod fuzzer;
mod job;
mod keeper;
mod knowledge;
mod layout;
mod ledger;
mod propose;
mod publish;
mod recover;
mod report;
mod seeds;
mod showmap;
mod slot;
mod supervisor;
mod usage;
mod worker;

pub use config::{Arm, Hold, HoldAt, StoreEngine};
pub use coordinator::coordinate;
pub use error::Error;
pub use exec::{Reexec, exec_under};
pub use fuzzer::Imports;
pub use report::{
    Claims, Commits, Coverage, CpuSplit, Duplicates, Ended, Heartbeats, Published, Report, Spread,
};
pub use supervisor::{Options, supervise};
