//! A journalled ext4 for the measurement, in an image that nobody else sees.
//!
//! The image is mounted in a mount namespace of the measuring process and its name is removed at
//! once, so that the kernel takes mount, loop device and image away when that process ends, however
//! it ends.

use std::path::Path;
use std::process::{Command, Stdio};

use ringfence::World;
use ringfence_env::child::SignalQueue;
use ringfence_env::{OpenWrite, steps};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::scratch::Scratch;
use super::{Args, failed, on_directory};
use crate::exit::Exit;
use crate::output::{Complaint, note};

const IMAGE_MIB: usize = 512;

/// Makes the image and measures in a process of its own.
pub(super) fn outside(args: &Args) -> Result<Exit, Complaint> {
    if !rustix::process::geteuid().is_root() {
        let why = "--ext4 mounts an image, which needs root; without it, name a directory on a \
                   journalled file system with --dir";
        return Err(Complaint::new(Exit::FAILED, "failed", why));
    }
    // Before any thread: the child must hear them with the mask that we were started with.
    let signals = SignalQueue::block(&[SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| failed("cannot queue signals", &error))?;
    let world = World::system();
    let scratch = Scratch::new(&world, args.dir.as_deref(), "ext4")
        .map_err(|error| failed("cannot make a directory for the image", &error))?;
    let (image, point) = (scratch.path().join("image"), scratch.path().join("mount"));
    note(&format!("making a journalled ext4 of {IMAGE_MIB} MiB"));
    let make = || -> std::io::Result<()> {
        // Written, not sparse: the image must not allocate while it is measured.
        let mut file = world.fs.open_write(&image, OpenWrite::CreateNew, 0o600)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..IMAGE_MIB {
            steps::write_all(&mut *file, &zeros)?;
        }
        file.sync()?;
        world.fs.mkdir(&point, 0o700)
    };
    make().map_err(|error| failed("cannot make the image", &error))?;
    call(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-O", "has_journal"])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"])
            .arg(&image),
    )?;
    let list = |numbers: &[u16]| numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let program = std::env::current_exe().map_err(|error| failed("cannot find myself", &error))?;
    let mut inner = Command::new("unshare");
    inner.args(["--mount", "--propagation", "private", "--"]).arg(program).arg("bench");
    inner.args(["--targets", &args.targets.to_string(), "--rounds", &args.rounds.to_string()]);
    inner.args(["--shards", &list(&args.shards), "--widths", &list(&args.widths)]);
    inner.args(["--idle-wait", &format!("{}ms", args.idle_wait.as_millis())]);
    inner.arg("--image").arg(&image).arg("--mount-point").arg(&point);
    if args.json {
        inner.arg("--json");
    }
    let child =
        signals.spawn(&mut inner, true).map_err(|error| failed("cannot start unshare", &error))?;
    loop {
        let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG)
            .map_err(|error| failed("cannot wait for the measuring process", &error))?;
        if let Some((_, status)) = status {
            return Ok(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit(u8::try_from(code).unwrap_or(u8::MAX)),
                (None, number) => Exit::signal(number.unwrap_or_default()),
            });
        }
        let _ = signals.wait(std::time::Duration::from_secs(1));
        while let Ok(Some(received)) = signals.take() {
            if [SIGHUP, SIGINT, SIGTERM].contains(&received.number) {
                // It ends between two cycles; asking twice does no harm.
                let _ = ringfence_env::child::signal_process(child, received.number);
            }
        }
    }
}

/// Mounts the image, removes its name, measures, unmounts.
pub(super) fn inside(args: &Args, image: &Path, point: &Path) -> Result<Exit, Complaint> {
    let world = World::system();
    call(Command::new("mount").args(["-o", "loop,noatime"]).arg(image).arg(point))?;
    let _mounted = Mounted(point);
    world.fs.unlink(image).map_err(|error| failed("cannot remove the image's name", &error))?;
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
        if let Err(complaint) = call(Command::new("umount").arg(self.0)) {
            note(&complaint.message);
        }
    }
}

fn loop_device(point: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let point = point.to_str()?;
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == Some(point))?;
    line.split_once(" - ")?.1.split(' ').nth(1).map(str::to_owned)
}

/// Runs a tool of the system; its own words are part of the complaint.
fn call(command: &mut Command) -> Result<(), Complaint> {
    let name = command.get_program().to_string_lossy().into_owned();
    let complain = |why: &str| Complaint::new(Exit::FAILED, "failed", format!("{name}: {why}"));
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| complain(&format!("cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(complain(String::from_utf8_lossy(&output.stderr).trim()))
}
