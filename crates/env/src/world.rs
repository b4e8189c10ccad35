//! The world, bundled: what an engine is opened with.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, SystemClock};
use crate::entropy::{Entropy, SystemEntropy};
use crate::fs::{Fs, Read};
use crate::real::RealFs;

/// A file system, a clock, randomness, and the name of the host they belong to.
#[derive(Clone)]
pub struct World {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// This host.
    pub host: Arc<HostIdentity>,
}

/// This host in this boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The host's name, for people.
    pub name: Arc<str>,
    /// The kernel's identity of this boot; absent where the kernel does not tell.
    pub boot: Option<Arc<str>>,
    /// The user this process acts as.
    pub uid: u32,
}

impl World {
    /// The world of this machine.
    pub fn system() -> Self {
        let fs = RealFs;
        Self {
            host: Arc::new(HostIdentity::read(&fs)),
            fs: Arc::new(fs),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// The same world with another file system.
    #[must_use]
    pub fn with_fs(&self, fs: Arc<dyn Fs>) -> Self {
        Self { fs, ..self.clone() }
    }

    /// The same world with another clock.
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self.clone() }
    }

    /// A text that no other process or thread makes, for the names of temporary files.
    pub fn unique(&self) -> io::Result<String> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut salt = [0; 6];
        self.entropy.fill(&mut salt)?;
        let salt = u64::from_be_bytes([0, 0, salt[0], salt[1], salt[2], salt[3], salt[4], salt[5]]);
        Ok(format!("{}-{count}-{salt:012x}", std::process::id()))
    }
}

impl HostIdentity {
    fn read(fs: &dyn Fs) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into();
        let path = std::path::Path::new("/proc/sys/kernel/random/boot_id");
        let boot = match fs.read(path, 128) {
            Ok(Read::Bytes(bytes)) => {
                let text = String::from_utf8_lossy(&bytes).trim().to_owned();
                (!text.is_empty()).then(|| text.into())
            }
            _ => None,
        };
        Self { name, boot, uid: rustix::process::geteuid().as_raw() }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("host", &self.host).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_knows_its_host_and_its_boot_and_makes_unique_names() {
        let world = World::system();
        assert!(!world.host.name.is_empty());
        assert!(world.host.boot.is_some());
        assert_ne!(world.unique().unwrap(), world.unique().unwrap());
        let monotonic = world.clock.monotonic();
        assert!(world.clock.boottime() >= monotonic);
        assert_ne!(world.entropy.nonce().unwrap(), world.entropy.nonce().unwrap());
    }
}
