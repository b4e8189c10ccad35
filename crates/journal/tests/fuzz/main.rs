//! The targets of `cargo xtask fuzz`, run on what was found before and on many small changes of it.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that fails by panicking"
)]

mod allocation;
mod memory;
mod seal;
mod seeds;
mod targets;

use std::path::Path;

/// Changes of the inputs that are known, for each target.
const CHANGES: u64 = 3000;

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// A few changes as fuzzers make them.
    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(8) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.byte(),
                2 => bytes.truncate(at),
                3 => {
                    let from = self.below(other.len());
                    let len = self.below(64).min(other.len() - from);
                    bytes.splice(at..at, other[from..from + len].iter().copied());
                }
                // A length or a number at its limits.
                4 | 5 => {
                    let word = [0, 1, 255, 1 << 31, u64::from(u32::MAX), u64::MAX][self.below(6)];
                    let len = [1, 4, 8][self.below(3)].min(bytes.len() - at);
                    bytes[at..at + len].copy_from_slice(&word.to_le_bytes()[..len]);
                }
                6 => {
                    let len = self.below(600).min(bytes.len() - at);
                    bytes[at..at + len].fill(0);
                }
                _ => bytes.extend((0..self.below(20)).map(|_| self.byte()).collect::<Vec<_>>()),
            }
        }
    }
}

/// Inputs that once broke something, and some that reach far.
fn kept(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "nothing is kept for {name}");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn try_all(name: &str) {
    let mut inputs = seeds::seeds(name);
    inputs.extend(kept(name));
    for input in &inputs {
        targets::run(name, input);
    }
    let mut dice = Dice(7);
    for _ in 0..CHANGES {
        let mut input = inputs[dice.below(inputs.len())].clone();
        let other = dice.below(inputs.len());
        dice.change(&mut input, &inputs[other]);
        let seen = std::panic::catch_unwind(|| targets::run(name, &input));
        assert!(seen.is_ok(), "{name} failed on {input:?}");
    }
}

#[test]
fn frames_of_any_bytes() {
    try_all("frame");
}

#[test]
fn checkpoints_of_any_bytes() {
    try_all("checkpoint");
}

#[test]
fn headers_and_marks_of_any_bytes() {
    try_all("segment");
}

#[test]
fn segments_of_any_bytes_are_replayed() {
    try_all("replay");
}

#[test]
fn shared_memory_of_any_words() {
    try_all("hints");
}

#[test]
fn tables_of_any_bytes() {
    try_all("table");
}

#[test]
fn every_target_is_tried_here() {
    let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
    assert_eq!(names, ["frame", "checkpoint", "segment", "replay", "hints", "table"]);
}
