//! What the files of a table hold, frame by frame, for people who look into one. Reads only.
//!
//! Nothing is left out because it does not fit: frames of earlier uses, broken chains and bytes that
//! do not read are items like the others, each with its place.

use std::path::{Path, PathBuf};

use ringfence_env::{Fs, World};
use ringfence_model::json::{float, object_line, quoted};
use ringfence_model::{Key, Space, Timestamp};
use twox_hash::XxHash3_64;

use crate::checkpoint::{Checkpoint, Head};
use crate::codec::page::{Change, Page};
use crate::frame::{self, Checked, HEADER, Kind, SECTOR};
use crate::layout::{Layout, SLOTS};
use crate::meta::{MetaError, TableMeta};
use crate::segment::{FIRST_FRAME, SegmentHeader, Segments, read_full};

/// One thing that was found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Item {
    /// The checkpoint in force.
    Checkpoint(Box<Head>),
    /// A checkpoint that does not read.
    NoCheckpoint(String),
    /// The first sector of a segment's file; absent where it says nothing.
    Segment(PathBuf, Option<SegmentHeader>),
    /// A frame.
    Frame {
        /// Where it begins.
        offset: u64,
        /// Its head.
        checked: Box<Checked>,
        /// Whether it goes on from the frame before it in this file.
        chained: bool,
        /// What it changes, or why that does not read.
        changes: Result<Changes, String>,
    },
    /// Bytes between frames that are neither zeros nor a frame.
    Unreadable {
        /// Where they begin.
        offset: u64,
        /// How many sectors there are of them.
        sectors: u64,
    },
}

/// What a frame changes.
#[derive(Debug, Default)]
pub struct Changes {
    /// Its line of the audit log.
    pub audit: Option<String>,
    /// Keys that it stores, each with its record as one line.
    pub stored: Vec<(Key, String)>,
    /// Keys whose records it renews, each with the moment of the heartbeat.
    pub renewed: Vec<(Key, Timestamp)>,
    /// Keys that it removes.
    pub removed: Vec<Key>,
}

/// Reads everything there is.
///
/// Beside writers the answer is of no single moment.
pub fn dump(world: &World, root: &Path) -> Result<Vec<Item>, DumpError> {
    let layout = Layout::new(root);
    let meta = TableMeta::read(&*world.fs, &layout)?;
    let table = XxHash3_64::oneshot(meta.table.as_bytes());
    let mut items = vec![match Checkpoint::open(&*world.fs, &layout, table) {
        Ok(checkpoint) => Item::Checkpoint(Box::new(checkpoint.head)),
        Err(error) => Item::NoCheckpoint(error.to_string()),
    }];
    let segments = Segments::open(world, &layout, table, false)?;
    for slot in 0..SLOTS {
        items.push(Item::Segment(layout.segment(slot), segments.header(slot)?));
        frames(&*world.fs, &layout, slot, table, &mut items)?;
    }
    Ok(items)
}

fn frames(
    fs: &dyn Fs,
    layout: &Layout,
    slot: usize,
    table: u64,
    items: &mut Vec<Item>,
) -> Result<(), DumpError> {
    let file = fs.open_random(&layout.segment(slot), false)?;
    let mut bytes = vec![0; usize::try_from(file.stat()?.len).unwrap_or(0)];
    let read = read_full(&*file, &mut bytes, 0)?;
    bytes.truncate(read);
    let mut at = usize::try_from(FIRST_FRAME).unwrap_or(SECTOR);
    let mut last: Option<Checked> = None;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let offset = at as u64;
        if let Ok(checked) = frame::read(rest, table, rest.len()) {
            let chained = last.is_none_or(|last| last.checksum == checked.header.previous);
            let whole = rest.get(..HEADER + checked.body).unwrap_or_default();
            let changes = if checked.header.kind == Kind::Seal {
                Ok(Changes::default())
            } else {
                changes(whole)
            };
            let boxed = Box::new(checked);
            items.push(Item::Frame { offset, checked: boxed, chained, changes });
            last = Some(checked);
            at += checked.len;
            continue;
        }
        let sector = rest.get(..SECTOR).unwrap_or(rest);
        if sector.iter().any(|byte| *byte != 0) {
            match items.last_mut() {
                Some(Item::Unreadable { offset: from, sectors })
                    if *from + *sectors * SECTOR as u64 == offset =>
                {
                    *sectors += 1;
                }
                _ => items.push(Item::Unreadable { offset, sectors: 1 }),
            }
        }
        at += SECTOR;
    }
    Ok(())
}

fn changes(frame: &[u8]) -> Result<Changes, String> {
    let contents = Page::read(frame.to_vec(), HEADER).map_err(|why| why.to_string())?;
    let mut changes = Changes { audit: contents.audit, ..Changes::default() };
    for (key, change) in contents.members {
        match change {
            Change::Removed => changes.removed.push(key),
            Change::Stored(place) => {
                let record = place.record().map_err(|why| why.to_string())?;
                changes.stored.push((key, record.to_line().trim_end().to_owned()));
            }
            Change::Renewed(by) => {
                let renewal = by.renewal().map_err(|why| why.to_string())?;
                changes.renewed.push((key, renewal.updated));
            }
        }
    }
    Ok(changes)
}

fn key_text(key: &Key) -> String {
    match key.space {
        Space::Targets => format!("target {}", key.id),
        Space::Work => format!("work {}", key.id),
    }
}

impl Item {
    /// The item as one line of canonical JSON.
    pub fn to_json(&self) -> String {
        let number = |value: u64| value.to_string();
        let fields: Vec<(&str, String)> = match self {
            Self::Checkpoint(head) => vec![
                ("kind", quoted("checkpoint")),
                ("epoch", number(head.epoch)),
                ("segment", number(head.base.segment)),
                ("offset", number(head.base.offset)),
                ("sequence", number(head.base.sequence)),
                ("fence", number(head.fence)),
                ("records", number(head.records)),
            ],
            Self::NoCheckpoint(why) => {
                vec![("kind", quoted("damaged checkpoint")), ("reason", quoted(why))]
            }
            Self::Segment(path, header) => {
                let mut fields = vec![
                    ("kind", quoted("segment")),
                    ("file", quoted(&path.display().to_string())),
                ];
                if let Some(header) = header {
                    fields.push(("segment", number(header.segment)));
                    fields.push(("bytes", number(header.bytes)));
                    if let Some(after) = header.failed_after {
                        fields.push(("failed_after", number(after)));
                    }
                }
                fields
            }
            Self::Frame { offset, checked, chained, changes } => {
                let header = &checked.header;
                let kind = if header.kind == Kind::Seal { "seal" } else { "frame" };
                let mut fields = vec![
                    ("kind", quoted(kind)),
                    ("offset", number(*offset)),
                    ("bytes", checked.len.to_string()),
                    ("segment", number(header.segment)),
                    ("sequence", number(header.sequence)),
                    ("durable", number(header.durable)),
                    ("fence", number(header.fence)),
                    ("chained", chained.to_string()),
                ];
                match changes {
                    Err(why) => fields.push(("reason", quoted(why))),
                    Ok(changes) => {
                        let stored: Vec<&str> =
                            changes.stored.iter().map(|(_, line)| line.as_str()).collect();
                        fields.push(("stored", format!("[{}]", stored.join(","))));
                        let renewed = changes.renewed.iter().map(|(key, updated)| {
                            let fields = [
                                ("key", quoted(&key_text(key))),
                                ("updated", float(updated.seconds())),
                            ];
                            object_line(&fields.into_iter().collect()).trim_end().to_owned()
                        });
                        let renewed: Vec<String> = renewed.collect();
                        fields.push(("renewed", format!("[{}]", renewed.join(","))));
                        let removed: Vec<String> =
                            changes.removed.iter().map(|key| quoted(&key_text(key))).collect();
                        fields.push(("removed", format!("[{}]", removed.join(","))));
                        if let Some(line) = &changes.audit {
                            fields.push(("audit", line.clone()));
                        }
                    }
                }
                fields
            }
            Self::Unreadable { offset, sectors } => vec![
                ("kind", quoted("unreadable")),
                ("offset", number(*offset)),
                ("sectors", number(*sectors)),
            ],
        };
        object_line(&fields.into_iter().collect())
    }
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checkpoint(head) if head.is_closed() => write!(
                f,
                "checkpoint: {} records as of frame {}, closed: the journal goes on nowhere yet, epoch \
                 {}, fence {}",
                head.records, head.base.sequence, head.epoch, head.fence
            ),
            Self::Checkpoint(head) => write!(
                f,
                "checkpoint: {} records as of frame {}, goes on in segment {} at byte {}, epoch {}, \
                 fence {}",
                head.records,
                head.base.sequence,
                head.base.segment,
                head.base.offset,
                head.epoch,
                head.fence
            ),
            Self::NoCheckpoint(why) => write!(f, "checkpoint: {why}"),
            Self::Segment(path, None) => write!(f, "{}: no segment", path.display()),
            Self::Segment(path, Some(header)) => {
                write!(f, "{}: segment {}", path.display(), header.segment)?;
                header.failed_after.map_or(Ok(()), |after| {
                    write!(f, ", failed: nothing after frame {after} counts")
                })
            }
            Self::Frame { offset, checked, chained, changes } => {
                let header = &checked.header;
                write!(
                    f,
                    "  {offset:>10}  frame {} of segment {}",
                    header.sequence, header.segment
                )?;
                if header.kind == Kind::Seal {
                    write!(f, "  seal")?;
                }
                match changes {
                    Err(why) => write!(f, "  DAMAGED: {why}")?,
                    Ok(changes) => write!(
                        f,
                        "  stores {}, renews {}, removes {}, {} bytes",
                        changes.stored.len(),
                        changes.renewed.len(),
                        changes.removed.len(),
                        checked.len
                    )?,
                }
                if *chained { Ok(()) } else { write!(f, "  not in the chain") }
            }
            Self::Unreadable { offset, sectors } => {
                write!(f, "  {offset:>10}  {sectors} sectors that are no frame")
            }
        }
    }
}

/// Why there was nothing to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// There is no table, or its description does not read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
