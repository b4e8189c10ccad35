//! The format on disk: tables that are kept as they were made, read and written by today's code.
//!
//! `fixtures/v1/README.md` says what is in them. A test that fails here says that tables of users do
//! not read any more, or that other versions could not read ours: the format needs another number.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that copies tables and fails by panicking"
)]

#[path = "fixtures/documented.rs"]
mod documented;
#[allow(dead_code, reason = "its main makes the files")]
#[path = "../examples/fixtures.rs"]
mod make;

use std::path::{Path, PathBuf};

use ringfence_env::World;
use ringfence_journal::checkpoint::{self, Checkpoint, CheckpointError};
use ringfence_journal::codec::page::{Change, Page, PageWriter};
use ringfence_journal::codec::renewal::Renewal;
use ringfence_journal::frame::{self, HEADER, Kind};
use ringfence_journal::layout::Layout;
use ringfence_journal::meta::TableMeta;
use ringfence_journal::segment::{FIRST_FRAME, Segments};
use ringfence_model::{Key, Record, Space};
use twox_hash::XxHash3_64;

const SEGMENT: usize = 64 * 1024;

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1").join(name)
}

/// The table as it was: segments have the zeros at their ends again.
struct Copy {
    dir: tempfile::TempDir,
    world: World,
    table: u64,
}

impl Copy {
    fn of(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("table")).unwrap();
        for file in make::STORED {
            let mut bytes = std::fs::read(stored(name).join(file)).unwrap();
            if file.starts_with("journal.") {
                bytes.resize(SEGMENT, 0);
            }
            std::fs::write(dir.path().join("table").join(file), bytes).unwrap();
        }
        let world = make::world();
        let layout = Layout::new(&dir.path().join("table"));
        let meta = TableMeta::read(&*world.fs, &layout).unwrap();
        Self { table: XxHash3_64::oneshot(meta.table.as_bytes()), dir, world }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("table")
    }

    fn layout(&self) -> Layout {
        Layout::new(&self.root())
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.root().join(file)).unwrap()
    }
}

#[test]
fn every_table_reads_as_it_did_when_it_was_made() {
    for (name, _) in make::TABLES {
        let copy = Copy::of(name);
        let found = make::content(&copy.world, &copy.root());
        let path = stored(name).join("content.jsonl");
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "{name} reads as\n{found}and not as {}", path.display());
    }
}

/// A frame again, from the text of its records.
fn encoded_again(bytes: &[u8], table: u64, name: &str) -> Vec<u8> {
    let checked = frame::read(bytes, table, bytes.len()).unwrap();
    let mut writer = PageWriter::default();
    let mut audit = None;
    if checked.header.kind == Kind::Changes {
        let contents = Page::read(bytes[..HEADER + checked.body].to_vec(), HEADER).unwrap();
        audit = contents.audit;
        for (key, stored) in contents.members {
            match stored {
                Change::Renewed(by) => writer.push_renewals(&[key], by.renewal().unwrap()),
                Change::Removed => writer.push(key, None),
                Change::Stored(place) => {
                    let line = place.record().unwrap().to_line();
                    let record = Record::parse(key.space, key.id, line.as_bytes()).unwrap();
                    writer.push(key, Some(&record));
                }
            }
        }
    }
    let (again, checksum) = frame::encode(&checked.header, table, |out| {
        if checked.header.kind == Kind::Changes {
            writer.finish(audit.as_deref(), out);
        }
    });
    assert_eq!(checksum, checked.checksum, "{name}");
    again
}

#[test]
fn every_frame_is_written_today_as_it_was_then() {
    let mut frames = 0;
    for (name, _) in make::TABLES {
        let copy = Copy::of(name);
        for file in ["journal.0", "journal.1"] {
            let bytes = copy.bytes(file);
            for at in (usize::try_from(FIRST_FRAME).unwrap()..bytes.len()).step_by(512) {
                let Ok(checked) = frame::read(&bytes[at..], copy.table, SEGMENT - at) else {
                    continue;
                };
                frames += 1;
                let frame = &bytes[at..at + checked.len];
                assert_eq!(encoded_again(frame, copy.table, name), frame, "{name}, {file}, {at}");
            }
        }
    }
    assert!(frames > 100, "{frames}");
}

#[test]
fn every_checkpoint_is_written_today_as_it_was_then() {
    for (name, _) in make::TABLES {
        let copy = Copy::of(name);
        let old = Checkpoint::open(&*copy.world.fs, &copy.layout(), copy.table).unwrap();
        let records = (0..old.blocks()).flat_map(|block| old.block(block).unwrap().to_vec());
        let records = records.map(Ok::<_, CheckpointError>);
        let before = copy.bytes("checkpoint");
        checkpoint::write(&*copy.world.fs, &copy.layout(), copy.table, &old.head, records).unwrap();
        assert!(copy.bytes("checkpoint") == before, "{name}");
    }
}

#[test]
fn every_header_and_every_mark_is_written_today_as_it_was_then() {
    let mut marks = 0;
    for (name, _) in make::TABLES {
        let copy = Copy::of(name);
        let segments = Segments::open(&copy.world, &copy.layout(), copy.table, true).unwrap();
        for (slot, file) in ["journal.0", "journal.1"].into_iter().enumerate() {
            let before = copy.bytes(file);
            let Some(header) = segments.header(slot).unwrap() else {
                assert!(before[..512].iter().all(|byte| *byte == 0), "{name}, {file}");
                continue;
            };
            let mut blank = before.clone();
            blank[..1024].fill(0);
            std::fs::write(copy.root().join(file), blank).unwrap();
            segments.renew(slot, &header).unwrap();
            if let Some(last) = header.failed_after {
                marks += 1;
                segments.end(slot, header.segment, last).unwrap();
            }
            assert!(copy.bytes(file) == before, "{name}, {file}");
        }
        let meta = TableMeta::read(&*copy.world.fs, &copy.layout()).unwrap();
        assert_eq!(meta.to_line().into_bytes(), copy.bytes("table.json"), "{name}");
    }
    assert_eq!(marks, 1);
}

#[test]
fn the_same_calls_make_the_same_files() {
    // When room is made is no part of the format.
    for (name, make) in make::TABLES.into_iter().filter(|(name, _)| *name != "rotated") {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = dir.path().join("table");
        make(&root);
        for file in make::STORED {
            let bytes = make::without_zeros(file, std::fs::read(root.join(file)).unwrap());
            assert!(bytes == std::fs::read(stored(name).join(file)).unwrap(), "{name}, {file}");
        }
    }
}

/// The pages that describe the format are right: a reader that knows nothing else finds the same.
#[test]
fn a_reader_made_from_the_documentation_alone_finds_the_same() {
    for (name, _) in make::TABLES {
        let copy = Copy::of(name);
        for file in ["journal.0", "journal.1"] {
            let bytes = copy.bytes(file);
            for frame in documented::frames(&bytes, copy.table) {
                let checked = frame::read(&bytes[frame.at..], copy.table, SEGMENT).unwrap();
                assert_eq!(
                    frame.words[0],
                    if checked.header.kind == Kind::Changes { 1 } else { 2 }
                );
                let header = &checked.header;
                let words = [
                    header.segment,
                    header.sequence,
                    header.durable,
                    header.fence,
                    header.previous,
                ];
                assert_eq!(frame.words[1..], words, "{name}");
                if header.kind == Kind::Changes {
                    let body = bytes[frame.at..][..HEADER + checked.body].to_vec();
                    same(&frame.page.unwrap(), &Page::read(body, HEADER).unwrap().members);
                }
            }
        }
        let (file, sums) = (copy.bytes("checkpoint"), copy.table);
        let old = Checkpoint::open(&*copy.world.fs, &copy.layout(), copy.table).unwrap();
        let found = documented::checkpoint(&file, sums);
        let base = old.head.base;
        let words = [
            old.head.epoch,
            base.segment,
            base.offset,
            base.sequence,
            base.chain,
            old.head.fence,
            old.head.records,
        ];
        assert_eq!(found.words, words, "{name}");
        assert_eq!(found.ended, old.head.ended, "{name}");
        assert_eq!(found.blocks.len(), old.blocks(), "{name}");
        for (number, block) in found.blocks.iter().enumerate() {
            for (found, (key, stored)) in block.iter().zip(old.block(number).unwrap()) {
                assert_eq!(found.id, *key.id.as_bytes());
                let record = stored.record().unwrap().unwrap();
                assert_eq!(found.change, documented::Change::Stored(json(&record)));
            }
        }
        let segments = Segments::open(&copy.world, &copy.layout(), copy.table, false).unwrap();
        let boot = XxHash3_64::oneshot_with_seed(copy.table, b"boot");
        for (slot, file) in ["journal.0", "journal.1"].into_iter().enumerate() {
            let bytes = copy.bytes(file);
            let header = segments.header(slot).unwrap();
            let said = documented::sector(&bytes[..512], *b"RFs1", copy.table);
            assert_eq!(said, header.map(|header| (header.segment, header.bytes)), "{name}");
            let mark = documented::sector(&bytes[512..1024], *b"RFm1", boot);
            let expected = header.and_then(|header| Some((header.segment, header.failed_after?)));
            assert_eq!(mark, expected, "{name}");
        }
    }
}

fn same(found: &[documented::Member], expected: &[(Key, Change)]) {
    assert_eq!(found.len(), expected.len());
    for (found, (key, change)) in found.iter().zip(expected) {
        assert_eq!((found.work, found.id), (key.space == Space::Work, *key.id.as_bytes()));
        let change = match change {
            Change::Removed => documented::Change::Removed,
            Change::Stored(place) => documented::Change::Stored(json(&place.record().unwrap())),
            Change::Renewed(by) => {
                let Renewal { updated, writer } = by.renewal().unwrap();
                let writer = writer.as_ref().unwrap();
                let mut own = serde_json::json!({ "host": &*writer.host, "pid": writer.pid });
                if let Some(boot) = &writer.boot {
                    own["boot"] = (*boot.boot).into();
                    own["boottime"] = boot.seconds.into();
                    if let Some(life) = &boot.life {
                        own["life"] = (**life).into();
                    }
                }
                documented::Change::Renewed(updated.seconds(), own)
            }
        };
        assert_eq!(found.change, change);
    }
}

fn json(record: &Record) -> serde_json::Value {
    serde_json::from_str(&record.to_line()).unwrap()
}
