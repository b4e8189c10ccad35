//! What is tried on bytes of any kind: each target takes some, and panics if a promise is broken.
//!
//! 1. Nothing panics, whatever the bytes are, with and without the right checksums.
//! 2. No more memory is taken than a few times what there is to read: a length is bounded before it is
//!    believed.
//! 3. What reads is written and read again as the same.
//! 4. On a table of any bytes, a grant that was acknowledged is there for whoever opens it next.

use std::path::Path;
use std::time::Duration;

use ringfence_engine::{Engine as _, Outcome, Request};
use ringfence_env::World;
use ringfence_journal::JournalEngine;
use ringfence_journal::checkpoint::{self, Checkpoint, CheckpointError, Head, Position};
use ringfence_journal::codec::page::{Change, Contents, Page, PageWriter};
use ringfence_journal::codec::{Malformed, Out};
use ringfence_journal::dump::dump;
use ringfence_journal::frame::{self, HEADER, Kind};
use ringfence_journal::hints::{Hints, WORDS};
use ringfence_journal::layout::Layout;
use ringfence_journal::replica::{Follow, Replica};
use ringfence_journal::segment::Segments;
use ringfence_model::rules::{self, ClaimRequest};
use ringfence_model::{Entry, Key, Owner, Payload, Record, Space, TargetGroup, Token, Ttl};
use twox_hash::XxHash3_64;

use super::memory::MemoryFs;
use super::seeds::start;
use super::{allocation, seal};

/// A target: what it is called, what it does, and how much memory it may take: so many bytes, and so many
/// for each byte of its input.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    run: fn(&[u8]),
    memory: (usize, usize),
}

pub(crate) const KIB: usize = 1024;

/// All of them.
pub(crate) const ALL: [Target; 6] = [
    Target { name: "frame", run: one_frame, memory: (32 * KIB, 48) },
    Target { name: "checkpoint", run: whole_checkpoint, memory: (64 * KIB, 64) },
    Target { name: "segment", run: first_sectors, memory: (64 * KIB, 8) },
    Target { name: "replay", run: replayed, memory: (1024 * KIB, 64) },
    Target { name: "hints", run: shared_words, memory: (2048 * KIB, 32) },
    Target { name: "table", run: whole_table, memory: (4096 * KIB, 256) },
];

/// Runs a target on some bytes.
pub(crate) fn run(name: &str, bytes: &[u8]) {
    let target = ALL.iter().find(|target| target.name == name).unwrap();
    let most = allocation::most(|| (target.run)(bytes));
    let (least, each) = target.memory;
    assert!(most <= least + each * bytes.len(), "{most} bytes of memory for {}", bytes.len());
}

/// The text that the tables of the fixtures have for a name.
const TABLE: &str = "aaaba8a9aeafacaca2a3a0a1a6a7a4a4";
const ROOT: &str = "/table";

pub(crate) fn table() -> u64 {
    XxHash3_64::oneshot(TABLE.as_bytes())
}

pub(crate) fn layout() -> Layout {
    Layout::new(Path::new(ROOT))
}

/// The first byte says how the rest is treated.
fn split(bytes: &[u8]) -> (u8, &[u8]) {
    bytes.split_first().map_or((0, bytes), |(flags, rest)| (*flags, rest))
}

/// Every part that reads, as text; the first that does not ends it.
type Texts = Vec<(Key, Option<String>)>;

fn texts(
    found: impl IntoIterator<Item = (Key, Result<Option<Record>, Malformed>)>,
) -> Option<Texts> {
    let text = |(key, record): (Key, Result<Option<Record>, Malformed>)| {
        Some((key, record.ok()?.map(|record| record.to_line())))
    };
    found.into_iter().map(text).collect()
}

fn same_again(bytes: &[u8], offset: usize) {
    let Ok(contents) = Page::read(bytes.to_vec(), offset) else { return };
    let mut writer = PageWriter::default();
    for (key, change) in &contents.members {
        match change {
            Change::Removed => writer.push(*key, None),
            Change::Stored(place) => {
                let Ok(record) = place.record() else { return };
                writer.push(*key, Some(&record));
            }
            Change::Renewed(by) => {
                let Ok(renewal) = by.renewal() else { return };
                writer.push_renewals(&[*key], renewal);
            }
        }
    }
    let mut out = Out::default();
    writer.finish(contents.audit.as_deref(), &mut out);
    let again = Page::read(out.0, 0).expect("what was written reads");
    assert_eq!(again.audit, contents.audit);
    assert_eq!(told(&again), told(&contents));
}

/// What a page says, as text.
fn told(contents: &Contents) -> Vec<(Key, String)> {
    let text = |change: &Change| match change {
        Change::Removed => "removed".to_owned(),
        Change::Stored(place) => place.record().expect("it has read").to_line(),
        Change::Renewed(by) => format!("{:?}", by.renewal().expect("it has read")),
    };
    contents.members.iter().map(|(key, change)| (*key, text(change))).collect()
}

/// A frame, or the page in it.
fn one_frame(bytes: &[u8]) {
    let (flags, rest) = split(bytes);
    let mut frame = rest.to_vec();
    match flags % 3 {
        1 => drop(seal::frame(&mut frame, table())),
        2 => return same_again(rest, 0),
        _ => {}
    }
    let limit = frame.len().next_multiple_of(512);
    let _ = frame::length(&frame);
    let Ok(checked) = frame::read(&frame, table(), limit) else { return };
    assert!(checked.len <= limit && checked.len % 512 == 0);
    let body = &frame[HEADER..HEADER + checked.body];
    let (again, checksum) = frame::encode(&checked.header, table(), |out| out.raw(body));
    assert_eq!(checksum, checked.checksum);
    assert_eq!(again[..HEADER + checked.body], frame[..HEADER + checked.body]);
    if checked.header.kind == Kind::Changes {
        same_again(&frame[..HEADER + checked.body], HEADER);
    }
}

fn records_of(checkpoint: &Checkpoint) -> Result<Texts, ()> {
    let mut all = Vec::new();
    for block in 0..checkpoint.blocks() {
        let records = checkpoint.block(block).map_err(|_| ())?;
        let found = records.iter().map(|(key, stored)| (*key, stored.record()));
        all.extend(texts(found).ok_or(())?);
    }
    Ok(all)
}

fn whole_checkpoint(bytes: &[u8]) {
    let (flags, rest) = split(bytes);
    let mut file = rest.to_vec();
    if flags % 2 == 1 {
        seal::checkpoint(&mut file, table());
    }
    let fs = MemoryFs::default();
    fs.put(&layout().checkpoint(), file);
    let Ok(old) = Checkpoint::open(&fs, &layout(), table()) else { return };
    let _ = old.get(Key::work(ringfence_model::RecordId::from_bytes([7; 32])));
    let Ok(before) = records_of(&old) else { return };
    // Keys that come twice, or in another order, are no state of a table.
    if !before.is_sorted_by(|a, b| a.0 < b.0) || before.iter().any(|(_, record)| record.is_none()) {
        return;
    }
    let records = (0..old.blocks()).flat_map(|block| old.block(block).unwrap().to_vec());
    let records = records.map(Ok::<_, CheckpointError>);
    checkpoint::write(&fs, &layout(), table(), &old.head, records).expect("it is written");
    let new = Checkpoint::open(&fs, &layout(), table()).expect("what was written reads");
    assert_eq!(records_of(&new).as_ref(), Ok(&before));
    let ended = old.head.ended.iter().rev().take(32).rev().copied().collect();
    let count = before.len() as u64;
    assert_eq!(new.head, Head { ended, records: count, ..old.head.clone() });
}

/// The first two sectors of a segment's file.
fn first_sectors(bytes: &[u8]) {
    let (flags, rest) = split(bytes);
    let mut file = rest.to_vec();
    let boot = XxHash3_64::oneshot_with_seed(table(), b"boot");
    if flags % 2 == 1 {
        seal::sector(&mut file, table());
        seal::sector(file.get_mut(512..).unwrap_or_default(), boot);
    }
    let fs = MemoryFs::default();
    let is_closed = file.starts_with(b"RFmv");
    fs.put(&layout().segment(0), file);
    fs.put(&layout().segment(1), vec![0; 512]);
    let segments = Segments::open(&fs.world(), &layout(), table(), true).unwrap();
    let header = segments.header(0);
    // S5. And it is the only error.
    assert_eq!(header.is_err(), is_closed, "{header:?}");
    let Ok(Some(header)) = header else { return };
    assert_eq!(segments.find(header.segment).unwrap(), Some((0, header)));
    segments.renew(1, &header).unwrap();
    if let Some(last) = header.failed_after {
        segments.end(1, header.segment, last).unwrap();
    }
    assert_eq!(segments.header(1).unwrap(), Some(header));
}

/// A table that is made of these files.
pub(crate) fn bed(files: &[(&str, Vec<u8>)]) -> MemoryFs {
    let fs = MemoryFs::default();
    for (name, bytes) in files {
        fs.put(&Path::new(ROOT).join(name), bytes.clone());
    }
    fs
}

/// Frames after byte 1,024 of a segment, followed from a checkpoint that the first bytes make.
fn replayed(bytes: &[u8]) {
    let (flags, rest) = split(bytes);
    let mut file = vec![0; 1024];
    file.extend_from_slice(rest);
    // Where the header ends the segment need not be where the file does.
    let size = match flags & 0x48 {
        0 => file.len() as u64,
        8 => 64 * KIB as u64,
        64 => 1 << 30,
        _ => u64::MAX,
    };
    let fs = bed(&[("journal.0", Vec::new()), ("journal.1", Vec::new())]);
    let segment = if flags & 4 == 0 { 1 } else { u64::MAX - 1 };
    let base = Position { segment, offset: 1024, sequence: 0, chain: 77 };
    let sequence = if flags & 16 == 0 { 0 } else { u64::MAX - 2 };
    let base = Position { sequence, ..base };
    if flags & 1 == 1 {
        let chain = (flags & 2 == 2).then_some((base.sequence, base.chain));
        seal::frames(&mut file, table(), segment, chain);
    }
    fs.put(&layout().segment(0), file);
    let segments = Segments::open(&fs.world(), &layout(), table(), true).unwrap();
    let header =
        ringfence_journal::segment::SegmentHeader { segment, bytes: size, failed_after: None };
    segments.renew(0, &header).unwrap();
    segments
        .renew(1, &ringfence_journal::segment::SegmentHeader { segment: segment + 1, ..header })
        .unwrap();
    let head = Head { epoch: 1, base, fence: 0, records: 0, ended: Vec::new() };
    let none = std::iter::empty::<Result<_, CheckpointError>>();
    checkpoint::write(&fs, &layout(), table(), &head, none).unwrap();
    let Ok(mut replica) = Replica::load(&fs, &layout(), &segments, table()) else { return };
    let answer = replica.follow(
        &segments,
        table(),
        Follow { is_first: flags & 32 != 0, ..Follow::default() },
    );
    assert!(replica.at.sequence >= base.sequence);
    if answer.is_err() {
        return;
    }
    let _ = replica.look_for_damage(&segments, table());
    // R1. Whoever follows in two steps is in the same place.
    let mut other = Replica::load(&fs, &layout(), &segments, table()).unwrap();
    let middle = base.sequence + (replica.at.sequence - base.sequence) / 2;
    for until in [middle, u64::MAX] {
        let _ = other.follow(&segments, table(), Follow { until, ..Follow::default() });
    }
    assert_eq!((other.at, other.slot, other.fence), (replica.at, replica.slot, replica.fence));
    for space in [Space::Targets, Space::Work] {
        let seen = replica.space(space).ok();
        assert_eq!(other.space(space).ok(), seen);
        for (key, record) in seen.into_iter().flatten() {
            let mut entries = Vec::new();
            replica.show(key, &mut entries).unwrap();
            let [(of, Entry::Present(found))] = &entries[..] else { panic!("{entries:?}") };
            assert_eq!((*of, found), (key, &record));
        }
    }
}

/// Claims two targets if they are free; whoever opens the table afterwards must find what was
/// acknowledged.
pub(crate) fn grant(world: &World) {
    let root = Path::new(ROOT);
    let Ok(engine) = JournalEngine::open(world, root) else { return };
    let group = TargetGroup::from_numbers([8001, 8002]).unwrap();
    let keys: Vec<Key> = group.targets().map(Key::target).collect();
    let request = ClaimRequest {
        group: group.clone(),
        owner: Owner::new("fuzz").unwrap(),
        worker: 0,
        payload: Payload::empty(),
        ttl: Ttl::from_seconds(600.0).unwrap(),
    };
    let _ = engine.waiting(&keys);
    let ask = Request { keys: &keys, now: None, patience: Duration::from_secs(1) };
    let token = match engine.transact(&ask, &mut |view| rules::claim(view, &request).ok()) {
        Ok(Outcome::Done(done)) => Token::from(done.token.unwrap()),
        _ => return,
    };
    assert_eq!(held(world, &keys), [Some(token.clone()), Some(token.clone())]);
    let free = |view: &ringfence_model::View| rules::release(view, &group, &token).ok();
    if let Ok(Outcome::Done(_)) = engine.transact(&ask, &mut { free }) {
        assert_eq!(held(world, &keys), [None, None]);
    }
    if let Ok(place) = engine.queue(&keys) {
        drop(place);
    }
    let _ = engine.check();
}

/// Who holds the keys, as a process sees it that has nothing in memory.
fn held(world: &World, keys: &[Key]) -> Vec<Option<Token>> {
    let reader = JournalEngine::open_read_only(world, Path::new(ROOT)).expect("it opens");
    let view = reader.view(keys, None).expect("it reads");
    let token = |(_, entry): &(Key, Entry)| match entry {
        Entry::Present(record) => Some(record.holder().token.clone()),
        _ => None,
    };
    view.entries.iter().map(token).collect()
}

/// Words of shared memory; numbers that would do harm have checksums, which nobody guesses.
fn shared_words(bytes: &[u8]) {
    let (flags, rest) = split(bytes);
    let fs = bed(&start(0));
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    let mut words: Vec<u64> = rest.chunks(8).map(word).collect();
    if flags % 2 == 1 && !words.is_empty() {
        let mut out = Out::default();
        out.u64(table());
        out.text("boot");
        words[0] = XxHash3_64::oneshot(&out.0).max(1);
    }
    fs.share(&words, WORDS);
    let world = fs.world();
    let hints = Hints::open(&world, &layout(), table()).unwrap();
    for epoch in [0, 1, u64::MAX] {
        assert_eq!((hints.durable(epoch), hints.failed(epoch)), (None, None), "nobody said so");
        let _ = (hints.appended(epoch, 1), hints.durable_here(epoch));
    }
    let _ = (hints.issued(), hints.expected(), hints.sync_time(), hints.is_ready(2));
    grant(&world);
}

/// A table of the fixtures with pieces of its files replaced: file, place, length and bytes of each.
fn whole_table(bytes: &[u8]) {
    let (flags, mut rest) = split(bytes);
    let mut files = start(flags & 7);
    while let [file, low, high, len, after @ ..] = rest {
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        let (piece, left) = after.split_at(after.len().min(usize::from(*len)));
        let (name, target) = &mut files[usize::from(*file) % 4];
        // A description that says something else is another table.
        if *name != "table.json" || *file >= 128 {
            match target.get_mut(at..at + piece.len()) {
                Some(place) => place.copy_from_slice(piece),
                None => target.truncate(at.max(1)),
            }
        }
        rest = left;
    }
    if flags & 8 != 0 {
        for (name, bytes) in &mut files {
            if *name == "checkpoint" {
                seal::checkpoint(bytes, table());
            } else if name.starts_with("journal.") {
                seal::sector(bytes, table());
                seal::frames(bytes, table(), 0, None);
            }
        }
    }
    let fs = bed(&files);
    let world = fs.world();
    let _ = dump(&world, Path::new(ROOT)).map(|items| {
        items.iter().map(|item| item.to_json().len() + item.to_string().len()).sum::<usize>()
    });
    let before = layout();
    if let Ok(reader) = JournalEngine::open_read_only(&world, Path::new(ROOT)) {
        for space in [Space::Targets, Space::Work] {
            let _ = reader.scan(space, None);
        }
    }
    for (name, bytes) in &files {
        assert!(fs.bytes(&before.root().join(name)) == *bytes, "a reader wrote {name}");
    }
    grant(&world);
}
