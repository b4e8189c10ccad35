//! The engine: decides on the replica, without any lock, and appends if nothing changed meanwhile.
//!
//! Nobody is told of what a power cut or a failed sync could still undo: a refusal that rests on a frame
//! which is not durable yet waits for it, and is decided anew if that frame is dropped. Readers
//! ([`Engine::view`], [`Engine::scan`]) wait for nothing and may see such frames.

use std::borrow::Cow;
use std::sync::Arc;

use ringfence_engine::{
    Decide, DecideAtAGlance, DecideEach, DecideEachAtAGlance, Done, EachReport, Engine, EngineInfo,
    Failure, Outcome, Place, Request, Scan, StorageError, UnitOutcome,
};
use ringfence_env::{Deadline, process_id};
use ringfence_model::{
    BootMoment, Entry, FencingToken, Key, Moment, Space, Timestamp, Ttl, View, Writer, WriterBoot,
};

use crate::commit::{Ended, Planned, Progress, Ticket};
use crate::each::copy;
use crate::hints::FREED;
use crate::journal::Journal;
use crate::lives::Life;
use crate::look::{Decided, Looking, Rules};
use crate::recover::into_storage;
use crate::replica::Replica;

/// A table in one journal. Cheap to clone; every clone and every process may use it at once.
#[derive(Clone, Debug)]
pub struct JournalEngine {
    pub(crate) journal: Arc<Journal>,
    /// What its leases are tied to.
    pub(crate) life: Option<Arc<Life>>,
}

/// How often a decision is made again, whatever the patience, because others were faster.
const TRIES: usize = 16;
/// After so many units of a batch it is looked whether others have appended something.
const LOOKED_AT_ONCE: usize = 32;

impl Engine for JournalEngine {
    fn info(&self) -> EngineInfo {
        let journal = &self.journal;
        EngineInfo {
            name: "journal",
            location: journal.layout.root().display().to_string(),
            table: journal.meta.table.to_string(),
            default_ttl: journal.meta.ttl,
            shards: journal.meta.shards.get(),
        }
    }

    fn default_ttl(&self) -> Ttl {
        self.journal.meta.ttl
    }

    fn transact(&self, request: &Request<'_>, decide: &mut Decide<'_>) -> Result<Outcome, Failure> {
        self.one(request, &mut Rules { glance: None, decide: &mut |_, view| decide(view) })
    }

    fn transact_at_a_glance(
        &self,
        request: &Request<'_>,
        glance: &mut DecideAtAGlance<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Outcome, Failure> {
        let mut rules = Rules {
            glance: Some(&mut |_, shown| glance(shown)),
            decide: &mut |_, view| decide(view),
        };
        self.one(request, &mut rules)
    }

    fn transact_each(&self, units: &[Request<'_>], decide: &mut DecideEach<'_>) -> EachReport {
        crate::each::transact_each(self, units, &mut Rules { glance: None, decide })
    }

    fn transact_each_at_a_glance(
        &self,
        units: &[Request<'_>],
        glance: &mut DecideEachAtAGlance<'_>,
        decide: &mut DecideEach<'_>,
    ) -> EachReport {
        crate::each::transact_each(self, units, &mut Rules { glance: Some(glance), decide })
    }

    fn view(&self, keys: &[Key], now: Option<Timestamp>) -> Result<View, StorageError> {
        let mut replica = self.journal.replica();
        self.catch_up(&mut replica)?;
        let mut view = self.empty_view(now, process_id());
        self.show(&replica, keys, &mut view)?;
        Ok(view)
    }

    fn scan(&self, space: Space, now: Option<Timestamp>) -> Result<Scan, StorageError> {
        let mut replica = self.journal.replica();
        self.catch_up(&mut replica)?;
        let records = replica.space(space).map_err(|error| self.journal.read_error(error))?;
        drop(replica);
        let entries = records.into_iter().map(|(key, record)| (key, Entry::Present(record)));
        let entries: Vec<_> = entries.collect();
        let mut moment = self.moment(now);
        if let Some(boot) = &mut moment.boot {
            let own = self.life.as_ref().map(|life| &*life.id);
            boot.gone = self.journal.gone_among(&entries, own);
        }
        let default_ttl = self.journal.meta.ttl;
        Ok(Scan { moment, default_ttl, entries, consistent: true })
    }

    fn queue(&self, keys: &[Key]) -> Result<Option<Box<dyn Place>>, StorageError> {
        if !self.journal.hints.are_shared() {
            return Ok(None);
        }
        Ok(Some(Box::new(self.journal.queue(keys)?)))
    }

    fn waiting(&self, keys: &[Key]) -> usize {
        let words: Vec<u64> = keys.iter().map(crate::queue::word).collect();
        self.journal.waiting_before(&words, u64::MAX)
    }
}

/// How one unit ended, as far as deciding and appending go.
pub(crate) enum UnitEnd {
    /// With the frame that it was refused for, if that was not durable yet.
    Refused(Option<Ticket>),
    /// Boxed, as there are many ends and few failures.
    Failed(Box<Failure>),
    /// With the token, if it is a grant: boxed, too.
    Appended(Ticket, Option<Box<FencingToken>>),
}

impl UnitEnd {
    /// The frame that it is to wait for.
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        match self {
            Self::Appended(ticket, _) | Self::Refused(Some(ticket)) => Some(ticket),
            Self::Refused(None) | Self::Failed(_) => None,
        }
    }
}

impl JournalEngine {
    /// One transaction.
    fn one(&self, request: &Request<'_>, rules: &mut Rules<'_>) -> Result<Outcome, Failure> {
        let deadline = self.journal.world.clock.deadline(request.patience);
        for round in 0.. {
            let mut end = [None];
            self.run(std::slice::from_ref(request), &[0], rules, deadline, &mut end);
            match end {
                [Some(UnitEnd::Refused(None))] => return Ok(Outcome::Refused),
                [Some(UnitEnd::Refused(Some(ticket)))] => {
                    match self.journal.wait_durable(&ticket) {
                        Ok(()) => return Ok(Outcome::Refused),
                        // What it was refused for is gone.
                        Err(Failure::Restored(_)) if round < TRIES => {}
                        Err(failure) => return Err(Failure::Untouched(into_storage(failure))),
                    }
                }
                [Some(UnitEnd::Failed(failure))] => return Err(*failure),
                [Some(UnitEnd::Appended(ticket, token))] => {
                    self.journal.wait_durable(&ticket)?;
                    if ticket.frees {
                        self.journal.hints.tell(FREED, true);
                    }
                    self.journal.maintain_if_due();
                    let barriers = u64::from(ticket.stored);
                    return Ok(Outcome::Done(Done { token: token.map(|token| *token), barriers }));
                }
                [None] => unreachable!("one end per unit"),
            }
        }
        unreachable!("the rounds are bounded")
    }

    pub(crate) fn catch_up(&self, replica: &mut Replica) -> Result<(), StorageError> {
        let tail = self.journal.catch_up_to_look(replica);
        tail.map(|_| ()).map_err(|error| self.journal.read_error(error))
    }

    /// Decides and appends those of the units that are in `order`, whose keys are all different; stops at
    /// the first failure. Their ends are put where `order` has them; a unit without one was not begun.
    pub(crate) fn run(
        &self,
        units: &[Request<'_>],
        order: &[usize],
        rules: &mut Rules<'_>,
        deadline: Deadline,
        ends: &mut [Option<UnitEnd>],
    ) {
        for unit in order.iter().filter_map(|&index| units.get(index)) {
            assert!(unit.keys.is_sorted_by(|a, b| a < b), "keys strictly ascending");
            assert!(!unit.keys.is_empty(), "at least one key");
        }
        for round in 0.. {
            match self.round(units, order, rules, deadline, ends, round == 0) {
                Ok(()) => {}
                Err(Failure::Busy { what, waited }) => {
                    // Nobody could append: one as little as the others.
                    for end in ends.iter_mut().filter(|end| end.is_none()) {
                        let what = what.clone();
                        *end = Some(UnitEnd::Failed(Box::new(Failure::Busy { what, waited })));
                    }
                }
                Err(failure) => {
                    let told = ends.iter().any(|end| has_failed(end.as_ref()));
                    if let Some(end) = ends.iter_mut().find(|end| end.is_none() && !told) {
                        *end = Some(UnitEnd::Failed(Box::new(failure)));
                    }
                    break;
                }
            }
            let mut all = true;
            let failed = ends.iter().any(|end| {
                all &= end.is_some();
                has_failed(end.as_ref())
            });
            if failed || all {
                break;
            }
            if round >= TRIES && self.journal.world.clock.left(deadline).is_zero() {
                let what = self.journal.layout.root().display().to_string();
                let waited = std::time::Duration::ZERO;
                for end in ends.iter_mut().filter(|end| end.is_none()) {
                    let what = what.clone();
                    *end = Some(UnitEnd::Failed(Box::new(Failure::Busy { what, waited })));
                }
                break;
            }
        }
    }

    /// Decides every unit that has no end yet, and appends what was decided. A failure is that of the
    /// first unit that has no end afterwards, unless a unit ended by it. Units may `join` where the first
    /// attempt is made: none waits for another one again and again.
    fn round(
        &self,
        units: &[Request<'_>],
        order: &[usize],
        rules: &mut Rules<'_>,
        deadline: Deadline,
        ends: &mut [Option<UnitEnd>],
        join: bool,
    ) -> Result<(), Failure> {
        let pid = self.journal.is_writable().map_err(Failure::Untouched)?;
        let mut stopped = None;
        let mut looking = Looking::new(self, pid);
        let mut planned: Vec<Planned<'_>> = Vec::with_capacity(order.len());
        let waiting = ends.iter_mut().zip(order).enumerate().filter(|(_, (end, _))| end.is_none());
        for (count, (place, (end, &index))) in waiting.enumerate() {
            let Some(unit) = units.get(index) else { continue };
            let anew = count.is_multiple_of(LOOKED_AT_ONCE);
            let decided = match looking.decide(unit, index, anew, rules) {
                Ok(decided) => decided,
                Err(failure) => {
                    stopped = Some((place, failure));
                    break;
                }
            };
            match decided {
                Decided::Not(pending) => *end = Some(UnitEnd::Refused(pending)),
                Decided::On(change, seen) => {
                    let last = planned.last_mut().filter(|_| join);
                    if !last.is_some_and(|last| last.takes(place, unit.keys, &change, seen)) {
                        let (places, keys) = (place..place + 1, Cow::Borrowed(unit.keys));
                        let (change, end) = (Some(change), Ended::Waiting);
                        planned.push(Planned { places, keys, seen, change, end });
                    }
                }
            }
        }
        drop(looking);
        let progress = if planned.is_empty() {
            Ok(Progress::All)
        } else {
            self.journal.append(&mut planned, deadline)
        };
        for plan in planned {
            let ends = ends.get_mut(plan.places).unwrap_or_default();
            match plan.end {
                Ended::Waiting | Ended::Stale => {}
                Ended::Appended(ticket, token) => {
                    // What is a grant is alone.
                    ends.fill_with(|| Some(UnitEnd::Appended(ticket, token.clone())));
                }
                Ended::Failed(failure) => {
                    let Some((first, others)) = ends.split_first_mut() else { continue };
                    others.fill_with(|| Some(UnitEnd::Failed(Box::new(copy(&failure)))));
                    *first = Some(UnitEnd::Failed(failure));
                }
            }
        }
        if let Progress::Full = progress? {
            self.journal.make_room(deadline)?;
        }
        if let Some((index, failure)) = stopped {
            put(ends, index, Some(UnitEnd::Failed(Box::new(failure))));
        }
        Ok(())
    }

    /// Puts `keys` as they are into a view, instead of what it showed.
    pub(crate) fn show(
        &self,
        replica: &Replica,
        keys: &[Key],
        view: &mut View,
    ) -> Result<(), StorageError> {
        view.entries.clear();
        view.entries.reserve_exact(keys.len());
        for &key in keys {
            let shown = replica.show(key, &mut view.entries);
            shown.map_err(|error| self.journal.read_error(error))?;
        }
        if let Some(boot) = &mut view.moment.boot {
            let own = self.life.as_ref().map(|life| &*life.id);
            boot.gone = self.journal.gone_among(&view.entries, own);
        }
        Ok(())
    }

    /// A view that shows nothing yet.
    pub(crate) fn empty_view<E>(&self, now: Option<Timestamp>, pid: u32) -> View<E> {
        let moment = self.moment(now);
        let writer = Arc::new(self.writer(now, &moment, pid));
        View { moment, writer, default_ttl: self.journal.meta.ttl, entries: Vec::new() }
    }

    /// The moment by every clock of this host, or the caller's own.
    fn moment(&self, now: Option<Timestamp>) -> Moment {
        if let Some(now) = now {
            return Moment::given(now);
        }
        let world = &self.journal.world;
        let boot = world.host.boot.as_ref().map(|boot| BootMoment {
            boot: boot.clone(),
            seconds: world.clock.boottime().as_secs_f64(),
            gone: Vec::new(),
        });
        Moment { wall: Timestamp::from_unix(world.clock.wall()), boot, store: None }
    }

    fn writer(&self, now: Option<Timestamp>, moment: &Moment, pid: u32) -> Writer {
        let boot = moment.boot.as_ref().filter(|_| now.is_none());
        Writer {
            host: self.journal.world.host.name.clone(),
            pid,
            boot: boot.map(|boot| WriterBoot {
                boot: boot.boot.clone(),
                seconds: boot.seconds,
                life: self.life.as_ref().map(|life| life.id.clone()),
            }),
        }
    }
}

fn has_failed(end: Option<&UnitEnd>) -> bool {
    matches!(end, Some(UnitEnd::Failed(_)))
}

fn put(ends: &mut [Option<UnitEnd>], index: usize, end: Option<UnitEnd>) {
    if let Some(slot) = ends.get_mut(index)
        && end.is_some()
    {
        *slot = end;
    }
}

/// The end of a unit that was appended, once all of the batch is durable or is not.
pub(crate) fn outcome(end: UnitEnd) -> UnitOutcome {
    match end {
        UnitEnd::Refused(_) => UnitOutcome::Refused,
        UnitEnd::Failed(failure) => UnitOutcome::Failed(*failure),
        UnitEnd::Appended(_, token) => UnitOutcome::Done(token.map(|token| *token)),
    }
}
