//! What every layer is given, and what it needs from the machine.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::guard::Scratch;
use crate::opened::{EngineName, Mode};

/// Debian packages that hold the programs which are run.
pub(crate) const PACKAGES: [&str; 6] =
    ["btrfs-progs", "e2fsprogs", "mount", "strace", "util-linux", "xfsprogs"];

/// Flags of every layer.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// A short fixed form with the same seeds every time
    #[arg(long)]
    pub(crate) ci: bool,
    /// Stop exploring after this many seconds per layer
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
    /// Explore at most this many states per row
    #[arg(long, value_name = "N")]
    pub(crate) states: Option<u64>,
    /// The seed of every random choice
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
    /// Only tables of these engines [default: both]
    #[arg(long, value_name = "ENGINE,ENGINE", value_delimiter = ',')]
    pub(crate) engine: Vec<EngineName>,
    /// Only these file systems
    #[arg(long, value_name = "FS,FS", value_delimiter = ',')]
    pub(crate) fs: Vec<String>,
    /// The binary under test [default: `ringfence` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<PathBuf>,
    /// Where logs of failures go [default: target/crash]
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Where User Mode Linux and what it needs was unpacked
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) tools: Option<PathBuf>,
    /// Print the table as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a layer works with.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// The binary under test.
    pub(crate) binary: PathBuf,
    /// This program, which also is the workload's processes.
    pub(crate) own: PathBuf,
    /// A tmpfs of our own, gone afterwards.
    pub(crate) scratch: std::sync::Arc<Scratch>,
    /// Where logs of failures are kept.
    pub(crate) keep: PathBuf,
    /// The flags.
    pub(crate) args: Args,
    /// No new state is explored after this.
    pub(crate) deadline: Instant,
}

impl Context {
    /// Checks what every layer needs.
    pub(crate) fn new(args: &Args) -> Result<Self, Trouble> {
        let own = std::env::current_exe()?;
        let binary = args.binary.clone().unwrap_or_else(|| own.with_file_name("ringfence"));
        if !binary.is_file() {
            let how = "build it with `cargo build --release -p ringfence-cli`";
            return Err(Trouble::Missing(format!("{} ({how})", binary.display())));
        }
        for device in ["/dev/fuse", "/dev/loop-control"] {
            if !Path::new(device).exists() {
                return Err(Trouble::Missing(device.to_owned()));
            }
        }
        if !crate::guard::has_zram() {
            eprintln!("no zram on this machine: images are tried on loop devices over memory");
        }
        for program in ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "losetup", "strace", "unshare"] {
            find(program)?;
        }
        // target/PROFILE/ringfence-crash: logs are kept in target/crash.
        let target = own.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let keep = args.keep.clone().unwrap_or_else(|| target.join("crash"));
        let scratch = std::sync::Arc::new(Scratch::mount()?);
        let deadline = Instant::now();
        Ok(Self { binary, own, scratch, keep, args: args.clone(), deadline }.share("", 1))
    }

    /// The same for one of several layers: its time starts now.
    pub(crate) fn share(&self, layer: &str, layers: usize) -> Self {
        let seconds = self.args.seconds.unwrap_or(match (self.args.ci, layers) {
            // Other layers run beside it: as on a machine that is slower.
            (true, _) if layer == "weak" || layer == "block" => 90,
            // What it tries is fixed, and all of it must be tried: for machines that are much slower.
            (true, _) if layer == "mutants" => 600,
            (true, _) if layer == "eio" => 180,
            (true, _) => 60,
            (false, _) if layer == "weak" => 300,
            (false, _) if layer == "mutants" => 600,
            (false, _) if layer == "soak" => 900,
            (false, _) => 180,
        });
        Self { deadline: Instant::now() + Duration::from_secs(seconds), ..self.clone() }
    }

    /// The same for one of several runs that are still to come, and share what time is left.
    pub(crate) fn with_share(&self, runs: usize) -> Self {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let runs = u32::try_from(runs).unwrap_or(1).max(1);
        Self { deadline: Instant::now() + left / runs, ..self.clone() }
    }

    /// Whether the layer's time is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// The file systems of this run among those that a layer knows.
    pub(crate) fn file_systems<'f>(&self, known: &[&'f str]) -> Vec<&'f str> {
        let wanted = |fs: &&&str| {
            self.args.fs.is_empty() || self.args.fs.iter().any(|wanted| wanted == **fs)
        };
        known.iter().filter(wanted).copied().collect()
    }

    /// The kinds of tables of this run among those that a layer tries.
    pub(crate) fn modes(&self, known: &[Mode]) -> Vec<Mode> {
        let wanted =
            |mode: &&Mode| self.args.engine.is_empty() || self.args.engine.contains(&mode.engine());
        known.iter().filter(wanted).copied().collect()
    }

    /// A new directory in the scratch space.
    pub(crate) fn dir(&self, name: &str) -> io::Result<PathBuf> {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = self.scratch.path().join(format!("{name}-{count}"));
        std::fs::create_dir(&dir)?;
        Ok(dir)
    }
}

/// Replaces this process by itself in a mount namespace of its own, so that the kernel unmounts
/// everything even if nothing else does.
pub(crate) fn enter_private_mounts() -> Result<(), Trouble> {
    const INSIDE: &str = "RINGFENCE_CRASH_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Trouble::Missing("root".to_owned()));
    }
    let error = Command::new(find("unshare")?)
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(error.into())
}

fn find(program: &str) -> Result<PathBuf, Trouble> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Trouble::Missing(format!("{program}: apt-get install {}", PACKAGES.join(" ")))
        })
}

/// Runs a program to its end; what it said is the error if it failed.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Result<String, Trouble> {
    let done = Command::new(find(program)?).args(arguments).output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Trouble::Failed(format!("{program} {}: {said}", arguments.join(" "))))
}

/// Says why nothing was tried: a failure where it must be possible, a notice elsewhere.
pub(crate) fn unavailable(trouble: &Trouble) -> ExitCode {
    let must = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false");
    match trouble {
        Trouble::Missing(what) if !must => {
            eprintln!("skipped: this machine lacks {what}. Nothing was tried.");
            // Neither success nor failure: nobody may take it for a pass.
            ExitCode::from(77)
        }
        trouble => {
            eprintln!("failed: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// Why a layer could not do its work. A breach of the oracle is none: it is in the report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// The machine lacks something.
    #[error("this machine lacks {0}")]
    Missing(String),
    /// A program or a step of the layer's own failed.
    #[error("{0}")]
    Failed(String),
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}
