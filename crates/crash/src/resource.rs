//! Full disks, quotas, limits of a process, and file systems that become read-only, all real.
//!
//! A table with held groups of 1, 8 and 64 targets is on a small file system that is filled up but for
//! so many blocks or inodes; at each level every verb is tried. What does not succeed must say so and
//! leave every record as it was to the byte, without a temporary; what failed must succeed once there
//! is room again. A large payload makes real short writes.

mod limits;
mod tally;
mod volume;
pub(crate) mod words;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence::World;

use crate::context::{Context, Trouble};
use crate::opened::Mode;
use crate::report::Row;
use crate::sweep::cases::{self, Before, Case, Expect, Is};
use crate::sweep::judge::{self, Bench};
use crate::sweep::outcome;
use crate::sweep::traced::{Ran, Runner};
use crate::sweep::tree::Tree;
use tally::Tally;
use volume::{KINDS, Kind, Scarce, UNITS, Volume};

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let mut rows = Vec::new();
    let known = ["ext4", "xfs", "btrfs", "tmpfs"];
    let systems = context.file_systems(&known);
    let kinds: Vec<Kind> = KINDS.into_iter().filter(|kind| systems.contains(&kind.fs)).collect();
    let seconds = context.args.seconds.unwrap_or(if context.args.ci { 100 } else { 630 });
    let share = Duration::from_secs(seconds) / u32::try_from(kinds.len() + 1).unwrap_or(1);
    for kind in kinds {
        let context = Context { deadline: Instant::now() + share, ..context.clone() };
        rows.push(on(&context, kind)?);
    }
    if context.modes(&Mode::ALL).contains(&Mode::Journal) {
        for fs in systems.iter().filter(|fs| **fs != "tmpfs") {
            rows.push(words::run(context, fs)?);
        }
        if systems.contains(&"btrfs") {
            rows.push(words::run_quota(context)?);
        }
    }
    if systems.contains(&"tmpfs") {
        rows.push(limits::run(&Context { deadline: Instant::now() + share, ..context.clone() })?);
    }
    Ok(rows)
}

/// Levels of what is left that are tried: every one of the last, where that does not take minutes.
fn levels(ci: bool, fs: &str) -> Vec<usize> {
    match (ci, fs) {
        (true, _) => vec![0, 9, 70],
        (false, "tmpfs") => (0..48).chain((48..UNITS).step_by(7)).collect(),
        (false, _) => (0..8).chain([10, 14, 20, 28, 40, 56, 80, 112, 150]).collect(),
    }
}

fn on(context: &Context, kind: Kind) -> Result<Row, Trouble> {
    let began = Instant::now();
    let scarce = match kind.scarce {
        Scarce::Blocks | Scarce::Data => "no blocks",
        Scarce::Inodes => "no inodes",
        Scarce::Quota => "no quota",
    };
    let mut tally = Tally::default();
    let mut late = 0;
    let modes = context.modes(&Mode::ALL);
    for (number, mode) in modes.iter().enumerate() {
        let volume = Volume::new(context, kind)?;
        let judged = Mutex::new(HashSet::new());
        let desk = Desk::new(context, volume.path("table"), *mode, &judged)?;
        let end = context.with_share(modes.len() - number).deadline;
        for level in levels(context.args.ci, kind.fs) {
            if Instant::now() >= end {
                late += 1;
                continue;
            }
            desk.at_level(&volume, level, &mut tally)?;
        }
        desk.read_only(&volume, &mut tally)?;
    }
    let mut row = tally.row(kind.fs, scarce, began);
    if late > 0 {
        row.notes.push(format!("the time ran out before {late} of the levels"));
    }
    Ok(row)
}

/// One group that is held while the disk is full.
struct Held {
    targets: Vec<u64>,
    token: String,
}

/// Where calls are made on one table.
pub(crate) struct Desk<'c> {
    bench: Bench<'c>,
    mode: Mode,
    payload: PathBuf,
}

impl<'c> Desk<'c> {
    /// Makes the table at `store`.
    fn new(
        context: &'c Context,
        store: PathBuf,
        mode: Mode,
        judged: &'c Mutex<HashSet<u64>>,
    ) -> Result<Self, Trouble> {
        let dir = context.dir("resource")?;
        mode.init(&World::system(), &store, 36_000.0).map_err(Trouble::Failed)?;
        let payload = dir.join("payload");
        std::fs::write(&payload, format!("{{\"text\":\"{}\"}}", "x".repeat(40_000)))?;
        let bench = Bench { context, store, runner: Runner::new(dir), known: judged };
        Ok(Self { bench, mode, payload })
    }

    fn case(
        &self,
        name: &'static str,
        own: bool,
        line: &str,
        expect: Expect,
        ids: Vec<String>,
    ) -> Case {
        Case {
            name,
            mode: self.mode,
            own,
            before: Arc::default(),
            args: cases::words(line),
            expect,
            groups: vec![ids],
            prelude: None,
        }
    }

    fn claim(&self, name: &'static str, targets: &[u64], flags: &str) -> Case {
        let line = format!(
            "claim @ --json --owner op-1 --ttl 10h {flags} --targets {}",
            cases::list(targets)
        );
        self.case(name, false, &line, Expect::Granted, cases::ids(targets))
    }

    fn on_held(&self, name: &'static str, held: &Held, verb: &str, expect: Expect) -> Case {
        let line = format!(
            "{verb} @ --json --targets {} --token {}",
            cases::list(&held.targets),
            held.token
        );
        self.case(name, false, &line, expect, cases::ids(&held.targets))
    }

    /// Every verb on a volume that is full but for `level` units, and again once there is room.
    fn at_level(&self, volume: &Volume, level: usize, tally: &mut Tally) -> Result<(), Trouble> {
        let range = |from: u64, count: u64| (from..from + count).collect::<Vec<_>>();
        let mut held = Vec::new();
        let first_slot = self.short_slot()?;
        // One of each to renew and one to release.
        for (from, count) in
            [(1_000, 1), (1_100, 8), (1_200, 64), (1_300, 1), (1_400, 8), (1_500, 64)]
        {
            let targets = range(from, count);
            let granted = self.must(&self.claim("", &targets, ""))?;
            let token = granted["token"].as_str().unwrap_or_default().to_owned();
            held.push(Held { targets, token });
        }
        drop(first_slot);
        let item = u64::try_from(level).unwrap_or(0) + 1;
        let line = format!("call @ --verb claim --item {item}");
        let granted = self.must(&self.case("", true, &line, Expect::Granted, Vec::new()))?;
        let token = granted["token"].as_str().unwrap_or_default();
        let commit = format!("call @ --verb begin-commit --item {item} --token {token}");
        let large = format!("--payload @{}", self.payload.display());
        let renew = Expect::Renewed;
        let cases = [
            self.on_held("heartbeat of 64", &held[2], "heartbeat", renew),
            self.on_held("heartbeat of 8", &held[1], "heartbeat", renew),
            self.on_held("heartbeat of 1", &held[0], "heartbeat", renew),
            self.claim("claim of 64", &range(2_200, 64), ""),
            self.claim("claim of 1 with 40 kB", &[2_001], &large),
            self.claim("claim of 8", &range(2_100, 8), ""),
            self.claim("claim of 1", &[2_000], ""),
            self.run_of(&range(2_300, 2)),
            self.case(
                "begin-commit",
                true,
                &commit,
                Expect::Moved("committing"),
                vec![cases::work_id(item)],
            ),
            self.on_held("release of 64", &held[5], "release", Expect::Gone),
            self.on_held("release of 8", &held[4], "release", Expect::Gone),
            self.on_held("release of 1", &held[3], "release", Expect::Gone),
        ];
        volume.fill(level)?;
        let other = volume.path("other");
        let made = self.init(&other)?;
        tally.count("init", if made.code == Some(0) { "done" } else { "failed" }, no_table(&made));
        let mut failed = Vec::new();
        let mut seen = self.seen()?;
        for case in &cases {
            let ending = self.attempt(case, &mut seen, tally)?;
            if ending == "done" {
                continue;
            }
            failed.push(case);
            // An intent that is written over needs no room where nothing is copied on write.
            // A journal needs some for a checkpoint, once a segment is full.
            let files = self.mode != Mode::Journal;
            if case.expect == Expect::Gone && volume.keeps_places() && files {
                let (mode, name) = (self.mode.word(), case.name);
                tally.add(format!(
                    "{name} ({mode}): what is held could not be given back, {level} units left"
                ));
            }
        }
        volume.relax()?;
        let mut wrong = Vec::new();
        let repair = self.plain(&["check", "@", "--repair", "--json"])?;
        if repair.code != Some(0) {
            wrong.push(format!("check --repair with room again: {}", repair.ending()));
        }
        for case in failed {
            let again = self.bench.again(case)?;
            if again.code != Some(0) {
                wrong.push(format!("{} again with room: {}", case.name, again.ending()));
            }
        }
        // A journal takes more room than there is here.
        if self.mode != Mode::Journal {
            let made = self.init(&other)?;
            if made.code != Some(0) {
                wrong.push(format!("init again with room: {}", made.ending()));
            }
        }
        if other.exists() {
            std::fs::remove_dir_all(&other)?;
        }
        for wrong in wrong {
            tally.add(format!("{}, {level} units left: {wrong}", self.mode.word()));
        }
        self.release_all()
    }

    /// Makes the first slot as short as one that has held no intent, and takes its lock, so that what is
    /// claimed meanwhile has its intents in others.
    fn short_slot(&self) -> Result<Option<File>, Trouble> {
        let path = self.bench.store.join("intents/00000.slot");
        if !path.exists() {
            return Ok(None);
        }
        let mut slot = File::options().write(true).open(path)?;
        rustix::fs::flock(&slot, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(std::io::Error::from)?;
        slot.set_len(0)?;
        slot.write_all(&[0; 1_024])?;
        slot.sync_all()?;
        Ok(Some(slot))
    }

    fn run_of(&self, targets: &[u64]) -> Case {
        let list = cases::list(targets);
        let line = format!("run @ --owner op-1 --ttl 10h --targets {list} -- /bin/true");
        self.case("run", false, &line, Expect::Run, cases::ids(targets))
    }

    /// A file system that is read-only can be read, and nothing else.
    fn read_only(&self, volume: &Volume, tally: &mut Tally) -> Result<(), Trouble> {
        let targets = [1_000, 1_001];
        let granted = self.must(&self.claim("", &targets, ""))?;
        let token = granted["token"].as_str().unwrap_or_default().to_owned();
        let held = Held { targets: targets.into(), token };
        volume.read_only(true)?;
        let cases = [
            self.claim("claim, read-only", &[2_000, 2_001], ""),
            self.on_held("heartbeat, read-only", &held, "heartbeat", Expect::Renewed),
            self.on_held("release, read-only", &held, "release", Expect::Gone),
        ];
        let mut seen = self.seen()?;
        for case in &cases {
            if self.attempt(case, &mut seen, tally)? == "done" {
                tally.add(format!("{}: it cannot have been", case.name));
            }
        }
        volume.read_only(false)?;
        for case in &cases {
            self.must(case)?;
        }
        self.release_all()
    }

    /// One call, judged; how it ended. `before` is what is there before and then after it.
    fn attempt(
        &self,
        case: &Case,
        before: &mut Before,
        tally: &mut Tally,
    ) -> Result<&'static str, Trouble> {
        let mut wrong = Vec::new();
        let ran = self.bench.again(case)?;
        let after = self.seen()?;
        let ending = outcome::of(case, &ran, None, &mut wrong);
        let states = judge::states(case, before, &after.view, &mut wrong);
        let wanted = match ending {
            "done" if case.expect == Expect::Run => Some(Is::Old),
            "done" => Some(Is::New),
            "restored" | "refused" => Some(Is::Old),
            _ => None,
        };
        if wanted.is_some_and(|wanted| states.iter().any(|state| *state != wanted)) {
            wrong.push(format!("records are {states:?}, it said: {}", ran.ending()));
        }
        let put_back = ending == "restored" || ending == "refused";
        let unchanged = self.bench.unchanged(case, before, &after.tree);
        if put_back && !before.pending && !unchanged {
            wrong.push("it says that nothing was changed, and records differ".to_owned());
        }
        if ending == "unknown" && unchanged {
            wrong.push(format!("unknown, and no record was changed: {}", ran.ending()));
        }
        for path in after.tree.temporaries() {
            if !before.tree.0.contains_key(path) {
                wrong.push(format!("it left {path}: {}", ran.ending()));
            }
        }
        if ran.err.contains("panicked") || ran.hung {
            wrong.push(format!("it panicked or hung: {}", ran.ending()));
        }
        tally.count(&format!("{} ({})", case.name, self.mode.word()), ending, wrong);
        *before = after;
        Ok(ending)
    }

    /// The table as it is and as a reader sees it; a reader must see it on any disk.
    fn seen(&self) -> Result<Before, Trouble> {
        let tree = Tree::read(&self.bench.store)?;
        let list = self.plain(&["list", "@", "--json"])?;
        let mut wrong = Vec::new();
        let Some(view) = judge::view_of(&list, &mut wrong) else {
            return Err(Trouble::Failed(wrong.join(", ")));
        };
        let pending = tree.0.values().flatten().any(|bytes| bytes.starts_with(b"RFINTENT"));
        Ok(Before { tree, view, pending })
    }

    /// A call that there is room for.
    fn must(&self, case: &Case) -> Result<serde_json::Value, Trouble> {
        let ran = self.bench.again(case)?;
        let failed = || Trouble::Failed(format!("{:?}: {}", case.args, ran.ending()));
        if ran.code == Some(0) { ran.answer().ok_or_else(failed) } else { Err(failed()) }
    }

    fn plain(&self, words: &[&str]) -> Result<Ran, Trouble> {
        self.bench.ask(&words.join(" "))
    }

    fn init(&self, store: &Path) -> Result<Ran, Trouble> {
        let flags = cases::init_flags(self.mode);
        let line = format!("init {} --shards 3 --json {flags}", store.display());
        self.bench.ask(&line)
    }

    /// Gives everything back, for the next level.
    fn release_all(&self) -> Result<(), Trouble> {
        let list = self.plain(&["list", "@", "--json"])?;
        let answer = list.answer().unwrap_or_default();
        let mut groups: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for lease in answer["leases"].as_array().into_iter().flatten() {
            let token = lease["token"].as_str().unwrap_or_default().to_owned();
            groups.entry(token).or_default().extend(lease["target"].as_u64());
        }
        for (token, targets) in groups {
            let held = Held { targets, token };
            self.must(&self.on_held("", &held, "release", Expect::Gone))?;
        }
        Ok(())
    }
}

/// What an `init` may not say.
fn no_table(ran: &Ran) -> Vec<String> {
    match ran.code {
        Some(0 | 69 | 125) if !ran.err.contains("panicked") => Vec::new(),
        _ => vec![format!("init: {}", ran.ending())],
    }
}
