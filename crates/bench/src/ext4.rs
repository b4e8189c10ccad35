//! A journalled ext4 for the measurement, in an image that nobody else sees.
//!
//! The image is mounted in a mount namespace of the measuring process and its name is removed at once,
//! so that the kernel takes mount, loop device and image away when that process ends, however it ends.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::args::Args;
use crate::contender::call;
use crate::run::{on_directory, scratch, tell, watch_signals};
use crate::{Result, during};

/// Enough for every server's log at its default size.
const IMAGE_MIB: u64 = 4096;

/// Makes the image and measures in a process of its own.
pub(crate) fn outside(args: &Args) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        return Err("--ext4 mounts an image, which needs root; without it, name a directory on a \
                    journalled file system with --on"
            .into());
    }
    let signal = watch_signals()?;
    let scratch = scratch(args.on.as_deref())?;
    let (image, point) = (scratch.path().join("image"), scratch.path().join("mount"));
    tell(&format!("making a journalled ext4 of {IMAGE_MIB} MiB"));
    write_image(&image)?;
    std::fs::create_dir(&point).map_err(during("make the mount point"))?;
    call(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-O", "has_journal"])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"])
            .arg(&image),
    )?;
    let program = std::env::current_exe().map_err(during("find this program"))?;
    let mut inner = Command::new("unshare");
    inner.args(["--mount", "--propagation", "private", "--"]).arg(program);
    inner.args(std::env::args_os().skip(1).filter(|word| word != "--ext4"));
    inner.arg("--image").arg(&image).arg("--mount-point").arg(&point);
    let mut child = inner.spawn().map_err(during("start unshare"))?;
    let mut told = 0;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(during("wait for the measurement"))? {
            break status;
        }
        let received = signal.load(Ordering::Relaxed);
        if received != told {
            // It ends between two blocks; asking twice does no harm.
            let _ = rustix::process::kill_process(Pid::from_child(&child), Signal::TERM);
            told = received;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    scratch.close().map_err(during("remove the directory of the image"))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)))
}

/// Written, not sparse: the image must not allocate while it is measured.
fn write_image(path: &Path) -> Result<()> {
    let mut file = std::fs::File::create_new(path).map_err(during("make the image"))?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..IMAGE_MIB {
        file.write_all(&zeros).map_err(during("write the image"))?;
    }
    file.sync_all().map_err(during("sync the image"))
}

/// Mounts the image, removes its name, measures, unmounts.
pub(crate) fn inside(args: &Args, image: &Path, point: &Path) -> Result<ExitCode> {
    call(Command::new("mount").args(["-o", "loop,noatime"]).arg(image).arg(point))?;
    let _mounted = Mounted(point);
    std::fs::remove_file(image).map_err(during("remove the image's name"))?;
    let device = loop_device(point);
    // Past the cache of the file system below, as a disk would be.
    let direct = device.as_deref().is_some_and(|device| {
        let mut losetup = Command::new("losetup");
        losetup.args(["--direct-io=on", device]).stderr(Stdio::null());
        losetup.status().is_ok_and(|status| status.success())
    });
    let note =
        format!("with a journal, in a loop image{}", if direct { ", direct I/O" } else { "" });
    on_directory(args, Some(point), Some(&note))
}

/// Unmounts when dropped; the end of the process would do it too.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = call(Command::new("umount").arg(self.0)) {
            tell(&error.to_string());
        }
    }
}

fn loop_device(point: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let point = point.to_str()?;
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == Some(point))?;
    line.split_once(" - ")?.1.split(' ').nth(1).map(str::to_owned)
}
