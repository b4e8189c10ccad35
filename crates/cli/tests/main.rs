//! The command as scripts and people see it: the real binary, real files, real processes.

#![expect(clippy::disallowed_methods, reason = "tests are the world around the seam")]

mod answers;
mod arguments;
mod crash;
mod race;
mod readers;
mod run;
mod streams;
mod support;
mod verbs;
mod waiting;
