//! The new table: made, filled and compared, all durably, before anything is decided.

use std::time::Duration;

use ringfence_engine::{Engine, Outcome, Request};
use ringfence_env::World;
use ringfence_model::{
    Audit, Edit, Entry, Fence, Grant, Key, Record, Space, Target, Transition, json,
};

use super::{Arrival, Contents, Destination, MigrateError, make};
use crate::store::Kind;

/// The most records of one transaction.
const RECORDS: usize = 64;
/// The most bytes of one, unless a single record has more.
const BYTES: usize = 1024 * 1024;
/// Nobody else has the new table open.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the new table; returns its identity.
pub(super) fn build(
    world: &World,
    arrival: &Arrival,
    into: &Destination,
    contents: &Contents,
) -> Result<String, MigrateError> {
    let into = match *into {
        Destination::Files(options) => {
            Destination::Files(ringfence_files::InitOptions { ttl: contents.ttl, ..options })
        }
        Destination::Journal(options) => {
            Destination::Journal(ringfence_journal::InitOptions { ttl: contents.ttl, ..options })
        }
    };
    let made = make(world, &arrival.table(), &into)?;
    let engine: &dyn Engine = match &made {
        Kind::Files(engine) => engine,
        Kind::Journal(engine) => engine,
    };
    for chunk in chunks(&contents.records) {
        store(engine, chunk)?;
    }
    begin(world, engine, arrival, contents)?;
    compare(engine, contents)?;
    Ok(engine.info().table)
}

/// As many records at a time as make one transaction.
fn chunks(records: &[(Key, Record)]) -> impl Iterator<Item = &[(Key, Record)]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |(_, record): &&(Key, Record)| {
            bytes += record.to_line().len();
            bytes <= BYTES
        };
        let count = rest.iter().take(RECORDS).take_while(fits).count();
        let (chunk, after) = rest.split_at_checked(count.max(1))?;
        rest = after;
        Some(chunk)
    })
}

fn store(engine: &dyn Engine, chunk: &[(Key, Record)]) -> Result<(), MigrateError> {
    let keys: Vec<Key> = chunk.iter().map(|(key, _)| *key).collect();
    change(engine, &keys, || {
        let put = |(key, record): &(Key, Record)| Edit { key: *key, to: Some(record.clone()) };
        Transition::edits(chunk.iter().map(put).collect())
    })
}

/// G6: hands one fence out above all, to nobody; then a line that tells who comes later.
fn begin(
    world: &World,
    engine: &dyn Engine,
    arrival: &Arrival,
    contents: &Contents,
) -> Result<(), MigrateError> {
    let Fence(above) = contents.fence;
    if above == u64::MAX {
        return Err(MigrateError::Exhausted);
    }
    // No record is changed, but a transaction has a key.
    let Ok(any) = Target::new(1) else { unreachable!("a target") };
    let any = [Key::target(any)];
    change(engine, &any, || Transition::Grant(Grant::new(contents.fence, |_| Vec::new())))?;
    let (targets, work) = contents.counts();
    let fields = [
        ("at", json::float(world.clock.wall().as_secs_f64())),
        ("event", json::quoted("migrated")),
        ("fence", above.to_string()),
        ("from", json::quoted(&arrival.from.display().to_string())),
        ("targets", targets.to_string()),
        ("work", work.to_string()),
    ];
    let line = json::object_line(&fields.into_iter().collect()).trim_end().to_owned();
    change(engine, &any, || Transition::Edits {
        edits: Vec::new(),
        audit: Some(Audit(line.clone())),
    })
}

fn change(
    engine: &dyn Engine,
    keys: &[Key],
    transition: impl Fn() -> Transition,
) -> Result<(), MigrateError> {
    let request = Request { keys, now: None, patience: PATIENCE };
    match engine.transact(&request, &mut |_| Some(transition()))? {
        Outcome::Done(_) => Ok(()),
        Outcome::Refused => unreachable!("nothing was refused"),
    }
}

/// What is there is what was to be carried over, record by record.
fn compare(engine: &dyn Engine, contents: &Contents) -> Result<(), MigrateError> {
    let mut found = Vec::with_capacity(contents.records.len());
    for space in [Space::Targets, Space::Work] {
        for (key, entry) in engine.scan(space, None)?.entries {
            match entry {
                Entry::Present(record) => found.push((key, record)),
                _ => return Err(MigrateError::NotAlike),
            }
        }
    }
    if found == contents.records { Ok(()) } else { Err(MigrateError::NotAlike) }
}
