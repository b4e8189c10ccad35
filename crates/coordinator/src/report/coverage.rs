//! What was reached, read from traces, the ledger and the objects.

use std::collections::BTreeSet;

use ringfence_env::World;

use super::{Coverage, Facts};
use crate::config::RunConfig;
use crate::digest::Digest;
use crate::error::Error;
use crate::files;
use crate::ledger::{Growing, ResultRecord, TraceRecord};
use crate::showmap::Showmap;

pub(super) fn read(
    world: &World,
    config: &RunConfig,
    facts: &Facts,
    solved: usize,
) -> Result<Coverage, Error> {
    let layout = config.layout();
    let run = layout.run(config.run);
    let mut given = BTreeSet::new();
    for name in files::names(world, &config.seeds)? {
        if let Ok(Some(bytes)) = files::read(world, &config.seeds.join(name)) {
            given.insert(Digest::of(&bytes));
        }
    }
    let private = (1..=facts.coordinators).map(|index| run.coordinator(index).join("traces"));
    let mut seeds = BTreeSet::new();
    let mut all = BTreeSet::new();
    for dir in std::iter::once(layout.traces()).chain(private) {
        for trace in Growing::new(dir).read::<TraceRecord>(world)? {
            if given.contains(&trace.seed) {
                seeds.extend(trace.taken.iter().copied());
            }
            all.extend(trace.taken);
        }
    }
    for record in Growing::new(layout.ledger()).read::<ResultRecord>(world)? {
        all.extend(record.reached);
    }
    let edges = config.program.as_ref().filter(|_| Showmap::is_available()).map(|program| {
        let showmap = Showmap {
            reexec: facts.reexec.clone(),
            program: program.clone(),
            scratch: run.dir().join("edges"),
        };
        let edges = showmap.edges(world, &layout.objects());
        edges.into_values().flatten().collect::<BTreeSet<u32>>().len()
    });
    Ok(Coverage { seeds: seeds.len(), targets: all.len(), solved, edges })
}
