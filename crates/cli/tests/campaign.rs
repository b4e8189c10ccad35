//! `ringfence campaign` as processes: whole runs with a made-up worker, and what faults do to them.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test is the world around the seam, and its panic is its answer"
)]

#[path = "campaign/faults.rs"]
mod faults;
#[cfg(feature = "real-campaign")]
#[path = "campaign/real.rs"]
mod real;
#[path = "campaign/runs.rs"]
mod runs;
mod stopping;
#[path = "campaign/support.rs"]
mod support;
#[path = "campaign/workers.rs"]
mod workers;
