//! The targets, which the tests of the crate share.

#![allow(dead_code, unreachable_pub, reason = "each binary is one target")]

#[path = "../../crates/journal/tests/fuzz/allocation.rs"]
pub(crate) mod allocation;
#[path = "../../crates/journal/tests/fuzz/memory.rs"]
pub(crate) mod memory;
#[path = "../../crates/journal/tests/fuzz/seal.rs"]
pub(crate) mod seal;
#[path = "../../crates/journal/tests/fuzz/seeds.rs"]
pub(crate) mod seeds;
#[path = "../../crates/journal/tests/fuzz/targets.rs"]
pub(crate) mod targets;
