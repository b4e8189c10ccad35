//! `table.json`: what a table is. Created once, never changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_env::{Fs, Read};
use ringfence_model::field::Fields;
use ringfence_model::json;
use ringfence_model::{ShardCount, Ttl};

use crate::layout::Layout;

/// What a crash in the middle of a call may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A group wholly old or wholly new: calls on groups write an intent first.
    Group,
    /// Each record old or new, a group perhaps in part: F325 as it stands, for tables that other
    /// programs use too.
    Record,
}

impl Durability {
    /// The stored text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Record => "record",
        }
    }

    /// The number of the stored format. A program that knows no intents must not open a table that
    /// may have some, so the two durabilities are two formats.
    pub fn format(self) -> u64 {
        match self {
            Self::Record => 1,
            Self::Group => 2,
        }
    }
}

/// What a table is.
#[derive(Clone, Debug, PartialEq)]
pub struct TableMeta {
    /// The table's own identity: 32 random hex digits.
    pub table: Arc<str>,
    /// Shards of the target table.
    pub shards: ShardCount,
    /// Shards of the work table.
    pub work_shards: ShardCount,
    /// The ttl of claims and records that name none.
    pub ttl: Ttl,
    /// What a crash may leave.
    pub durability: Durability,
}

impl TableMeta {
    /// Reads a table's description.
    pub fn read(fs: &dyn Fs, root: &Path) -> Result<Self, MetaError> {
        let path = Layout::meta(root);
        let damaged = |reason: String| MetaError::Damaged { path: path.clone(), reason };
        match fs.read(&path, 64 * 1024) {
            Ok(Read::Bytes(bytes)) => Self::parse(&bytes).map_err(damaged),
            Ok(Read::NotRegular(kind)) => Err(damaged(format!("it is {kind}"))),
            Ok(Read::TooLarge(len)) => Err(damaged(format!("it has {len} bytes"))),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(MetaError::Missing),
            Err(source) => Err(MetaError::Io { path, source }),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::parse(bytes).map_err(|error| error.to_string())?;
        let text = |error: ringfence_model::RecordError| error.to_string();
        let format: u64 = fields.required("format").map_err(text)?;
        let engine: Arc<str> = fields.required("engine").map_err(text)?;
        let known = [Durability::Record, Durability::Group].map(Durability::format);
        if !known.contains(&format) || *engine != *"files" {
            return Err(format!(
                "it describes a table of engine {engine:?}, format {format}; this program knows \
                 \"files\", formats 1 and 2"
            ));
        }
        let durability = match &*fields.required::<Arc<str>>("durability").map_err(text)? {
            "group" => Durability::Group,
            "record" => Durability::Record,
            other => return Err(format!("it names the durability {other:?}")),
        };
        if format != durability.format() {
            return Err(format!(
                "format {format} is not that of durability {:?}: it was edited",
                durability.as_str()
            ));
        }
        let shards = |number: u64| {
            let number = u16::try_from(number).unwrap_or(0);
            ShardCount::new(number).map_err(|error| error.to_string())
        };
        Ok(Self {
            table: fields.required("table").map_err(text)?,
            shards: shards(fields.required("shards").map_err(text)?)?,
            work_shards: shards(fields.required("work_shards").map_err(text)?)?,
            ttl: Ttl::from_seconds(fields.required("ttl").map_err(text)?)
                .map_err(|error| error.to_string())?,
            durability,
        })
    }

    /// The canonical JSON line.
    pub fn to_line(&self) -> String {
        let fields = [
            ("durability", json::quoted(self.durability.as_str())),
            ("engine", json::quoted("files")),
            ("format", self.durability.format().to_string()),
            ("shards", self.shards.get().to_string()),
            ("table", json::quoted(&self.table)),
            ("ttl", json::float(self.ttl.seconds())),
            ("work_shards", self.work_shards.get().to_string()),
        ];
        json::object_line(&fields.into_iter().collect())
    }
}

/// Why a table's description could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// There is none.
    #[error("there is no table here")]
    Missing,
    /// It is not what this program wrote.
    #[error("{} is damaged: {reason}; restore it, nothing was changed", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_reads_back_and_unknown_formats_are_refused() {
        let meta = TableMeta {
            table: "ab".into(),
            shards: ShardCount::new(8).unwrap(),
            work_shards: ShardCount::new(256).unwrap(),
            ttl: Ttl::from_seconds(60.0).unwrap(),
            durability: Durability::Group,
        };
        let line = meta.to_line();
        assert_eq!(TableMeta::parse(line.as_bytes()).unwrap(), meta);
        for (from, to) in [
            ("\"format\":2", "\"format\":1"),
            ("\"format\":2", "\"format\":3"),
            ("\"group\"", "\"record\""),
            ("\"files\"", "\"journal\""),
            ("\"shards\":8", "\"shards\":0"),
            ("\"shards\":8", "\"shards\":99999"),
            ("\"ttl\":60.0", "\"ttl\":-1"),
            ("\"table\":\"ab\",", ""),
            ("\"group\"", "\"disk\""),
        ] {
            assert!(TableMeta::parse(line.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }
}
