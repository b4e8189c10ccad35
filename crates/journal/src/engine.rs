//! The engine: decides on the replica, without any lock, and appends if nothing changed meanwhile.
//!
//! Nobody is told of what a power cut or a failed sync could still undo: a refusal that rests on a frame
//! which is not durable yet waits for it, and is decided anew if that frame is dropped. Readers
//! ([`Engine::view`], [`Engine::scan`]) wait for nothing and may see such frames.

use std::borrow::Cow;
use std::sync::Arc;

use ringfence_engine::{
    Decide, DecideEach, Done, EachReport, Engine, EngineInfo, Failure, Outcome, Place, Request,
    Scan, StorageError, UnitOutcome,
};
use ringfence_env::Deadline;
use ringfence_model::{
    BootMoment, Entry, Key, Moment, Space, Timestamp, Transition, Ttl, View, Writer, WriterBoot,
};

use crate::codec::renewal::Renewal;
use crate::commit::{Change, Ended, Planned, Progress, Ticket, find_from};
use crate::hints::FREED;
use crate::journal::Journal;
use crate::lives::Life;
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
        let deadline = self.journal.world.clock.deadline(request.patience);
        for round in 0.. {
            let mut ends = self.run(&[request], &mut |_, view| decide(view), deadline);
            match ends.pop().flatten() {
                Some(UnitEnd::Refused(None)) => return Ok(Outcome::Refused),
                Some(UnitEnd::Refused(Some(ticket))) => match self.journal.wait_durable(&ticket) {
                    Ok(()) => return Ok(Outcome::Refused),
                    // What it was refused for is gone.
                    Err(Failure::Restored(_)) if round < TRIES => {}
                    Err(failure) => return Err(Failure::Untouched(into_storage(failure))),
                },
                Some(UnitEnd::Failed(failure)) => return Err(*failure),
                Some(UnitEnd::Appended(ticket)) => {
                    self.journal.wait_durable(&ticket)?;
                    if ticket.frees {
                        self.journal.hints.tell(FREED, true);
                    }
                    self.journal.maintain_if_due();
                    let barriers = u64::from(ticket.stored);
                    return Ok(Outcome::Done(Done { token: ticket.token, barriers }));
                }
                None => unreachable!("one end per unit"),
            }
        }
        unreachable!("the rounds are bounded")
    }

    fn transact_each(&self, units: &[Request<'_>], decide: &mut DecideEach<'_>) -> EachReport {
        crate::each::transact_each(self, units, decide)
    }

    fn view(&self, keys: &[Key], now: Option<Timestamp>) -> Result<View, StorageError> {
        let mut replica = self.journal.replica();
        self.catch_up(&mut replica)?;
        let mut view = self.asking(now, std::process::id()).view;
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

/// When somebody asks, and who: a view that is used for one unit after the other.
struct Asking {
    /// The moment that the caller brought.
    given: Option<Timestamp>,
    view: View,
    /// A frame that is durable, of this epoch.
    durable: (u64, u64),
}

/// What a unit is decided on.
struct Looked<'a> {
    view: &'a View,
    /// The epoch and the frame that it was looked at after.
    seen: (u64, u64),
    /// The frame that a refusal rests on, if it is not known to be durable.
    pending: Option<Ticket>,
}

/// How one unit ended, as far as deciding and appending go.
pub(crate) enum UnitEnd {
    /// With the frame that it was refused for, if that was not durable yet.
    Refused(Option<Ticket>),
    /// Boxed, as there are many ends and few failures.
    Failed(Box<Failure>),
    Appended(Ticket),
}

impl JournalEngine {
    fn catch_up(&self, replica: &mut Replica) -> Result<(), StorageError> {
        let tail = self.journal.catch_up(replica);
        tail.map(|_| ()).map_err(|error| self.journal.read_error(error))
    }

    /// Decides and appends units whose keys are all different; stops at the first failure. A unit
    /// without an end was not begun.
    pub(crate) fn run(
        &self,
        units: &[&Request<'_>],
        decide: &mut DecideEach<'_>,
        deadline: Deadline,
    ) -> Vec<Option<UnitEnd>> {
        for unit in units {
            assert!(unit.keys.is_sorted_by(|a, b| a < b), "keys strictly ascending");
            assert!(!unit.keys.is_empty(), "at least one key");
        }
        let mut ends: Vec<Option<UnitEnd>> = units.iter().map(|_| None).collect();
        for round in 0.. {
            match self.round(units, decide, deadline, &mut ends) {
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
            if ends.iter().any(|end| has_failed(end.as_ref())) || ends.iter().all(Option::is_some) {
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
        ends
    }

    /// Decides every unit that has no end yet, and appends what was decided. A failure is that of the
    /// first unit that has no end afterwards, unless a unit ended by it.
    fn round(
        &self,
        units: &[&Request<'_>],
        decide: &mut DecideEach<'_>,
        deadline: Deadline,
        ends: &mut [Option<UnitEnd>],
    ) -> Result<(), Failure> {
        let pid = self.journal.is_writable().map_err(Failure::Untouched)?;
        let waiting: Vec<usize> =
            (0..units.len()).filter(|&index| matches!(ends.get(index), Some(None))).collect();
        let mut stopped = None;
        let mut asking = None;
        let mut planned: Vec<Planned<'_>> = Vec::with_capacity(waiting.len());
        for (count, &index) in waiting.iter().enumerate() {
            let Some(unit) = units.get(index) else { continue };
            let anew = count.is_multiple_of(LOOKED_AT_ONCE);
            let Looked { view, seen, pending } = match self.look(unit, anew, pid, &mut asking) {
                Ok(looked) => looked,
                Err(error) => {
                    stopped = Some((index, Failure::Untouched(error)));
                    break;
                }
            };
            match decide(index, view) {
                None => put(ends, index, Some(UnitEnd::Refused(pending))),
                Some(Transition::Grant(grant)) if grant.above.0 == u64::MAX => {
                    stopped = Some((index, crate::commit::exhausted()));
                    break;
                }
                Some(transition) => {
                    let change = Some(to_store(transition, view, unit.keys));
                    let (keys, end) = (unit.keys, Ended::Waiting);
                    planned.push(Planned { index, keys, seen, change, end });
                }
            }
        }
        let progress = if planned.is_empty() {
            Ok(Progress::All)
        } else {
            self.journal.append(&mut planned, deadline)
        };
        for plan in planned {
            let end = match plan.end {
                Ended::Waiting | Ended::Stale => None,
                Ended::Appended(ticket) => Some(UnitEnd::Appended(ticket)),
                Ended::Failed(failure) => Some(UnitEnd::Failed(failure)),
            };
            put(ends, plan.index, end);
        }
        if let Progress::Full = progress? {
            self.journal.make_room(deadline)?;
        }
        if let Some((index, failure)) = stopped {
            put(ends, index, Some(UnitEnd::Failed(Box::new(failure))));
        }
        Ok(())
    }

    /// The keys of a unit as they are now, and where the journal stands. What others have appended is read
    /// first if `anew`.
    fn look<'a>(
        &self,
        unit: &Request<'_>,
        anew: bool,
        pid: u32,
        asking: &'a mut Option<Asking>,
    ) -> Result<Looked<'a>, StorageError> {
        let mut replica = self.journal.replica();
        if anew && !self.journal.is_known_to_be_at_the_end(&replica) {
            self.catch_up(&mut replica)?;
        }
        // One moment for all that do not bring their own.
        let same = asking.take().filter(|asking| asking.given == unit.now);
        let asking = asking.insert(same.unwrap_or_else(|| self.asking(unit.now, pid)));
        self.show(&replica, unit.keys, &mut asking.view)?;
        let (epoch, at) = (replica.epoch(), replica.at.sequence);
        if anew || asking.durable.0 != epoch {
            asking.durable = (epoch, self.journal.known_durable(&replica.place()));
        }
        let (_, durable) = asking.durable;
        // The last frame that changed one of them counts if it is not known to be durable.
        let sequence = if at > durable { replica.last_change(unit.keys) } else { 0 };
        let ticket = Ticket { epoch, sequence, token: None, stored: false, frees: false };
        let pending = (sequence > durable).then_some(ticket);
        Ok(Looked { view: &asking.view, seen: (epoch, at), pending })
    }

    /// Puts `keys` as they are into a view, instead of what it showed.
    fn show(&self, replica: &Replica, keys: &[Key], view: &mut View) -> Result<(), StorageError> {
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

    fn asking(&self, given: Option<Timestamp>, pid: u32) -> Asking {
        let moment = self.moment(given);
        let writer = Arc::new(self.writer(given, &moment, pid));
        let (default_ttl, entries) = (self.journal.meta.ttl, Vec::new());
        Asking { given, view: View { moment, writer, default_ttl, entries }, durable: (0, 0) }
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

/// What is to be stored of a transition. What stores what is there already is left out: that it is durable
/// is all that is needed.
fn to_store<'k>(transition: Transition, view: &View, keys: &'k [Key]) -> Change<'k> {
    match transition {
        Transition::Grant(grant) => Change::Grant(grant),
        Transition::Edits { mut edits, audit } => {
            let mut next = 0;
            edits.retain(|edit| {
                let there = find_from(&view.entries, |(key, _)| *key, edit.key, &mut next);
                match (&edit.to, there) {
                    (None, Some((_, Entry::Vacant))) => false,
                    (Some(to), Some((_, Entry::Present(there)))) => {
                        let (new, old) = (to.holder(), there.holder());
                        // The cheap differences first.
                        new.updated != old.updated || new.token != old.token || to != there
                    }
                    _ => true,
                }
            });
            Change::Edits(edits, audit)
        }
        Transition::Renewal { updated, writer } => {
            let renewal = Renewal { updated, writer: Some(writer) };
            let renews = |(_, entry): &&(Key, Entry)| match entry {
                Entry::Present(there) => !renewal.is_of(there.holder()),
                Entry::Vacant | Entry::Damaged(_) => false,
            };
            let count = view.entries.iter().filter(renews).count();
            let keys = if count == keys.len() {
                Cow::Borrowed(keys)
            } else {
                view.entries.iter().filter(renews).map(|(key, _)| *key).collect()
            };
            Change::Renewal(renewal, keys)
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
        UnitEnd::Appended(ticket) => UnitOutcome::Done(ticket.token),
    }
}
