//! Real file systems on a device that writes down every write and flush.
//!
//! Between two flushes a device may keep any subset of the writes. After every epoch each subset of
//! its writes is put on a zram device over everything before, mounted (which replays the journal),
//! recovered by the product's own code, and judged.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::mount::MountFlags;

use crate::blockdev::{BlockDevice, Op};
use crate::context::{Context, Trouble, command};
use crate::guard::{self, Held, Resource};
use crate::image::{Image, PAGE};
use crate::opened::Mode;
use crate::oracle::History;
use crate::report::Row;
use crate::rng::Rng;
use crate::table::{self, Recovered};
use crate::weak;
use crate::workload;

/// The file systems that are known, each with default mount options.
pub(crate) const KNOWN: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// The size of a disk that is just large enough.
fn disk_bytes(fs: &str) -> usize {
    match fs {
        "ext4" => 24 << 20,
        "xfs" => 40 << 20,
        _ => 32 << 20,
    }
}

/// A recording on one file system.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) fs: &'static str,
    base: Image,
    log: Vec<Op>,
    pub(crate) history: History,
}

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let mut rows = Vec::new();
    let plans: &[(&str, Mode, &[&str])] = if context.args.ci {
        &[
            ("short, 1 process", Mode::Group, &["short"]),
            ("short, 1 process", Mode::Journal, &["short"]),
            ("mixed, 4 processes", Mode::Journal, &["mixed"; 4]),
        ]
    } else {
        &[
            ("verbs, 1 process", Mode::Group, &["verbs"]),
            ("mixed, 4 processes", Mode::Group, &["mixed"; 4]),
            ("short, 1 process", Mode::Record, &["short"]),
            ("verbs, 1 process", Mode::Journal, &["verbs"]),
            ("mixed, 4 processes", Mode::Journal, &["mixed"; 4]),
        ]
    };
    let modes = context.modes(&Mode::ALL);
    let plans: Vec<_> = plans.iter().filter(|(_, mode, _)| modes.contains(mode)).collect();
    let systems = context.file_systems(&KNOWN);
    let mut runs = plans.len() * systems.len();
    for (name, mode, processes) in plans {
        let name = format!("{name}, {}", mode.word());
        for &fs in &systems {
            let context = context.with_share(runs);
            runs -= 1;
            rows.push(explore(&context, &name, fs, *mode, processes)?);
        }
    }
    Ok(rows)
}

fn explore(
    context: &Context,
    name: &str,
    fs: &'static str,
    mode: Mode,
    processes: &[&str],
) -> Result<Row, Trouble> {
    let began = Instant::now();
    let recording = record(context, fs, mode, processes, 0)?;
    let cap = if context.args.ci { 64 } else { 1024 };
    let tried = try_states(context, &recording, cap, false)?;
    let mut violations = Vec::new();
    for (number, (place, wrong)) in tried.violations.iter().enumerate() {
        if number == 0 {
            let kept = keep(context, name, &recording, *place, wrong)?;
            violations
                .push(format!("{wrong} (after operation {place}; log kept in {})", kept.display()));
        } else {
            violations.push(format!("{wrong} (after operation {place})"));
        }
    }
    let mut notes = vec![format!(
        "{} calls acknowledged, {} writes, {} flushes; {} epochs, the largest of {} writes, {} of them sampled",
        recording.history.acknowledged(),
        recording.log.iter().filter(|op| matches!(op, Op::Write { .. } | Op::Zero { .. })).count(),
        recording.log.iter().filter(|op| matches!(op, Op::Flush)).count(),
        tried.epochs,
        tried.largest,
        tried.sampled
    )];
    if tried.unmountable > 0 {
        notes.push(format!("{} states could not be mounted", tried.unmountable));
    }
    if !tried.whole {
        notes.push("the time ran out before the end of the log".to_owned());
    }
    Ok(Row {
        layer: "block",
        fs: fs.to_owned(),
        workload: name.to_owned(),
        states: tried.states,
        distinct: tried.distinct,
        violations,
        notes,
        seconds: began.elapsed().as_secs_f64(),
        ..Row::default()
    })
}

/// Makes a file system on a device.
pub(crate) fn make_fs(fs: &str, device: &Path) -> Result<(), Trouble> {
    make_fs_of(fs, device, "512")
}

/// The same with so many inodes, where their number is fixed.
pub(crate) fn make_fs_of(fs: &str, device: &Path, inodes: &str) -> Result<(), Trouble> {
    let device = device.to_string_lossy();
    match fs {
        "ext4" => command(
            "mkfs.ext4",
            &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-J",
                "size=4",
                "-N",
                inodes,
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
                &device,
            ],
        ),
        "xfs" => command("mkfs.xfs", &["-q", "-f", "--unsupported", "-s", "size=4096", &device]),
        _ => command("mkfs.btrfs", &["-q", "-f", "--mixed", &device]),
    }
    .map(|_| ())
}

/// A mounted recorder with its file system.
pub(crate) struct Mounted {
    // In the order in which they must go.
    mount: Option<Held>,
    _loop: Held,
    _fuse: Held,
    pub(crate) device: BlockDevice,
    pub(crate) dir: PathBuf,
}

impl Mounted {
    /// Makes one with a table on it.
    pub(crate) fn new(context: &Context, fs: &str, mode: Mode) -> Result<Self, Trouble> {
        let fuse = context.dir("blockdev")?;
        let device = BlockDevice::mount(&fuse, disk_bytes(fs))?;
        let fuse = Held::new(Resource::Mount(fuse));
        let (loop_device, attached) = guard::attach_loop(&device.disk())?;
        make_fs(fs, &loop_device)?;
        let dir = context.dir("mounted")?;
        rustix::mount::mount(&loop_device, &dir, fs, MountFlags::empty(), None)
            .map_err(std::io::Error::from)?;
        let mount = Some(Held::new(Resource::Mount(dir.clone())));
        let mounted = Self { mount, _loop: attached, _fuse: fuse, device, dir };
        let init = ["--plan", "init", "--mode", mode.word()];
        weak::finish(&mut [weak::work(context, &mounted.store(), None, &init)?])?;
        command("sync", &["-f", &mounted.dir.to_string_lossy()])?;
        Ok(mounted)
    }

    /// Where the table is.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("table")
    }

    /// Unmounts the file system; the device stays.
    pub(crate) fn unmount(&mut self) {
        self.mount = None;
    }
}

/// Records the workload's processes on a file system of its own.
pub(crate) fn record(
    context: &Context,
    fs: &'static str,
    mode: Mode,
    processes: &[&str],
    drop_sync: u64,
) -> Result<Recording, Trouble> {
    let mounted = Mounted::new(context, fs, mode)?;
    let base = Image::new(&mounted.device.start());
    let calls = if context.args.ci { "15" } else { "40" };
    let (seed, drop_sync) = (context.args.seed.to_string(), drop_sync.to_string());
    let mut running = Vec::new();
    for (number, plan) in processes.iter().enumerate() {
        let number = number.to_string();
        let arguments = [
            "--plan",
            plan,
            "--process",
            &number,
            "--seed",
            &seed,
            "--calls",
            calls,
            "--payload",
            mode.payload(),
            "--drop-sync",
            &drop_sync,
        ];
        let control = mounted.device.control();
        running.push(weak::work(context, &mounted.store(), Some(&control), &arguments)?);
    }
    weak::finish(&mut running)?;
    let mut log = mounted.device.stop();
    drop(mounted);
    if mode == Mode::Journal {
        log = by_sectors(log);
    }
    let marks = log.iter().enumerate().filter_map(|(at, op)| match op {
        Op::Mark(mark) => Some((at, mark.clone())),
        _ => None,
    });
    let history = History::new(marks, mode.durability()).map_err(Trouble::Failed)?;
    Ok(Recording { fs, base, log, history })
}

/// The same with a write for each sector: a device need not keep the whole of a long one. A frame of a
/// journal has many; a record of the other engine hardly ever has two.
fn by_sectors(log: Vec<Op>) -> Vec<Op> {
    let mut split = Vec::with_capacity(log.len());
    for op in log {
        match op {
            Op::Write { at, bytes } if bytes.len() > PAGE => {
                let sectors = bytes.chunks(PAGE).enumerate();
                split.extend(sectors.map(|(index, sector)| Op::Write {
                    at: at + index * PAGE,
                    bytes: sector.into(),
                }));
            }
            op => split.push(op),
        }
    }
    split
}

/// What came of the states of a recording.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    pub(crate) states: u64,
    pub(crate) distinct: u64,
    pub(crate) violations: Vec<(usize, String)>,
    pub(crate) unmountable: u64,
    epochs: u64,
    sampled: u64,
    largest: usize,
    whole: bool,
}

struct Job {
    place: usize,
    image: Image,
    digest: u64,
}

/// Tries every subset of every epoch; at most `cap` of one epoch.
pub(crate) fn try_states(
    context: &Context,
    recording: &Recording,
    cap: usize,
    first: bool,
) -> Result<Tried, Trouble> {
    // Several devices with one btrfs at once would be taken for one file system.
    let workers = if recording.fs == "btrfs" { 1 } else { 3 };
    let mut benches = Vec::new();
    for _ in 0..workers {
        benches.push(Bench::new(context, recording.fs)?);
    }
    let mut tried = Tried { whole: true, ..Tried::default() };
    let mut rng = Rng::new(context.args.seed);
    let mut memo: HashMap<u64, Arc<Recovered>> = HashMap::new();
    let mut image = recording.base.clone();
    let mut epoch: Vec<usize> = Vec::new();
    let mut jobs: Vec<Job> = Vec::new();
    for place in 0..=recording.log.len() {
        match recording.log.get(place) {
            Some(Op::Write { .. } | Op::Zero { .. }) => {
                epoch.push(place);
                continue;
            }
            // An acknowledgement makes more of the subsets wrong.
            Some(Op::Mark(_) | Op::Flush) | None => {}
        }
        tried.largest = tried.largest.max(epoch.len());
        let whole = epoch.len() < 20 && 1_usize << epoch.len() <= cap;
        tried.sampled += u64::from(!whole);
        let count = if whole { 1_usize << epoch.len() } else { cap };
        for number in 0..count {
            let keep = |bit: usize, rng: &mut Rng| {
                if whole {
                    number >> bit & 1 == 1
                } else if number <= epoch.len() {
                    bit < number
                } else {
                    rng.below(2) == 1
                }
            };
            let mut image = image.clone();
            for (bit, &at) in epoch.iter().enumerate() {
                if keep(bit, &mut rng) {
                    image.apply(&recording.log[at]);
                }
            }
            tried.states += 1;
            jobs.push(Job { place, digest: image.digest(), image });
        }
        if jobs.len() >= 48 || recording.log.len() == place {
            settle(context, recording, &mut benches, &mut jobs, &mut memo, &mut tried);
        }
        if matches!(recording.log.get(place), Some(Op::Flush)) {
            tried.epochs += 1;
            for &at in &epoch {
                image.apply(&recording.log[at]);
            }
            epoch.clear();
        }
        if (first && !tried.violations.is_empty()) || context.is_over() {
            tried.whole = place >= recording.log.len();
            break;
        }
    }
    settle(context, recording, &mut benches, &mut jobs, &mut memo, &mut tried);
    tried.distinct = memo.len() as u64;
    tried.violations.truncate(5);
    Ok(tried)
}

/// Recovers the images that are new, and judges all.
fn settle(
    context: &Context,
    recording: &Recording,
    benches: &mut [Bench],
    jobs: &mut Vec<Job>,
    memo: &mut HashMap<u64, Arc<Recovered>>,
    tried: &mut Tried,
) {
    let mut fresh: Vec<&Job> = Vec::new();
    for job in jobs.iter() {
        let is_new = !memo.contains_key(&job.digest)
            && !fresh.iter().any(|other| other.digest == job.digest);
        if is_new {
            fresh.push(job);
        }
    }
    let next = Mutex::new(fresh.into_iter());
    let done = Mutex::new(Vec::new());
    let _ = context;
    std::thread::scope(|scope| {
        for bench in benches {
            let (next, done) = (&next, &done);
            scope.spawn(move || {
                loop {
                    let job = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(job) = job else { return };
                    let recovered = bench.recover(&job.image);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((job.digest, Arc::new(recovered)));
                }
            });
        }
    });
    for (digest, recovered) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        tried.unmountable +=
            u64::from(recovered.wrong.iter().any(|wrong| wrong.starts_with(UNMOUNTABLE)));
        memo.insert(digest, recovered);
    }
    let mut allowed = None;
    for job in jobs.drain(..) {
        let allowed = match &allowed {
            Some((place, allowed)) if *place == job.place => allowed,
            _ => &allowed.insert((job.place, recording.history.allowed(job.place))).1,
        };
        if let Some(wrong) = memo.get(&job.digest).and_then(|found| allowed.judge(found)) {
            tried.violations.push((job.place, wrong));
        }
    }
}

const UNMOUNTABLE: &str = "cannot be mounted";

/// A device on which images are tried.
pub(crate) struct Bench {
    device: PathBuf,
    dir: PathBuf,
    fs: &'static str,
    targets: Vec<u64>,
    _held: Held,
}

impl Bench {
    /// Makes one for images of that file system.
    pub(crate) fn new(context: &Context, fs: &'static str) -> Result<Self, Trouble> {
        let (device, held) = guard::make_disk(context, disk_bytes(fs) as u64)?;
        let dir = context.dir("bench")?;
        Ok(Self { device, dir, fs, targets: workload::targets(), _held: held })
    }

    /// Mounts the image, recovers the table on it, and unmounts it again.
    pub(crate) fn recover(&mut self, image: &Image) -> Recovered {
        let wrong = |text: String| Recovered { wrong: vec![text], ..Recovered::default() };
        if let Err(error) = self.fill(image) {
            return wrong(format!("cannot fill the device: {error}"));
        }
        // The state is what the product's default options left; looking at it needs no barriers.
        let options = match self.fs {
            "xfs" => Some(c"nouuid,nodiscard"),
            "btrfs" => Some(c"nobarrier,nodiscard"),
            _ => Some(c"nobarrier"),
        };
        if let Err(error) =
            rustix::mount::mount(&self.device, &self.dir, self.fs, MountFlags::empty(), options)
        {
            return wrong(format!("{UNMOUNTABLE}: {error}"));
        }
        let held = Held::new(Resource::Mount(self.dir.clone()));
        let recovered = table::recover(&self.dir.join("table"), table::AFTER, &self.targets);
        drop(held);
        recovered
    }

    /// Makes the device hold the image: all zeros first, then the pages that are not.
    fn fill(&self, image: &Image) -> std::io::Result<()> {
        let device = std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_EXCL)
            .open(&self.device)?;
        discard(&device, image.len() as u64)?;
        let mut buffer = Aligned::new();
        let mut done = Ok(());
        image.runs(Aligned::PAGES, |start, pages| {
            if done.is_ok() {
                done = device.write_all_at(buffer.holding(pages), (start * PAGE) as u64);
            }
        });
        done
    }
}

/// A buffer for direct writes.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    const PAGES: usize = 64;

    fn new() -> Self {
        let bytes = vec![0; (Self::PAGES + 1) * PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Self(bytes, start)
    }

    fn holding(&mut self, pages: &[Option<Arc<[u8]>>]) -> &[u8] {
        for (number, page) in pages.iter().flatten().enumerate() {
            let start = self.1 + number * PAGE;
            self.0[start..start + PAGE].copy_from_slice(page);
        }
        &self.0[self.1..self.1 + pages.len() * PAGE]
    }
}

#[expect(unsafe_code, reason = "there is no safe call for it")]
fn discard(device: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    const BLKDISCARD: libc::c_ulong = 0x1277;
    let range: [u64; 2] = [0, bytes];
    // SAFETY: the descriptor is open and the kernel reads two 64-bit numbers, which outlive the call.
    let done =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(device), BLKDISCARD, range.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Keeps the log of a failure: the base and every operation, in a plain format.
fn keep(
    context: &Context,
    name: &str,
    recording: &Recording,
    place: usize,
    wrong: &str,
) -> Result<PathBuf, Trouble> {
    let slug: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let dir = context.keep.join(format!("block-{}-{slug}", recording.fs));
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("base.img"), recording.base.bytes())?;
    std::fs::write(dir.join("wrong.txt"), format!("{wrong}\nafter operation {place}\n"))?;
    let mut log = std::io::BufWriter::new(std::fs::File::create(dir.join("operations"))?);
    for (at, op) in recording.log.iter().enumerate() {
        match op {
            Op::Write { at: offset, bytes } => {
                writeln!(log, "{at} write {offset} {}", bytes.len())?;
                log.write_all(bytes)?;
                writeln!(log)?;
            }
            Op::Zero { at: offset, len } => writeln!(log, "{at} zero {offset} {len}")?,
            Op::Flush => writeln!(log, "{at} flush")?,
            Op::Mark(mark) => {
                writeln!(log, "{at} mark {}", String::from_utf8_lossy(mark).trim_end())?;
            }
        }
    }
    log.flush()?;
    Ok(dir)
}
