//! Looking at what a unit of a batch is about, and asking the rules.
//!
//! L1. A rule that sees records is asked without any lock: it may take its time.
//! L2. What is decided names the frame that it was looked at after: whoever appends it makes sure that none
//!     after that has changed one of the keys.
//! L3. A glance is a look at the holders alone, which costs a fraction of one at the records. It is enough
//!     only where the same becomes of all records; for everything else the records are looked at.
//! L4. A moment is never earlier than what is seen: whoever has read on asks the clocks again. By a record
//!     that is newer than the moment nobody could tell how long ago it was written.

use std::sync::Arc;

use ringfence_engine::{DecideEach, DecideEachAtAGlance, Failure, Request, StorageError};
use ringfence_model::record::Holder;
use ringfence_model::{Alike, Entry, Glance, Key, Shown, Space, Timestamp, Transition, View};

use crate::codec::renewal::Renewal;
use crate::commit::{Change, Ticket, exhausted, find_from};
use crate::engine::JournalEngine;
use crate::replica::Replica;
use crate::sync::MutexGuard;

/// The epoch, and the frame that something was looked at after.
pub(crate) type Seen = (u64, u64);

/// What decides.
pub(crate) struct Rules<'r> {
    /// Asked first, if there is one.
    pub(crate) glance: Option<&'r mut DecideEachAtAGlance<'r>>,
    pub(crate) decide: &'r mut DecideEach<'r>,
}

/// What the rules say of a unit.
pub(crate) enum Decided {
    /// Nothing is to be stored; with the frame that this rests on, if that is not durable yet.
    Not(Option<Ticket>),
    /// This is, if nothing has changed since.
    On(Change, Seen),
}

/// Looks at one unit after the other.
pub(crate) struct Looking<'e> {
    engine: &'e JournalEngine,
    pid: u32,
    asking: Option<Asking>,
    /// Kept from one glance to the next.
    replica: Option<MutexGuard<'e, Replica>>,
}

/// When somebody asks, and who: views that are used for one unit after the other.
struct Asking {
    /// The moment that the caller brought.
    given: Option<Timestamp>,
    seen: Seen,
    view: View,
    glance: Glance,
    /// A frame that is durable, with its epoch.
    durable: Option<(u64, u64)>,
}

/// What a unit is decided on.
struct Looked<'a> {
    view: &'a View,
    seen: Seen,
    /// The frame that a refusal rests on, if it is not known to be durable.
    pending: Option<Ticket>,
}

impl<'e> Looking<'e> {
    /// On behalf of this process.
    pub(crate) fn new(engine: &'e JournalEngine, pid: u32) -> Self {
        Self { engine, pid, asking: None, replica: None }
    }

    /// Asks the rules about one unit. What others have appended is read first if `anew`.
    pub(crate) fn decide(
        &mut self,
        unit: &Request<'_>,
        index: usize,
        anew: bool,
        rules: &mut Rules<'_>,
    ) -> Result<Decided, Failure> {
        if let Some(rule) = &mut rules.glance
            && let Some((glance, seen)) = self.glance(unit, anew).map_err(Failure::Untouched)?
            && let Some(alike) = rule(index, glance)
        {
            return Ok(Decided::On(all_alike(alike, glance), seen));
        }
        // What a glance has just brought up to date is still locked, and of the same moment.
        let anew = anew && rules.glance.is_none();
        let looked = self.look(unit, anew).map_err(Failure::Untouched)?;
        let Looked { view, seen, pending } = looked;
        Ok(match (rules.decide)(index, view) {
            None => Decided::Not(pending),
            Some(Transition::Grant(grant)) if grant.above.0 == u64::MAX => return Err(exhausted()),
            Some(transition) => Decided::On(to_store(transition, view), seen),
        })
    }

    /// Who holds the keys of a unit, and where the journal stands; nothing if that does not say all.
    fn glance(
        &mut self,
        unit: &Request<'_>,
        anew: bool,
    ) -> Result<Option<(&Glance, Seen)>, StorageError> {
        let journal = &self.engine.journal;
        let (replica, Asking { glance, .. }) = self.ask(unit, anew)?;
        glance.entries.clear();
        for key in unit.keys {
            let holder = match key.space {
                Space::Targets => replica.holder(key),
                Space::Work => return Ok(None),
            };
            match holder.map_err(|error| journal.read_error(error))? {
                Some(holder) => glance.entries.push((*key, holder)),
                None => return Ok(None),
            }
        }
        Ok(Some((glance, (replica.epoch(), replica.at.sequence))))
    }

    /// The keys of a unit as they are now, and where the journal stands.
    fn look(&mut self, unit: &Request<'_>, anew: bool) -> Result<Looked<'_>, StorageError> {
        let engine = self.engine;
        let (replica, asking) = self.ask(unit, anew)?;
        engine.show(replica, unit.keys, &mut asking.view)?;
        let (epoch, at) = (replica.epoch(), replica.at.sequence);
        let durable = match asking.durable {
            Some((of, durable)) if of == epoch && !anew => durable,
            _ => engine.journal.known_durable(&replica.place()),
        };
        asking.durable = Some((epoch, durable));
        // The last frame that changed one of them counts if it is not known to be durable.
        let sequence = if at > durable { replica.last_change(unit.keys) } else { 0 };
        let ticket = Ticket { epoch, sequence, stored: false, frees: false };
        let pending = (sequence > durable).then_some(ticket);
        // L1.
        self.replica = None;
        let asking = self.asking.as_ref().unwrap_or_else(|| unreachable!("it was asked"));
        Ok(Looked { view: &asking.view, seen: (epoch, at), pending })
    }

    /// The state to look a unit up in, and what to show it in.
    fn ask(
        &mut self,
        unit: &Request<'_>,
        anew: bool,
    ) -> Result<(&Replica, &mut Asking), StorageError> {
        let (engine, pid) = (self.engine, self.pid);
        if anew {
            // Others have their turn.
            self.replica = None;
        }
        let replica = self.replica.get_or_insert_with(|| engine.journal.replica());
        if anew {
            engine.catch_up(replica)?;
        }
        let seen = (replica.epoch(), replica.at.sequence);
        // L4. One moment for all that do not bring their own, as long as they see the same.
        let same = |asking: &Asking| (asking.given, asking.seen) == (unit.now, seen);
        if !self.asking.as_ref().is_some_and(same) {
            self.asking = None;
        }
        let asking = self.asking.get_or_insert_with(|| {
            let view = engine.empty_view(unit.now, pid);
            let View { moment, writer, default_ttl, .. } = &view;
            let (moment, writer, default_ttl) = (moment.clone(), Arc::clone(writer), *default_ttl);
            let glance = View { moment, writer, default_ttl, entries: Vec::new() };
            Asking { given: unit.now, seen, view, glance, durable: None }
        });
        Ok((replica, asking))
    }
}

/// What is to be stored of a transition. What stores what is there already is left out: that it is durable
/// is all that is needed.
fn to_store(transition: Transition, view: &View) -> Change {
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
        Transition::Alike(alike) => all_alike(alike, view),
    }
}

/// The same of what becomes of all records alike.
fn all_alike<E: Shown>(alike: Alike, view: &View<E>) -> Change {
    let keys = |changes: &dyn Fn(&Holder) -> bool| {
        let changes = |(_, entry): &&(Key, E)| entry.holder().is_some_and(changes);
        let only = || view.entries.iter().filter(changes).map(|(key, _)| *key);
        (only().count() < view.entries.len()).then(|| only().collect())
    };
    match alike {
        Alike::Renewed { updated, writer } => {
            let renewal = Renewal { updated, writer: Some(writer) };
            let only = keys(&|holder| !renewal.is_of(holder));
            Change::Renewal(renewal, only)
        }
        Alike::Removed => Change::Removal(keys(&|_| true)),
    }
}
