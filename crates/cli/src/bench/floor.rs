//! The raw floor: what two durable 4 KiB writes cost on this disk.

use std::io;
use std::path::Path;
use std::time::Duration;

use ringfence::World;
use ringfence_env::{OpenWrite, WriteFile, steps};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

/// A file of zeros that were written, not merely reserved: a write into it changes no metadata.
#[derive(Debug)]
pub(super) struct Floor {
    file: Box<dyn WriteFile>,
    next: u64,
}

impl Floor {
    /// Makes the file.
    pub(super) fn new(world: &World, path: &Path) -> io::Result<Self> {
        let mut file = world.fs.open_write(path, OpenWrite::CreateNew, 0o600)?;
        for _ in 0..BLOCKS {
            steps::write_all(&mut *file, &[0; BLOCK])?;
        }
        file.sync()?;
        Ok(Self { file, next: 0 })
    }

    /// Writes and syncs twice, at the next two blocks; how long that took.
    pub(super) fn cycle(&mut self, world: &World) -> io::Result<Duration> {
        let began = world.clock.monotonic();
        for byte in [1, 2] {
            let offset = self.next % BLOCKS * BLOCK as u64;
            self.next += 1;
            if self.file.write_at(&[byte; BLOCK], offset)? != BLOCK {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.file.sync_data()?;
        }
        Ok(world.clock.monotonic().saturating_sub(began))
    }
}
