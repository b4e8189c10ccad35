//! The way between two places: what is under way, what is decided, and finishing it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_engine::StorageError;
use ringfence_env::{FileKind, Read, World, steps};
use ringfence_model::field::Fields;
use ringfence_model::{Fence, json};

use super::{MigrateError, Migrated};

const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// A move from one place to another.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    staging: PathBuf,
}

/// Where a table went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Went {
    pub(crate) to: PathBuf,
    /// The identity of the table there.
    table: String,
    /// Leases and work items that were carried over.
    records: (usize, usize),
    fence: Fence,
    line: String,
}

impl Arrival {
    /// A move that is asked for.
    pub(crate) fn of(from: &Path, to: &Path) -> Result<Self, MigrateError> {
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map(|path| path.components().collect::<PathBuf>())
                .map_err(|source| StorageError::new("name", path.display(), source))
        };
        let (from, to) = (absolute(from)?, absolute(to)?);
        if from == to {
            return Err(MigrateError::Same { at: to });
        }
        for path in [&from, &to] {
            if path.to_str().is_none() {
                let why = io::Error::new(io::ErrorKind::InvalidInput, "it is not UTF-8");
                return Err(StorageError::new("write down", path.display(), why).into());
            }
        }
        if from.starts_with(&to) || to.starts_with(&from) || is_within(&to, &from) {
            return Err(MigrateError::Nested { from, to });
        }
        let staging = staging(&to).ok_or_else(|| MigrateError::Exists { to: to.clone() })?;
        Ok(Self { from, to, staging })
    }

    /// The move that is under way to a place where nothing is yet.
    pub(crate) fn to(world: &World, to: &Path) -> Result<Option<Self>, StorageError> {
        let fail = |source| StorageError::new("name", to.display(), source);
        let to: PathBuf = std::path::absolute(to).map_err(fail)?.components().collect();
        let Some(staging) = staging(&to) else { return Ok(None) };
        let note = Note::read(world, &staging)?;
        Ok(note.map(|note| Self { from: note.from, to, staging }))
    }

    /// Where the new table is made.
    pub(crate) fn table(&self) -> PathBuf {
        self.staging.join("table")
    }

    pub(super) fn expect_free(&self, world: &World) -> Result<(), MigrateError> {
        if exists(world, &self.to)? {
            return Err(MigrateError::Exists { to: self.to.clone() });
        }
        Ok(())
    }

    /// Makes the directory for the new table; what an earlier try of the same move left is removed. The
    /// old table is held still, and was not moved: so whatever is here in its name has no maker any more.
    ///
    /// The directory comes to its name with the note in it. Two moves of two tables to one place would
    /// otherwise each take what the other has just made for a dead one's.
    pub(super) fn begin(&self, world: &World, table: &str) -> Result<(), MigrateError> {
        let (fs, staging) = (&*world.fs, &self.staging);
        let mut own = staging.clone().into_os_string();
        own.push(format!(".{table}"));
        let own = PathBuf::from(own);
        if exists(world, &own)? {
            remove(world, &own)?;
        }
        let fail = |source| StorageError::new("make", staging.display(), source);
        fs.mkdir(&own, DIR_MODE).map_err(fail)?;
        let placed = self.place(world, &own, table);
        if placed.is_err() && exists(world, &own)? {
            // What cannot be removed now is removed by the next try.
            let _ = remove(world, &own);
        }
        placed
    }

    fn place(&self, world: &World, own: &Path, table: &str) -> Result<(), MigrateError> {
        let (fs, staging) = (&*world.fs, &self.staging);
        let fail = |source| StorageError::new("make", staging.display(), source);
        let note = Note { from: self.from.clone(), table: table.to_owned() };
        note.write(world, own)?;
        if exists(world, staging)? {
            let ours = |note: &Note| note.table == table;
            if !Note::read(world, staging)?.as_ref().is_some_and(ours) {
                return Err(MigrateError::Occupied { staging: staging.clone() });
            }
            self.clear(world)?;
        }
        match fs.rename(own, staging) {
            // Somebody else's, this very moment.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                return Err(MigrateError::Occupied { staging: staging.clone() });
            }
            other => other.map_err(fail)?,
        }
        let parent = parent(staging);
        fs.sync_dir(parent).map_err(|why| {
            MigrateError::Storage(StorageError::new("sync directory", parent.display(), why))
        })
    }

    /// Removes what was made so far.
    pub(super) fn clear(&self, world: &World) -> Result<(), StorageError> {
        // The note last: without it nobody knows whose the rest is.
        let table = self.table();
        if exists(world, &table)? {
            remove(world, &table)?;
        }
        remove(world, &self.staging)
    }

    /// What the old place will say.
    pub(super) fn line(
        &self,
        table: &str,
        (targets, work): (usize, usize),
        fence: Fence,
    ) -> String {
        let fields = [
            ("engine", json::quoted("moved")),
            ("fence", fence.to_string()),
            ("format", "1".to_owned()),
            ("table", json::quoted(table)),
            ("targets", targets.to_string()),
            ("to", json::quoted(&self.to.display().to_string())),
            ("work", work.to_string()),
        ];
        json::object_line(&fields.into_iter().collect())
    }

    /// The move was decided before: finishes it.
    pub(super) fn finish_earlier(
        self,
        world: &World,
        went: &Went,
    ) -> Result<Migrated, MigrateError> {
        if went.to != self.to {
            let (root, to) = (self.from, went.to.clone());
            return Err(crate::store::OpenError::Moved { root, to }.into());
        }
        self.finish(world, went).map_err(MigrateError::Unfinished)?;
        let (records, fence) = (went.records, went.fence);
        Ok(Migrated { from: self.from, to: self.to, records, fence, left: Vec::new() })
    }

    /// G4. Does what is left of a move that was decided.
    pub(crate) fn finish(&self, world: &World, went: &Went) -> Result<(), StorageError> {
        settle(world, &self.from, &went.line)?;
        self.publish(world)
    }

    /// Puts the new table in its place, durably.
    pub(super) fn publish(&self, world: &World) -> Result<(), StorageError> {
        let (fs, table) = (&*world.fs, self.table());
        let fail = |source| StorageError::new("put in place", self.to.display(), source);
        match steps::publish(fs, &table, &self.to) {
            // Somebody else was faster, or it was done before.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs.sync_dir(parent(&self.to)).map_err(fail)?;
            }
            other => other.map_err(fail)?,
        }
        if exists(world, &self.staging)? {
            // What stays is in nobody's way: the place is taken.
            let _ = remove(world, &self.staging);
        }
        Ok(())
    }

    /// Whether the old place says that the table is the one that was made here.
    pub(crate) fn is_decided(&self, world: &World) -> Result<Option<Went>, StorageError> {
        let Some(went) = gone(world, &self.from)? else { return Ok(None) };
        let made = describe(world, &self.table()).and_then(|mut fields| table_of(&mut fields));
        Ok((made.as_deref() == Some(&*went.table)).then_some(went))
    }
}

/// Where the table at `root` went, if its move is decided. Writes nothing.
pub(crate) fn gone(world: &World, root: &Path) -> Result<Option<Went>, StorageError> {
    let Some(mut fields) = describe(world, root) else { return Ok(None) };
    let engine: Option<Arc<str>> = fields.optional("engine").unwrap_or_default();
    let line = match engine.as_deref() {
        Some("moved") => read(world, &root.join("table.json"))?,
        Some("journal") => ringfence_journal::moving::closed(world, root)?.map(String::into_bytes),
        _ => ringfence_files::moving::closed(world, root)?.map(String::into_bytes),
    };
    let Some(line) = line else { return Ok(None) };
    let went = Fields::parse(&line).ok().and_then(|mut fields| {
        let table = table_of(&mut fields)?;
        let to: Arc<str> = fields.required("to").ok()?;
        let mut number = |name| fields.required::<u64>(name).ok();
        let count = |number: u64| usize::try_from(number).ok();
        let records = (count(number("targets")?)?, count(number("work")?)?);
        let fence = Fence(number("fence")?);
        let line = String::from_utf8(line.clone()).ok()?;
        Some(Went { to: PathBuf::from(&*to), table, records, fence, line })
    });
    went.map(Some).ok_or_else(|| {
        let why = io::Error::new(io::ErrorKind::InvalidData, "the line of a move is damaged");
        StorageError::new("read", root.display(), why)
    })
}

/// Replaces the description at the old place by the line: from then on every program knows, also one
/// that knows nothing of moves.
pub(crate) fn settle(world: &World, root: &Path, line: &str) -> Result<(), StorageError> {
    let path = root.join("table.json");
    let fail = |source| StorageError::new("write", path.display(), source);
    // Written anew also where it is there: whoever wrote it may not have lived to make it durable.
    let temp = root.join(format!("table.json.{}.tmp", world.unique().map_err(fail)?));
    steps::durable_replace(&*world.fs, &temp, &path, line.as_bytes(), FILE_MODE).map_err(fail)
}

const NOTE: &str = "arriving.json";

/// What stands beside a table that is being made.
struct Note {
    from: PathBuf,
    table: String,
}

impl Note {
    fn read(world: &World, staging: &Path) -> Result<Option<Self>, StorageError> {
        let path = staging.join(NOTE);
        let Some(bytes) = read(world, &path)? else { return Ok(None) };
        let note = Fields::parse(&bytes).ok().and_then(|mut fields| {
            let from: Arc<str> = fields.required("from").ok()?;
            Some(Self { from: PathBuf::from(&*from), table: table_of(&mut fields)? })
        });
        note.map(Some).ok_or_else(|| {
            let why = io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
            StorageError::new("read", path.display(), why)
        })
    }

    fn write(&self, world: &World, staging: &Path) -> Result<(), StorageError> {
        let path = staging.join(NOTE);
        let fail = |source| StorageError::new("write", path.display(), source);
        let temp = staging.join(format!("{NOTE}.{}.tmp", world.unique().map_err(fail)?));
        let from = json::quoted(&self.from.display().to_string());
        let fields = [("from", from), ("table", json::quoted(&self.table))];
        let line = json::object_line(&fields.into_iter().collect());
        steps::durable_replace(&*world.fs, &temp, &path, line.as_bytes(), FILE_MODE).map_err(fail)
    }
}

/// Where the new table for `to` is made; none beside a root.
fn staging(to: &Path) -> Option<PathBuf> {
    let name = to.file_name()?.to_string_lossy().into_owned();
    Some(parent(to).join(format!(".{name}.arriving")))
}

/// The same, also by other names for the same directories.
fn is_within(to: &Path, from: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(parent(to)).zip(real(from)).is_some_and(|(parent, from)| parent.starts_with(from))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn table_of(fields: &mut Fields) -> Option<String> {
    fields.required::<Arc<str>>("table").ok().map(|table| table.to_string())
}

/// The fields of a description; none where there is no readable one: whoever opens the table says what
/// is wrong with it.
fn describe(world: &World, root: &Path) -> Option<Fields> {
    let bytes = read(world, &root.join("table.json")).ok().flatten()?;
    Fields::parse(&bytes).ok()
}

fn read(world: &World, path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    let fail = |source| StorageError::new("read", path.display(), source);
    match world.fs.read(path, 64 * 1024) {
        Ok(Read::Bytes(bytes)) => Ok(Some(bytes)),
        Ok(_) => Err(fail(io::Error::new(io::ErrorKind::InvalidData, "it is no small file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(fail(source)),
    }
}

pub(super) fn exists(world: &World, path: &Path) -> Result<bool, StorageError> {
    match world.fs.stat(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(StorageError::new("look for", path.display(), source)),
    }
}

/// Removes a directory of our own making with all that is in it.
fn remove(world: &World, dir: &Path) -> Result<(), StorageError> {
    let fail = |source| StorageError::new("remove", dir.display(), source);
    let mut names = world.fs.list(dir).map_err(fail)?;
    names.sort_by_key(|name| name.name.to_str() == Some(NOTE));
    for name in names {
        let path = dir.join(&name.name);
        let kind = world.fs.stat(&path).map(|stat| stat.kind);
        match kind {
            Ok(FileKind::Dir) => remove(world, &path)?,
            _ => world
                .fs
                .unlink(&path)
                .map_err(|source| StorageError::new("remove", path.display(), source))?,
        }
    }
    world.fs.rmdir(dir).map_err(fail)
}
