//! Randomness.

use std::fmt;
use std::io;

use rustix::rand::GetRandomFlags;

/// A source of random bytes.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// A random 128-bit number.
    fn nonce(&self) -> io::Result<u128> {
        let mut bytes = [0; 16];
        self.fill(&mut bytes)?;
        Ok(u128::from_le_bytes(bytes))
    }
}

/// The kernel's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn fill(&self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::rand::getrandom(&mut *bytes, GetRandomFlags::empty()) {
                Ok(count) => bytes = bytes.get_mut(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
