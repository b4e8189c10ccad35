//! Everything a run mounts, attaches or starts, and its removal.
//!
//! Each thing is held by a guard that removes it when dropped, in a panic too. INT, TERM and HUP
//! remove all of it, newest first. After a KILL the [watcher](mod@watch) does: loop and zram devices
//! have notes that tell it what is whose. If it was killed as well, the mounts end with their
//! namespace, and the next run removes what a maker that is gone has left.

mod watch;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};

use crate::context::{Context, Trouble, command};

pub(crate) use watch::{WatchArgs, watch};

/// Something that must not outlive the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A mount point.
    Mount(PathBuf),
    /// An attached loop device.
    Loop(PathBuf),
    /// A zram device by number.
    Zram(u32),
    /// A process by number.
    Process(u32),
    /// A directory that is empty by then, or a tree.
    Dir(PathBuf),
}

static HELD: Mutex<Vec<(u64, Resource)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static CLOSING: AtomicBool = AtomicBool::new(false);
/// Held while something is made that a note must tell of; never while this process is replaced.
static MAKING: Mutex<()> = Mutex::new(());
/// One file per device, named like it, with the number of the process that made it.
const NOTES: &str = "/run/ringfence-crash";

/// Removes its resource when dropped.
#[must_use = "what is not held is removed at once"]
#[derive(Debug)]
pub(crate) struct Held(u64);

impl Held {
    /// Holds something that was just made.
    #[expect(clippy::needless_pass_by_value, reason = "it is held from now on")]
    pub(crate) fn new(resource: Resource) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        HELD.lock().unwrap().push((id, resource.clone()));
        if CLOSING.load(Ordering::SeqCst) {
            release(&resource);
            // The process is about to end.
            std::thread::sleep(Duration::from_mins(1));
        }
        Self(id)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let found = {
            let held = HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            held.iter().find(|(id, _)| *id == self.0).map(|(_, resource)| resource.clone())
        };
        if let Some(resource) = found {
            release(&resource);
            HELD.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .retain(|(id, _)| *id != self.0);
        }
    }
}

fn release(resource: &Resource) {
    match resource {
        Resource::Mount(path) => {
            for _ in 0..200 {
                match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
                    Err(rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(5)),
                    _ => return,
                }
            }
            let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        }
        Resource::Loop(device) => {
            // One that is gone already, because its last user left, is an error here and fine.
            let _ = command("losetup", &["-d", &device.to_string_lossy()]);
            forget(&device.file_name().unwrap_or_default().to_string_lossy());
        }
        Resource::Zram(number) => remove_zram(*number),
        Resource::Process(pid) => {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                // With what it started, where it leads a group.
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        Resource::Dir(path) => {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Must outlive everything that is held.
#[must_use]
#[derive(Debug)]
pub(crate) struct Guard {
    _watcher: watch::Watcher,
}

/// Handles INT, TERM and HUP, arranges for KILL, and removes what an earlier run has left.
pub(crate) fn install() -> Result<Guard, Trouble> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    sweep(|maker| !Path::new(&format!("/proc/{maker}")).exists());
    sweep_dirs();
    if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                CLOSING.store(true, Ordering::SeqCst);
                let error = hand_over(signal);
                eprintln!("interrupted, and cannot clear up apart: {error}");
                release_all();
                std::process::exit(128 + signal);
            }
        });
    }
    Ok(Guard { _watcher: watch::Watcher::start()? })
}

/// Becomes a process that only clears up: no other thread may make anything new meanwhile.
fn hand_over(signal: i32) -> io::Error {
    let _making = MAKING.lock();
    let held = HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return error,
    };
    let mut command = Command::new(own);
    command.arg("clear").arg(signal.to_string());
    command.args(held.iter().map(|(_, resource)| resource.word()));
    command.exec()
}

/// Flags of `clear`.
#[derive(clap::Args, Debug)]
pub(crate) struct ClearArgs {
    /// The signal that came
    signal: i32,
    /// What is to be removed, oldest first
    held: Vec<String>,
}

/// Removes what an interrupted run held.
pub(crate) fn clear(args: &ClearArgs) -> ExitCode {
    let resources = args.held.iter().filter_map(|word| Resource::from_word(word));
    *HELD.lock().unwrap() = resources.map(|resource| (0, resource)).collect();
    // A thread may have mounted something and not come to hold it.
    let own = Scratch::place();
    let mut points = watch::mounts_in(&own);
    points.retain(|point| *point != own);
    let mut held = HELD.lock().unwrap();
    points.retain(|point| !held.iter().any(|(_, held)| *held == Resource::Mount(point.clone())));
    held.extend(points.into_iter().map(|point| (0, Resource::Mount(point))));
    drop(held);
    release_all();
    sweep(|maker| maker == std::process::id());
    eprintln!("interrupted; everything is removed");
    ExitCode::from(u8::try_from(128 + args.signal).unwrap_or(1))
}

impl Resource {
    fn word(&self) -> String {
        match self {
            Self::Mount(path) => format!("mount:{}", path.display()),
            Self::Loop(path) => format!("loop:{}", path.display()),
            Self::Zram(number) => format!("zram:{number}"),
            Self::Process(number) => format!("process:{number}"),
            Self::Dir(path) => format!("dir:{}", path.display()),
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        let (kind, what) = word.split_once(':')?;
        Some(match kind {
            "mount" => Self::Mount(what.into()),
            "loop" => Self::Loop(what.into()),
            "zram" => Self::Zram(what.parse().ok()?),
            "process" => Self::Process(what.parse().ok()?),
            "dir" => Self::Dir(what.into()),
            _ => return None,
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        release_all();
    }
}

fn release_all() {
    let held = std::mem::take(&mut *HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    // Processes first: they keep the mounts busy.
    for (_, resource) in &held {
        if matches!(resource, Resource::Process(_)) {
            release(resource);
        }
    }
    for (_, resource) in held.iter().rev() {
        if !matches!(resource, Resource::Process(_)) {
            release(resource);
        }
    }
}

/// What is still there of this run, in words. Empty is how it must be.
pub(crate) fn leftovers() -> Vec<String> {
    let own = Scratch::place();
    let own = own.to_string_lossy();
    let mut left = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    left.extend(
        mounts.lines().filter(|line| line.contains(&*own)).map(|line| format!("mount {line}")),
    );
    for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = entry.path().join("loop/backing_file");
        if let Ok(backing) = std::fs::read_to_string(backing)
            && backing.contains(&format!("{own}/"))
        {
            left.push(format!("{} on {}", entry.file_name().to_string_lossy(), backing.trim()));
        }
    }
    let notes = notes().into_iter().filter(|(_, maker)| *maker == std::process::id());
    left.extend(notes.map(|(device, _)| device));
    if Path::new(&*own).exists() {
        left.push(format!("directory {own}"));
    }
    left
}

const PLACE: &str = "ringfence-crash-";

/// A tmpfs of this run's own.
#[derive(Debug)]
pub(crate) struct Scratch {
    _mount: Held,
    _dir: Held,
}

impl Scratch {
    fn place() -> PathBuf {
        Self::place_of(std::process::id())
    }

    fn place_of(maker: u32) -> PathBuf {
        std::env::temp_dir().join(format!("{PLACE}{maker}"))
    }

    /// Makes and mounts it.
    pub(crate) fn mount() -> Result<Self, Trouble> {
        let path = Self::place();
        std::fs::create_dir(&path)?;
        let dir = Held::new(Resource::Dir(path.clone()));
        rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::empty(), c"size=4g,mode=0755")
            .map_err(io::Error::from)?;
        Ok(Self { _mount: Held::new(Resource::Mount(path)), _dir: dir })
    }

    /// Where it is.
    #[expect(clippy::unused_self, reason = "only one that is mounted has a place")]
    pub(crate) fn path(&self) -> PathBuf {
        Self::place()
    }
}

/// A child process, killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    /// The child.
    pub(crate) child: Child,
    held: Option<Held>,
}

impl Process {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn()?;
        let held = Some(Held::new(Resource::Process(child.id())));
        Ok(Self { child, held })
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.forget();
        Ok(status)
    }

    /// Kills and reaps it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.forget();
    }

    /// Its number may belong to somebody else from now on.
    fn forget(&mut self) {
        if let Some(held) = self.held.take() {
            HELD.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .retain(|(id, _)| *id != held.0);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.kill();
        }
    }
}

/// Attaches a file to a free loop device with sectors of 4,096 bytes.
pub(crate) fn attach_loop(file: &Path) -> Result<(PathBuf, Held), Trouble> {
    let file = file.to_string_lossy();
    let _making = MAKING.lock();
    let device = command("losetup", &["--find", "--show", "--sector-size", "4096", &file])?;
    let device = PathBuf::from(device);
    note(&device.file_name().unwrap_or_default().to_string_lossy())?;
    let held = Held::new(Resource::Loop(device.clone()));
    Ok((device, held))
}

const ZRAM: &str = "/sys/class/zram-control/hot_add";

/// Whether the kernel makes zram devices.
pub(crate) fn has_zram() -> bool {
    Path::new(ZRAM).exists()
}

/// Makes a disk in memory of so many bytes, with sectors of 4,096: a zram device, or where there is
/// none a loop device over a file in the scratch space, which does the same more slowly.
pub(crate) fn make_disk(context: &Context, bytes: u64) -> Result<(PathBuf, Held), Trouble> {
    if has_zram() {
        return make_zram(bytes);
    }
    let file = context.dir("memory")?.join("disk.img");
    std::fs::File::create(&file)?.set_len(bytes)?;
    let (device, held) = attach_loop(&file)?;
    // The file goes when nothing uses it any more.
    std::fs::remove_file(&file)?;
    Ok((device, held))
}

/// Makes a zram device of so many bytes.
fn make_zram(bytes: u64) -> Result<(PathBuf, Held), Trouble> {
    let _making = MAKING.lock();
    let number: u32 = std::fs::read_to_string(ZRAM)?
        .trim()
        .parse()
        .map_err(|_| Trouble::Failed("zram hot_add gave no number".to_owned()))?;
    note(&format!("zram{number}"))?;
    let held = Held::new(Resource::Zram(number));
    std::fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string())?;
    Ok((PathBuf::from(format!("/dev/zram{number}")), held))
}

fn remove_zram(number: u32) {
    for _ in 0..200 {
        let reset = std::fs::write(format!("/sys/block/zram{number}/reset"), "1");
        if reset.is_err() && Path::new(&format!("/sys/block/zram{number}")).exists() {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        break;
    }
    let _ = std::fs::write("/sys/class/zram-control/hot_remove", number.to_string());
    if !Path::new(&format!("/sys/block/zram{number}")).exists() {
        forget(&format!("zram{number}"));
    }
}

fn note(device: &str) -> io::Result<()> {
    let mut tries = 0;
    loop {
        std::fs::create_dir_all(NOTES)?;
        match std::fs::write(format!("{NOTES}/{device}"), std::process::id().to_string()) {
            // Another run has removed the folder meanwhile, which was empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 100 => tries += 1,
            written => return written,
        }
    }
}

fn forget(device: &str) {
    let _ = std::fs::remove_file(format!("{NOTES}/{device}"));
    // Only the last one can.
    let _ = std::fs::remove_dir(NOTES);
}

fn notes() -> Vec<(String, u32)> {
    let entries = std::fs::read_dir(NOTES).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let maker = std::fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), maker))
        })
        .collect()
}

/// Removes the devices of some makers.
fn sweep(of: impl Fn(u32) -> bool) {
    for (device, _) in notes().into_iter().filter(|(_, maker)| of(*maker)) {
        match device.strip_prefix("zram").and_then(|number| number.parse().ok()) {
            Some(number) => remove_zram(number),
            None => release(&Resource::Loop(Path::new("/dev").join(device))),
        }
    }
}

/// Removes the mount points of runs that were killed; what is not empty stays.
fn sweep_dirs() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(PLACE)?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}
