//! One block: one contender does one work for a moment, in processes of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Serialize;

use crate::contender::Contender;
use crate::shim::{Counter, Shim};
use crate::stats::percentile;
use crate::work::Work;
use crate::worker::{Order, Told};
use crate::{Error, Result, during};

/// A contender that was set up.
pub(crate) struct Prepared {
    pub(crate) contender: Contender,
    pub(crate) place: PathBuf,
    /// Where its syncs are counted, if they are.
    pub(crate) counter: Option<Counter>,
    /// Holds what must live as long.
    pub(crate) _keeper: crate::contender::Keeper,
}

/// What is the same in all blocks.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) seconds: f64,
    pub(crate) cycles: Option<u64>,
    /// Leases of a heartbeat.
    pub(crate) leases: u64,
    pub(crate) shim: Option<Shim>,
    pub(crate) holders: PathBuf,
    /// Leases of the table that the command claims on.
    pub(crate) many: u64,
    /// Where two processes meet that pass a group on.
    pub(crate) meeting: PathBuf,
}

/// What one block gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Block {
    /// Cycles of all processes per second, those that ended in time.
    pub(crate) rate: f64,
    /// What the quickest tenth of all cycles took at most, in ms: least disturbed by others.
    pub(crate) p10: f64,
    /// The middle of all cycles.
    pub(crate) p50: f64,
    /// What 99 % of all cycles took at most.
    pub(crate) p99: f64,
    /// The largest of the processes' own p99.
    pub(crate) worst_p99: f64,
    /// Cycles in time of the slowest process over those of the fastest.
    pub(crate) fairness: f64,
    /// Syncs of all processes over cycles of all processes, where they are counted.
    pub(crate) syncs: Option<f64>,
    /// Claims refused because somebody held part of the group, per cycle.
    pub(crate) busy: f64,
    /// Cycles.
    pub(crate) cycles: u64,
    /// Calls that gave up on a lock.
    pub(crate) timeouts: u64,
    /// Grants of a target that somebody held.
    pub(crate) violations: u64,
}

/// A process of a block, ended when dropped.
struct Worker {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without effect on one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does it.
pub(crate) fn run(prepared: &Prepared, work: Work, setting: &Setting, seed: u64) -> Result<Block> {
    // Also after its file was built anew: all blocks of a run are of one build.
    let program = Path::new("/proc/self/exe");
    if work == Work::OneShot {
        crate::one_shot::program()?;
        crate::one_shot::prepare(&prepared.place, setting.many)?;
    }
    let mut workers = Vec::new();
    for index in 0..work.processes() {
        workers.push(start(program, prepared, work, setting, seed, index)?);
    }
    for worker in &mut workers {
        expect_ready(worker)?;
    }
    let before = prepared.syncs()?;
    for worker in &mut workers {
        let input = worker.child.stdin.as_mut().ok_or("a process without input")?;
        input.write_all(b"go\n").map_err(during("start a process"))?;
    }
    let told = workers.iter_mut().map(hear).collect::<Result<Vec<_>>>()?;
    let after = prepared.syncs()?;
    workers.into_iter().try_for_each(finish)?;
    let syncs = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    sum_up(&told, setting.seconds, syncs)
}

fn start(
    program: &Path,
    prepared: &Prepared,
    work: Work,
    setting: &Setting,
    seed: u64,
    index: usize,
) -> Result<Worker> {
    let order = Order {
        contender: prepared.contender,
        place: prepared.place.clone(),
        work,
        index,
        seconds: setting.seconds,
        cycles: setting.cycles,
        leases: setting.leases,
        seed,
        holders: setting.holders.clone(),
        meeting: setting.meeting.clone(),
    };
    let mut command = Command::new(program);
    command.arg("--worker").arg(serde_json::to_string(&order)?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if let (Some(shim), Some(counter)) = (&setting.shim, &prepared.counter)
        && prepared.contender.is_embedded()
    {
        shim.preload(&mut command, &counter.path);
    }
    let mut child = command.spawn().map_err(during("start a process"))?;
    let out = child.stdout.take().ok_or("a process without output")?;
    Ok(Worker { child, out: BufReader::new(out) })
}

fn expect_ready(worker: &mut Worker) -> Result<()> {
    let mut line = String::new();
    worker.out.read_line(&mut line).map_err(during("hear a process"))?;
    if line == "ready\n" { Ok(()) } else { Err(ended(worker)) }
}

fn hear(worker: &mut Worker) -> Result<Told> {
    let mut line = String::new();
    worker.out.read_line(&mut line).map_err(during("hear a process"))?;
    if line.is_empty() {
        return Err(ended(worker));
    }
    serde_json::from_str(&line).map_err(during("read what a process measured"))
}

fn finish(mut worker: Worker) -> Result<()> {
    drop(worker.child.stdin.take());
    let status = worker.child.wait().map_err(during("wait for a process"))?;
    if status.success() { Ok(()) } else { Err(format!("a process ended with {status}").into()) }
}

/// Its reason stands on standard error already.
fn ended(worker: &mut Worker) -> Error {
    match worker.child.wait() {
        Ok(status) => format!("a process ended with {status}").into(),
        Err(error) => during("wait for a process")(error),
    }
}

fn sum_up(told: &[Told], seconds: f64, syncs: Option<u64>) -> Result<Block> {
    let mut all = Vec::new();
    let mut worst_p99 = 0;
    for process in told {
        let mut nanos = process.nanos.clone();
        nanos.sort_unstable();
        worst_p99 = worst_p99.max(percentile(&nanos, 99).unwrap_or_default());
        all.extend(nanos);
    }
    all.sort_unstable();
    let of_all = |percent| percentile(&all, percent).ok_or("no process finished a cycle");
    let sum = |of: fn(&Told) -> u64| told.iter().map(of).sum::<u64>();
    // Of two that pass a group on, one measures.
    let in_time =
        || told.iter().filter(|process| !process.nanos.is_empty()).map(|process| process.in_time);
    let (slowest, fastest) = (in_time().min().unwrap_or(0), in_time().max().unwrap_or(0));
    let cycles = all.len() as u64;
    Ok(Block {
        rate: sum(|process| process.in_time) as f64 / seconds,
        p10: millis(of_all(10)?),
        p50: millis(of_all(50)?),
        p99: millis(of_all(99)?),
        worst_p99: millis(worst_p99),
        fairness: if fastest == 0 { 0.0 } else { slowest as f64 / fastest as f64 },
        syncs: syncs.map(|syncs| syncs as f64 / cycles as f64),
        busy: sum(|process| process.busy) as f64 / cycles as f64,
        cycles,
        timeouts: sum(|process| process.timeouts),
        violations: sum(|process| process.violations),
    })
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

impl Prepared {
    /// Syncs so far, where they are counted.
    fn syncs(&self) -> Result<Option<u64>> {
        if self.contender.can_be_preloaded() {
            return Ok(self.counter.as_ref().map(Counter::read));
        }
        crate::contender::etcd_syncs(&self.place).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starved_process_shows_in_fairness_and_in_the_worst_p99_only() {
        let quick = Told { nanos: vec![1_000_000; 300], in_time: 300, ..Told::default() };
        let starved = Told { nanos: vec![900_000_000], in_time: 0, timeouts: 2, ..Told::default() };
        let block = sum_up(&[quick, starved], 0.5, Some(602)).unwrap();
        assert_eq!((block.p50, block.p99, block.worst_p99), (1.0, 1.0, 900.0));
        assert_eq!((block.fairness, block.timeouts, block.cycles), (0.0, 2, 301));
        assert_eq!((block.rate, block.syncs), (600.0, Some(2.0)));
    }

    #[test]
    fn a_block_without_a_cycle_is_no_result() {
        assert!(sum_up(&[Told::default()], 0.5, None).is_err());
    }
}
