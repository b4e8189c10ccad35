//! Short digests, for names and checks.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The first 16 bytes of a SHA-256, in hex.
pub(crate) fn short(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
