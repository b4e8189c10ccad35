//! Heartbeats for everything a coordinator holds, in one batch per period.
//!
//! H1. Groups and work items are renewed by one `heartbeat_many` per period, at most a third of the ttl
//!     apart. A failed renewal is tried again sooner, as long as there is time.
//! H2. A holding is lost once: when the table says so, or, on this host's boot-time clock counted
//!     from before its last renewal began, a margin before it runs out. Then it is not renewed again.
//! H3. Losing a holding stops the work on it. It does not judge a result: that is the work fence's
//!     task, which is asked all the same.
//!
//! ```text
//! Held -[renewed]-> Held      Held -[taken over, run out]-> Lost      Held -[let_go]-> gone
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence::{JobPart, JobTable, PartRenewal, RecordId, TargetGroup, Token};
use ringfence_env::World;

use crate::events::{Event, EventLog};

/// What is kept under one number.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) group: Option<(TargetGroup, Token)>,
    pub(crate) work: Option<(RecordId, Token)>,
    /// Set once the holding is lost.
    pub(crate) lost: Arc<AtomicBool>,
    /// The boot-time clock just before the last grant or renewal began.
    pub(crate) renewed: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    world: World,
    jobs: JobTable,
    events: EventLog,
    ttl: Duration,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeMap<u64, Holding>,
    next: u64,
    stop: bool,
}

/// How often the thread looks at the boot-time clock, which a timed wait does not follow.
const SLICE: Duration = Duration::from_millis(100);

impl Keeper {
    pub(crate) fn start(
        world: &World,
        jobs: JobTable,
        events: EventLog,
        ttl: Duration,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            world: world.clone(),
            jobs,
            events,
            ttl,
        });
        let thread = std::thread::Builder::new().name("heartbeats".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Keeps a holding; returns its number.
    pub(crate) fn hold(&self, holding: Holding) -> u64 {
        let mut state = self.shared.lock();
        state.next += 1;
        let number = state.next;
        state.held.insert(number, holding);
        number
    }

    /// Stops renewing the work item: its commit is decided.
    pub(crate) fn let_go_of_work(&self, number: u64) {
        if let Some(holding) = self.shared.lock().held.get_mut(&number) {
            holding.work = None;
        }
    }

    /// Stops renewing; nothing is released by this.
    pub(crate) fn let_go(&self, number: u64) {
        self.shared.lock().held.remove(&number);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Everything is renewed together, so a holding that came just after a beat waits for at most
        // one period; a quarter of the ttl leaves time for the batch itself.
        let period = self.ttl / 4;
        let retry = self.ttl / 12;
        let mut next = self.world.clock.boottime().saturating_add(period);
        loop {
            let mut state = self.lock();
            loop {
                if state.stop {
                    return;
                }
                self.settle(&mut state);
                let now = self.world.clock.boottime();
                let Some(left) = next.checked_sub(now).filter(|left| !left.is_zero()) else {
                    break;
                };
                state = match self.changed.wait_timeout(state, left.min(SLICE)) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
            let held: Vec<(u64, Holding)> = state
                .held
                .iter()
                .filter(|(_, holding)| !holding.lost.load(Ordering::Relaxed))
                .map(|(number, holding)| (*number, holding.clone()))
                .collect();
            drop(state);
            let began = self.world.clock.boottime();
            let failed = !held.is_empty() && !self.beat(&held, began);
            next = began.saturating_add(if failed { retry } else { period });
        }
    }

    /// H2: marks what ran out.
    fn settle(&self, state: &mut State) {
        let now = self.world.clock.boottime();
        let margin = self.ttl / 6;
        for holding in state.held.values() {
            if now.saturating_add(margin) >= holding.renewed.saturating_add(self.ttl) {
                holding.lost.store(true, Ordering::Relaxed);
            }
        }
    }

    /// One batch; `false` if any renewal failed and should be tried again.
    fn beat(&self, held: &[(u64, Holding)], began: Duration) -> bool {
        let mut numbers = Vec::new();
        let mut parts: Vec<(JobPart<'_>, &Token)> = Vec::new();
        for (number, holding) in held {
            let group = holding.group.as_ref().map(|(group, token)| (JobPart::Group(group), token));
            let item = holding.work.as_ref().map(|(id, token)| (JobPart::Item(*id), token));
            for part in group.into_iter().chain(item) {
                numbers.push(*number);
                parts.push(part);
            }
        }
        let groups = held.iter().filter(|(_, holding)| holding.group.is_some()).count();
        let items = parts.len() - groups;
        let batch = self.jobs.heartbeat_many(&parts, None);
        let mut answers: BTreeMap<u64, Answer> = BTreeMap::new();
        for (number, renewal) in numbers.into_iter().zip(batch.parts) {
            let answer = match renewal {
                PartRenewal::Renewed => Answer::Renewed,
                PartRenewal::Lost(_) => Answer::Lost,
                PartRenewal::Failed(_) | PartRenewal::NotBegun => Answer::Failed,
            };
            let worst = answers.get(&number).copied().unwrap_or(answer).max(answer);
            answers.insert(number, worst);
        }
        let syncs = batch.barriers;
        let (lost, failed) = self.note(&answers, held, began);
        let ms = self.world.clock.boottime().saturating_sub(began).as_secs_f64() * 1e3;
        self.events.write(Event::Heartbeat { groups, items, ms, lost, failed, syncs });
        failed == 0
    }

    fn note(
        &self,
        answers: &BTreeMap<u64, Answer>,
        held: &[(u64, Holding)],
        began: Duration,
    ) -> (usize, usize) {
        let mut state = self.lock();
        // A renewal that came back too late is not taken.
        self.settle(&mut state);
        let (mut lost, mut failed) = (0, 0);
        for (number, before) in held {
            // What was let go of in the meantime tells nothing.
            let Some(holding) = state.held.get_mut(number) else { continue };
            let had_work = before.work.is_some() && holding.work.is_none();
            match answers.get(number) {
                Some(Answer::Renewed) => holding.renewed = began,
                // Its item was committed while the batch ran: the group alone was answered for.
                Some(Answer::Lost) if had_work => {}
                Some(Answer::Lost) => {
                    lost += 1;
                    holding.lost.store(true, Ordering::Relaxed);
                }
                Some(Answer::Failed) => failed += 1,
                None => {}
            }
        }
        (lost, failed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Renewed,
    Failed,
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence::{Claim, FilesOptions, InitOptions, Payload, Store, Ttl};
    use ringfence_env::fault::{Call, Effect, FaultFs, When};

    const TTL: Duration = Duration::from_secs(6);

    /// Either engine, with the call by which it stores a renewal.
    fn engines() -> [(InitOptions, Call); 2] {
        let files = FilesOptions::default().into();
        [(InitOptions::default(), Call::Write), (files, Call::OpenWrite)]
    }

    struct Held {
        store: Store,
        dir: tempfile::TempDir,
        faults: FaultFs,
        keeper: Keeper,
        group: TargetGroup,
        token: Token,
        lost: Arc<AtomicBool>,
        number: u64,
    }

    /// A group that is held through a file system whose calls can be made to fail.
    fn held(options: &InitOptions) -> Held {
        // In memory, where a sync takes no time.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = dir.path().join("store");
        Store::init(&root, options).unwrap();
        let world = World::system();
        let events = EventLog::open(&world, &dir.path().join("events.jsonl")).unwrap();
        let faults = FaultFs::new(Arc::clone(&world.fs));
        let faulty = world.with_fs(Arc::new(faults.clone()));
        let store = Store::open_in(&faulty, &root).unwrap();
        let renewed = world.clock.boottime();
        let group = TargetGroup::from_numbers([7, 8, 9]).unwrap();
        let claim = Claim::by("coordinator-1").unwrap().ttl(Ttl::new(TTL).unwrap());
        let lease = store.targets().claim(&group, &claim).unwrap();
        let token = lease.token().clone();
        let keeper = Keeper::start(&world, store.jobs(), events, TTL).unwrap();
        let lost = Arc::new(AtomicBool::new(false));
        let holding = Holding {
            group: Some((group.clone(), token.clone())),
            work: None,
            lost: Arc::clone(&lost),
            renewed,
        };
        let number = keeper.hold(holding);
        Held { store, dir, faults, keeper, group, token, lost, number }
    }

    impl Held {
        fn wait(&self, duration: Duration) {
            self.keeper.shared.world.clock.sleep(duration);
        }

        fn is_lost(&self) -> bool {
            self.lost.load(Ordering::Relaxed)
        }

        /// When the group is free, unless it is renewed, by the clock of the host.
        fn ends(&self) -> f64 {
            let leases = self.store.targets().list(None).unwrap().leases;
            leases[0].state.record().unwrap().holder.updated.seconds() + TTL.as_secs_f64()
        }

        fn may_be_claimed(&self) -> bool {
            let table = Store::open(self.dir.path().join("store")).unwrap().targets();
            table.claim(&self.group, &Claim::by("other").unwrap()).is_ok()
        }
    }

    /// B20: one error that passes is no surrender.
    #[test]
    fn a_failing_disk_loses_nothing_while_there_is_time_and_all_of_it_before_the_expiry() {
        let [journal, files] = engines();
        std::thread::scope(|scope| {
            scope.spawn(|| a_failing_disk(&journal));
            a_failing_disk(&files);
        });
    }

    fn a_failing_disk((options, call): &(InitOptions, Call)) {
        let held = held(options);
        let before = held.ends();
        held.faults.arm(When::FromOf(*call, 1), Effect::Errno(5));
        while held.faults.fired() == 0 {
            held.wait(Duration::from_millis(5));
        }
        held.faults.disarm();
        while held.ends() <= before && !held.is_lost() {
            held.wait(Duration::from_millis(5));
        }
        assert!(!held.is_lost(), "it was renewed in time: {options:?}");
        assert!(!held.may_be_claimed(), "{options:?}");

        held.faults.arm(When::FromOf(*call, 1), Effect::Errno(5));
        while !held.is_lost() {
            held.wait(Duration::from_millis(5));
        }
        assert!(!held.may_be_claimed(), "told before anybody else may begin: {options:?}");
        held.faults.disarm();
        held.wait(TTL);
        assert!(held.may_be_claimed(), "what is lost is not renewed again: {options:?}");
    }

    /// B26: somebody else took it over, and its records stay as they are.
    #[test]
    fn a_group_that_somebody_else_holds_is_lost_and_left_alone() {
        for (options, _) in engines() {
            let held = held(&options);
            held.store.targets().release(&held.group, &held.token, None).unwrap();
            assert!(held.may_be_claimed());
            while !held.is_lost() {
                held.wait(Duration::from_millis(5));
            }
            let leases = held.store.targets().list(None).unwrap().leases;
            let owners = leases.iter().filter_map(|listed| listed.state.record());
            let owners: Vec<&str> = owners.map(|record| &*record.holder.owner).collect();
            assert_eq!(owners, ["other"; 3], "{options:?}");
        }
    }

    #[test]
    fn what_was_let_go_of_is_not_renewed() {
        let all = engines().map(|(options, _)| held(&options));
        for held in &all {
            held.keeper.let_go(held.number);
        }
        for held in &all {
            while !held.may_be_claimed() {
                held.wait(Duration::from_millis(5));
            }
            assert!(!held.is_lost());
        }
    }

    /// Everything that is held costs one sync of a journal per period, however much it is.
    #[test]
    fn one_batch_renews_every_group_and_every_item() {
        let held = held(&InitOptions::default());
        let claim = Claim::by("coordinator-1").unwrap().ttl(Ttl::new(TTL).unwrap());
        for number in 0..4u64 {
            let group = TargetGroup::from_numbers([100 + 2 * number, 101 + 2 * number]).unwrap();
            let execution = Payload::parse(&format!("{{\"seed\":{number}}}")).unwrap();
            let renewed = held.keeper.shared.world.clock.boottime();
            let job = held.store.jobs().claim(&group, &execution, &claim).unwrap();
            let token = job.work.token;
            held.keeper.hold(Holding {
                group: Some((group, token.clone())),
                work: Some((job.work.id, token)),
                lost: Arc::default(),
                renewed,
            });
        }
        let beats = || {
            let text = std::fs::read_to_string(held.dir.path().join("events.jsonl")).unwrap();
            text.lines()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
                .filter(|event| event["groups"] == 5 && event["items"] == 4)
                .collect::<Vec<_>>()
        };
        while beats().len() < 2 {
            held.wait(Duration::from_millis(5));
        }
        for beat in beats() {
            assert_eq!(
                (&beat["syncs"], &beat["failed"], &beat["lost"]),
                (&1.into(), &0.into(), &0.into())
            );
        }
    }
}
