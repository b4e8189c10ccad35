//! Small file systems that are filled up to the last block, inode or byte of a quota.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

use crate::context::{Context, Trouble, command};
use crate::guard::{self, Held, Resource};

/// What runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scarce {
    Blocks,
    /// Of a file system that keeps data apart from its trees, as those in use do.
    Data,
    Inodes,
    Quota,
}

/// A file system and what it lacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) fs: &'static str,
    pub(crate) scarce: Scarce,
}

/// Every kind that is tried.
pub(crate) const KINDS: [Kind; 7] = [
    Kind { fs: "ext4", scarce: Scarce::Blocks },
    Kind { fs: "ext4", scarce: Scarce::Inodes },
    Kind { fs: "xfs", scarce: Scarce::Blocks },
    Kind { fs: "btrfs", scarce: Scarce::Blocks },
    Kind { fs: "btrfs", scarce: Scarce::Quota },
    Kind { fs: "tmpfs", scarce: Scarce::Blocks },
    Kind { fs: "tmpfs", scarce: Scarce::Inodes },
];

/// How much one unit is: a block, or an inode.
const UNIT: usize = 4096;
/// Units that can be given back one by one.
pub(crate) const UNITS: usize = 160;

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Volume {
    // In the order in which they must go.
    _mount: Held,
    _loop: Option<Held>,
    dir: PathBuf,
    kind: Kind,
}

impl Volume {
    /// Makes and mounts one.
    pub(crate) fn new(context: &Context, kind: Kind) -> Result<Self, Trouble> {
        let dir = context.dir("full")?;
        if kind.fs == "tmpfs" {
            let options =
                if kind.scarce == Scarce::Inodes { c"size=16m,nr_inodes=1000" } else { c"size=6m" };
            rustix::mount::mount("tmpfs", &dir, "tmpfs", MountFlags::empty(), Some(options))
                .map_err(io::Error::from)?;
            let mount = Held::new(Resource::Mount(dir.clone()));
            return Self { _mount: mount, _loop: None, dir, kind }.ready();
        }
        let file = dir.with_extension("img");
        File::create(&file)?.set_len(match kind.fs {
            "ext4" => 16 << 20,
            "xfs" => 40 << 20,
            // The smallest that there is.
            _ if kind.scarce == Scarce::Data => 112 << 20,
            _ => 24 << 20,
        })?;
        let (device, attached) = guard::attach_loop(&file)?;
        let path = device.to_string_lossy();
        match kind.fs {
            "ext4" => {
                let inodes = if kind.scarce == Scarce::Inodes { "1024" } else { "4096" };
                let lazy = "lazy_itable_init=0,lazy_journal_init=0";
                let flags = ["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=4", "-N", inodes];
                command("mkfs.ext4", &[&flags[..], &["-E", lazy, &path]].concat())?;
            }
            "xfs" => {
                command("mkfs.xfs", &["-q", "-f", "--unsupported", "-s", "size=4096", &path])?;
            }
            _ if kind.scarce == Scarce::Data => {
                command("mkfs.btrfs", &["-q", "-f", &path])?;
            }
            _ => {
                command("mkfs.btrfs", &["-q", "-f", "--mixed", &path])?;
            }
        }
        rustix::mount::mount(&device, &dir, kind.fs, MountFlags::empty(), None)
            .map_err(io::Error::from)?;
        let mount = Held::new(Resource::Mount(dir.clone()));
        if kind.scarce == Scarce::Quota {
            let dir = dir.to_string_lossy();
            command("btrfs", &["quota", "enable", &dir])?;
            command("btrfs", &["qgroup", "limit", "5M", &dir])?;
        }
        Self { _mount: mount, _loop: Some(attached), dir, kind }.ready()
    }

    fn ready(self) -> Result<Self, Trouble> {
        std::fs::create_dir(self.ballast())?;
        Ok(self)
    }

    /// Whether bytes that are written over stay where they are.
    pub(crate) fn keeps_places(&self) -> bool {
        self.kind.fs != "btrfs"
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }

    /// A path on it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Fills it until nothing more fits, but for `free` units.
    pub(crate) fn fill(&self, free: usize) -> Result<(), Trouble> {
        let dir = self.ballast();
        for unit in 0..UNITS {
            let unit = dir.join(format!("unit-{unit}"));
            if !unit.exists() {
                put(&unit, if self.kind.scarce == Scarce::Inodes { 0 } else { UNIT })?;
            }
        }
        self.sync()?;
        if self.kind.scarce == Scarce::Inodes {
            for number in 0.. {
                if File::create_new(dir.join(format!("more-{number}"))).is_err_and(|e| is_full(&e))
                {
                    break;
                }
            }
        } else {
            // Large pieces first; what one file system still takes after a sync another does not.
            for (round, size) in [1 << 20, 1 << 16, UNIT, UNIT, UNIT].into_iter().enumerate() {
                for number in 0.. {
                    let path = dir.join(format!("more-{round}-{number}"));
                    match put(&path, size) {
                        Ok(()) => {}
                        Err(error) if is_full(&error) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                // With a quota or copies on write it may be full itself.
                let _ = self.sync();
            }
        }
        for unit in 0..free {
            std::fs::remove_file(dir.join(format!("unit-{unit}")))?;
        }
        let _ = self.sync();
        Ok(())
    }

    /// Makes room again.
    pub(crate) fn relax(&self) -> Result<(), Trouble> {
        for entry in std::fs::read_dir(self.ballast())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("more-") {
                std::fs::remove_file(entry.path())?;
            }
        }
        self.sync()?;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        rustix::fs::syncfs(File::open(&self.dir)?).map_err(io::Error::from)
    }

    /// Lets nobody write, or everybody again.
    pub(crate) fn read_only(&self, yes: bool) -> io::Result<()> {
        let flags = if yes { MountFlags::RDONLY } else { MountFlags::empty() };
        rustix::mount::mount_remount(&self.dir, flags, c"").map_err(io::Error::from)
    }
}

/// Writes a file as far as it goes: what fits of it stays.
fn put(path: &Path, size: usize) -> io::Result<()> {
    File::create(path)?.write_all(&vec![b'x'; size])
}

fn is_full(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOSPC, Errno::DQUOT]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
