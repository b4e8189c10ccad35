//! One process of a block: this program, started anew.
//!
//! It opens the contender, does one cycle that does not count, says `ready`, and begins when a line
//! comes in. What it measured is one line of JSON on standard output; it ends when its input does.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ringfence_env::SharedWords;
use serde::{Deserialize, Serialize};

use crate::contender::{Claimed, Contender, Held, Session};
use crate::random::Random;
use crate::work::{HEARTBEAT_FIRST, OVERLAP_GRID, OVERLAP_TARGETS, Work};
use crate::{Result, during, one_shot, shim, wake};

/// What a process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) contender: Contender,
    pub(crate) place: PathBuf,
    pub(crate) work: Work,
    /// Which of the processes it is.
    pub(crate) index: usize,
    /// How long.
    pub(crate) seconds: f64,
    /// Stops after this many cycles.
    pub(crate) cycles: Option<u64>,
    /// Leases of a heartbeat.
    pub(crate) leases: u64,
    pub(crate) seed: u64,
    /// Where holders of overlapping groups are counted: one word per target.
    pub(crate) holders: PathBuf,
    /// Where two processes meet that pass a group on.
    pub(crate) meeting: PathBuf,
}

/// What a process measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Each cycle, those included that ended after the time.
    pub(crate) nanos: Vec<u64>,
    /// Cycles that ended in time.
    pub(crate) in_time: u64,
    /// Claims that were refused because somebody held part of the group.
    pub(crate) busy: u64,
    /// Calls that gave up on a lock.
    pub(crate) timeouts: u64,
    /// Grants of a target that somebody held.
    pub(crate) violations: u64,
}

/// A process that hangs must not hang the run.
const OVERTIME: Duration = Duration::from_mins(1);
const EXIT_HANGS: i32 = 3;

/// Does what `order` says.
pub(crate) fn main(order: &str) -> Result<ExitCode> {
    let order: Order = serde_json::from_str(order).map_err(during("read the order"))?;
    let limit = Duration::from_secs_f64(order.seconds) + OVERTIME;
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("ringfence-bench: gave up after {} s", limit.as_secs());
        std::process::exit(EXIT_HANGS);
    });
    match order.work {
        Work::Heartbeat => heartbeat(&order)?,
        Work::WakeUp => wake::run(&order)?,
        Work::OneShot => one_shot::run(&order)?,
        _ => cycles(&order)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that it is ready and waits for the start. `false`: nobody wants it any more.
pub(crate) fn ready() -> Result<bool> {
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    Ok(std::io::stdin().lock().read_line(&mut line)? > 0)
}

/// Hands over what was measured, and waits until the end may be seen: what closing costs is no part of
/// it.
pub(crate) fn tell(told: &Told) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, told)?;
    writeln!(out)?;
    out.flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// When to stop.
pub(crate) struct Until {
    began: Instant,
    time: Duration,
    cycles: u64,
}

impl Until {
    pub(crate) fn new(order: &Order) -> Self {
        let cycles = order.cycles.unwrap_or(u64::MAX);
        Self { began: Instant::now(), time: Duration::from_secs_f64(order.seconds), cycles }
    }

    pub(crate) fn is_over(&self, told: &Told) -> bool {
        self.began.elapsed() >= self.time || told.nanos.len() as u64 >= self.cycles
    }

    pub(crate) fn note(&self, cycle: Instant, told: &mut Told) {
        let nanos = u64::try_from(cycle.elapsed().as_nanos()).unwrap_or(u64::MAX);
        told.nanos.push(nanos);
        told.in_time += u64::from(self.began.elapsed() <= self.time);
    }
}

fn cycles(order: &Order) -> Result<()> {
    let mut session = order.contender.open(&order.place, order.index)?;
    let overlaps = order.work == Work::Overlap8;
    let holders = if overlaps {
        Some(shim::map(&order.holders, usize::try_from(OVERLAP_TARGETS)? + 1)?)
    } else {
        None
    };
    let mut groups = Groups::new(order);
    let mut warm = Told::default();
    cycle(&mut *session, &mut groups, holders.as_deref(), &mut warm)?;
    if !ready()? {
        return Ok(());
    }
    let mut told = Told { violations: warm.violations, ..Told::default() };
    let until = Until::new(order);
    while !until.is_over(&told) {
        let began = Instant::now();
        cycle(&mut *session, &mut groups, holders.as_deref(), &mut told)?;
        until.note(began, &mut told);
    }
    tell(&told)
}

/// One claim and release; as often as it takes, with another group each time somebody is in the way.
fn cycle(
    session: &mut dyn Session,
    groups: &mut Groups,
    holders: Option<&dyn SharedWords>,
    told: &mut Told,
) -> Result<()> {
    let held = loop {
        match session.claim(groups.next())? {
            Claimed::Held(held) => break held,
            Claimed::TimedOut => told.timeouts += 1,
            Claimed::Busy if groups.overlap => {
                told.busy += 1;
                let pause = 100 + groups.random.below(400);
                std::thread::sleep(Duration::from_micros(pause));
            }
            Claimed::Busy => return Err("somebody holds a group that is nobody else's".into()),
        }
    };
    if let Some(holders) = holders {
        told.violations += groups.enter(holders);
        groups.leave(holders);
    }
    while !session.release(&held)? {
        told.timeouts += 1;
    }
    Ok(())
}

/// The groups that a process claims.
struct Groups {
    overlap: bool,
    group: Vec<u64>,
    random: Random,
}

impl Groups {
    fn new(order: &Order) -> Self {
        let size = order.work.group();
        let first = order.index as u64 * size + 1;
        Self {
            overlap: order.work == Work::Overlap8,
            group: (first..first + size).collect(),
            random: Random::new(order.seed ^ (order.index as u64 + 1).wrapping_mul(0x5851_f42d)),
        }
    }

    fn next(&mut self) -> &[u64] {
        if self.overlap {
            let size = self.group.len() as u64;
            let places = (OVERLAP_TARGETS - size) / OVERLAP_GRID + 1;
            let first = self.random.below(places) * OVERLAP_GRID + 1;
            self.group = (first..first + size).collect();
        }
        &self.group
    }

    /// Counts itself as holder of each target; how many had one already.
    fn enter(&self, holders: &dyn SharedWords) -> u64 {
        let words = self.group.iter().filter_map(|&target| usize::try_from(target).ok());
        words.map(|word| u64::from(holders.add(word, 1) != 0)).sum()
    }

    fn leave(&self, holders: &dyn SharedWords) {
        for word in self.group.iter().filter_map(|&target| usize::try_from(target).ok()) {
            holders.add(word, u64::MAX);
        }
    }
}

fn heartbeat(order: &Order) -> Result<()> {
    let mut session = order.contender.open(&order.place, order.index)?;
    let leases = leases(order, &mut *session)?;
    session.heartbeat(&leases)?;
    if !ready()? {
        return Ok(());
    }
    let mut told = Told::default();
    let until = Until::new(order);
    while !until.is_over(&told) {
        let began = Instant::now();
        session.heartbeat(&leases)?;
        until.note(began, &mut told);
    }
    tell(&told)
}

/// The leases to renew. The first process claims them; those of later rounds find their tokens in a
/// file.
fn leases(order: &Order, session: &mut dyn Session) -> Result<Vec<Held>> {
    let known = order.place.join("leases");
    let targets = HEARTBEAT_FIRST..HEARTBEAT_FIRST + order.leases;
    if let Ok(tokens) = std::fs::read_to_string(&known) {
        let each = targets.zip(tokens.lines());
        return each.map(|(target, token)| session.held(target, token)).collect();
    }
    let mut held = Vec::new();
    for target in targets {
        match session.claim(&[target])? {
            Claimed::Held(lease) => held.push(lease),
            _ => return Err(format!("target {target} could not be claimed").into()),
        }
    }
    let tokens: Vec<String> = held.iter().map(Held::token).collect();
    std::fs::write(&known, tokens.join("\n")).map_err(during("keep the tokens"))?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn groups(index: usize) -> Groups {
        Groups::new(&Order {
            contender: Contender::Journal,
            place: PathBuf::new(),
            work: Work::Overlap8,
            index,
            seconds: 1.0,
            cycles: None,
            leases: 0,
            seed: 1,
            holders: PathBuf::new(),
            meeting: PathBuf::new(),
        })
    }

    #[test]
    fn a_target_with_two_holders_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path: &Path = &dir.path().join("holders");
        let holders =
            shim::shared_file(path, usize::try_from(OVERLAP_TARGETS).unwrap() + 1).unwrap();
        let (mut one, mut other) = (groups(0), groups(1));
        one.next();
        other.group = one.group.iter().map(|target| target + OVERLAP_GRID).collect();
        assert_eq!(one.enter(&*holders), 0);
        assert_eq!(other.enter(&*holders), 4, "half of the group is held by both");
        other.leave(&*holders);
        one.leave(&*holders);
        assert_eq!(other.enter(&*holders), 0);
    }

    #[test]
    fn overlapping_groups_lie_within_the_targets_and_on_the_grid() {
        let mut groups = groups(3);
        let mut firsts = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let group = groups.next().to_vec();
            assert!((1..=OVERLAP_TARGETS).contains(&group[0]) && group[7] <= OVERLAP_TARGETS);
            firsts.insert(group[0]);
        }
        assert_eq!(firsts.len(), 31);
    }
}
