//! An engine in memory, honest or with one flaw.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_engine::{
    Decide, DecideAtAGlance, DecideEach, DecideEachAtAGlance, Done, EachReport, Engine, EngineInfo,
    Failure, Outcome, Request, Scan, StorageError, UnitOutcome,
};
use ringfence_env::{Clock, Deadline, SystemClock};
use ringfence_model::{
    Alike, BootMoment, Damage, Edit, Entry, Fence, FencingToken, Glance, Key, Moment, Record,
    ShardCount, Shown, Space, Timestamp, Token, Transition, Ttl, View, WorkStatus, Writer,
    WriterBoot,
};

use crate::flaws::Flaw;
use crate::store::{Lines, State, Store};

/// One handle.
#[derive(Debug)]
pub(crate) struct Memory {
    store: Arc<Store>,
    flaw: Option<Flaw>,
    ahead: Duration,
    opened: Duration,
    snapshot: Mutex<Lines>,
    block: Mutex<(u64, u64)>,
    calls: AtomicU64,
}

/// Exclusion on some keys.
struct Held<'s> {
    store: &'s Store,
    keys: Vec<Key>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.store.state();
        for key in &self.keys {
            state.busy.remove(key);
        }
        drop(state);
        self.store.freed.notify_all();
    }
}

const SHARDS: u16 = 8;
/// Long enough for another thread to get in between.
const GAP: Duration = Duration::from_millis(1);

impl Engine for Memory {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "memory",
            location: format!("memory:{}", self.store.table),
            table: match self.flaw {
                Some(Flaw::IdentityPerHandle) => format!("table-{:?}", self.opened),
                _ => format!("table-{}", self.store.table),
            },
            default_ttl: default_ttl(),
            shards: SHARDS,
        }
    }

    fn transact(&self, request: &Request<'_>, decide: &mut Decide<'_>) -> Result<Outcome, Failure> {
        Ok(match self.one(request, decide)? {
            Some((token, _)) => {
                let barriers = u64::from(!self.is(Flaw::NoBarriers));
                Outcome::Done(Done { token, barriers })
            }
            None if self.is(Flaw::RefusalIsDone) => {
                Outcome::Done(Done { token: None, barriers: 1 })
            }
            None => Outcome::Refused,
        })
    }

    fn transact_each(&self, units: &[Request<'_>], decide: &mut DecideEach<'_>) -> EachReport {
        let before = self.store.state().records.clone();
        let mut order: Vec<usize> = (0..units.len()).collect();
        if !self.is(Flaw::BatchAsGiven) {
            let shards = ShardCount::new(SHARDS).unwrap();
            order.sort_by_key(|&index| {
                let key = units[index].keys[0];
                (key.space, key.id.shard(shards), key.id)
            });
        }
        let mut outcomes: Vec<UnitOutcome> = units.iter().map(|_| UnitOutcome::NotBegun).collect();
        let mut stored = 0;
        let mut first_token = None;
        for &index in &order {
            let outcome = match self.one(&units[index], &mut |view| decide(index, view)) {
                Ok(Some((token, changed))) => {
                    stored += u64::from(changed);
                    let first = *first_token.get_or_insert(token);
                    UnitOutcome::Done(if self.is(Flaw::BatchHasOneFence) { first } else { token })
                }
                Ok(None) if self.is(Flaw::BatchAcknowledgesRefused) => UnitOutcome::Done(None),
                Ok(None) => UnitOutcome::Refused,
                Err(failure) => UnitOutcome::Failed(failure),
            };
            let over = match &outcome {
                UnitOutcome::Failed(Failure::Busy { .. }) => self.is(Flaw::StopsAtBusy),
                UnitOutcome::Failed(_) => !self.is(Flaw::GoesOnAfterFailure),
                _ => false,
            };
            outcomes[index] = outcome;
            if over {
                break;
            }
        }
        if self.is(Flaw::OutcomesAsHandled) {
            let mut handled: Vec<_> = outcomes.into_iter().map(Some).collect();
            outcomes = order.iter().map(|&index| handled[index].take().unwrap()).collect();
        }
        let barriers = match self.flaw {
            Some(Flaw::BatchSharesNothing) => stored,
            Some(Flaw::BatchAlwaysSyncs) => 1,
            _ => stored.min(1),
        };
        let mut state = self.store.state();
        state.before_last = self.is(Flaw::BatchIsVolatile).then_some(before);
        drop(state);
        EachReport { units: outcomes, barriers }
    }

    fn transact_at_a_glance(
        &self,
        request: &Request<'_>,
        glance: &mut DecideAtAGlance<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Outcome, Failure> {
        self.transact(request, &mut |view| {
            let alike = glance_of(view).and_then(|shown| glance(&shown));
            self.at_a_glance(alike, || decide(view))
        })
    }

    fn transact_each_at_a_glance(
        &self,
        units: &[Request<'_>],
        glance: &mut DecideEachAtAGlance<'_>,
        decide: &mut DecideEach<'_>,
    ) -> EachReport {
        self.transact_each(units, &mut |index, view| {
            let alike = glance_of(view).and_then(|shown| glance(index, &shown));
            self.at_a_glance(alike, || decide(index, view))
        })
    }

    fn view(&self, keys: &[Key], now: Option<Timestamp>) -> Result<View, StorageError> {
        let mut state = self.store.state();
        state.hidden += u64::from(self.is(Flaw::ReaderWrites));
        let snapshot = self.snapshot.lock().unwrap();
        let lines = if self.is(Flaw::StaleReaders) { &snapshot } else { &state.records };
        Ok(self.shown(lines, keys, now))
    }

    fn scan(&self, space: Space, now: Option<Timestamp>) -> Result<Scan, StorageError> {
        let mut lines = self.store.state().records.clone();
        if self.is(Flaw::TornScan) {
            SystemClock.sleep(GAP);
            let later = self.store.state().records.clone();
            let half = lines.len() / 2;
            lines = lines.into_iter().take(half).chain(later.into_iter().skip(half)).collect();
        }
        if !self.is(Flaw::ScanMixesTables) {
            lines.retain(|key, _| key.space == space);
        }
        let entries = lines.iter().map(|(key, line)| (*key, self.entry(*key, line))).collect();
        let moment = self.moment(now);
        Ok(Scan { moment, default_ttl: default_ttl(), entries, consistent: true })
    }
}

impl Memory {
    /// A handle on `store` whose wall clock is `ahead`.
    pub(crate) fn open(store: &Arc<Store>, flaw: Option<Flaw>, ahead: Duration) -> Self {
        Self {
            flaw,
            ahead,
            opened: SystemClock.boottime(),
            snapshot: Mutex::new(store.state().records.clone()),
            store: Arc::clone(store),
            block: Mutex::new((0, 0)),
            calls: AtomicU64::new(0),
        }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn at_a_glance(
        &self,
        alike: Option<Alike>,
        decide: impl FnOnce() -> Option<Transition>,
    ) -> Option<Transition> {
        match alike {
            None if !self.is(Flaw::RefusesAtAGlance) => decide(),
            alike => alike.map(Transition::Alike),
        }
    }

    /// One transaction: `None` if refused; else its token, and whether anything was stored.
    fn one(
        &self,
        request: &Request<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Option<(Option<FencingToken>, bool)>, Failure> {
        let early = self.moment(request.now);
        let early_lines = self.store.state().records.clone();
        if self.is(Flaw::HalfView) {
            SystemClock.sleep(GAP);
        }
        let held = self.enter(request)?;
        let mut view = {
            let state = self.store.state();
            let snapshot = self.snapshot.lock().unwrap();
            let lines = if self.is(Flaw::StaleView) { &*snapshot } else { &state.records };
            self.shown(lines, request.keys, request.now)
        };
        if self.is(Flaw::EarlyMoment) {
            view.moment = early;
        }
        if self.is(Flaw::HalfView) {
            let first = self.shown(&early_lines, request.keys, request.now);
            let half = view.entries.len() / 2;
            view.entries.splice(..half, first.entries.into_iter().take(half));
        }
        if matches!(self.flaw, Some(Flaw::NoExclusion | Flaw::LosesARace | Flaw::FirstKeyOnly)) {
            SystemClock.sleep(GAP);
        }
        let Some(transition) = decide(&view) else {
            self.refused(request);
            return Ok(None);
        };
        let (edits, token) = self.edits(transition.spelled_out(&view), request)?;
        let held = if self.is(Flaw::EarlyUnlock) {
            drop(held);
            SystemClock.sleep(GAP);
            None
        } else {
            Some(held)
        };
        let changed = !edits.is_empty();
        if !changed && self.is(Flaw::EmptyIsRefused) {
            return Ok(None);
        }
        self.store(edits)?;
        *self.snapshot.lock().unwrap() = self.store.state().records.clone();
        drop(held);
        Ok(Some((token, changed)))
    }

    fn enter(&self, request: &Request<'_>) -> Result<Held<'_>, Failure> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let keys = match self.flaw {
            Some(Flaw::NoExclusion) => &[],
            Some(Flaw::LosesARace) if call % 8 == 7 => &[],
            Some(Flaw::FirstKeyOnly) => &request.keys[..1],
            _ => request.keys,
        };
        let started = SystemClock.monotonic();
        let deadline = SystemClock.deadline(request.patience);
        let mut held = Held { store: &self.store, keys: Vec::new() };
        if self.is(Flaw::PatiencePerKey) {
            for key in keys {
                let deadline = SystemClock.deadline(request.patience);
                self.take(&[*key], deadline, started)?;
                held.keys.push(*key);
            }
        } else {
            self.take(keys, deadline, started)?;
            held.keys = keys.to_vec();
        }
        Ok(held)
    }

    fn take(&self, keys: &[Key], deadline: Deadline, started: Duration) -> Result<(), Failure> {
        let mut state = self.store.state();
        let busy = |state: &State| keys.iter().any(|key| state.busy.contains(key));
        while busy(&state) || (self.is(Flaw::NoFirstTry) && SystemClock.left(deadline).is_zero()) {
            let left = SystemClock.left(deadline);
            let forever = self.is(Flaw::WaitsForEver);
            if (left.is_zero() && !forever) || self.is(Flaw::GivesUpAtOnce) {
                let waited = SystemClock.monotonic().saturating_sub(started);
                return Err(Failure::Busy { what: format!("{keys:?}"), waited });
            }
            let wait = if forever { GAP } else { left };
            state = self.store.freed.wait_timeout(state, wait).unwrap().0;
        }
        state.busy.extend(keys);
        Ok(())
    }

    fn refused(&self, request: &Request<'_>) {
        let mut state = self.store.state();
        match self.flaw {
            Some(Flaw::RefusalWrites) => state.hidden += 1,
            Some(Flaw::RefusalRenews) => {
                for key in request.keys {
                    if let Some(line) = state.records.get_mut(key) {
                        line.push(b' ');
                    }
                }
            }
            Some(Flaw::RefusalRemovesFirst) if request.keys.len() > 1 => {
                state.records.remove(&request.keys[0]);
            }
            _ => {}
        }
    }

    fn edits(
        &self,
        transition: Transition,
        request: &Request<'_>,
    ) -> Result<(Vec<Edit>, Option<FencingToken>), Failure> {
        match transition {
            Transition::Edits { edits, audit } => {
                self.store.state().hidden += u64::from(audit.is_some());
                Ok((edits, None))
            }
            Transition::Grant(grant) => {
                let fence = self.next_fence(grant.above, request.keys[0].space)?;
                let nonce = if self.is(Flaw::SameNonce) { 7 } else { nonce() };
                let token = FencingToken::new(fence, nonce);
                Ok((grant.under(token), Some(token)))
            }
            Transition::Alike(_) => unreachable!("it is spelled out first"),
        }
    }

    fn next_fence(&self, above: Fence, space: Space) -> Result<Fence, Failure> {
        let mut state = self.store.state();
        if self.is(Flaw::FencePerHandle) {
            let mut block = self.block.lock().unwrap();
            if block.0 == block.1 {
                *block = (state.fence, state.fence + 100);
                state.fence += 100;
            }
            block.0 += 1;
            return Ok(Fence(block.0.max(above.0 + 1)));
        }
        let other = self.is(Flaw::FencePerTable) && space == Space::Work;
        let last = if other { state.work_fence } else { state.fence };
        let floor = if self.is(Flaw::FenceBelowView) { last } else { last.max(above.0) };
        let Some(next) = floor.checked_add(1) else {
            if self.is(Flaw::FenceStuck) {
                state.fence = u64::MAX;
            }
            let why = std::io::Error::other("there is no higher fence");
            return Err(Failure::Untouched(StorageError::new("raise", "the fence", why)));
        };
        if self.is(Flaw::FenceRaces) {
            drop(state);
            SystemClock.sleep(GAP);
            state = self.store.state();
        }
        *if other { &mut state.work_fence } else { &mut state.fence } = next;
        Ok(Fence(next))
    }

    fn store(&self, mut edits: Vec<Edit>) -> Result<(), Failure> {
        match self.flaw {
            Some(Flaw::PartialGroup) if edits.len() > 1 => drop(edits.pop()),
            Some(Flaw::KeepsRemoved) => edits.retain(|edit| edit.to.is_some()),
            Some(Flaw::OneTableAtATime) => {
                let first = edits.first().map(|edit| edit.key.space);
                edits.retain(|edit| Some(edit.key.space) == first);
            }
            Some(Flaw::CommitIsVolatile) => edits.retain(|edit| {
                !matches!(&edit.to, Some(Record::Work(work)) if work.status == WorkStatus::Committing)
            }),
            _ => {}
        }
        let lines: Vec<_> = edits
            .into_iter()
            .map(|Edit { key, to }| (key, to.map(|record| self.line(record).into_bytes())))
            .collect();
        let limit = if self.is(Flaw::SmallRecords) { 0xffff } else { usize::MAX };
        if lines.iter().flat_map(|(_, line)| line).any(|line| line.len() > limit) {
            let why = std::io::Error::other("too large");
            return Err(Failure::Untouched(StorageError::new("store", "a record", why)));
        }
        let mut state = self.store.state();
        if self.is(Flaw::ForgetsLast) {
            state.before_last = Some(state.records.clone());
        }
        if self.is(Flaw::GapInReplace) {
            for (key, _) in &lines {
                state.records.remove(key);
            }
            drop(state);
            SystemClock.sleep(GAP);
            state = self.store.state();
        }
        for (key, line) in lines {
            let Some(line) = line else {
                let damaged = |line: &Vec<u8>| Record::parse(key.space, key.id, line).is_err();
                let stays =
                    self.is(Flaw::DamageStays) && state.records.get(&key).is_some_and(damaged);
                if !stays && let Some(line) = state.records.remove(&key) {
                    state.removed.insert(key, line);
                }
                continue;
            };
            state.records.insert(key, line);
        }
        Ok(())
    }

    /// The stored line of a record.
    fn line(&self, mut record: Record) -> String {
        match (&mut record, self.flaw) {
            (Record::Target(target), Some(Flaw::AsciiOnly)) => {
                let grant = Arc::make_mut(&mut target.holder.grant);
                grant.owner = grant.owner.replace(|c: char| !c.is_ascii(), "?").into();
            }
            (Record::Target(target), Some(Flaw::TtlOfTheTable)) => {
                Arc::make_mut(&mut target.holder.grant).ttl = None;
            }
            (Record::Target(target), Some(Flaw::ForgetsHistory)) => target.history.attempts = 1,
            (Record::Work(work), Some(Flaw::GenerationByRecord)) => {
                work.generation = work.history.attempts;
            }
            _ => {}
        }
        record.to_line()
    }

    fn shown(&self, lines: &Lines, keys: &[Key], now: Option<Timestamp>) -> View {
        let entry = |key: &Key| match lines.get(key) {
            None => (*key, Entry::Vacant),
            Some(line) => (*key, self.entry(*key, line)),
        };
        let moment = self.moment(now);
        let boot = moment.boot.as_ref();
        let boot = boot.map(|at| WriterBoot {
            boot: Arc::clone(&at.boot),
            seconds: at.seconds,
            life: None,
        });
        let writer = Arc::new(Writer { host: "here".into(), pid: std::process::id(), boot });
        let entries = keys.iter().map(entry).collect();
        View { moment, writer, default_ttl: default_ttl(), entries }
    }

    fn entry(&self, key: Key, line: &[u8]) -> Entry {
        match Record::parse(key.space, key.id, line) {
            Ok(record) => Entry::Present(record),
            Err(_) if self.is(Flaw::DamageIsVacant) => Entry::Vacant,
            Err(error) => Entry::Damaged(Damage {
                location: format!("{key:?}"),
                reason: error.to_string(),
                digest: Token::new(&format!("damaged-{}", line.len())).unwrap(),
            }),
        }
    }

    fn moment(&self, now: Option<Timestamp>) -> Moment {
        if let Some(now) = now.filter(|_| !self.is(Flaw::IgnoresNow)) {
            return Moment::given(now);
        }
        let since_boot =
            if self.is(Flaw::FrozenClock) { self.opened } else { SystemClock.boottime() };
        let wall = if self.is(Flaw::FrozenClock) {
            // Some moment of today, the same at every reading.
            Duration::from_secs(1_900_000_000) + self.ahead
        } else {
            SystemClock.wall() + self.ahead
        };
        let boot = BootMoment {
            boot: "one boot".into(),
            seconds: since_boot.as_secs_f64(),
            gone: Vec::new(),
        };
        Moment {
            wall: Timestamp::from_unix(wall),
            boot: (!self.is(Flaw::WallOnly)).then_some(boot),
            store: None,
        }
    }
}

fn default_ttl() -> Ttl {
    Ttl::from_seconds(60.0).unwrap()
}

fn nonce() -> u128 {
    static NONCES: AtomicU64 = AtomicU64::new(1);
    u128::from(NONCES.fetch_add(1, Ordering::Relaxed)) << 64 | 0x5eed
}

/// Who holds what a view shows, if it is of targets that are all there.
fn glance_of(view: &View) -> Option<Glance> {
    let View { moment, writer, default_ttl, entries } = view.clone();
    let holder = |(key, entry): (Key, Entry)| {
        Some((key, entry.holder().filter(|_| key.space == Space::Targets)?.clone()))
    };
    let entries = entries.into_iter().map(holder).collect::<Option<_>>()?;
    Some(Glance { moment, writer, default_ttl, entries })
}
