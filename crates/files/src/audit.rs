//! The log of force-releases: one JSON line each, durable before the release.
//!
//! A release that then fails and is undone takes its line back; after a crash in between, the line
//! stands for a release that may not have happened, never the other way round.

use std::io;

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, FileLock, LockMode, OpenWrite, World, steps};
use ringfence_model::Audit;

use crate::layout::{FILE_MODE, Layout};
use crate::locks;

/// A line that is durable; the log stays locked until this is dropped.
#[derive(Debug)]
pub struct AuditMark {
    before: u64,
    _lock: FileLock,
}

/// Appends a line durably.
pub fn append(
    world: &World,
    layout: &Layout,
    line: &Audit,
    deadline: Deadline,
) -> Result<AuditMark, Failure> {
    let path = layout.audit();
    let lock = locks::acquire(world, &path.with_extension("lock"), LockMode::Exclusive, deadline)?;
    let fail = |source| StorageError::new("append to", path.display(), source);
    let untouched = |source| Failure::Untouched(fail(source));
    let before = match world.fs.stat(&path) {
        Ok(stat) => stat.len,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(untouched(error)),
    };
    let mark = AuditMark { before, _lock: lock };
    let name = world.unique().map_err(untouched)?;
    let temp = path.with_extension(format!("log.{name}.tmp"));
    match steps::durable_line(&*world.fs, &temp, &path, &line.0, FILE_MODE) {
        Ok(_) => Ok(mark),
        // The line may stand, so it is cut off before anybody is told that nothing does.
        Err(source) => Err(match take_back(world, layout, &mark) {
            Ok(()) => untouched(source),
            Err(restore) => Failure::Unknown {
                source: fail(source),
                restore,
                members: vec![path.display().to_string()],
            },
        }),
    }
}

/// Takes a line back, durably.
pub fn take_back(world: &World, layout: &Layout, mark: &AuditMark) -> Result<(), StorageError> {
    let path = layout.audit();
    let fail = |source| StorageError::new("take a line back from", path.display(), source);
    match world.fs.stat(&path) {
        Ok(stat) if stat.len > mark.before => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => return Ok(()),
    }
    let file = world.fs.open_write(&path, OpenWrite::Append, FILE_MODE).map_err(fail)?;
    file.set_len(mark.before).and_then(|()| file.sync()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FilesEngine, InitOptions};
    use ringfence_env::{Clock as _, Read};

    #[test]
    fn a_line_that_a_crash_cut_short_is_not_continued_by_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let world = World::system();
        let engine = FilesEngine::init(&world, dir.path(), &InitOptions::default()).unwrap();
        let path = engine.layout.audit();
        steps::stage_synced(&*world.fs, &path, b"{\"at\":1}\n{\"at\":2,", 0o600).unwrap();
        for number in [3, 4] {
            let deadline = ringfence_env::SystemClock.deadline(std::time::Duration::from_secs(5));
            let line = Audit(format!("{{\"at\":{number}}}"));
            drop(append(&world, &engine.layout, &line, deadline).unwrap());
        }
        let Read::Bytes(bytes) = world.fs.read(&path, 1000).unwrap() else { panic!() };
        let text = "{\"at\":1}\n{\"at\":2,\n{\"at\":3}\n{\"at\":4}\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}
