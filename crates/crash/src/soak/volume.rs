//! A file system whose power can be cut.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::block;
use crate::context::{Context, Trouble, command};
use crate::guard::{self, Held, Resource};

/// On a loop device over a file in the scratch space.
#[derive(Debug)]
pub(super) struct Volume {
    // In the order in which they must go.
    mounted: Option<Held>,
    _loop: Held,
    pub(super) fs: &'static str,
    device: PathBuf,
    dir: PathBuf,
    file: PathBuf,
}

/// Large enough for the log of xfs and for the work items of all rounds.
const BYTES: u64 = 64 << 20;

impl Volume {
    /// Makes and mounts one.
    pub(super) fn new(context: &Context, fs: &'static str) -> Result<Self, Trouble> {
        let file = context.dir("volume")?.join("disk.img");
        File::create(&file)?.set_len(BYTES)?;
        let (device, attached) = guard::attach_loop(&file)?;
        block::make_fs_of(fs, &device, "8192")?;
        let dir = context.dir("soak")?;
        let mut volume = Self { mounted: None, _loop: attached, fs, device, dir, file };
        volume.mount()?;
        Ok(volume)
    }

    /// Where the table is.
    pub(super) fn store(&self) -> PathBuf {
        self.dir.join("table")
    }

    /// Makes everything durable.
    pub(super) fn sync(&self) -> Result<(), Trouble> {
        command("sync", &["-f", &self.dir.to_string_lossy()]).map(|_| ())
    }

    /// Mounts it, which replays its journal.
    pub(super) fn mount(&mut self) -> Result<(), Trouble> {
        rustix::mount::mount(&self.device, &self.dir, self.fs, MountFlags::empty(), None)
            .map_err(std::io::Error::from)?;
        self.mounted = Some(Held::new(Resource::Mount(self.dir.clone())));
        Ok(())
    }

    /// Drops everything that is not on the device: from now on every call fails.
    #[expect(unsafe_code, reason = "there is no safe call for it")]
    pub(super) fn cut(&self) -> Result<(), Trouble> {
        const GOINGDOWN: libc::c_ulong = 0x8004_587d;
        const WITHOUT_LOG: u32 = 2;
        let dir = File::open(&self.dir)?;
        let how = WITHOUT_LOG;
        // SAFETY: the descriptor is open and the kernel reads one 32-bit number that outlives the call.
        let done = unsafe { libc::ioctl(dir.as_raw_fd(), GOINGDOWN, &raw const how) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
    }

    /// Unmounts it. Nothing of it may stay: a mount that is only detached would go on.
    pub(super) fn unmount(&mut self) -> Result<(), Trouble> {
        for _ in 0..2_000 {
            match rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW) {
                Err(rustix::io::Errno::BUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                done => {
                    done.map_err(std::io::Error::from)?;
                    // Nothing is mounted there now, so that letting go of it does nothing.
                    self.mounted = None;
                    return Ok(());
                }
            }
        }
        Err(Trouble::Failed("the file system stays busy though everybody was killed".to_owned()))
    }

    /// Copies the disk aside as it is; only while it is not mounted.
    pub(super) fn copy(&self) -> Result<(), Trouble> {
        let (from, to) = (self.file.to_string_lossy(), self.file.with_extension("cut"));
        command("cp", &["--sparse=always", &from, &to.to_string_lossy()]).map(|_| ())
    }

    /// Keeps the last copy.
    pub(super) fn keep(&self, to: &Path) -> Result<(), Trouble> {
        let from = self.file.with_extension("cut");
        command("cp", &["--sparse=always", &from.to_string_lossy(), &to.to_string_lossy()])
            .map(|_| ())
    }
}
