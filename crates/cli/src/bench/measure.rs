//! The measurement: two tables per shard count, one of each durability, every way in turn.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence::model::ShardCount;
use ringfence::{Claim, Durability, FilesOptions, Lease, Store, TargetGroup, TargetTable, World};
use ringfence_env::fault::FaultFs;
use ringfence_files::FilesEngine;
use ringfence_files::batch::Barriers;
use ringfence_files::open::Tuning;
use serde::Serialize;

use super::count::{Counts, Syncs, counting};
use super::floor::Floor;
use super::idle;
use super::stats::Sample;
use super::{Args, failed};
use crate::output::{Complaint, note};
use crate::signals::Interrupt;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// `measured`.
    pub(super) outcome: &'static str,
    /// Targets in the group.
    pub(super) targets: u64,
    /// Timed rounds.
    pub(super) rounds: u32,
    /// The type of the file system, by the mount table.
    pub(super) file_system: String,
    /// What else is known about it.
    pub(super) note: Option<String>,
    /// One per shard count.
    pub(super) tables: Vec<Table>,
}

/// One shard count.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    /// Shards of the table.
    pub(super) shards: u16,
    /// Shards that the group touches.
    pub(super) touched: u64,
    /// Rounds that began while the machine was quiet.
    pub(super) quiet_rounds: u32,
    /// Two durable 4 KiB writes, in the same rounds, in ms.
    pub(super) floor_ms: Sample,
    /// The ways, scalar first.
    pub(super) arms: Vec<Arm>,
}

/// One way of doing it.
#[derive(Debug, Serialize)]
pub(super) struct Arm {
    /// Its name.
    pub(super) name: String,
    /// What its table promises of a crash.
    pub(super) durability: &'static str,
    /// Median over that of the same way on the table of durability `record`.
    pub(super) of_record: Option<f64>,
    /// Median over the scalar way's median.
    pub(super) of_scalar: f64,
    /// Median over the floor's median.
    pub(super) times_floor: f64,
    /// Claim and release, in ms.
    pub(super) cycle_ms: Sample,
    /// Claim alone, in ms.
    pub(super) claim_ms: Sample,
    /// Release alone, in ms.
    pub(super) release_ms: Sample,
    /// Syncs of the claim alone.
    pub(super) claim_syncs: Syncs,
    /// Syncs of the release alone.
    pub(super) release_syncs: Syncs,
    /// Calls of one cycle.
    pub(super) counts: Counts,
    /// The directory syncs that the protocol promises for one cycle.
    pub(super) directory_syncs_promised: u64,
    /// The file syncs that it promises, those of an intent included.
    pub(super) file_syncs_promised: u64,
}

/// Cycles per way before the timed ones.
const WARM_UP: u32 = 2;

struct Way {
    name: String,
    durability: Durability,
    tuning: Tuning,
    table: TargetTable,
    counted: (TargetTable, FaultFs),
    claims: Vec<f64>,
    releases: Vec<f64>,
    cycles: Vec<f64>,
}

/// Measures everything; `None` if a signal ended it.
pub(super) fn all(
    args: &Args,
    world: &World,
    dir: &Path,
    interrupt: &Interrupt,
) -> Result<Option<Measured>, Complaint> {
    let file_system =
        world.fs.mount_type(dir).map_err(|error| failed("cannot tell the file system", &error))?;
    let mut tables = Vec::new();
    for &shards in &args.shards {
        let root = dir.join(format!("table-{shards}"));
        match one_table(args, world, &root, shards, interrupt)? {
            Some(table) => tables.push(table),
            None => return Ok(None),
        }
    }
    let (targets, rounds) = (args.targets, args.rounds);
    Ok(Some(Measured { outcome: "measured", targets, rounds, file_system, note: None, tables }))
}

fn one_table(
    args: &Args,
    world: &World,
    root: &Path,
    shards: u16,
    interrupt: &Interrupt,
) -> Result<Option<Table>, Complaint> {
    let count = ShardCount::new(shards).map_err(|error| failed("shards", &error))?;
    for durability in [Durability::Record, Durability::Group] {
        let options = FilesOptions {
            shards: count,
            work_shards: one(),
            durability,
            ..FilesOptions::default()
        };
        Store::init(table_of(root, durability), &options.into())
            .map_err(|error| failed("cannot make the table", &error))?;
    }
    let group = TargetGroup::from_numbers(1..=args.targets)
        .map_err(|error| failed("cannot make the group", &error))?;
    let touched = group.members().map(|(id, _)| id.shard(count)).collect::<BTreeSet<_>>().len();
    let mut floor = Floor::new(world, &root.with_extension("floor"))
        .map_err(|error| failed("cannot make the file for the floor", &error))?;
    let mut ways = ways(args, world, root)?;
    let mut floors = Vec::new();
    let mut quiet_rounds = 0;
    for round in 0..WARM_UP + args.rounds {
        note(&match round.checked_sub(WARM_UP) {
            None => format!("{shards} shards: warm-up {}", round + 1),
            Some(timed) => format!("{shards} shards: round {} of {}", timed + 1, args.rounds),
        });
        let quiet = idle::wait(world, args.idle_wait);
        let floor = floor.cycle(world).map_err(|error| failed("cannot write the floor", &error))?;
        // Every way is first as often as it is last.
        let ways_in_turn = ways.len();
        for turn in 0..ways_in_turn {
            let forth = usize::try_from(round).unwrap_or(0).wrapping_add(turn) % ways_in_turn;
            let turn = if round % 2 == 0 { forth } else { ways_in_turn - 1 - forth };
            if interrupt.received().is_some() {
                return Ok(None);
            }
            let Some(way) = ways.get_mut(turn) else { continue };
            let (claim, release) = cycle(world, &way.table, &group)?;
            if round >= WARM_UP {
                way.claims.push(millis(claim));
                way.releases.push(millis(release));
                way.cycles.push(millis(claim + release));
            }
        }
        if round >= WARM_UP {
            floors.push(millis(floor));
            quiet_rounds += u32::from(quiet);
        }
    }
    let touched = u64::try_from(touched).unwrap_or(u64::MAX);
    let floor_ms = Sample::of(floors);
    let mut arms = Vec::new();
    for way in ways {
        arms.push(way.arm(world, &group, touched)?);
    }
    let scalar = arms.first().map_or(f64::NAN, |arm| arm.cycle_ms.median);
    let medians: Vec<(String, f64)> =
        arms.iter().map(|arm| (arm.name.clone(), arm.cycle_ms.median)).collect();
    for arm in &mut arms {
        let plain = arm.name.strip_suffix(WITH_INTENTS);
        let record = medians.iter().find(|(name, _)| Some(&**name) == plain);
        arm.of_record = record.map(|(_, median)| arm.cycle_ms.median / median);
        arm.of_scalar = arm.cycle_ms.median / scalar;
        arm.times_floor = arm.cycle_ms.median / floor_ms.median;
    }
    Ok(Some(Table { shards, touched, quiet_rounds, floor_ms, arms }))
}

/// What the name of a way on the table of durability `group` ends with.
const WITH_INTENTS: &str = " + intent";

fn table_of(root: &Path, durability: Durability) -> PathBuf {
    root.with_extension(durability.as_str())
}

/// Scalar first, then batch, then one overlapped way per width; batch and overlapped on both tables.
fn ways(args: &Args, world: &World, root: &Path) -> Result<Vec<Way>, Complaint> {
    let batched = |sync_width| Tuning { sync_width, barriers: Barriers::Batched };
    let mut both = vec![("batch".to_owned(), batched(1))];
    both.extend(args.widths.iter().map(|&w| (format!("overlapped {w}"), batched(w.into()))));
    let scalar = Tuning { sync_width: 1, barriers: Barriers::PerRecord };
    let mut wanted = vec![("scalar".to_owned(), Durability::Record, scalar)];
    for (name, tuning) in both {
        wanted.push((name.clone(), Durability::Record, tuning));
        wanted.push((format!("{name}{WITH_INTENTS}"), Durability::Group, tuning));
    }
    let open = |world: &World, durability, tuning| {
        let engine = FilesEngine::open(world, &table_of(root, durability), tuning)
            .map_err(|error| failed("cannot open the table", &error))?;
        Ok(TargetTable::on(Arc::new(engine), world.clone()))
    };
    wanted
        .into_iter()
        .map(|(name, durability, tuning)| {
            let (counting, counter) = counting(world);
            Ok(Way {
                name,
                durability,
                tuning,
                table: open(world, durability, tuning)?,
                counted: (open(&counting, durability, tuning)?, counter),
                claims: Vec::new(),
                releases: Vec::new(),
                cycles: Vec::new(),
            })
        })
        .collect()
}

impl Way {
    /// Counts one cycle and sums everything up.
    fn arm(self, world: &World, group: &TargetGroup, touched: u64) -> Result<Arm, Complaint> {
        let (table, counter) = &self.counted;
        // The first grant of an opened table reserves a block of fences, which is no part of this.
        cycle(world, table, group)?;
        let before = counter.counts();
        let lease = claim(table, group)?;
        let between = counter.counts();
        lease.release().map_err(|error| failed("a release failed", &error))?;
        let after = counter.counts();
        let counts = Counts::between(&before, &after);
        let members = u64::try_from(group.len()).unwrap_or(u64::MAX);
        let directory_syncs_promised = match self.tuning.barriers {
            Barriers::PerRecord => 2 * members,
            Barriers::Batched => 2 * touched,
        };
        // Each of the two calls writes an intent and retires it, unless it changes one record only.
        let intents = if self.durability == Durability::Group && members > 1 { 4 } else { 0 };
        Ok(Arm {
            name: self.name,
            durability: self.durability.as_str(),
            of_record: None,
            of_scalar: f64::NAN,
            times_floor: f64::NAN,
            cycle_ms: Sample::of(self.cycles),
            claim_ms: Sample::of(self.claims),
            release_ms: Sample::of(self.releases),
            claim_syncs: Counts::between(&before, &between).syncs(),
            release_syncs: Counts::between(&between, &after).syncs(),
            counts,
            directory_syncs_promised,
            file_syncs_promised: members + intents,
        })
    }
}

/// One claim and one release; how long each took.
fn cycle(
    world: &World,
    table: &TargetTable,
    group: &TargetGroup,
) -> Result<(Duration, Duration), Complaint> {
    let began = world.clock.monotonic();
    let lease = claim(table, group)?;
    let held = world.clock.monotonic();
    lease.release().map_err(|error| failed("a release failed", &error))?;
    let done = world.clock.monotonic();
    Ok((held.saturating_sub(began), done.saturating_sub(held)))
}

fn claim(table: &TargetTable, group: &TargetGroup) -> Result<Lease, Complaint> {
    let claim = Claim::by("bench").map_err(|error| failed("cannot name the owner", &error))?;
    table.claim(group, &claim).map_err(|error| failed("a claim failed", &error))
}

fn one() -> ShardCount {
    ShardCount::new(1).unwrap_or(FilesOptions::default().work_shards)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
