//! `table.json`: what a table is. Created once; written anew only where a copy becomes a table of its own.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_env::{Binding, Fs, Read};
use ringfence_model::field::Fields;
use ringfence_model::{ShardCount, Ttl, json};

use crate::layout::Layout;

/// The only format there is.
pub const FORMAT: u64 = 1;
/// The smallest segment.
pub const MIN_SEGMENT_BYTES: u64 = 64 * 1024;
/// The largest segment.
pub const MAX_SEGMENT_BYTES: u64 = 1024 * 1024 * 1024;

/// What a table is.
#[derive(Clone, Debug, PartialEq)]
pub struct TableMeta {
    /// The table's own identity: 32 random hex digits.
    pub table: Arc<str>,
    /// In how many parts batches of independent calls are ordered.
    pub shards: ShardCount,
    /// The ttl of claims and records that name none.
    pub ttl: Ttl,
    /// Bytes of the smallest segment (S6).
    pub segment_bytes: u64,
    /// The file that it stands in, where that is bound.
    pub binding: Option<Binding>,
}

impl TableMeta {
    /// Reads a table's description.
    pub fn read(fs: &dyn Fs, layout: &Layout) -> Result<Self, MetaError> {
        let path = layout.meta();
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
        if format != FORMAT || *engine != *"journal" {
            return Err(format!(
                "it describes a table of engine {engine:?}, format {format}; this engine knows \
                 \"journal\", format {FORMAT}"
            ));
        }
        let shards: u64 = fields.required("shards").map_err(text)?;
        let shards = ShardCount::new(u16::try_from(shards).unwrap_or(0));
        let segment_bytes: u64 = fields.required("segment_bytes").map_err(text)?;
        let sizes = MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES;
        if !sizes.contains(&segment_bytes) || !segment_bytes.is_multiple_of(512) {
            return Err(format!("it names segments of {segment_bytes} bytes"));
        }
        let (root, born) = (fields.optional("root"), fields.optional("born"));
        let inode = fields.optional("inode").map_err(text)?;
        Ok(Self {
            table: fields.required("table").map_err(text)?,
            shards: shards.map_err(|error| error.to_string())?,
            ttl: Ttl::from_seconds(fields.required("ttl").map_err(text)?)
                .map_err(|error| error.to_string())?,
            segment_bytes,
            binding: Binding::from_fields(inode, root.map_err(text)?, born.map_err(text)?),
        })
    }

    /// The canonical JSON line.
    pub fn to_line(&self) -> String {
        let mut fields = vec![
            ("engine", json::quoted("journal")),
            ("format", FORMAT.to_string()),
            ("segment_bytes", self.segment_bytes.to_string()),
            ("shards", self.shards.get().to_string()),
            ("table", json::quoted(&self.table)),
            ("ttl", json::float(self.ttl.seconds())),
        ];
        fields.extend(self.binding.iter().flat_map(|binding| binding.fields()));
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
