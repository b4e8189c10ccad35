//! Publication: into the objects, and into the peer queue that the fuzzer reads.
//!
//! P1. Entries of the peer queue have dense, unique ids that appear in order: an id is allotted and
//!     its name appears under one kernel lock, and the next id is read from the names themselves.
//! P2. An entry appears complete: it is written and synced elsewhere, then renamed in, public first.
//! P3. Publishing a digest again changes nothing: the names in the queue carry the digest, so the
//!     listing is the index, and there is no second file that a crash could leave behind it.
//!
//! The fuzzer counts files: with two of one id, or one that comes late, it stops importing for ever.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_env::{FileLock, LockMode, World, steps};

use crate::digest::Digest;
use crate::error::Error;
use crate::files::{self, FILE_MODE};
use crate::layout::{Layout, RunLayout};

/// Publishing one object takes milliseconds; longer than this is a stuck process.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where results are published.
#[derive(Clone, Debug)]
pub(crate) struct Publisher {
    world: World,
    objects: PathBuf,
    queue: PathBuf,
    staging: PathBuf,
    lock: PathBuf,
}

impl Publisher {
    pub(crate) fn new(world: &World, layout: &Layout, run: &RunLayout) -> Self {
        Self {
            world: world.clone(),
            objects: layout.objects(),
            queue: run.peer_queue(),
            staging: run.staging(),
            lock: run.publish_lock(),
        }
    }

    /// Publishes objects in the order given; returns how many were new to the queue.
    ///
    /// Each lies as `dir/DIGEST` or among the objects already. Durable when it returns.
    pub(crate) fn publish(
        &self,
        dir: &std::path::Path,
        digests: &[Digest],
    ) -> Result<usize, Error> {
        if digests.is_empty() {
            return Ok(0);
        }
        let (fs, clock) = (&*self.world.fs, &*self.world.clock);
        for digest in digests {
            let public = self.objects.join(digest.to_string());
            let staged = dir.join(digest.to_string());
            if files::exists(&self.world, &staged) {
                steps::publish(fs, &staged, &public)
                    .map_err(|error| Error::io("publish", &public, error))?;
            }
        }
        let deadline = clock.deadline(PATIENCE);
        let _turn = FileLock::acquire(
            fs,
            clock,
            &self.lock,
            LockMode::Exclusive,
            Some(FILE_MODE),
            deadline,
        )
        .map_err(|error| Error::io("lock", &self.lock, std::io::Error::other(error)))?;
        let index = self.index()?;
        let mut next = index.len();
        let mut published = 0;
        for digest in digests {
            if index.contains_key(digest) {
                continue;
            }
            self.enqueue(next, *digest)?;
            next += 1;
            published += 1;
        }
        Ok(published)
    }

    /// The published digests and their ids, checked for P1.
    pub(crate) fn index(&self) -> Result<BTreeMap<Digest, usize>, Error> {
        let mut index = BTreeMap::new();
        for (expected, name) in files::names(&self.world, &self.queue)?.into_iter().enumerate() {
            let parsed = parse_name(&name).filter(|(id, _)| *id == expected);
            let Some((id, digest)) = parsed else {
                let reason = format!("{name:?} where id {expected} was expected");
                return Err(Error::damaged(&self.queue, reason));
            };
            if index.insert(digest, id).is_some() {
                return Err(Error::damaged(&self.queue, format!("{digest} is there twice")));
            }
        }
        Ok(index)
    }

    fn enqueue(&self, id: usize, digest: Digest) -> Result<(), Error> {
        let object = self.objects.join(digest.to_string());
        let bytes = files::read(&self.world, &object)?;
        let bytes = bytes.ok_or_else(|| Error::damaged(&object, "it is missing"))?;
        if Digest::of(&bytes) != digest {
            return Err(Error::damaged(&object, "its content is not what its name says"));
        }
        let name = self.world.unique().map_err(|error| Error::io("name", &self.staging, error))?;
        let staged = self.staging.join(name);
        let public = self.queue.join(format!("id:{id:06},digest:{digest}"));
        steps::stage_synced(&*self.world.fs, &staged, &bytes, FILE_MODE)
            .and_then(|()| steps::publish(&*self.world.fs, &staged, &public))
            .map_err(|error| Error::io("publish", &public, error))
    }
}

fn parse_name(name: &str) -> Option<(usize, Digest)> {
    let (id, digest) = name.strip_prefix("id:")?.split_once(",digest:")?;
    Some((id.parse().ok()?, digest.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher() -> (tempfile::TempDir, Publisher, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let world = World::system();
        let layout = Layout::new(dir.path());
        let run = layout.run(1);
        for made in [
            layout.objects(),
            layout.stage(),
            layout.stage().join("a"),
            layout.runs(),
            run.dir().to_owned(),
            run.sync(),
            run.peer(),
            run.peer_queue(),
            run.staging(),
        ] {
            files::mkdir(&world, &made).unwrap();
        }
        let publisher = Publisher::new(&world, &layout, &run);
        (dir, publisher, layout.stage().join("a"))
    }

    fn stage(publisher: &Publisher, dir: &std::path::Path, content: &[u8]) -> Digest {
        files::keep(&publisher.world, dir, content).unwrap()
    }

    #[test]
    fn ids_are_dense_and_a_digest_is_published_once() {
        let (_dir, publisher, staged) = publisher();
        let digests: Vec<Digest> = (0..3u8).map(|n| stage(&publisher, &staged, &[n])).collect();
        assert_eq!(publisher.publish(&staged, &digests[..2]).unwrap(), 2);
        assert_eq!(publisher.publish(&staged, &digests[..2]).unwrap(), 0, "a replay");
        assert_eq!(publisher.publish(&staged, &digests).unwrap(), 1);
        let ids: Vec<usize> =
            digests.iter().map(|digest| publisher.index().unwrap()[digest]).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(files::names(&publisher.world, &publisher.staging).unwrap().len(), 0);
        assert_eq!(files::names(&publisher.world, &staged).unwrap().len(), 0);
    }

    #[test]
    fn many_publishers_at_once_leave_no_gap() {
        let (_dir, publisher, staged) = publisher();
        let digests: Vec<Digest> = (0..40u8).map(|n| stage(&publisher, &staged, &[n])).collect();
        std::thread::scope(|scope| {
            for share in digests.chunks(10) {
                let (publisher, staged) = (publisher.clone(), staged.clone());
                scope.spawn(move || {
                    for digest in share {
                        publisher.publish(&staged, &[*digest]).unwrap();
                    }
                });
            }
        });
        assert_eq!(publisher.index().unwrap().len(), 40);
    }

    #[test]
    fn a_gap_in_the_queue_is_reported_and_not_built_upon() {
        let (_dir, publisher, staged) = publisher();
        let first = stage(&publisher, &staged, b"a");
        let second = stage(&publisher, &staged, b"b");
        publisher.publish(&staged, &[first, second]).unwrap();
        let gone = publisher.queue.join(format!("id:000000,digest:{first}"));
        publisher.world.fs.unlink(&gone).unwrap();
        let third = stage(&publisher, &staged, b"c");
        assert!(matches!(publisher.publish(&staged, &[third]), Err(Error::Damaged { .. })));
    }

    #[test]
    fn an_object_that_is_not_what_its_name_says_is_not_published() {
        let (_dir, publisher, staged) = publisher();
        let digest = stage(&publisher, &staged, b"a");
        files::replace(&publisher.world, &staged.join(digest.to_string()), b"b").unwrap();
        assert!(matches!(publisher.publish(&staged, &[digest]), Err(Error::Damaged { .. })));
        assert!(publisher.index().unwrap().is_empty());
    }
}
