#![no_main]

#[path = "../src/targets.rs"]
mod all;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| all::targets::run("segment", bytes));
