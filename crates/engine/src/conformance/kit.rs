//! What the checks are written with.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use ringfence_model::json::Object;
use ringfence_model::record::{Granted, History, Holder};
use ringfence_model::rules::{self, ClaimRefused, ClaimRequest, Lost, WorkClaim, WorkClaimRefused};
use ringfence_model::{
    Edit, Entry, FencingToken, Glance, Key, LeaseBody, Owner, Payload, Record, Space, Target,
    TargetGroup, TargetRecord, Timestamp, Token, Transition, Ttl, View, WorkRecord,
};

use super::Testbed;
use crate::outcome::{Done, Failure, Outcome};
use crate::traits::{DecideAtAGlance, Engine, Request};

/// A handle on the table under test.
pub(super) type Handle = Arc<dyn Engine>;

/// Longer than anything here waits, shorter than the limit of a check.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// The moment that is this many seconds into the story of a check.
#[expect(clippy::unnecessary_wraps, reason = "engines are asked with or without a moment")]
pub(super) fn at(seconds: f64) -> Option<Timestamp> {
    Some(Timestamp::from_seconds(1_000_000.0 + seconds).unwrap())
}

pub(super) fn ttl(seconds: f64) -> Ttl {
    Ttl::from_seconds(seconds).unwrap()
}

pub(super) fn target(number: u64) -> Target {
    Target::new(number).unwrap()
}

pub(super) fn group(numbers: impl IntoIterator<Item = u64>) -> TargetGroup {
    TargetGroup::from_numbers(numbers).unwrap()
}

pub(super) fn keys(group: &TargetGroup) -> Vec<Key> {
    group.targets().map(Key::target).collect()
}

/// The keys of targets, in key order.
pub(super) fn keys_of(numbers: impl IntoIterator<Item = u64>) -> Vec<Key> {
    keys(&group(numbers))
}

/// A claim with a ttl of 60 seconds.
pub(super) fn ask(owner: &str, numbers: impl IntoIterator<Item = u64>) -> ClaimRequest {
    ClaimRequest {
        group: group(numbers),
        owner: Owner::new(owner).unwrap(),
        worker: 3,
        payload: Payload::parse(r#"{"seed":"s1"}"#).unwrap(),
        ttl: ttl(60.0),
    }
}

/// A payload of exactly the largest size.
pub(super) fn largest_payload() -> Payload {
    let filler = "x".repeat(ringfence_model::MAX_PAYLOAD_BYTES - r#"{"p":""}"#.len());
    let payload = Payload::parse(&format!(r#"{{"p":"{filler}"}}"#)).unwrap();
    assert_eq!(payload.as_str().len(), ringfence_model::MAX_PAYLOAD_BYTES);
    payload
}

/// One transaction that must not fail.
pub(super) fn decide<R: Debug>(
    engine: &Handle,
    keys: &[Key],
    now: Option<Timestamp>,
    rule: impl FnMut(&View) -> Result<Transition, R>,
) -> Result<Done, R> {
    let request = Request { keys, now, patience: PATIENCE };
    engine.decide(&request, rule).expect("a call that does not fail")
}

pub(super) fn claim(
    engine: &Handle,
    request: &ClaimRequest,
    now: Option<Timestamp>,
) -> Result<FencingToken, ClaimRefused> {
    let keys = keys(&request.group);
    let done = decide(engine, &keys, now, |view| rules::claim(view, request))?;
    Ok(done.token.expect("a grant names its token"))
}

pub(super) fn heartbeat(
    engine: &Handle,
    group: &TargetGroup,
    token: FencingToken,
    now: Option<Timestamp>,
) -> Result<Done, Lost> {
    let token = token.into();
    let mut glance = |shown: &Glance| rules::renew(shown, group, &token);
    at_a_glance(engine, group, now, &mut glance, |view| rules::heartbeat(view, group, &token))
}

pub(super) fn release(
    engine: &Handle,
    group: &TargetGroup,
    token: FencingToken,
    now: Option<Timestamp>,
) -> Result<Done, Lost> {
    let token = token.into();
    let mut glance = |shown: &Glance| rules::give_back(shown, group, &token);
    at_a_glance(engine, group, now, &mut glance, |view| rules::release(view, group, &token))
}

/// One transaction that must not fail, with a rule that may be asked at a glance.
fn at_a_glance(
    engine: &Handle,
    group: &TargetGroup,
    now: Option<Timestamp>,
    glance: &mut DecideAtAGlance<'_>,
    rule: impl FnMut(&View) -> Result<Transition, Lost>,
) -> Result<Done, Lost> {
    let request = Request { keys: &keys(group), now, patience: PATIENCE };
    engine.decide_at_a_glance(&request, glance, rule).expect("a call that does not fail")
}

/// A work claim with a ttl of 60 seconds.
pub(super) fn ask_work(owner: &str, item: u64) -> WorkClaim {
    WorkClaim {
        payload: Payload::parse(&format!(r#"{{"item":{item}}}"#)).unwrap(),
        owner: Owner::new(owner).unwrap(),
        worker: 3,
        ttl: ttl(60.0),
    }
}

pub(super) fn claim_work(
    engine: &Handle,
    request: &WorkClaim,
    now: Option<Timestamp>,
) -> Result<FencingToken, WorkClaimRefused> {
    let done = on_work(engine, request, now, |view| rules::claim_work(view, request))?;
    Ok(done.token.expect("a grant names its token"))
}

/// One transaction on a work item.
pub(super) fn on_work<R: Debug>(
    engine: &Handle,
    item: &WorkClaim,
    now: Option<Timestamp>,
    rule: impl FnMut(&View) -> Result<Transition, R>,
) -> Result<Done, R> {
    decide(engine, &[Key::work(item.id())], now, rule)
}

/// The work record, which must be there.
pub(super) fn work_record(engine: &Handle, item: &WorkClaim) -> WorkRecord {
    match entry(engine, Key::work(item.id())) {
        Entry::Present(Record::Work(record)) => record,
        other => panic!("a work record, not {other:?}"),
    }
}

/// The target's record, which must be there.
pub(super) fn target_record(engine: &Handle, number: u64) -> TargetRecord {
    match entry(engine, Key::target(target(number))) {
        Entry::Present(Record::Target(record)) => record,
        other => panic!("a record of target {number}, not {other:?}"),
    }
}

/// What a reader sees under one key.
pub(super) fn entry(engine: &Handle, key: Key) -> Entry {
    let mut view = engine.view(&[key], None).expect("a view");
    assert_eq!(view.entries.len(), 1);
    let (shown, entry) = view.entries.remove(0);
    assert_eq!(shown, key);
    entry
}

/// Every record of a quiet table as its stored line; damage as its digest.
pub(super) fn records(engine: &Handle, space: Space) -> BTreeMap<Key, String> {
    let scan = engine.scan(space, None).expect("a scan");
    assert!(scan.consistent, "nobody writes, so the scan is of one instant");
    let line = |(key, entry)| match entry {
        Entry::Present(record) => (key, record.to_line()),
        Entry::Damaged(damage) => (key, damage.digest.to_string()),
        Entry::Vacant => panic!("a scan shows something vacant: {key:?}"),
    };
    scan.entries.into_iter().map(line).collect()
}

/// Both tables at once.
pub(super) fn everything(engine: &Handle) -> BTreeMap<Key, String> {
    let mut all = records(engine, Space::Targets);
    all.extend(records(engine, Space::Work));
    all
}

/// Runs `attempt`, which must leave no trace: not in a scan, and not in what no reader shows.
pub(super) fn without_a_trace<T: Testbed, R>(bed: &T, attempt: impl FnOnce(&Handle) -> R) -> R {
    let engine = bed.engine();
    let before = (everything(&engine), bed.footprint());
    let answer = attempt(&engine);
    assert_eq!(everything(&engine), before.0, "a record changed");
    assert!(bed.footprint() == before.1, "something stored changed that no reader shows");
    answer
}

/// A record as another program writes it: an opaque token, no ttl.
pub(super) fn foreign(number: u64, token: &str, updated: Timestamp) -> TargetRecord {
    let grant = Granted {
        owner: "somebody".into(),
        worker: 0,
        token: Token::new(token).unwrap(),
        ttl: None,
        payload: Payload::empty(),
    };
    TargetRecord {
        target: target(number),
        group: Arc::new(LeaseBody { targets: vec![target(number)], primary: None }),
        holder: Holder { grant: Arc::new(grant), updated, writer: None },
        history: History::first(),
        extra: Object::new(),
    }
}

/// Stores records whatever was there.
pub(super) fn put(engine: &Handle, records: &[TargetRecord]) -> Done {
    let keys = keys_of(records.iter().map(|record| record.target.get()));
    let done = decide(engine, &keys, at(0.0), |_| Ok::<_, ()>(store(records.to_vec())));
    done.expect("never refused")
}

/// The transition that stores `records`.
pub(super) fn store(records: Vec<TargetRecord>) -> Transition {
    let edit = |record: TargetRecord| Edit {
        key: Key::target(record.target),
        to: Some(Record::Target(record)),
    };
    Transition::edits(records.into_iter().map(edit).collect())
}

/// A record that counts: its attempts are one more than the count.
pub(super) fn counter(number: u64, count: u64) -> TargetRecord {
    let mut record = foreign(number, &format!("count-{count}"), at(0.0).unwrap());
    record.history.attempts = count + 1;
    record
}

/// The count under one key; nothing there counts as zero.
pub(super) fn count(entry: &Entry) -> u64 {
    match entry {
        Entry::Vacant => 0,
        Entry::Present(Record::Target(record)) => record.history.attempts - 1,
        other => panic!("a counter, not {other:?}"),
    }
}

/// The transition that adds one to the counters of `numbers`, which are the keys of the view.
pub(super) fn increment(view: &View, numbers: &[u64]) -> Transition {
    let next = |(number, entry): (u64, &Entry)| counter(number, count(entry) + 1);
    let in_order: Vec<u64> = group(numbers.iter().copied()).targets().map(Target::get).collect();
    store(in_order.into_iter().zip(view.entries.iter().map(|(_, entry)| entry)).map(next).collect())
}

/// A transaction that stands still in the middle of deciding.
pub(super) struct Stopped {
    open: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<Result<Outcome, Failure>>>,
}

impl Stopped {
    /// Begins to increment the counters of `numbers` and stops when asked to decide.
    pub(super) fn incrementing<T: Testbed>(bed: &T, numbers: &[u64]) -> Self {
        let (engine, numbers) = (bed.engine(), numbers.to_vec());
        let (open, gate) = channel();
        let (inside, entered) = channel();
        let thread = thread::spawn(move || {
            let keys = keys_of(numbers.iter().copied());
            let request = Request { keys: &keys, now: at(0.0), patience: PATIENCE };
            engine.transact(&request, &mut |view| {
                let _ = inside.send(());
                pause(&gate);
                Some(increment(view, &numbers))
            })
        });
        entered.recv_timeout(PATIENCE).expect("the rule is asked");
        Self { open: Some(open), thread: Some(thread) }
    }

    /// Lets it go on and waits for its end.
    pub(super) fn finish(mut self) -> Result<Outcome, Failure> {
        drop(self.open.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until the other end of the gate is dropped.
fn pause(gate: &Receiver<()>) {
    let _ = gate.recv_timeout(PATIENCE);
}

/// Lets this long pass without a clock: nobody ever sends here.
pub(super) fn pass(time: Duration) {
    let (keep, silence) = channel::<()>();
    let _ = silence.recv_timeout(time);
    drop(keep);
}

/// Adds one to the counters of `numbers`; the answer may be a failure.
pub(super) fn add_one(
    engine: &Handle,
    numbers: &[u64],
    patience: Duration,
) -> Result<Outcome, Failure> {
    let keys = keys_of(numbers.iter().copied());
    let request = Request { keys: &keys, now: at(0.0), patience };
    engine.transact(&request, &mut |view| Some(increment(view, numbers)))
}

/// The counts of targets as a reader sees them.
pub(super) fn counts(engine: &Handle, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().map(|number| count(&entry(engine, Key::target(target(number))))).collect()
}

/// Numbers that look random and are the same every time.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

/// Keeps incrementing the counters of `numbers` from another thread while `watch` runs.
///
/// Returns how often it did. The counters start at one, so that their records are never absent.
pub(super) fn while_incrementing<T: Testbed>(
    bed: &T,
    numbers: &[u64],
    watch: impl FnOnce(&Handle),
) -> u64 {
    put(&bed.engine(), &numbers.iter().map(|number| counter(*number, 1)).collect::<Vec<_>>());
    let (keep_on, over) = channel::<()>();
    thread::scope(|scope| {
        let engine = bed.engine();
        let writer = scope.spawn(move || {
            let mut times = 0;
            while over.try_recv() == Err(TryRecvError::Empty) {
                let outcome = add_one(&engine, numbers, PATIENCE).unwrap();
                assert!(matches!(outcome, Outcome::Done(_)));
                times += 1;
            }
            times
        });
        // Dropped as well when `watch` fails, so that the writer always ends.
        let keep_on = keep_on;
        watch(&bed.engine());
        drop(keep_on);
        writer.join().unwrap()
    })
}
