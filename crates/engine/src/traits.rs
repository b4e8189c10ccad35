//! The engine trait.

use std::fmt;
use std::time::Duration;

use ringfence_model::{Alike, Entry, Glance, Key, Moment, Space, Timestamp, Transition, Ttl, View};

use crate::outcome::{Done, EachReport, Failure, Outcome, StorageError};

/// A rule as an engine calls it: `None` refuses, and then nothing is written.
pub type Decide<'a> = dyn FnMut(&View) -> Option<Transition> + 'a;

/// A rule for the unit with this index.
pub type DecideEach<'a> = dyn FnMut(usize, &View) -> Option<Transition> + 'a;

/// As much of a rule as the holders are enough for: what becomes of all records alike, or nothing.
///
/// It must answer as the rule itself would, or nothing. It must not call the engine, which may keep a lock
/// meanwhile.
pub type DecideAtAGlance<'a> = dyn FnMut(&Glance) -> Option<Alike> + 'a;

/// The same for the unit with this index.
pub type DecideEachAtAGlance<'a> = dyn FnMut(usize, &Glance) -> Option<Alike> + 'a;

/// What a transaction is about.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The records, strictly ascending; at least one.
    pub keys: &'a [Key],
    /// The caller's own time; by default the host's clocks, read under the exclusion.
    pub now: Option<Timestamp>,
    /// How long to wait for the exclusion of all keys together; zero tries once.
    pub patience: Duration,
}

/// Stores records durably, one transaction at a time.
///
/// The contract, to be true of every engine (the conformance suite checks it):
///
/// E1. *Exclusion.* Between reading the view and the end of the call no other transaction on any of
///     the keys is decided, in any process.
/// E2. *Three outcomes.* A call is done, refused (nothing was written), or failed; a failure says
///     whether the old state was put back or the outcome is unknown.
/// E3. *Durability.* Done means that the transition survives a power cut. Nothing is reported done
///     before that, and an unknown outcome is never reported as refused.
/// E4. *Damage is held.* Something stored that is no valid record is shown as damaged and left as
///     it is unless the transition removes it.
/// E5. *Fences rise.* Every token issued has a fence above all earlier ones of the table and above
///     every fence in the view, across processes, crashes and clock jumps. Where none is left above
///     a fence in the view, that call fails; others go on.
/// E6. *Readers write nothing*: [`Engine::view`] and [`Engine::scan`] work on a read-only mount.
pub trait Engine: Send + Sync + fmt::Debug {
    /// What this engine is and how its table was made.
    fn info(&self) -> EngineInfo;

    /// The same as [`EngineInfo::default_ttl`], for callers that need nothing else in every call.
    fn default_ttl(&self) -> Ttl {
        self.info().default_ttl
    }

    /// Reads the keys under exclusion, asks `decide`, and stores its transition whole.
    ///
    /// `decide` may be called more than once (an engine may lose a race and start over), so it must
    /// be repeatable; the last call counts. Its edits may name only keys of the request.
    ///
    /// *Durability:* done means durable. *Failure:* see [`Failure`]. The caller must not assume that
    /// readers see the edits of one transition at one instant.
    fn transact(&self, request: &Request<'_>, decide: &mut Decide<'_>) -> Result<Outcome, Failure>;

    /// The same for several independent sets of keys that share the cost of becoming durable.
    ///
    /// Each unit is exclusive and whole by itself; the batch is not atomic. Units are handled in
    /// (shard, id) order of their first key. A unit whose exclusion is busy is reported so and the
    /// rest goes on; after any other failure no further unit is begun, what was already written
    /// still becomes durable, and the report names each unit's fate. If becoming durable fails, no
    /// unit is acknowledged.
    fn transact_each(&self, units: &[Request<'_>], decide: &mut DecideEach<'_>) -> EachReport;

    /// [`Self::transact`] with a rule for which it is often enough to know the holders. An engine to which
    /// they cost less than records may ask `glance` first, if all keys are targets that are there, and
    /// `decide` where that answers nothing; others ask `decide` alone.
    fn transact_at_a_glance(
        &self,
        request: &Request<'_>,
        _glance: &mut DecideAtAGlance<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Outcome, Failure> {
        self.transact(request, decide)
    }

    /// [`Self::transact_each`] in the same way.
    fn transact_each_at_a_glance(
        &self,
        units: &[Request<'_>],
        _glance: &mut DecideEachAtAGlance<'_>,
        decide: &mut DecideEach<'_>,
    ) -> EachReport {
        self.transact_each(units, decide)
    }

    /// Reads keys without excluding anybody. Each entry is a record as one transaction left it;
    /// several entries may be of different instants.
    fn view(&self, keys: &[Key], now: Option<Timestamp>) -> Result<View, StorageError>;

    /// Reads a whole table without excluding anybody.
    fn scan(&self, space: Space, now: Option<Timestamp>) -> Result<Scan, StorageError>;

    /// Takes a place behind everybody who waits for one of `keys` by now. `None` where the engine keeps
    /// no queue: then whoever wants to wait has to look now and then.
    ///
    /// A queue says who should try first; it excludes nobody. [`Self::transact`] does not look at it.
    fn queue(&self, _keys: &[Key]) -> Result<Option<Box<dyn Place>>, StorageError> {
        Ok(None)
    }

    /// How many wait for one of `keys`.
    fn waiting(&self, _keys: &[Key]) -> usize {
        0
    }
}

/// A place in the queue for some keys. Dropping it gives it up; so does the end of the process.
pub trait Place: Send + fmt::Debug {
    /// To be handed to [`Self::wait`]; taken before looking whether it is worth trying.
    fn seen(&self) -> u64;

    /// Whether nobody waits for one of the same keys who came before.
    fn is_first(&self) -> bool;

    /// Blocks until something was freed since `seen`, or somebody left the queue, at most `longest`.
    /// May return early.
    fn wait(&self, seen: u64, longest: std::time::Duration);
}

impl dyn Engine + '_ {
    /// [`Engine::transact`] with a typed refusal.
    pub fn decide<R>(
        &self,
        request: &Request<'_>,
        rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Result<Result<Done, R>, Failure> {
        let mut rule = Remembering { rule, refusal: None };
        let outcome = self.transact(request, &mut |view| rule.ask(view))?;
        Ok(rule.answer(outcome))
    }

    /// [`Engine::transact_at_a_glance`] with a typed refusal.
    pub fn decide_at_a_glance<R>(
        &self,
        request: &Request<'_>,
        glance: &mut DecideAtAGlance<'_>,
        rule: impl FnMut(&View) -> Result<Transition, R>,
    ) -> Result<Result<Done, R>, Failure> {
        let mut rule = Remembering { rule, refusal: None };
        let outcome = self.transact_at_a_glance(request, glance, &mut |view| rule.ask(view))?;
        Ok(rule.answer(outcome))
    }
}

/// A rule, and what it refused last.
struct Remembering<F, R> {
    rule: F,
    refusal: Option<R>,
}

impl<R, F: FnMut(&View) -> Result<Transition, R>> Remembering<F, R> {
    fn ask(&mut self, view: &View) -> Option<Transition> {
        let answer = (self.rule)(view);
        let (transition, refusal) = match answer {
            Ok(transition) => (Some(transition), None),
            Err(refused) => (None, Some(refused)),
        };
        self.refusal = refusal;
        transition
    }

    fn answer(self, outcome: Outcome) -> Result<Done, R> {
        match (outcome, self.refusal) {
            (Outcome::Done(done), _) => Ok(done),
            (Outcome::Refused, Some(refused)) => Err(refused),
            (Outcome::Refused, None) => unreachable!("refused without asking the rule"),
        }
    }
}

/// What an engine is.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// Its name: `files`.
    pub name: &'static str,
    /// Where the table is, as the user named it.
    pub location: String,
    /// The table's own identity, made at its creation.
    pub table: String,
    /// The ttl of claims and records that name none.
    pub default_ttl: Ttl,
    /// How many shards the target table has.
    pub shards: u16,
}

/// A whole table, as [`Engine::scan`] found it.
#[derive(Clone, Debug)]
pub struct Scan {
    /// When it was read.
    pub moment: Moment,
    /// The ttl of records that carry none.
    pub default_ttl: Ttl,
    /// Every record and every damaged one, in key order; never [`Entry::Vacant`].
    pub entries: Vec<(Key, Entry)>,
    /// Whether all of it stood like this at one instant. The instant may lie within a call that was
    /// under way, so that some of its edits are there and some are not yet. If not, writers were too
    /// busy: each record is true, their combination may never have been.
    pub consistent: bool,
}
