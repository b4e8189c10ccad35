//! The run: sets every contender up, then round after round of blocks.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence_env::World;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::Args;
use crate::block::{self, Block, Prepared, Setting};
use crate::contender::{Around, Contender};
use crate::ext4;
use crate::goals;
use crate::idle::Gate;
use crate::random::Random;
use crate::report::{self, Measured, Trouble};
use crate::shim::{self, Counter, Shim};
use crate::work::{HEARTBEAT_LEASES, ONE_SHOT_LEASES, OVERLAP_TARGETS, Work};
use crate::{Result, during, wake};

/// The blocks of one contender doing one work, by round.
pub(crate) type Blocks = BTreeMap<(Work, Contender), BTreeMap<u32, Block>>;

/// How long a contender works before it is measured.
const WARM_UP: f64 = 0.5;
const QUICK: f64 = 0.05;
const ENDED: &str = "ended by a signal";
const QUICK_LEASES: u64 = 50;

/// Measures what `args` say and prints it.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    match (&args.image, &args.mount_point) {
        (Some(image), Some(point)) => ext4::inside(args, image, point),
        _ if args.ext4 => ext4::outside(args),
        _ => on_directory(args, args.on.as_deref(), None),
    }
}

/// Measures on the file system of `parent`; `note` says what the caller knows about it.
pub(crate) fn on_directory(
    args: &Args,
    parent: Option<&Path>,
    note: Option<&str>,
) -> Result<ExitCode> {
    let signal = watch_signals()?;
    let scratch = scratch(parent)?;
    let measured = measure(args, scratch.path(), note, &signal);
    scratch.close().map_err(during("remove the directory of the measurement"))?;
    let received = signal.load(Ordering::Relaxed);
    if received != 0 {
        return Ok(ExitCode::from(u8::try_from(128 + received).unwrap_or(u8::MAX)));
    }
    let measured = measured?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &measured)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", report::text(&measured))?;
    }
    Ok(if measured.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The signal that asked for the end, once there is one.
pub(crate) fn watch_signals() -> Result<Arc<AtomicUsize>> {
    let flag = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let value = usize::try_from(signal)?;
        signal_hook::flag::register_usize(signal, Arc::clone(&flag), value)
            .map_err(during("watch signals"))?;
    }
    Ok(flag)
}

/// A directory that is gone afterwards. Servers that run as another user must get through it.
pub(crate) fn scratch(parent: Option<&Path>) -> Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = match parent {
        Some(parent) => parent.to_owned(),
        None => match std::env::var_os("TMPDIR") {
            Some(tmp) if !tmp.is_empty() => PathBuf::from(tmp),
            _ => std::env::current_dir().map_err(during("tell the current directory"))?,
        },
    };
    let parent = parent.canonicalize().map_err(during(&format!("find {}", parent.display())))?;
    let dir = tempfile::Builder::new()
        .prefix(".ringfence-bench-")
        .permissions(std::fs::Permissions::from_mode(0o711))
        .tempdir_in(&parent)
        .map_err(during(&format!("make a directory in {}", parent.display())))?;
    Ok(dir)
}

fn measure(args: &Args, dir: &Path, note: Option<&str>, signal: &AtomicUsize) -> Result<Measured> {
    let file_system = World::system().fs.mount_type(dir).map_err(during("tell the file system"))?;
    let mut troubles = Vec::new();
    let shim = match Shim::build(dir, args.slow_sync.unwrap_or_default()) {
        Ok(shim) => Some(shim),
        // Without it no sync would be slow, and the figures would be of something else.
        Err(error) if args.slow_sync.is_some() => return Err(error),
        Err(error) => {
            troubles.push(Trouble::unseen(format!("syncs are not counted: {error}")));
            None
        }
    };
    let holders = dir.join("holders");
    shim::shared_file(&holders, usize::try_from(OVERLAP_TARGETS)? + 1)?;
    let meeting = dir.join("meeting");
    wake::prepare(&meeting)?;
    let (rounds, seconds) = if args.quick { (1, QUICK) } else { (args.rounds, args.seconds) };
    let cycles = args.quick.then_some(20);
    let leases = if args.quick { QUICK_LEASES } else { HEARTBEAT_LEASES };
    let many = if args.quick { QUICK_LEASES } else { ONE_SHOT_LEASES };
    let setting = Setting { seconds, cycles, leases, shim, holders, many, meeting };
    let contenders = prepare(args, dir, &setting, &mut troubles, signal)?;
    let patience = if args.quick { Duration::ZERO } else { args.idle_wait };
    let mut run = Run {
        contenders,
        setting,
        signal,
        gate: Gate::new(patience, args.idle_wait_in_all),
        random: Random::new(args.seed),
        blocks: Blocks::new(),
        troubles,
    };
    let began = Instant::now();
    // The heartbeat comes last, because its leases stay.
    let (last, first): (Vec<Work>, Vec<Work>) =
        args.works().into_iter().partition(|&work| work == Work::Heartbeat);
    for works in [first, last] {
        for round in 1..=rounds {
            for &work in &works {
                tell(&format!("round {round} of {rounds}: {}", work.title()));
                run.round(round, work)?;
            }
        }
    }
    let Run { gate, blocks, troubles, .. } = run;
    Ok(Measured {
        outcome: if args.quick { "quick" } else { "measured" },
        file_system,
        note: note.map(str::to_owned),
        slow_sync_ms: args.slow_sync.unwrap_or_default().as_secs_f64() * 1000.0,
        processors: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        seed: args.seed,
        rounds,
        seconds,
        begun: gate.rounds,
        quiet: gate.quiet,
        gave_up_waiting: gate.has_given_up(),
        took_seconds: began.elapsed().as_secs_f64(),
        works: report::tables(&blocks),
        goals: if args.quick { Vec::new() } else { goals::judge(&blocks, args.slow_sync) },
        troubles,
    })
}

/// A run under way.
struct Run<'a> {
    contenders: Vec<Prepared>,
    setting: Setting,
    signal: &'a AtomicUsize,
    gate: Gate,
    random: Random,
    blocks: Blocks,
    troubles: Vec<Trouble>,
}

impl Run<'_> {
    /// Every contender does `work` once, in an order that is drawn anew.
    fn round(&mut self, round: u32, work: Work) -> Result<()> {
        let mut order: Vec<&Prepared> =
            self.contenders.iter().filter(|prepared| prepared.contender.can(work)).collect();
        self.random.shuffle(&mut order);
        self.gate.pass();
        for prepared in order {
            let contender = prepared.contender;
            if self.signal.load(Ordering::Relaxed) != 0 {
                return Err(ENDED.into());
            }
            if self.troubles.iter().any(|trouble| trouble.is_of(contender, work)) {
                continue;
            }
            match block::run(prepared, work, &self.setting, self.random.next()) {
                Ok(block) => {
                    self.blocks.entry((work, contender)).or_default().insert(round, block);
                }
                Err(error) => self.troubles.push(Trouble::of(contender, work, &error)),
            }
        }
        Ok(())
    }
}

/// Sets up all contenders that this machine has, and lets each work for a moment.
fn prepare(
    args: &Args,
    dir: &Path,
    setting: &Setting,
    troubles: &mut Vec<Trouble>,
    signal: &AtomicUsize,
) -> Result<Vec<Prepared>> {
    let works = args.works();
    let processes = works.iter().map(|work| work.processes()).max().unwrap_or(1);
    let warm_up = if args.quick { QUICK } else { WARM_UP };
    let setting = Setting { seconds: warm_up, cycles: None, ..setting.clone() };
    let mut prepared = Vec::new();
    for contender in args.contenders() {
        if signal.load(Ordering::Relaxed) != 0 {
            return Err(ENDED.into());
        }
        if !works.iter().any(|&work| contender.can(work)) {
            continue;
        }
        tell(&format!("setting up {}", contender.name()));
        let made = one(contender, dir, processes, &setting).and_then(|made| {
            block::run(&made, Work::Solo64, &setting, args.seed)?;
            Ok(made)
        });
        match made {
            Ok(made) => prepared.push(made),
            Err(error) => troubles.push(Trouble::absent(contender, &error)),
        }
    }
    Ok(prepared)
}

fn one(contender: Contender, dir: &Path, processes: usize, setting: &Setting) -> Result<Prepared> {
    let place = dir.join(contender.name());
    std::fs::create_dir(&place).map_err(during("make a directory"))?;
    let counter = match &setting.shim {
        Some(_) if contender.can_be_preloaded() => {
            Some(Counter::new(&dir.join(format!("{}.syncs", contender.name())))?)
        }
        _ => None,
    };
    let shim = setting.shim.as_ref().zip(counter.as_ref());
    let around = Around { shim: shim.map(|(shim, counter)| (shim, counter.path.as_path())) };
    let keeper = contender.set_up(&place, processes, around)?;
    Ok(Prepared { contender, place, counter, _keeper: keeper })
}

/// Progress, for people.
pub(crate) fn tell(what: &str) {
    eprintln!("ringfence-bench: {what}");
}
