//! One process of a workload: calls of the library or the binary, each between two marks.

mod commands;
mod soak;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ringfence::{
    BeginCommitError, Claim, ClaimError, CompleteError, Failure, Owner, Renewal, TargetGroup,
    TargetTable, Timestamp, Token, Ttl, WorkClaimError, WorkTable, World,
};
use ringfence_env::{LockFd, LockMode};
use ringfence_files::open::Tuning;
use rustix::process::Signal;

use crate::lie::{Lie, Syncs};
use crate::marks::{Begin, End, Ending, Marks, Verb, WORK};
use crate::opened::{Mode, Opened};
use crate::rng::Rng;
use crate::table;

/// Flags of `work`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The table
    #[arg(long)]
    pub(crate) store: PathBuf,
    /// The recorder's control file
    #[arg(long)]
    pub(crate) control: Option<PathBuf>,
    /// What to do
    #[arg(long)]
    pub(crate) plan: Plan,
    /// The kind of table to make
    #[arg(long, default_value = "group")]
    pub(crate) mode: Mode,
    /// Which process of the workload this is
    #[arg(long, default_value = "0")]
    pub(crate) process: u64,
    /// The seed of what it does
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// Bytes of the largest payload of a claim
    #[arg(long, default_value = "0")]
    pub(crate) payload: usize,
    /// How many calls a mixed plan makes
    #[arg(long, default_value = "50")]
    pub(crate) calls: u64,
    /// Leave out the N-th sync
    #[arg(long, default_value = "0")]
    pub(crate) drop_sync: u64,
    /// Leave out all syncs of a kind
    #[arg(long)]
    pub(crate) without: Option<Syncs>,
    /// The host and boot that it runs in
    #[arg(long, default_value = table::RECORDED)]
    pub(crate) boot: String,
    /// The binary, for the plan that runs it
    #[arg(long)]
    pub(crate) binary: Option<PathBuf>,
    /// Make a sync that failed again, and believe the second answer
    #[arg(long)]
    pub(crate) retry_sync: bool,
}

/// What a process does.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Make a table
    Init,
    /// Every verb on every shape of group, one after the other
    Verbs,
    /// One call of each verb on a pair and a triple: few writes, for slow file systems
    Short,
    /// Every verb by the binary, one process for each call
    Binary,
    /// Random calls on overlapping groups
    Mixed,
    /// Random calls on overlapping groups of 1 to 8, until it is killed
    Soak,
    /// The same by the binary
    SoakBinary,
    /// Open the table in the boot after a power cut, which recovers it
    Recover,
}

/// The targets that workloads use: four in each shard.
pub(crate) fn targets() -> Vec<u64> {
    (0..table::SHARDS).flat_map(|shard| table::targets_in(shard, 4)).collect()
}

/// Runs it.
pub(crate) fn run(args: &Args) -> ExitCode {
    // Whoever started it may be killed, and it would keep the mounts.
    let parent = rustix::process::getppid();
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != parent {
        return ExitCode::FAILURE;
    }
    let done = match args.plan {
        Plan::Init => table::make(&args.store, args.mode),
        Plan::Verbs => Session::open(args).and_then(|mut session| session.verbs()),
        Plan::Short => Session::open(args).and_then(|mut session| session.short()),
        Plan::Binary => {
            Session::open(args).and_then(|mut session| commands::run(&mut session, args))
        }
        Plan::Mixed => Session::open(args).and_then(|mut session| session.mixed(args)),
        Plan::Soak => Session::open(args).and_then(|mut session| soak::calls(&mut session, args)),
        Plan::SoakBinary => {
            Session::open(args).and_then(|mut session| commands::soak(&mut session, args))
        }
        Plan::Recover => {
            let boot = if args.boot == table::RECORDED { table::AFTER } else { args.boot.as_str() };
            let opened = Opened::open(&table::world(boot), &args.store, Tuning::default());
            opened.and_then(|opened| recover(&opened))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workload: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A journal is recovered by whoever writes first.
fn recover(opened: &Opened) -> Result<(), String> {
    if let Opened::Journal(store) = opened {
        let group = group(&[table::NEXT])?;
        let ttl = Ttl::from_seconds(0.02).map_err(table::chain)?;
        match store.targets().claim(&group, &Claim::by_owner(owner(0)?).ttl(ttl)) {
            Ok(lease) => {
                let token = lease.token().clone();
                store.targets().release(&group, &token, None).map_err(table::chain)?;
            }
            // That of a recovery which was cut off.
            Err(ClaimError::Refused(_)) => {}
            Err(error) => return Err(table::chain(error)),
        }
    }
    Ok(())
}

/// A grant that this process believes to have.
#[derive(Clone, Debug)]
struct Grant {
    of: u64,
    items: Vec<u64>,
    token: Token,
}

struct Session {
    targets: TargetTable,
    work: WorkTable,
    opened: Opened,
    store: PathBuf,
    world: World,
    payload: usize,
    marks: Marks,
    next: u64,
    /// Locks on the first slots, so that each call's intent is in another slot than the ones before:
    /// one that was not retired is not just overwritten.
    held: Vec<Box<dyn LockFd>>,
    /// The slot of the next intent, if they go round.
    slot: Option<usize>,
    /// After a failure the process makes no further call, like a program that gives up.
    failed: bool,
}

impl Session {
    fn open(args: &Args) -> Result<Self, String> {
        let lie = Lie { drop: args.drop_sync, retry: args.retry_sync, without: args.without };
        let world = table::lying_world(&args.boot, lie);
        let opened = Opened::open(&world, &args.store, Tuning::default())?;
        let control = args.control.as_ref().ok_or("no control file")?;
        Ok(Self {
            targets: opened.targets(),
            work: opened.work(),
            opened,
            store: args.store.clone(),
            payload: args.payload,
            world,
            marks: Marks::open(control).map_err(table::chain)?,
            next: (args.process + 1) * 10_000,
            held: Vec::new(),
            slot: None,
            failed: false,
        })
    }

    /// Lets the next intent go into the next slot.
    fn next_slot(&mut self) -> Result<(), String> {
        const ROUND: usize = 5;
        let Some(slot) = self.slot else { return Ok(()) };
        self.slot = Some((slot + 1) % ROUND);
        self.held.clear();
        for number in 0..slot {
            let path = self.store.join(format!("intents/{number:05}.slot"));
            let lock = self.world.fs.open_lock(&path, false, 0o600).map_err(table::chain)?;
            if lock.try_lock(LockMode::Exclusive).map_err(table::chain)? {
                self.held.push(lock);
            }
        }
        Ok(())
    }

    fn now(&self) -> Result<Timestamp, String> {
        let wall = self.world.clock.wall().as_secs_f64();
        Timestamp::from_seconds(wall).map_err(table::chain)
    }

    fn pause(&self, millis: u64) {
        self.world.clock.sleep(Duration::from_millis(millis));
    }

    fn begin(
        &mut self,
        verb: Verb,
        items: &[u64],
        of: Option<u64>,
        updated: Option<Timestamp>,
    ) -> Begin {
        // In a table without intents there is no slot.
        let _ = self.next_slot();
        self.next += 1;
        let id = self.next;
        let updated = updated.map(|updated| updated.seconds().to_bits());
        Begin { id, verb, items: items.to_vec(), of: of.unwrap_or(id), updated, fence: None }
    }

    /// Writes the mark after a call.
    fn end(&mut self, id: u64, done: Result<Answer, Wrong>) -> Result<Option<Answer>, String> {
        let (end, answer) = self.ending(id, done);
        self.marks.end(&[end]).map_err(table::chain)?;
        Ok(answer)
    }

    fn ending(&mut self, id: u64, done: Result<Answer, Wrong>) -> (End, Option<Answer>) {
        let nothing = End { id, ending: Ending::Nothing, fence: None, updated: None, error: None };
        match done {
            Ok(answer) => {
                let (fence, updated) = (answer.fence, answer.updated);
                (End { ending: Ending::Done, fence, updated, ..nothing }, Some(answer))
            }
            Err(Wrong { unknown, failed, error }) => {
                self.failed |= failed;
                let ending = if unknown { Ending::Unknown } else { Ending::Nothing };
                (End { ending, error: Some(error), ..nothing }, None)
            }
        }
    }

    fn claim(&mut self, items: &[u64], ttl: f64) -> Result<Option<Grant>, String> {
        let call = self.begin(Verb::Claim, items, None, None);
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let group = group(items)?;
        let mut claim =
            Claim::by_owner(owner(call.id)?).ttl(Ttl::from_seconds(ttl).map_err(table::chain)?);
        if self.payload > 0 {
            let len =
                [0, self.payload, self.payload / 30, self.payload / 2][(call.id % 4) as usize];
            claim = claim.payload(table::payload(call.id, len)?);
        }
        let mut token = None;
        let done = match self.targets.claim(&group, &claim) {
            Ok(lease) => {
                token = Some(lease.token().clone());
                Ok(Answer {
                    fence: Some(lease.fence().0),
                    updated: Some(lease.updated().seconds().to_bits()),
                })
            }
            Err(error) => Err(match &error {
                ClaimError::Failed(failure) => Wrong::failed(failure),
                other => Wrong::refused(other),
            }),
        };
        self.end(call.id, done)?;
        Ok(token.map(|token| Grant { of: call.id, items: items.to_vec(), token }))
    }

    fn heartbeat(&mut self, grant: &Grant) -> Result<(), String> {
        let now = self.now()?;
        let call = self.begin(Verb::Heartbeat, &grant.items, Some(grant.of), Some(now));
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done = match self.targets.heartbeat(&group(&grant.items)?, &grant.token, Some(now)) {
            Ok(_) => Ok(Answer::plain()),
            Err(ringfence::HeartbeatError::Failed(failure)) => Err(Wrong::failed(&failure)),
            Err(error) => Err(Wrong::refused(&error)),
        };
        self.end(call.id, done).map(|_| ())
    }

    fn heartbeat_many(&mut self, grants: &[Grant]) -> Result<(), String> {
        let now = self.now()?;
        let mut calls = Vec::new();
        let mut groups = Vec::new();
        for grant in grants {
            calls.push(self.begin(Verb::Heartbeat, &grant.items, Some(grant.of), Some(now)));
            groups.push(group(&grant.items)?);
        }
        self.marks.begin(&calls).map_err(table::chain)?;
        let leases: Vec<_> =
            groups.iter().zip(grants).map(|(group, grant)| (group, &grant.token)).collect();
        let batch = self.targets.heartbeat_many(&leases, Some(now));
        let mut ends = Vec::new();
        for (renewal, call) in batch.renewals.into_iter().zip(&calls) {
            let done = match renewal {
                Renewal::Renewed(_) => Ok(Answer::plain()),
                Renewal::Lost(lost) => Err(Wrong::refused(&lost)),
                Renewal::Failed(failure) => Err(Wrong::failed(&failure)),
                Renewal::NotBegun => {
                    Err(Wrong { unknown: false, failed: false, error: "not begun".to_owned() })
                }
            };
            ends.push(self.ending(call.id, done).0);
        }
        self.marks.end(&ends).map_err(table::chain)
    }

    fn release(&mut self, grant: &Grant) -> Result<(), String> {
        let call = self.begin(Verb::Release, &grant.items, Some(grant.of), None);
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done = match self.targets.release(&group(&grant.items)?, &grant.token, None) {
            Ok(()) => Ok(Answer::plain()),
            Err(ringfence::ReleaseError::Failed(failure)) => Err(Wrong::failed(&failure)),
            Err(error) => Err(Wrong::refused(&error)),
        };
        self.end(call.id, done).map(|_| ())
    }

    fn force_release(&mut self, grant: &Grant) -> Result<(), String> {
        let mut call = self.begin(Verb::ForceRelease, &grant.items, Some(grant.of), None);
        call.fence = grant.token.fence().map(|fence| fence.0);
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done = self.targets.force_release(
            &group(&grant.items)?,
            &grant.token,
            &format!("{}{}", table::REASON, call.id),
        );
        let done = match done {
            Ok(()) => Ok(Answer::plain()),
            Err(ringfence::ForceReleaseError::Failed(failure)) => Err(Wrong::failed(&failure)),
            Err(error) => Err(Wrong::refused(&error)),
        };
        self.end(call.id, done).map(|_| ())
    }

    /// One work item from its claim to its end.
    fn work(&mut self, number: u64, publish: bool) -> Result<(), String> {
        let item = [WORK + number];
        let call = self.begin(Verb::Claim, &item, None, None);
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let now = None;
        let claimed = self.work.claim(&table::work_item(number), &owner(call.id)?, 0, None, now);
        let (lease, done) = match claimed {
            Ok(lease) => {
                let answer = Answer { fence: Some(lease.generation), updated: None };
                (Some(lease), Ok(answer))
            }
            Err(WorkClaimError::Failed(failure)) => (None, Err(Wrong::failed(&failure))),
            Err(error) => (None, Err(Wrong::refused(&error))),
        };
        self.end(call.id, done)?;
        let Some(lease) = lease else { return Ok(()) };
        let of = call.id;

        let at = self.now()?;
        let call = self.begin(Verb::Heartbeat, &item, Some(of), Some(at));
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done = match self.work.heartbeat(lease.id, &lease.token, Some(at)) {
            Ok(()) => Ok(Answer::plain()),
            Err(ringfence::WorkHeartbeatError::Failed(failure)) => Err(Wrong::failed(&failure)),
            Err(error) => Err(Wrong::refused(&error)),
        };
        self.end(call.id, done)?;
        if !publish {
            let call = self.begin(Verb::Release, &item, Some(of), None);
            self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
            let done = match self.work.abandon(lease.id, &lease.token, None) {
                Ok(()) => Ok(Answer::plain()),
                Err(ringfence::AbandonError::Failed(failure)) => Err(Wrong::failed(&failure)),
                Err(error) => Err(Wrong::refused(&error)),
            };
            return self.end(call.id, done).map(|_| ());
        }
        let call = self.begin(Verb::BeginCommit, &item, Some(of), None);
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let manifest = table::work_item(number + 1);
        let done = match self.work.begin_commit(lease.id, &lease.token, &manifest, None) {
            Ok(()) => Ok(Answer::plain()),
            Err(BeginCommitError::Failed(failure)) => Err(Wrong::failed(&failure)),
            Err(error) => Err(Wrong::refused(&error)),
        };
        self.end(call.id, done)?;
        let call = self.begin(Verb::Complete, &item, Some(of), None);
        self.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done = match self.work.complete_once(lease.id, &lease.token, None) {
            Ok(_) => Ok(Answer::plain()),
            Err(CompleteError::Failed(failure)) => Err(Wrong::failed(&failure)),
            Err(error) => Err(Wrong::refused(&error)),
        };
        self.end(call.id, done).map(|_| ())
    }

    /// Grant, renewal, removal, take-over and removal by force of one group.
    fn cycle(&mut self, items: &[u64]) -> Result<(), String> {
        const BRIEF: f64 = 0.02;
        let first = self.claim(items, 3600.0)?.ok_or("a free group was refused")?;
        self.heartbeat(&first)?;
        self.release(&first)?;
        self.claim(items, BRIEF)?.ok_or("a released group was refused")?;
        self.pause(40);
        let taken = self.claim(items, 3600.0)?.ok_or("an expired group was refused")?;
        self.force_release(&taken)?;
        let single = self.claim(&items[..1], 3600.0)?.ok_or("a released target was refused")?;
        self.release(&single)
    }

    fn verbs(&mut self) -> Result<(), String> {
        self.slot = Some(0);
        let [a, b, c] = [0, 1, 2].map(|shard| table::targets_in(shard, 4));
        let shapes = [
            vec![a[0]],
            vec![a[0], a[1]],
            vec![a[0], b[0]],
            vec![a[0], a[1], a[2]],
            vec![a[0], b[0], c[0]],
            vec![a[0], a[1], b[0]],
            vec![a[0], a[1], a[2], a[3]],
            vec![a[0], a[1], b[0], b[1]],
            vec![a[0], a[1], b[0], c[0]],
        ];
        for shape in shapes {
            self.cycle(&shape)?;
        }
        let mut grants = Vec::new();
        for group in [vec![a[0], b[0]], vec![a[1], a[2]], vec![c[0]], vec![b[1], c[1], c[2]]] {
            grants.push(self.claim(&group, 3600.0)?.ok_or("a free group was refused")?);
        }
        self.heartbeat_many(&grants)?;
        for grant in &grants {
            self.release(grant)?;
        }
        // One of a group alone: if the group's intent still stood, it would show now.
        for grant in &grants {
            self.claim(&grant.items[..1], 3600.0)?;
        }
        self.work(1, true)?;
        self.work(2, false)
    }

    fn short(&mut self) -> Result<(), String> {
        self.slot = Some(0);
        let [a, b, c] = [0, 1, 2].map(|shard| table::targets_in(shard, 4));
        let pair = self.claim(&[a[0], a[1]], 3600.0)?;
        let triple = self.claim(&[a[2], b[0], c[0]], 3600.0)?;
        if let (Some(pair), Some(triple)) = (pair, triple) {
            self.heartbeat_many(&[pair.clone(), triple.clone()])?;
            if !self.failed {
                self.heartbeat(&pair)?;
            }
            if !self.failed {
                self.release(&pair)?;
            }
            if !self.failed {
                self.force_release(&triple)?;
            }
        }
        if self.failed {
            return Ok(());
        }
        if let Some(pair) = self.claim(&[a[0], b[0]], 3600.0)? {
            self.release(&pair)?;
        }
        // One of a group alone: if the group's intent still stood, it would show now.
        for single in [a[0], a[1], b[0], c[0]] {
            if !self.failed {
                self.claim(&[single], 3600.0)?;
            }
        }
        if self.failed { Ok(()) } else { self.work(1, true) }
    }

    fn mixed(&mut self, args: &Args) -> Result<(), String> {
        let mut rng = Rng::new(args.seed.wrapping_mul(1_000) + args.process);
        let pool: Vec<u64> = (0..3).flat_map(|shard| table::targets_in(shard, 3)).collect();
        let mut grants: Vec<Grant> = Vec::new();
        let mut item = args.process * 1_000;
        for _ in 0..args.calls {
            if self.failed {
                return Ok(());
            }
            let choice = rng.below(100);
            match choice {
                0..=39 => {
                    let mut items = Vec::new();
                    for _ in 0..=rng.below(4) {
                        let item = pool[rng.index(pool.len())];
                        if !items.contains(&item) {
                            items.push(item);
                        }
                    }
                    // Half of the leases run out while the workload runs.
                    let ttl = if rng.below(2) == 0 { 0.02 } else { 3600.0 };
                    grants.extend(self.claim(&items, ttl)?);
                }
                40..=54 if !grants.is_empty() => {
                    let grant = grants[rng.index(grants.len())].clone();
                    self.heartbeat(&grant)?;
                }
                55..=64 if grants.len() > 1 => self.heartbeat_many(&grants.clone())?,
                65..=84 if !grants.is_empty() => {
                    let grant = grants.swap_remove(rng.index(grants.len()));
                    self.release(&grant)?;
                }
                85..=91 => {
                    let seen = table::look(&self.opened).unwrap_or_default();
                    let leases: Vec<_> =
                        seen.into_iter().filter(|(item, _)| *item < WORK).collect();
                    if !leases.is_empty() {
                        let (_, seen) = &leases[rng.index(leases.len())];
                        let token = Token::new(&seen.token).map_err(table::chain)?;
                        let items = seen.group.clone();
                        self.force_release(&Grant { of: seen.of, items, token })?;
                    }
                }
                92..=95 => {
                    item += 1;
                    self.work(item, choice.is_multiple_of(2))?;
                }
                _ => self.pause(5),
            }
        }
        Ok(())
    }
}

struct Answer {
    fence: Option<u64>,
    updated: Option<u64>,
}

impl Answer {
    fn plain() -> Self {
        Self { fence: None, updated: None }
    }
}

struct Wrong {
    unknown: bool,
    failed: bool,
    error: String,
}

impl Wrong {
    fn refused(error: &dyn std::error::Error) -> Self {
        Self { unknown: false, failed: false, error: error.to_string() }
    }

    fn failed(failure: &Failure) -> Self {
        let failed = !matches!(failure, Failure::Busy { .. });
        Self { unknown: !failure.restored(), failed, error: table::chain_of(failure) }
    }
}

fn owner(id: u64) -> Result<Owner, String> {
    Owner::new(&format!("op-{id}")).map_err(table::chain)
}

fn group(items: &[u64]) -> Result<TargetGroup, String> {
    TargetGroup::from_numbers(items.iter().copied()).map_err(table::chain)
}
