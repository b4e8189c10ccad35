//! What a claim by the command costs from its start to its exit, on a table with many leases.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use ::ringfence::{Claim, InitOptions, Payload, Store, TargetGroup, Ttl};

use crate::contender::PAYLOAD;
use crate::worker::{Order, Told, Until, ready, tell};
use crate::{Result, during};

/// Processes that fill the table together, so that they share its syncs.
const FILLERS: u64 = 8;
/// The first target that the command claims; no lease is on it.
const FIRST: u64 = 10_000_001;

/// Where the command is that was built with this program.
pub(crate) fn program() -> Result<PathBuf> {
    let here = std::env::current_exe().map_err(during("find this program"))?;
    let program = here.with_file_name("ringfence");
    if program.exists() {
        Ok(program)
    } else {
        Err(format!("{} is not built", program.display()).into())
    }
}

/// Makes a table of `leases` live leases of one target each, if it is not there.
pub(crate) fn prepare(place: &Path, leases: u64) -> Result<()> {
    let store = place.join("many");
    if store.exists() {
        return Ok(());
    }
    Store::init(&store, &InitOptions::default()).map_err(during("make the store"))?;
    let fill = |from: u64| -> std::result::Result<(), String> {
        let table = Store::open(&store).map_err(|error| error.to_string())?.targets();
        let payload = Payload::parse(PAYLOAD).map_err(|error| error.to_string())?;
        let claim = Claim::by("coordinator-1").map_err(|error| error.to_string())?;
        let claim = claim.worker(3).payload(payload);
        let ttl = Ttl::from_seconds(3600.0).map_err(|error| error.to_string())?;
        let claim = claim.ttl(ttl);
        for target in (from + 1..=leases).step_by(usize::try_from(FILLERS).unwrap_or(1)) {
            let group = TargetGroup::from_numbers([target]).map_err(|error| error.to_string())?;
            let _kept = table.claim(&group, &claim).map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..FILLERS).map(|from| scope.spawn(move || fill(from))).collect();
        fillers.into_iter().try_for_each(|filler| {
            let filled = filler.join().map_err(|_| "a thread that fills the table panicked")?;
            filled.map_err(crate::Error::from)
        })
    })
}

pub(crate) fn run(order: &Order) -> Result<()> {
    let (program, store) = (program()?, order.place.join("many"));
    let mut target = FIRST + order.seed % 1_000_000_000;
    // The first one after the table was filled may have to write a checkpoint.
    claim(&program, &store, target)?;
    if !ready()? {
        return Ok(());
    }
    let mut told = Told::default();
    let until = Until::new(order);
    while !until.is_over(&told) {
        target += 1;
        let began = Instant::now();
        claim(&program, &store, target)?;
        until.note(began, &mut told);
    }
    tell(&told)
}

fn claim(program: &Path, store: &Path, target: u64) -> Result<()> {
    let mut command = Command::new(program);
    command
        .args(["claim", "--owner", "coordinator-2", "--targets", &target.to_string()])
        .arg(store);
    let status = command.stdout(Stdio::null()).status().map_err(during("start the command"))?;
    if status.success() { Ok(()) } else { Err(format!("the command ended with {status}").into()) }
}
