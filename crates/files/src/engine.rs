//! The engine: phase A here, phases B and C in [`crate::mutate`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_engine::{
    Decide, DecideEach, Done, EachReport, Engine, EngineInfo, Failure, Outcome, Request, Scan,
    StorageError, UnitOutcome,
};
use ringfence_env::{Deadline, OpenWrite, World};
use ringfence_model::record::MAX_RECORD_BYTES;
use ringfence_model::{
    Audit, BootMoment, Edit, Entry, Fence, FencingToken, Key, Moment, Space, Timestamp, Transition,
    View, Writer, WriterBoot,
};

use crate::audit;
use crate::batch::DirectorySyncBatch;
use crate::fence::FenceCounter;
use crate::intent::{self, ActiveIntent, Intent, Kind, Overlay, Recovered};
use crate::layout::{FILE_MODE, Layout, RecordPaths};
use crate::locks::{self, GroupLocks};
use crate::meta::{Durability, TableMeta};
use crate::mutate::{self, Applied, Step};
use crate::open::Tuning;
use crate::read::{self, Before};
use crate::scan;

/// A table on a directory. Cheap to clone; every clone and every process may use it at once.
#[derive(Clone, Debug)]
pub struct FilesEngine {
    pub(crate) world: World,
    pub(crate) layout: Layout,
    pub(crate) meta: TableMeta,
    pub(crate) tuning: Tuning,
    pub(crate) read_only: bool,
}

/// One record under its lock.
struct Member {
    key: Key,
    paths: RecordPaths,
    before: Before,
}

/// A transition, ready to be applied: every line is serialised, nothing is written.
struct Prepared {
    changes: Vec<(usize, Option<String>)>,
    audit: Option<Audit>,
    token: Option<FencingToken>,
}

impl Engine for FilesEngine {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "files",
            location: self.layout.root().display().to_string(),
            table: self.meta.table.to_string(),
            default_ttl: self.meta.ttl,
            shards: self.meta.shards.get(),
        }
    }

    fn transact(&self, request: &Request<'_>, decide: &mut Decide<'_>) -> Result<Outcome, Failure> {
        let deadline = self.world.clock.deadline(request.patience);
        let (_locks, members, view) = self.enter(request, deadline)?;
        let Some(transition) = decide(&view) else { return Ok(Outcome::Refused) };
        let prepared = self.prepare(&members, transition.spelled_out(&view), deadline)?;
        let steps = self.steps(&members, prepared.changes).map_err(Failure::Untouched)?;
        let mark = match &prepared.audit {
            None => None,
            Some(line) => Some(audit::append(&self.world, &self.layout, line, deadline)?),
        };
        let barriers = self.commit(&steps, prepared.token).map_err(|failure| match mark {
            Some(mark) if failure.restored() => self.take_back(failure, &mark),
            _ => failure,
        })?;
        Ok(Outcome::Done(Done { token: prepared.token, barriers }))
    }

    fn transact_each(&self, units: &[Request<'_>], decide: &mut DecideEach<'_>) -> EachReport {
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|&index| {
            let key = units.get(index).and_then(|unit| unit.keys.first()).copied();
            key.map(|key| (key.space, self.layout.shard(key), key.id))
        });
        let mut outcomes: Vec<UnitOutcome> = units.iter().map(|_| UnitOutcome::NotBegun).collect();
        let mut batch = DirectorySyncBatch::new(&*self.world.fs, self.tuning.barriers);
        let mut intents = Vec::new();
        for index in order {
            let (Some(unit), Some(slot)) = (units.get(index), outcomes.get_mut(index)) else {
                continue;
            };
            *slot =
                self.one_of_each(unit, &mut |view| decide(index, view), &mut batch, &mut intents);
            if matches!(slot, UnitOutcome::Failed(failure) if failure.storage().is_some()) {
                break;
            }
        }
        let flushed = batch.flush_every().map_err(|unsynced| unsynced.error).and_then(|barriers| {
            intents.drain(..).try_for_each(ActiveIntent::retire).map(|()| barriers)
        });
        match flushed {
            Ok(barriers) => EachReport { units: outcomes, barriers },
            Err(error) => {
                let units = self.none_acknowledged(units, outcomes, &error);
                EachReport { units, barriers: 0 }
            }
        }
    }

    fn view(&self, keys: &[Key], now: Option<Timestamp>) -> Result<View, StorageError> {
        let mut found = BTreeMap::new();
        let intents = Overlay::read(&self.world, &self.layout, Some(keys))?;
        for &key in keys {
            let path = self.layout.record(key).record;
            found.insert(key, read::stored(&*self.world.fs, key, &path)?);
        }
        intents.apply(|key, change| {
            if let Some(now) = found.get_mut(&key)
                && let Some(decided) = change(now)
            {
                *now = decided;
            }
        });
        let entries = found.into_iter().map(|(key, stored)| (key, stored.entry)).collect();
        let moment = self.moment(now);
        Ok(View { writer: self.writer(now, &moment), moment, default_ttl: self.meta.ttl, entries })
    }

    fn scan(&self, space: Space, now: Option<Timestamp>) -> Result<Scan, StorageError> {
        let (entries, consistent) = scan::table(&self.world, &self.layout, space)?;
        let moment = self.moment(now);
        Ok(Scan { moment, default_ttl: self.meta.ttl, entries, consistent })
    }
}

impl FilesEngine {
    /// The table's directory.
    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// What the table is.
    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// Phase A up to the view: every lock, then every record, then the moment.
    fn enter(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<(GroupLocks, Vec<Member>, View), Failure> {
        assert!(request.keys.is_sorted_by(|a, b| a < b), "keys strictly ascending");
        assert!(!request.keys.is_empty(), "at least one key");
        if self.read_only {
            let why = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
            let root = self.layout.root().display();
            let error =
                StorageError::new("change a table that was opened for reading at", root, why);
            return Err(Failure::Untouched(error));
        }
        let paths: Vec<RecordPaths> =
            request.keys.iter().map(|&key| self.layout.record(key)).collect();
        let locks = self.lock(request.keys, &paths, deadline)?;
        let mut members = Vec::with_capacity(paths.len());
        let mut entries = Vec::with_capacity(paths.len());
        for (&key, paths) in request.keys.iter().zip(paths) {
            let stored =
                read::stored(&*self.world.fs, key, &paths.record).map_err(Failure::Untouched)?;
            entries.push((key, stored.entry));
            members.push(Member { key, paths, before: stored.before });
        }
        let mut moment = self.moment(request.now);
        self.ask_store(&mut moment, &entries, &members).map_err(Failure::Untouched)?;
        let writer = self.writer(request.now, &moment);
        Ok((locks, members, View { moment, writer, default_ttl: self.meta.ttl, entries }))
    }

    /// Takes every lock, once nobody's intent covers one of the records any more.
    fn lock(
        &self,
        keys: &[Key],
        paths: &[RecordPaths],
        deadline: Deadline,
    ) -> Result<GroupLocks, Failure> {
        loop {
            let locks = locks::lock_all(&self.world, &self.layout, paths, deadline)?;
            if self.meta.durability == Durability::Record {
                return Ok(locks);
            }
            let standing = intent::standing_intents(&self.world, &self.layout, Some(keys))
                .map_err(Failure::Untouched)?;
            let covered = standing.iter().any(|found| found.covers(keys));
            if !covered {
                return Ok(locks);
            }
            // Its writer held the locks that we hold now: it is gone.
            drop(locks);
            self.recover(Some(keys), deadline)?;
            if self.world.clock.left(deadline).is_zero() {
                let what = format!("an intent in {}", self.layout.intents().display());
                return Err(Failure::Busy { what, waited: std::time::Duration::ZERO });
            }
        }
    }

    /// Finishes what dead writers left, on these records or on all.
    pub(crate) fn recover(
        &self,
        keys: Option<&[Key]>,
        deadline: Deadline,
    ) -> Result<Recovered, Failure> {
        let recovered =
            intent::recover(&self.world, &self.layout, &self.meta.table, keys, deadline)?;
        for left in &recovered.left_alone {
            let line = left.audit(self.moment(None).wall);
            audit::append(&self.world, &self.layout, &line, deadline)?;
        }
        Ok(recovered)
    }

    /// Phase A from the decision on: issues the token and serialises every record.
    fn prepare(
        &self,
        members: &[Member],
        transition: Transition,
        deadline: Deadline,
    ) -> Result<Prepared, Failure> {
        let (edits, audit, token) = match transition {
            Transition::Edits { edits, audit } => (edits, audit, None),
            Transition::Grant(grant) => {
                let nonce = self.world.entropy.nonce().map_err(|source| {
                    Failure::Untouched(StorageError::new("draw", "a token", source))
                })?;
                let counter = FenceCounter::new(&self.layout);
                let fence = counter.next(&self.world, grant.above, deadline)?;
                let token = FencingToken::new(fence, nonce);
                (grant.under(token), None, Some(token))
            }
            Transition::Alike(_) => unreachable!("it is spelled out first"),
        };
        let line = |Edit { key, to }: Edit| {
            let Ok(index) = members.binary_search_by_key(&key, |member| member.key) else {
                unreachable!("an edit of {key:?}, which is not in the request")
            };
            let line = to.map(|record| record.to_line());
            // M3. A line that no reader would accept is never written.
            if line.as_ref().is_some_and(|line| line.len() > MAX_RECORD_BYTES) {
                let why = format!("it would be larger than {MAX_RECORD_BYTES} bytes");
                let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
                return Err(Failure::Untouched(StorageError::new("store", key.id, why)));
            }
            Ok((index, line))
        };
        let changes = edits.into_iter().map(line).collect::<Result<_, _>>()?;
        Ok(Prepared { changes, audit, token })
    }

    /// Phases B and C.
    fn commit(&self, steps: &[Step<'_>], token: Option<FencingToken>) -> Result<u64, Failure> {
        let mut batch = DirectorySyncBatch::new(&*self.world.fs, self.tuning.barriers);
        let (applied, intent) = self.change(steps, token, &mut batch, 0)?;
        match batch.flush() {
            Ok(barriers) => match intent.map(ActiveIntent::retire) {
                None | Some(Ok(())) => Ok(barriers),
                Some(Err(error)) => Err(unknown(error, "the new state was decided", steps)),
            },
            Err(error) => Err(put_back(&applied, steps, intent, error)),
        }
    }

    /// Phase B: changes every name, inside an intent where the group needs one.
    fn change<'s>(
        &'s self,
        steps: &'s [Step<'s>],
        token: Option<FencingToken>,
        batch: &mut DirectorySyncBatch<'_>,
        slots_in_use: usize,
    ) -> Result<(Applied<'s>, Option<ActiveIntent>), Failure> {
        let staged = mutate::stage(&self.world, self.tuning, steps).map_err(Failure::Untouched)?;
        let intent = self.intend(steps, token, slots_in_use)?;
        let mut applied = Applied::none(&self.world);
        match staged.publish(batch, &mut applied) {
            Ok(()) => Ok((applied, intent)),
            Err(error) => Err(put_back(&applied, steps, intent, error)),
        }
    }

    /// Writes the intent of a group that more than one rename changes.
    fn intend(
        &self,
        steps: &[Step<'_>],
        token: Option<FencingToken>,
        slots_in_use: usize,
    ) -> Result<Option<ActiveIntent>, Failure> {
        let changes =
            steps.iter().filter(|step| step.to.is_some() || *step.before != Before::Absent);
        if self.meta.durability == Durability::Record || changes.count() < 2 {
            return Ok(None);
        }
        let nonce = self
            .world
            .unique()
            .map_err(|source| Failure::Untouched(StorageError::new("name", "an intent", source)))?;
        let intent = Intent {
            table: self.meta.table.to_string(),
            nonce,
            kind: if token.is_some() { Kind::Grant } else { Kind::Edit },
            token: token.map(|token| token.to_string()),
            issued: self.issued(token).map_err(Failure::Untouched)?,
            members: steps.iter().map(Step::images).collect(),
        };
        match ActiveIntent::write(&self.world, &self.layout, &intent, slots_in_use) {
            Ok(active) => Ok(Some(active)),
            Err((error, true)) => Err(Failure::Untouched(error)),
            Err((error, false)) => {
                Err(unknown(error, "the new state may have been decided", steps))
            }
        }
    }

    /// A fence that is not below any that was issued to a record whose lock is held here.
    ///
    /// The counter may be damaged or gone, and that keeps nobody from giving up what he holds: then the
    /// intent tells of its images' fences alone.
    fn issued(&self, token: Option<FencingToken>) -> Result<Fence, StorageError> {
        use std::io::ErrorKind::{InvalidData, NotFound};
        // A grant's own fence was drawn under the same locks.
        if let Some(token) = token {
            return Ok(token.fence());
        }
        match FenceCounter::new(&self.layout).issued(&self.world) {
            Err(error) if matches!(error.source.kind(), NotFound | InvalidData) => Ok(Fence(0)),
            issued => issued,
        }
    }

    fn steps<'m>(
        &self,
        members: &'m [Member],
        changes: Vec<(usize, Option<String>)>,
    ) -> Result<Vec<Step<'m>>, StorageError> {
        let step = |(index, to): (usize, Option<String>)| {
            let Some(member) = members.get(index) else { unreachable!("an index of `members`") };
            let aside = match (&to, &member.before) {
                (None, Before::Opaque) => {
                    Some(mutate::free_aside(&self.world, &member.paths.record)?)
                }
                _ => None,
            };
            Ok(Step {
                key: member.key,
                paths: &member.paths,
                before: &member.before,
                to: to.map(String::into_bytes),
                aside,
                back: false,
            })
        };
        changes.into_iter().map(step).collect()
    }

    fn take_back(&self, failure: Failure, mark: &audit::AuditMark) -> Failure {
        match audit::take_back(&self.world, &self.layout, mark) {
            Ok(()) => failure,
            Err(restore) => {
                let source = match failure {
                    Failure::Untouched(error) | Failure::Restored(error) => error,
                    other => return other,
                };
                let members = vec![self.layout.audit().display().to_string()];
                Failure::Unknown { source, restore, members }
            }
        }
    }

    fn one_of_each(
        &self,
        unit: &Request<'_>,
        decide: &mut Decide<'_>,
        batch: &mut DirectorySyncBatch<'_>,
        intents: &mut Vec<ActiveIntent>,
    ) -> UnitOutcome {
        let deadline = self.world.clock.deadline(unit.patience);
        let mut run = || {
            let (_locks, members, view) = self.enter(unit, deadline)?;
            let Some(transition) = decide(&view) else { return Ok(UnitOutcome::Refused) };
            let prepared = self.prepare(&members, transition.spelled_out(&view), deadline)?;
            assert!(prepared.audit.is_none(), "a batch leaves no audit line");
            let steps = self.steps(&members, prepared.changes).map_err(Failure::Untouched)?;
            // Durable at the end of the batch. The locks may go before that, because nothing is
            // acknowledged until then; an intent stands, its slot locked, until then as well.
            let (_applied, intent) = self.change(&steps, prepared.token, batch, intents.len())?;
            intents.extend(intent);
            Ok(UnitOutcome::Done(prepared.token))
        };
        run().unwrap_or_else(UnitOutcome::Failed)
    }

    /// What became of the units of a batch whose barrier failed: no written one is acknowledged.
    fn none_acknowledged(
        &self,
        units: &[Request<'_>],
        outcomes: Vec<UnitOutcome>,
        error: &StorageError,
    ) -> Vec<UnitOutcome> {
        let again = || {
            let source = match error.source.raw_os_error() {
                Some(errno) => std::io::Error::from_raw_os_error(errno),
                None => std::io::Error::new(error.source.kind(), error.source.to_string()),
            };
            StorageError::new(error.operation, &error.location, source)
        };
        let unknown = |(outcome, unit): (UnitOutcome, &Request<'_>)| match outcome {
            UnitOutcome::Done(_) => {
                let name = |&key: &Key| self.layout.record(key).record.display().to_string();
                let members = unit.keys.iter().map(name).collect();
                UnitOutcome::Failed(Failure::Unknown { source: again(), restore: again(), members })
            }
            other => other,
        };
        outcomes.into_iter().zip(units).map(unknown).collect()
    }

    /// The moment by every clock of this host, or the caller's own.
    pub(crate) fn moment(&self, now: Option<Timestamp>) -> Moment {
        if let Some(now) = now {
            return Moment::given(now);
        }
        let clock = &self.world.clock;
        let boot = self.world.host.boot.as_ref().map(|boot| BootMoment {
            boot: boot.clone(),
            seconds: clock.boottime().as_secs_f64(),
            gone: Vec::new(),
        });
        Moment { wall: Timestamp::from_unix(clock.wall()), boot, store: None }
    }

    fn writer(&self, now: Option<Timestamp>, moment: &Moment) -> Arc<Writer> {
        let boot = moment.boot.as_ref().filter(|_| now.is_none());
        Arc::new(Writer {
            host: self.world.host.name.clone(),
            pid: std::process::id(),
            boot: boot.map(|boot| WriterBoot {
                boot: boot.boot.clone(),
                seconds: boot.seconds,
                life: None,
            }),
        })
    }

    /// Asks the store's own clock, by the time stamp of a new file, when nothing else could tell
    /// that a record of another boot or host has really run out.
    fn ask_store(
        &self,
        moment: &mut Moment,
        entries: &[(Key, Entry)],
        members: &[Member],
    ) -> Result<(), StorageError> {
        let doubtful = entries.iter().zip(members).find(|((_, entry), _)| match entry {
            Entry::Present(record) => record.holder().needs_store_clock(moment, self.meta.ttl),
            _ => false,
        });
        let Some((_, member)) = doubtful else { return Ok(()) };
        let fail =
            |source| StorageError::new("ask the clock of", member.paths.dir.display(), source);
        let name = self.world.unique().map_err(fail)?;
        let path: PathBuf = member.paths.dir.join(format!("clock.{name}.tmp"));
        let file =
            self.world.fs.open_write(&path, OpenWrite::CreateNew, FILE_MODE).map_err(fail)?;
        let stat = file.stat();
        self.world.fs.unlink(&path).map_err(|source| {
            // Once more, so that one failed call leaves no temporary.
            let _ = self.world.fs.unlink(&path);
            fail(source)
        })?;
        // Kernels stamp files with a clock that ticks every few milliseconds; a stamp that is
        // unusable is no evidence.
        moment.store = Timestamp::from_seconds(stat.map_err(fail)?.modified).ok();
        Ok(())
    }
}

/// Puts the old state back after a failure, deciding for it first where there is an intent.
fn put_back(
    applied: &Applied<'_>,
    steps: &[Step<'_>],
    intent: Option<ActiveIntent>,
    error: StorageError,
) -> Failure {
    let Some(mut intent) = intent else { return applied.undo(error) };
    if let Err(restore) = intent.abort() {
        // It stands as decided, so nothing may be put back: whoever comes next completes it.
        return Failure::Unknown { source: error, restore, members: names(steps) };
    }
    match applied.undo(error) {
        Failure::Restored(source) => match intent.retire() {
            Ok(()) => Failure::Restored(source),
            Err(restore) => Failure::Unknown { source, restore, members: names(steps) },
        },
        // It stands as aborting: whoever comes next puts the rest back.
        other => other,
    }
}

/// A failure after which nothing could be put back.
fn unknown(error: StorageError, why: &'static str, steps: &[Step<'_>]) -> Failure {
    let restore = StorageError::new("put back", "anything", std::io::Error::other(why));
    Failure::Unknown { source: error, restore, members: names(steps) }
}

fn names(steps: &[Step<'_>]) -> Vec<String> {
    steps.iter().map(|step| step.paths.record.display().to_string()).collect()
}
