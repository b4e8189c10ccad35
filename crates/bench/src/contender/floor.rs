//! The floor: what durable 4 KiB writes cost on this disk.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::{Claimed, Held, Keeper, Session};
use crate::{Result, during};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

/// A file of zeros that were written, not merely reserved: a write into it changes no metadata.
pub(super) struct Floor {
    file: File,
    next: u64,
}

fn path(place: &Path, index: usize) -> PathBuf {
    place.join(format!("floor-{index}"))
}

/// Makes a file for each process.
pub(super) fn set_up(place: &Path, processes: usize) -> Result<Keeper> {
    for index in 0..processes {
        let mut file = File::create_new(path(place, index)).map_err(during("make the file"))?;
        for _ in 0..BLOCKS {
            file.write_all(&[0; BLOCK]).map_err(during("write zeros"))?;
        }
        file.sync_all().map_err(during("sync the zeros"))?;
    }
    Ok(Box::new(()))
}

impl Floor {
    pub(super) fn open(place: &Path, index: usize) -> Result<Self> {
        let file = OpenOptions::new().write(true).open(path(place, index));
        Ok(Self { file: file.map_err(during("open the file"))?, next: 0 })
    }

    fn write(&mut self) -> Result<()> {
        let offset = self.next % BLOCKS * BLOCK as u64;
        self.next += 1;
        self.file.write_all_at(&[1; BLOCK], offset).map_err(during("write"))?;
        self.file.sync_data().map_err(during("sync"))
    }
}

impl Session for Floor {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        self.write()?;
        Ok(Claimed::Held(Held::Token { targets: targets.to_vec(), token: String::new() }))
    }

    fn release(&mut self, _held: &Held) -> Result<bool> {
        self.write().map(|()| true)
    }

    fn heartbeat(&mut self, _held: &[Held]) -> Result<()> {
        self.write()
    }
}
