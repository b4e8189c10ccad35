//! The calls whose every crash point is tried: how each is prepared and made.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ringfence_engine::Engine;
use ringfence_model::{Fence, Key, RecordId, ShardCount, Token};

use crate::faults::Chaos;
use crate::history::{Caller, Fate, History, State};
use crate::machine::{Machine, Point};
use crate::setup::{SHARDS, Setup, blank, read_all, root, target};
use crate::subject::Table;
use crate::verbs::{Verbs, group, job, keys, manifest, request, work};

/// A group's size and spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many targets.
    pub members: usize,
    /// Over how many shards.
    pub shards: u16,
}

/// The call that is cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the verb of the same name, or says more")]
pub enum Act {
    Init,
    Claim,
    /// A claim that has to raise the fence limit: the first one of a boot.
    FenceRaise,
    /// A repair of a table whose shard somebody removed, and a claim in that shard.
    MakeShard,
    TakeOver,
    Heartbeat,
    /// Two groups in one batch.
    HeartbeatEach,
    Release,
    ForceRelease,
    ClaimWork,
    BeginCommit,
    Complete,
    Abandon,
    /// A group and a work item under one token, in one call.
    ClaimJob,
    CompleteJob,
    AbandonJob,
    /// A group is claimed, and one of its targets taken over and released by somebody else: then
    /// nothing may be left from which the first claim could come back.
    StaleIntent,
    /// A group is claimed over a record whose writer was killed before it had synced it.
    OverUnsynced,
    /// A group is renewed after a take-over of one of its records has failed, whose caller was killed
    /// before it had synced what it put back.
    RenewOverUndone,
    /// The same, where the group is released.
    ReleaseOverUndone,
    /// A claim that finds its segment full, and goes on in the next one.
    Rotate,
    /// A claim after which the next segment is made ready, and a checkpoint written.
    MakeRoom,
    /// A claim that finds its segment full and the next one not ready.
    NoRoom,
    /// As [`Self::MakeRoom`], where so much is held that the next segment is larger than its file was.
    Grow,
    /// The same, where so little is held again that it is smaller.
    Shrink,
}

/// Every act on the files engine.
pub const ACTS: [Act; 20] = [
    Act::Init,
    Act::Claim,
    Act::FenceRaise,
    Act::MakeShard,
    Act::TakeOver,
    Act::Heartbeat,
    Act::HeartbeatEach,
    Act::Release,
    Act::ForceRelease,
    Act::ClaimWork,
    Act::BeginCommit,
    Act::Complete,
    Act::Abandon,
    Act::ClaimJob,
    Act::CompleteJob,
    Act::AbandonJob,
    Act::StaleIntent,
    Act::OverUnsynced,
    Act::RenewOverUndone,
    Act::ReleaseOverUndone,
];

impl Act {
    /// Whether it is about a group, so that its shape matters.
    pub fn has_shape(self) -> bool {
        !matches!(
            self,
            Self::Init | Self::ClaimWork | Self::BeginCommit | Self::Complete | Self::Abandon
        )
    }

    fn is_over_undone(self) -> bool {
        matches!(self, Self::RenewOverUndone | Self::ReleaseOverUndone)
    }
}

/// One act on one shape.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The call.
    pub act: Act,
    /// Its group.
    pub shape: Shape,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.act.has_shape() {
            write!(f, "{:?} {}/{}", self.act, self.shape.members, self.shape.shards)
        } else {
            write!(f, "{:?}", self.act)
        }
    }
}

/// Everything that the call needs, and what was there before it.
#[derive(Debug)]
pub struct Ready {
    /// The host, settled: nothing is at risk.
    pub machine: Machine,
    /// The group's targets.
    pub numbers: Vec<u64>,
    /// The second group of a batch.
    pub others: Vec<u64>,
    /// The token of the group or item, where it is held.
    pub token: Option<Token>,
    /// That of the second group.
    pub other_token: Option<Token>,
    /// Every record.
    pub before: BTreeMap<Key, State>,
    /// What a power cut may make of a record though nobody touches it: it is not durable yet.
    pub fading: BTreeMap<Key, State>,
    /// The highest fence granted.
    pub fence: Fence,
}

/// Targets of the wanted shape: the n-th member goes to the (n mod shards)-th shard.
pub fn targets_of(shape: Shape, from: u64) -> Vec<u64> {
    let shards = ShardCount::new(SHARDS).expect("in range");
    let shard = |number: u64| RecordId::of_target(target(number)).shard(shards).to_string();
    let mut found = Vec::new();
    for number in from.. {
        if found.len() == shape.members {
            break;
        }
        let wanted = found.len() as u64 % u64::from(shape.shards);
        if shard(number) == format!("{wanted:03}") {
            found.push(number);
        }
    }
    found
}

impl Case {
    /// Makes the table and everything that the call presupposes.
    pub fn prepare(self, setup: Setup) -> Ready {
        let machine = Machine::solo(1, blank(), 1);
        let mut ready = Ready {
            numbers: targets_of(self.shape, 1),
            others: targets_of(self.shape, 1000),
            machine,
            token: None,
            other_token: None,
            before: BTreeMap::new(),
            fading: BTreeMap::new(),
            fence: Fence(0),
        };
        if self.act == Act::Init {
            return ready;
        }
        let mended = setup.mended();
        let world = mended.world(&ready.machine, 0);
        let engine = mended.init(&world).expect("a new table");
        self.presuppose(&mut ready, &*engine);
        if self.act == Act::MakeShard {
            Self::remove_shard(&ready);
        }
        let reboot = self.act == Act::FenceRaise;
        ready.machine = ready.machine.later(ready.machine.disk().settled(), reboot);
        if reboot {
            mended.open(&mended.world(&ready.machine, 0)).expect("opens after a restart");
            ready.machine.set_disk(ready.machine.disk().settled());
        }
        let engine = mended.open(&mended.world(&ready.machine, 0)).expect("opens");
        if self.act == Act::OverUnsynced {
            Self::kill_before_sync(setup, &mut ready, &*engine);
        }
        if self.act.is_over_undone() {
            Self::kill_after_undo(setup, &mut ready);
        }
        setup.subject.stage(self.act, &ready.machine);
        ready.before = read_all(&*engine).expect("reads").into_iter().collect();
        let tokens = ready.before.values().filter_map(|state| state.token.as_ref()?.fence());
        ready.fence = tokens.fold(ready.fence, Fence::max);
        ready
    }

    fn presuppose(self, ready: &mut Ready, engine: &dyn Engine) {
        let history = History::default();
        let machine = ready.machine.clone();
        let verbs = verbs("old", &machine, &history, engine, None);
        let mut highest = Fence(0);
        let mut grant = |token: Option<Token>| {
            let token = token.expect("granted");
            highest = highest.max(token.fence().expect("ours"));
            token
        };
        // A neighbour in every shard, which nothing may touch.
        let neighbours = targets_of(Shape { members: 3, shards: SHARDS }, 5000);
        grant(verbs.claim(&request("neighbour", &neighbours, 1e6)).token);
        // Lock files that are there already, as in a table that is in use.
        let all = [ready.numbers.as_slice(), &ready.others].concat();
        let first = grant(verbs.claim(&request("old", &all, 5.0)).token);
        assert_eq!(verbs.release(&group(&all), &first).fate, Fate::Done);
        let runs_out = self.act == Act::TakeOver || self.act.is_over_undone();
        let seconds = if runs_out { 5.0 } else { 1e6 };
        let item = work("old", 1, 1e6);
        match self.act {
            Act::TakeOver
            | Act::Heartbeat
            | Act::Release
            | Act::ForceRelease
            | Act::RenewOverUndone
            | Act::ReleaseOverUndone => {
                let asked = request("old", &ready.numbers, seconds);
                ready.token = Some(grant(verbs.claim(&asked).token));
            }
            Act::HeartbeatEach => {
                let asked = request("old", &ready.numbers, seconds);
                ready.token = Some(grant(verbs.claim(&asked).token));
                let asked = request("old", &ready.others, seconds);
                ready.other_token = Some(grant(verbs.claim(&asked).token));
            }
            Act::BeginCommit | Act::Complete | Act::Abandon => {
                let token = grant(verbs.claim_work(&item).token);
                if self.act == Act::Complete {
                    let done = verbs.begin_commit(Key::work(item.id()), &token, &manifest(1));
                    assert_eq!(done.fate, Fate::Done);
                }
                ready.token = Some(token);
            }
            Act::CompleteJob | Act::AbandonJob => {
                let asked = request("old", &ready.numbers, seconds);
                let token = grant(verbs.claim_job(&asked, &item).token);
                if self.act == Act::CompleteJob {
                    let done = verbs.begin_commit(Key::work(item.id()), &token, &manifest(1));
                    assert_eq!(done.fate, Fate::Done);
                }
                ready.token = Some(token);
            }
            _ => {}
        }
        if runs_out {
            machine.advance(Duration::from_mins(1));
        } else {
            machine.advance(Duration::from_secs(1));
        }
        ready.fence = highest;
    }

    /// Somebody claims the first target alone, and is killed between the rename and the sync.
    fn kill_before_sync(setup: Setup, ready: &mut Ready, engine: &dyn Engine) {
        let history = History::default();
        let machine = ready.machine.clone();
        machine.start_recording();
        let one = ready.numbers.get(..1).expect("a target");
        let claimed =
            verbs("dead", &machine, &history, engine, None).claim(&request("dead", one, 5.0));
        ready.fence = claimed.token.expect("granted").fence().expect("ours");
        let points = machine.stop_recording();
        let cut =
            points.iter().rposition(|point| point.label.starts_with(setup.subject.commits_by()));
        machine.set_disk(points[cut.expect("a sync")].disk.clone());
        machine.advance(Duration::from_mins(1));
        ready.fading.insert(keys(&group(one))[0], State::vacant());
    }

    /// Somebody takes the first target over alone, the sync of that fails, and he is killed before he has
    /// synced what he put back.
    fn kill_after_undo(setup: Setup, ready: &mut Ready) {
        let one = group(ready.numbers.get(..1).expect("a target"));
        let mut attempt = |chaos: Chaos| {
            let machine = ready.machine.later(ready.machine.disk(), false);
            let engine = setup.mended().open(&setup.mended().world(&machine, 0)).expect("opens");
            let history = History::default();
            machine.set_chaos(chaos);
            machine.start_recording();
            let _ = verbs("dead", &machine, &history, &*engine, None).claim(&request(
                "dead",
                &ready.numbers[..1],
                5.0,
            ));
            machine.set_chaos(Chaos::none());
            let op = history.calls().pop().expect("a claim");
            let fence = op.granted.expect("decided").1.fence();
            ready.fence = ready.fence.max(fence);
            (machine.stop_recording(), op.wrote.first().expect("a record").1.clone())
        };
        let is_sync = |point: &Point| point.label.starts_with(setup.subject.commits_by());
        let (points, _) = attempt(Chaos::none());
        let number = points.iter().position(is_sync).expect("a sync") + 1;
        let (points, taken) = attempt(Chaos::fail_one(number as u64, true, 5));
        let cut = points.iter().rposition(is_sync).filter(|cut| *cut >= number);
        ready.machine.set_disk(points[cut.expect("a second sync")].disk.clone());
        ready.fading.insert(keys(&one)[0], taken);
    }

    /// Takes the shard of the first target away, with everything in it.
    fn remove_shard(ready: &Ready) {
        let world = ready.machine.world(0);
        let id = RecordId::of_target(target(ready.numbers[0]));
        let shards = ShardCount::new(SHARDS).expect("in range");
        let dir = root().join(id.shard(shards).to_string());
        for name in world.fs.list(&dir).expect("a shard") {
            world.fs.unlink(&dir.join(&name.name)).expect("a file");
        }
        world.fs.rmdir(&dir).expect("empty");
    }

    /// What somebody calls once whoever made the call was killed: the same; and after a repair, which is
    /// an operator's, also what coordinators call who know nothing of it.
    pub fn retries(self) -> Vec<Self> {
        let claim = (self.act == Act::MakeShard).then_some(Self { act: Act::Claim, ..self });
        [self].into_iter().chain(claim).collect()
    }

    /// Makes the call. The engine may be broken.
    pub fn act(
        self,
        setup: Setup,
        ready: &Ready,
        machine: &Machine,
        engine: Option<&dyn Table>,
        history: &History,
    ) -> Fate {
        let Some(engine) = engine else {
            let made = setup.init(&setup.world(machine, 0));
            return made.map_or_else(Fate::Restored, |_| Fate::Done);
        };
        let verbs = verbs("new", machine, history, engine, setup.wrong);
        let token = || ready.token.as_ref().expect("held");
        let held = group(&ready.numbers);
        let item = work("new", 1, 1e6);
        let key = Key::work(item.id());
        match self.act {
            Act::Init => unreachable!("there is no engine before a table"),
            Act::MakeShard => match engine.tidy() {
                Ok(()) => verbs.claim(&request("new", &ready.numbers, 1e6)).fate,
                Err(error) => Fate::Restored(error),
            },
            Act::Claim
            | Act::FenceRaise
            | Act::TakeOver
            | Act::OverUnsynced
            | Act::Rotate
            | Act::MakeRoom
            | Act::NoRoom
            | Act::Grow
            | Act::Shrink => verbs.claim(&request("new", &ready.numbers, 1e6)).fate,
            Act::Heartbeat | Act::RenewOverUndone => verbs.heartbeat(&held, token()).fate,
            Act::HeartbeatEach => {
                let other = ready.other_token.clone().expect("held");
                let both = [(held, token().clone()), (group(&ready.others), other)];
                let fates = verbs.heartbeat_each(&both);
                match fates.iter().find(|fate| **fate != Fate::Done) {
                    None => Fate::Done,
                    // Some were renewed and some were not: each group by itself is old or new.
                    Some(_) if fates.contains(&Fate::Done) => Fate::Unknown("in part".into()),
                    Some(odd) => odd.clone(),
                }
            }
            Act::Release | Act::ReleaseOverUndone => verbs.release(&held, token()).fate,
            Act::ForceRelease => verbs.force_release(&held, token()).fate,
            Act::ClaimWork => verbs.claim_work(&item).fate,
            Act::BeginCommit => verbs.begin_commit(key, token(), &manifest(1)).fate,
            Act::Complete => verbs.complete(key, token()).fate,
            Act::Abandon => verbs.abandon(key, token()).fate,
            Act::ClaimJob => verbs.claim_job(&request("new", &ready.numbers, 1e6), &item).fate,
            Act::CompleteJob => verbs.complete_job(&held, key, token()).fate,
            Act::AbandonJob => verbs.abandon_job(&held, key, token()).fate,
            Act::StaleIntent => {
                let first = verbs.claim(&request("new", &ready.numbers, 5.0)).fate;
                machine.advance(Duration::from_mins(1));
                let one = ready.numbers.get(..1).expect("a target");
                let second = verbs.claim(&request("another", one, 1e6));
                match (first, second.token) {
                    (Fate::Done, Some(token)) => verbs.release(&group(one), &token).fate,
                    (odd, _) => odd,
                }
            }
        }
    }

    /// The keys that the call is about.
    pub fn keys(self, ready: &Ready) -> Vec<Key> {
        match self.act {
            Act::Init => Vec::new(),
            Act::ClaimWork | Act::BeginCommit | Act::Complete | Act::Abandon => {
                vec![Key::work(work("new", 1, 1.0).id())]
            }
            Act::HeartbeatEach => {
                let mut all = keys(&group(&ready.numbers));
                all.extend(keys(&group(&ready.others)));
                all
            }
            Act::ClaimJob | Act::CompleteJob | Act::AbandonJob => {
                job(&group(&ready.numbers), Key::work(work("new", 1, 1.0).id()))
            }
            _ => keys(&group(&ready.numbers)),
        }
    }
}

/// The verbs of one simulated caller that nobody disturbs.
pub fn verbs<'a>(
    name: &'a str,
    machine: &'a Machine,
    history: &'a History,
    engine: &'a dyn Engine,
    wrong: Option<crate::verbs::WrongRule>,
) -> Verbs<'a> {
    let caller = Caller { machine, proc: 0, history, engine, patience: Duration::from_millis(200) };
    Verbs { caller, name, wrong }
}
