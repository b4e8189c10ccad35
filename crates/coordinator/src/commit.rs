//! Commit: what a job found becomes public once, or not at all.
//!
//! C1. Everything the manifest names is durable under the attempt's own stage before the commit is
//!     decided.
//! C2. The work fence decides, and nothing else: an attempt that was superseded is refused there,
//!     and then none of its outputs is published.
//! C3. Publication is a replay: objects and the result record are named by their digests, so whoever
//!     repeats it, after whatever crash, publishes the same things once.
//! C4. The result is in the shared ledger before the item is done, and the item is done no later than
//!     the group is given back, by one call: whoever gets the group next can know what was done.
//!
//! ```text
//! Solved -[stage]-> Staged -[begin_commit]-> Committing -[publish, then complete and release]-> Done
//!                       \ FenceRefused            \ any failure or crash: any coordinator replays
//! ```

use std::path::PathBuf;
use std::time::Duration;

use ringfence::model::WorkRecord;
use ringfence::model::rules::JobCompleteRefused;
use ringfence::{
    BeginCommitError, Completion, JobReplayError, Payload, RecordId, ReplayError, Token,
};
use ringfence_env::steps;
use serde::{Deserialize, Serialize};

use crate::admit::{self, Admitted};
use crate::config::HoldAt;
use crate::context::Context;
use crate::digest::Digest;
use crate::error::Error;
use crate::events::Event;
use crate::files;
use crate::job::stage_name;
use crate::ledger::ResultRecord;
use crate::slot::Found;

/// What is to be published, by content digest.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    outputs: Vec<Digest>,
    result: Digest,
}

/// How often a commit decision whose outcome is unknown is repeated.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// Commits a finished job and releases its group.
pub(crate) fn commit(
    context: &Context,
    admitted: &Admitted,
    record: &ResultRecord,
    kept: &[Found],
) {
    let work = admitted.work.id.to_string();
    let before = context.world.clock.monotonic();
    let manifest = match stage(context, admitted, record, kept) {
        Ok(manifest) => manifest,
        Err(error) => {
            admit::give_up(context, admitted, &format!("it could not be staged: {error}"));
            return;
        }
    };
    context.events.write(Event::Staged { work: work.clone() });
    context.hold(HoldAt::Decide);
    context.keeper.let_go_of_work(admitted.number);
    let (id, token) = (admitted.work.id, &admitted.work.token);
    match decide(context, id, token, &manifest) {
        Ok(()) => {}
        Err(BeginCommitError::Refused(refused)) => {
            let (step, why) = ("begin-commit".to_owned(), refused.to_string());
            context.events.write(Event::FenceRefused { work, step, why });
            files::remove_dir(&context.world, &stage_dir(context, id, token));
            admit::release(context, admitted);
            return;
        }
        Err(error) => {
            // Perhaps it was decided. Then it will be found committing, else it runs out.
            let what = format!("a commit was not decided: {error}");
            context.events.write(Event::Trouble { what });
            admit::release(context, admitted);
            return;
        }
    }
    context.events.write(Event::Committing { work });
    context.hold(HoldAt::Publish);
    finish(context, admitted, before);
}

/// Publishes, completes the item and gives the group back.
fn finish(context: &Context, admitted: &Admitted, before: Duration) {
    // A renewal that came after the group was given back would take it for lost.
    context.keeper.let_go(admitted.number);
    let (id, token) = (admitted.work.id, &admitted.work.token);
    let Some((group, _)) = &admitted.group else {
        replay(context, id, token, before, false);
        return;
    };
    let (mut counts, mut published) = ((0, 0), context.world.clock.monotonic());
    let outcome = context.jobs.replay_commit_once(group, id, token, None, |record| {
        counts = publish(context, record)?;
        published = context.world.clock.monotonic();
        Ok::<(), Error>(())
    });
    match outcome {
        Ok(completion) => {
            let ms = context.ms_since(published);
            if completion == Completion::Completed {
                committed(context, id, token, counts, before, false);
            }
            admit::released(context, admitted, ms, true);
        }
        // What was decided is finished without the group.
        Err(JobReplayError::Refused(JobCompleteRefused::Group(_))) => {
            replay(context, id, token, before, false);
            admit::release(context, admitted);
        }
        Err(JobReplayError::Refused(refused)) => {
            complete_refused(context, id, &refused);
            admit::release(context, admitted);
        }
        Err(error) => {
            unfinished(context, id, &error);
            admit::release(context, admitted);
        }
    }
}

/// Finishes the publication of a committing item, whoever decided it.
pub(crate) fn replay(
    context: &Context,
    id: RecordId,
    token: &Token,
    before: Duration,
    recovered: bool,
) {
    let mut counts = (0, 0);
    let outcome = context.work.replay_commit_once(id, token, None, |record| {
        counts = publish(context, record)?;
        Ok::<(), Error>(())
    });
    match outcome {
        Ok(Completion::Completed) => committed(context, id, token, counts, before, recovered),
        // Somebody else finished it.
        Ok(Completion::Already) => {}
        Err(ReplayError::Refused(refused)) => complete_refused(context, id, &refused),
        Err(error) => unfinished(context, id, &error),
    }
}

/// Tells of a publication that was finished here, and clears what was staged for it.
fn committed(
    context: &Context,
    id: RecordId,
    token: &Token,
    (outputs, published): (usize, usize),
    before: Duration,
    recovered: bool,
) {
    let (work, ms) = (id.to_string(), context.ms_since(before));
    context.events.write(Event::Committed { work, outputs, published, ms, recovered });
    files::remove_dir(&context.world, &stage_dir(context, id, token));
}

fn complete_refused(context: &Context, id: RecordId, refused: &dyn std::fmt::Display) {
    let (step, why) = ("complete".to_owned(), refused.to_string());
    context.events.write(Event::FenceRefused { work: id.to_string(), step, why });
}

fn unfinished(context: &Context, id: RecordId, error: &dyn std::fmt::Display) {
    let what = format!("publication of {id} is not finished: {error}");
    context.events.write(Event::Trouble { what });
}

/// C1.
fn stage(
    context: &Context,
    admitted: &Admitted,
    record: &ResultRecord,
    kept: &[Found],
) -> Result<Payload, Error> {
    let world = &context.world;
    let dir = stage_dir(context, admitted.work.id, &admitted.work.token);
    files::mkdir(world, &dir)?;
    let mut outputs = Vec::new();
    for found in kept {
        outputs.push(files::keep(world, &dir, &found.bytes)?);
    }
    let result = files::keep(world, &dir, &record.to_bytes())?;
    world.fs.sync_dir(&dir).map_err(|error| Error::io("sync", &dir, error))?;
    let manifest = Manifest { outputs, result };
    let text = serde_json::to_string(&manifest).map_err(|error| Error::damaged(&dir, error))?;
    Payload::parse(&text).map_err(|error| Error::damaged(&dir, error))
}

fn decide(
    context: &Context,
    id: RecordId,
    token: &Token,
    manifest: &Payload,
) -> Result<(), BeginCommitError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match context.work.begin_commit(id, token, manifest, None) {
            // Repeating it with the same manifest is right, also when the outcome is unknown.
            Err(BeginCommitError::Failed(_)) if tries < TRIES => context.world.clock.sleep(PAUSE),
            other => return other,
        }
    }
}

/// C3: may be called any number of times for one record.
fn publish(context: &Context, record: &WorkRecord) -> Result<(usize, usize), Error> {
    let world = &context.world;
    let dir = stage_dir(context, record.id, &record.holder.token);
    let text = record.manifest.as_ref().map_or("", Payload::as_str);
    let manifest: Manifest =
        serde_json::from_str(text).map_err(|error| Error::damaged(&dir, error))?;
    let published = context.publisher.publish(&dir, &manifest.outputs)?;
    let public = context.layout.ledger().join(format!("{}.json", manifest.result));
    let staged = dir.join(manifest.result.to_string());
    if files::exists(world, &staged) {
        steps::publish(&*world.fs, &staged, &public)
            .map_err(|error| Error::io("publish", &public, error))?;
    } else if !files::exists(world, &public) {
        return Err(Error::damaged(&staged, "a committed result is missing"));
    }
    Ok((manifest.outputs.len(), published))
}

fn stage_dir(context: &Context, id: RecordId, token: &Token) -> PathBuf {
    context.layout.stage().join(stage_name(id, token))
}
