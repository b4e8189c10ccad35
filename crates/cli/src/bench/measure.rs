//! The measurement: one table per shard count, every way on it in turn.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence::model::ShardCount;
use ringfence::{Claim, Durability, InitOptions, Store, TargetGroup, TargetTable, World};
use ringfence_env::fault::FaultFs;
use ringfence_files::FilesEngine;
use ringfence_files::batch::Barriers;
use ringfence_files::open::Tuning;
use serde::Serialize;

use super::count::{Counts, counting};
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
    /// Calls of one cycle.
    pub(super) counts: Counts,
    /// The directory syncs that the protocol promises for one cycle.
    pub(super) directory_syncs_promised: u64,
}

/// Cycles per way before the timed ones.
const WARM_UP: u32 = 2;

struct Way {
    name: String,
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
    let durability = Durability::Record;
    let options =
        InitOptions { shards: count, work_shards: one(), durability, ..InitOptions::default() };
    Store::init(root, &options).map_err(|error| failed("cannot make the table", &error))?;
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
    for arm in &mut arms {
        arm.of_scalar = arm.cycle_ms.median / scalar;
        arm.times_floor = arm.cycle_ms.median / floor_ms.median;
    }
    Ok(Some(Table { shards, touched, quiet_rounds, floor_ms, arms }))
}

/// Scalar first, then batch, then one overlapped way per width.
fn ways(args: &Args, world: &World, root: &Path) -> Result<Vec<Way>, Complaint> {
    let mut tunings = vec![
        ("scalar".to_owned(), Tuning { sync_width: 1, barriers: Barriers::PerRecord }),
        ("batch".to_owned(), Tuning { sync_width: 1, barriers: Barriers::Batched }),
    ];
    tunings.extend(args.widths.iter().map(|&width| {
        let tuning = Tuning { sync_width: width.into(), barriers: Barriers::Batched };
        (format!("overlapped {width}"), tuning)
    }));
    let open = |world: &World, tuning| {
        let engine = FilesEngine::open(world, root, tuning)
            .map_err(|error| failed("cannot open the table", &error))?;
        Ok(TargetTable::on(Arc::new(engine), world.clone()))
    };
    tunings
        .into_iter()
        .map(|(name, tuning)| {
            let (counting, counter) = counting(world);
            Ok(Way {
                name,
                tuning,
                table: open(world, tuning)?,
                counted: (open(&counting, tuning)?, counter),
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
        cycle(world, table, group)?;
        let counts = Counts::between(&before, &counter.counts());
        let members = u64::try_from(group.len()).unwrap_or(u64::MAX);
        let directory_syncs_promised = match self.tuning.barriers {
            Barriers::PerRecord => 2 * members,
            Barriers::Batched => 2 * touched,
        };
        Ok(Arm {
            name: self.name,
            of_scalar: f64::NAN,
            times_floor: f64::NAN,
            cycle_ms: Sample::of(self.cycles),
            claim_ms: Sample::of(self.claims),
            release_ms: Sample::of(self.releases),
            counts,
            directory_syncs_promised,
        })
    }
}

/// One claim and one release; how long each took.
fn cycle(
    world: &World,
    table: &TargetTable,
    group: &TargetGroup,
) -> Result<(Duration, Duration), Complaint> {
    let claim = Claim::by("bench").map_err(|error| failed("cannot name the owner", &error))?;
    let began = world.clock.monotonic();
    let lease = table.claim(group, &claim).map_err(|error| failed("a claim failed", &error))?;
    let held = world.clock.monotonic();
    lease.release().map_err(|error| failed("a release failed", &error))?;
    let done = world.clock.monotonic();
    Ok((held.saturating_sub(began), done.saturating_sub(held)))
}

fn one() -> ShardCount {
    ShardCount::new(1).unwrap_or(InitOptions::default().work_shards)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
