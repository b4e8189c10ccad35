//! Tables as the layers make, open and look at them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence::{Claim, Finding, LeaseState, Owner, TargetGroup, Timestamp, World};
use ringfence_env::HostIdentity;
use ringfence_files::FilesEngine;
use ringfence_files::open::Tuning;
use ringfence_model::{Payload, ShardCount, Target};

use crate::lie::{Lie, LyingFs};
use crate::marks::WORK;
use crate::opened::{Mode, Opened};

/// The boot that workloads run in. A power cut ends it, a kill does not.
pub(crate) const RECORDED: &str = "recorded";
/// The boot after a power cut.
pub(crate) const AFTER: &str = "after";
/// The boot after a power cut in the middle of a recovery.
pub(crate) const LATER: &str = "later";
/// The reason of a force-release, before the number of the call.
pub(crate) const REASON: &str = "by-call-";
/// Shards of the target table.
pub(crate) const SHARDS: u16 = 3;
/// A target that only those claim who look on: a journal is recovered by whoever writes first, and the
/// fence of such a claim is above all others. Nobody looks at its record.
pub(crate) const NEXT: u64 = 900_002;

/// This machine under another host name and boot.
pub(crate) fn world(boot: &str) -> World {
    lying_world(boot, Lie::default())
}

/// The same on a file system that does something wrong. A boot `HOST@BOOT` is one of several of a
/// host.
pub(crate) fn lying_world(boot: &str, lie: Lie) -> World {
    let world = World::system();
    let name = boot.split_once('@').map_or(boot, |(host, _)| host);
    let host = HostIdentity { name: name.into(), boot: Some(boot.into()), uid: world.host.uid };
    let fs = Arc::new(LyingFs::new(Arc::clone(&world.fs), lie));
    World { host: Arc::new(host), fs, ..world }
}

/// Makes a table whose probe every boot has seen, so that judging a state does not pay for it.
pub(crate) fn make(root: &Path, mode: Mode) -> Result<(), String> {
    mode.init(&world(RECORDED), root, 3600.0)?;
    if mode != Mode::Journal {
        for boot in [AFTER, LATER] {
            FilesEngine::open(&world(boot), root, Tuning::default()).map_err(chain)?;
        }
    }
    Ok(())
}

/// An error with what caused it.
pub(crate) fn chain(error: impl std::error::Error) -> String {
    chain_of(&error)
}

/// The same of a borrowed one.
pub(crate) fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// The numbers of the first targets that are placed in `shard`.
pub(crate) fn targets_in(shard: u16, count: usize) -> Vec<u64> {
    let shards = ShardCount::new(SHARDS).expect("a valid count");
    (1..)
        .filter(|&number| {
            let target = Target::new(number).expect("a small number");
            ringfence_model::RecordId::of_target(target).shard(shards).get() == shard
        })
        .take(count)
        .collect()
}

/// A work item by number.
pub(crate) fn work_item(item: u64) -> Payload {
    Payload::parse(&format!("{{\"item\":{item}}}")).expect("a valid payload")
}

/// The payload of a claim: it tells whose it is, in about so many bytes.
pub(crate) fn payload(of: u64, len: usize) -> Result<Payload, String> {
    Payload::parse(&format!("{{\"of\":{of},\"text\":\"{}\"}}", "x".repeat(len))).map_err(chain)
}

/// Whether a payload is that of the claim.
fn is_payload_of(text: &str, of: u64) -> bool {
    let payload: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    payload.as_object().is_some_and(|payload| payload.is_empty() || payload["of"] == of)
}

/// The record of one target or work item, as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    /// The claim that it was granted by.
    pub(crate) of: u64,
    /// Bits of the time of its last grant or heartbeat.
    pub(crate) updated: u64,
    /// `leased`, `committing`, `done`.
    pub(crate) status: &'static str,
    /// Its token, for those who release it by force.
    pub(crate) token: String,
    /// Its fence.
    pub(crate) fence: u64,
    /// The whole group.
    pub(crate) group: Vec<u64>,
}

/// Everything that is held; what is damaged is an error.
pub(crate) fn look(table: &Opened) -> Result<BTreeMap<u64, Seen>, String> {
    let mut seen = BTreeMap::new();
    let listing = table.targets().list(None).map_err(chain)?;
    if !listing.consistent {
        return Err("the list is not consistent though nobody writes".to_owned());
    }
    for listed in listing.leases {
        match listed.state {
            LeaseState::Corrupt(damage) => {
                return Err(format!("damaged record {}: {}", damage.location, damage.reason));
            }
            LeaseState::Active(record) | LeaseState::Expired(record) => {
                if record.target.get() == NEXT {
                    continue;
                }
                let holder = &record.holder;
                let fence = holder.token.fence().map(|fence| fence.0);
                let of = claim_of(&holder.owner)?;
                if !is_payload_of(holder.payload.as_str(), of) {
                    return Err(format!("the payload of claim {of} is not its own"));
                }
                seen.insert(
                    record.target.get(),
                    Seen {
                        of,
                        updated: holder.updated.seconds().to_bits(),
                        status: "leased",
                        token: holder.token.as_str().to_owned(),
                        fence: fence.ok_or("a token without a fence")?,
                        group: record.group.targets.iter().map(|target| target.get()).collect(),
                    },
                );
            }
        }
    }
    let items = table.work().list(None).map_err(chain)?;
    for item in items {
        let record = item.record.map_err(|damage| {
            format!("damaged work record {}: {}", damage.location, damage.reason)
        })?;
        let payload = record.holder.payload.as_str();
        let number: u64 = payload
            .trim_start_matches("{\"item\":")
            .trim_end_matches('}')
            .parse()
            .map_err(|_| format!("a work record with payload {payload}"))?;
        let fence = record.holder.token.fence().map(|fence| fence.0);
        seen.insert(
            WORK + number,
            Seen {
                of: claim_of(&record.holder.owner)?,
                updated: record.holder.updated.seconds().to_bits(),
                status: record.status.as_str(),
                token: record.holder.token.as_str().to_owned(),
                fence: fence.ok_or("a token without a fence")?,
                group: Vec::new(),
            },
        );
    }
    Ok(seen)
}

fn claim_of(owner: &str) -> Result<u64, String> {
    let number = owner.strip_prefix("op-").and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("a record of the unknown owner {owner:?}"))
}

/// What came of the recovery of one disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovered {
    /// What is held afterwards.
    pub(crate) table: BTreeMap<u64, Seen>,
    /// The fence of the next grant.
    pub(crate) next_fence: u64,
    /// The force-releases that the audit log tells of.
    pub(crate) audited: BTreeSet<u64>,
    /// What is wrong whatever the history was.
    pub(crate) wrong: Vec<String>,
    /// Whether an intent stood, so that recovery had something to do.
    pub(crate) stood: bool,
}

/// Recovers the table at `root` as the next process in `boot` would, and goes on with it.
pub(crate) fn recover(root: &Path, boot: &str, everything: &[u64]) -> Recovered {
    let mut recovered = Recovered::default();
    if let Err(wrong) = try_recover(root, boot, everything, &mut recovered) {
        recovered.wrong.push(wrong);
    }
    recovered
}

fn try_recover(
    root: &Path,
    boot: &str,
    everything: &[u64],
    recovered: &mut Recovered,
) -> Result<(), String> {
    let world = world(boot);
    let reader = Opened::open_read_only(&world, root)
        .map_err(|error| format!("a reader cannot open: {error}"))?;
    recovered.stood = an_intent_may_stand(root);
    let before = look(&reader).map_err(|wrong| format!("before recovery: {wrong}"))?;
    let place = reader.place()?;
    // One sync after the other: what is judged is what is stored, and threads only cost time.
    let tuning = Tuning { sync_width: 1, ..Tuning::default() };
    let opened =
        Opened::open(&world, root, tuning).map_err(|error| format!("cannot open: {error}"))?;
    recovered.table = look(&opened).map_err(|wrong| format!("after recovery: {wrong}"))?;
    if before != recovered.table {
        recovered.wrong.push(format!(
            "a reader saw {} before recovery and {} after",
            short(&before),
            short(&recovered.table)
        ));
    }
    let report = opened.check().map_err(|error| format!("cannot check: {error}"))?;
    for finding in report.findings {
        // A temporary is what a crash may leave, and is in nobody's way.
        if !matches!(finding, Finding::Temporary(_)) {
            recovered.wrong.push(format!("after recovery: {finding:?}"));
        }
    }
    let audit = std::fs::read_to_string(root.join("audit.log")).unwrap_or_default();
    if audit.contains("left-alone") {
        recovered.wrong.push("recovery left a record alone that only it had changed".to_owned());
    }
    recovered.audited = audit
        .split(REASON)
        .skip(1)
        .filter_map(|rest| {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            rest[..digits].parse().ok()
        })
        .collect();
    // The next claim is of a target that nobody held: no record says which fences there were. Then one
    // takes a group over, long after every lease ran out: the same group for the same disk, and every
    // target over many disks.
    let later = Timestamp::from_seconds(4e9).map_err(chain)?;
    let table = opened.targets().with_patience(Duration::from_secs(5));
    let claim = Claim::by_owner(Owner::new("op-0").map_err(chain)?).now(later);
    let group = TargetGroup::from_numbers([NEXT]).map_err(chain)?;
    let lease =
        table.claim(&group, &claim).map_err(|error| format!("next claim: {}", chain(error)))?;
    recovered.next_fence = lease.fence().0;
    let token = lease.token().clone();
    table
        .release(&group, &token, None)
        .map_err(|error| format!("release of the next claim: {}", chain(error)))?;
    let sum = recovered.table.values().fold(0_u64, |sum, seen| sum.wrapping_add(seen.updated));
    let first = usize::try_from(sum % TAKEN as u64).unwrap_or(0);
    let step = everything.len() / TAKEN;
    let taken: Vec<u64> =
        (0..TAKEN).map(|member| everything[(first + member * step) % everything.len()]).collect();
    let group = TargetGroup::from_numbers(taken.iter().copied()).map_err(chain)?;
    let lease =
        table.claim(&group, &claim).map_err(|error| format!("taking over: {}", chain(error)))?;
    // A journal is recovered by whoever writes first, by a new checkpoint if there is anything to do.
    let moved = |old: ringfence::JournalPlace, new: ringfence::JournalPlace| {
        (old.epoch, old.checkpoint) != (new.epoch, new.checkpoint)
    };
    recovered.stood |= place.zip(opened.place()?).is_some_and(|(old, new)| moved(old, new));
    if lease.fence().0 <= recovered.next_fence {
        let (old, new) = (recovered.next_fence, lease.fence().0);
        recovered.wrong.push(format!("fence {old} was granted, and after it {new}"));
    }
    for (item, seen) in &recovered.table {
        if seen.fence >= recovered.next_fence {
            let (old, new) = (seen.fence, recovered.next_fence);
            recovered.wrong.push(format!("{item} has fence {old}, the next grant got {new}"));
        }
    }
    // As a process sees it that had no part in it.
    let reader = Opened::open_read_only(&world, root)
        .map_err(|error| format!("after the next claim a reader cannot open: {error}"))?;
    let mut after = look(&reader).map_err(|wrong| format!("after the next claim: {wrong}"))?;
    let all = taken.iter().all(|item| {
        let seen = after.remove(item);
        seen.is_some_and(|seen| seen.of == 0 && seen.token == lease.token().as_str())
    });
    let others = after.iter().all(|(item, seen)| recovered.table.get(item) == Some(seen));
    if !all || !others {
        recovered.wrong.push(format!("beside the next claim there is {}", short(&after)));
    }
    Ok(())
}

/// How many targets the next claim takes.
const TAKEN: usize = 4;

fn an_intent_may_stand(root: &Path) -> bool {
    let slots = std::fs::read_dir(root.join("intents")).into_iter().flatten().flatten();
    slots
        .into_iter()
        .any(|slot| std::fs::read(slot.path()).is_ok_and(|bytes| bytes.starts_with(b"RFINTENT")))
}

/// A table in few words.
pub(crate) fn short(table: &BTreeMap<u64, Seen>) -> String {
    let item = |(item, seen): (&u64, &Seen)| {
        format!(
            "{item}:op{}/f{}/{}@{:x}",
            seen.of,
            seen.fence,
            seen.status,
            seen.updated & 0xff_ffff
        )
    };
    format!("[{}]", table.iter().map(item).collect::<Vec<_>>().join(" "))
}
