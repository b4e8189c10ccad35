//! A worker: any command that speaks the worker protocol (`campaign/PROTOCOL.md`).
//!
//! W1. A worker is believed only as far as it can be checked: the build-id of its first answer, the
//!     digest of the seed it read, the targets it answers for, the digest of each output.
//! W2. A worker that is silent for too long, dies, or says what is no protocol is killed with
//!     everything it started; only the request in progress is lost.
//! W3. No worker outlives its coordinator: its standard input ends, and the kernel kills it.
//!
//! ```text
//! Down -[start, hello]-> Ready -[request]-> Busy -[answer]-> Ready
//!   ^                                        \-[silence, death, garbage, cancel]-> Down
//! ```

mod answers;
mod process;

pub(crate) use answers::{Hello, Outcome, SolveAnswer, TraceAnswer, VerifyAnswer};
pub(crate) use process::{Launch, Patience, Worker, WorkerError};
