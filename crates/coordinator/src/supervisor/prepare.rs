//! Everything that has to be there before the first process starts.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringfence::{FilesOptions, JournalOptions, ShardCount, Store, Ttl};
use ringfence_env::{FileLock, LockMode, World};

use super::Options;
use crate::config::{Binding, RunConfig, StoreEngine};
use crate::error::Error;
use crate::exec::Reexec;
use crate::files::{self, FILE_MODE};
use crate::layout::Layout;
use crate::ledger::{Growing, ResultRecord};
use crate::publish::Publisher;
use crate::showmap::Showmap;
use crate::worker::{Launch, Worker};

const FORMAT: u32 = 1;
const WORK_SHARDS: u16 = 16;

/// A run that is ready; the directory is ours while it lives.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) config: RunConfig,
    _turn: FileLock,
}

/// Asks a worker for the build, binds the directory to it, and makes what is missing.
pub(super) fn prepare(
    world: &World,
    options: &Options,
    reexec: &Reexec,
) -> Result<Prepared, Error> {
    check(options)?;
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| Error::io("name", path, error));
    let dir = absolute(&options.dir)?;
    let seeds = absolute(&options.seeds)?;
    if files::names(world, &seeds)?.is_empty() {
        return Err(Error::Usage(format!("{} has no seed in it", seeds.display())));
    }
    let program = options.program.as_deref().map(absolute).transpose()?;
    let launch = Launch { reexec: reexec.clone(), argv: options.worker.clone() };
    let never = AtomicBool::new(false);
    let (worker, hello) =
        Worker::start(world, &launch, &never).map_err(|error| Error::Worker(error.to_string()))?;
    worker.shut_down();
    if options.group_cap > hello.limits.max_actions {
        let most = hello.limits.max_actions;
        return Err(Error::Usage(format!("the worker takes at most {most} targets in a group")));
    }

    make_dirs(world, &dir)?;
    let layout = Layout::new(&dir);
    let lock = dir.join("campaign.lock");
    let deadline = world.clock.deadline(Duration::ZERO);
    let turn = FileLock::acquire(
        &*world.fs,
        &*world.clock,
        &lock,
        LockMode::Exclusive,
        Some(FILE_MODE),
        deadline,
    )
    .map_err(|error| Error::io("use", &dir, std::io::Error::other(error)))?;
    let ttl_ms = u64::try_from(options.ttl.as_millis()).unwrap_or(u64::MAX);
    let (build_id, arm, engine) = (hello.build_id.clone(), options.arm, options.engine);
    let binding = Binding { format: FORMAT, build_id, arm, engine, ttl_ms };
    binding.settle(world, &layout)?;
    init_store(&layout, options)?;
    for made in [layout.objects(), layout.traces(), layout.ledger(), layout.stage(), layout.runs()]
    {
        files::mkdir(world, &made)?;
    }
    let run = next_run(world, &layout)?;
    let paths = layout.run(run);
    for made in [paths.sync(), paths.peer(), paths.peer_queue(), paths.staging()] {
        files::mkdir(world, &made)?;
    }
    for index in 1..=options.coordinators {
        files::mkdir(world, &paths.coordinator(index))?;
        files::mkdir(world, &paths.coordinator(index).join("traces"))?;
    }
    // A new run has a new queue, whose ids begin again: it holds everything published before.
    let publisher = Publisher::new(world, &layout, &paths);
    for record in Growing::new(layout.ledger()).read::<ResultRecord>(world)? {
        publisher.publish(&layout.objects(), &record.outputs)?;
    }
    let program = program.filter(|_| options.live || Showmap::is_available());
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let ends = world.clock.monotonic().saturating_add(options.time);
    let config = RunConfig {
        name: options.name.clone(),
        dir,
        run,
        arm,
        engine,
        build_id: hello.build_id,
        worker: options.worker.clone(),
        workers: options.workers,
        program,
        seeds,
        live: options.live,
        ttl_ms,
        group_cap: options.group_cap,
        attempts_cap: options.attempts_cap,
        limit_ms: ms(options.limit),
        max_models: options.max_models,
        silence_ms: options.silence.map(ms),
        drain_ms: ms(options.drain),
        ends_at_ms: ms(ends),
        hold: options.hold,
    };
    config.write(world)?;
    Ok(Prepared { config, _turn: turn })
}

/// Removes what attempts that never committed had staged. Only while no coordinator runs.
pub(super) fn sweep(world: &World, layout: &Layout) {
    let Ok(store) = Store::open(layout.store()) else { return };
    let Ok(committing) = store.work().recover_committing(None) else { return };
    let needed: Vec<String> = committing
        .iter()
        .filter_map(|item| {
            let record = item.record.as_ref().ok()?;
            Some(crate::job::stage_name(item.id, &record.holder.token))
        })
        .collect();
    for name in files::names(world, &layout.stage()).unwrap_or_default() {
        if !needed.contains(&name) {
            files::remove_dir(world, &layout.stage().join(name));
        }
    }
}

fn check(options: &Options) -> Result<(), Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    if options.worker.is_empty() {
        return usage("a campaign needs a worker");
    }
    if options.live && options.program.is_none() {
        return usage("a live fuzzer needs its program: name it, or use frozen seeds");
    }
    if options.coordinators == 0 || options.workers == 0 {
        return usage("a campaign needs at least one coordinator with one worker");
    }
    if !(1..=ringfence::MAX_GROUP).contains(&options.group_cap) {
        return usage("a group holds 1 to 64 targets");
    }
    if options.ttl < Duration::from_millis(200) {
        return usage("a ttl below 200 ms leaves no time for heartbeats");
    }
    Ok(())
}

fn init_store(layout: &Layout, options: &Options) -> Result<(), Error> {
    let store_error = |error: &dyn std::fmt::Display| Error::Store(error.to_string());
    let shards = ShardCount::new(options.shards).map_err(|e| store_error(&e))?;
    let work_shards = ShardCount::new(WORK_SHARDS).map_err(|e| store_error(&e))?;
    let ttl = Ttl::new(options.ttl).map_err(|e| store_error(&e))?;
    let init = match options.engine {
        StoreEngine::Journal => JournalOptions { shards, ttl, ..JournalOptions::default() }.into(),
        StoreEngine::Files => {
            FilesOptions { shards, work_shards, ttl, ..FilesOptions::default() }.into()
        }
    };
    Store::init(layout.store(), &init).map(drop).map_err(|e| store_error(&e))
}

/// Makes the directory of the next run; the number is free because making it fails otherwise.
fn next_run(world: &World, layout: &Layout) -> Result<u32, Error> {
    let last = files::names(world, &layout.runs())?.iter().filter_map(|n| n.parse().ok()).max();
    let run = last.unwrap_or(0u32) + 1;
    let dir = layout.run(run).dir().to_owned();
    world.fs.mkdir(&dir, files::DIR_MODE).map_err(|error| Error::io("make", &dir, error))?;
    Ok(run)
}

fn make_dirs(world: &World, dir: &Path) -> Result<(), Error> {
    if files::exists(world, dir) {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_dirs(world, parent)?;
    }
    files::mkdir(world, dir)
}
