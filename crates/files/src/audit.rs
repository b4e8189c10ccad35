//! The log of force-releases: one JSON line each, durable before the release.
//!
//! A release that then fails and is undone takes its line back; after a crash in between, the line
//! stands for a release that may not have happened, never the other way round.

use ringfence_engine::{Failure, StorageError};
use ringfence_env::{Deadline, FileLock, LockMode, OpenWrite, Read, World, steps};
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
    let fail = |source| Failure::Untouched(StorageError::new("append to", path.display(), source));
    let mut file = world.fs.open_write(&path, OpenWrite::Append, FILE_MODE).map_err(fail)?;
    let before = file.stat().map_err(fail)?.len;
    let whole = match world.fs.read(&path, usize::MAX).map_err(fail)? {
        Read::Bytes(bytes) => bytes.last().is_none_or(|&last| last == b'\n'),
        _ => false,
    };
    // A line that a crash cut short stays as it is; the next one does not continue it.
    let lead = if whole { "" } else { "\n" };
    let written = steps::write_all(&mut *file, format!("{lead}{}\n", line.0).as_bytes())
        .and_then(|()| file.sync())
        .and_then(|()| world.fs.sync_dir(layout.root()));
    let mark = AuditMark { before, _lock: lock };
    match written {
        Ok(()) => Ok(mark),
        // Part of the line may stand, so it is cut off before anybody is told that nothing does.
        Err(source) => Err(match take_back(world, layout, &mark) {
            Ok(()) => fail(source),
            Err(restore) => Failure::Unknown {
                source: StorageError::new("append to", path.display(), source),
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
    let file = world.fs.open_write(&path, OpenWrite::Append, FILE_MODE).map_err(fail)?;
    file.set_len(mark.before).and_then(|()| file.sync()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FilesEngine, InitOptions};
    use ringfence_env::Clock as _;

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
