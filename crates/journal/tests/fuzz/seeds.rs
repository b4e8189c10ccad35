//! What the targets begin with: the tables of the fixtures, and parts of them.

use ringfence_journal::frame::{self, HEADER};
use ringfence_journal::hints::WORDS;

use super::targets::{KIB, bed, grant, layout, table};

/// The files of a small table.
pub(crate) fn start(which: u8) -> Vec<(&'static str, Vec<u8>)> {
    macro_rules! files {
        ($name:literal) => {
            [
                (
                    "table.json",
                    &include_bytes!(concat!("../fixtures/v1/", $name, "/table.json"))[..],
                ),
                ("checkpoint", include_bytes!(concat!("../fixtures/v1/", $name, "/checkpoint"))),
                ("journal.0", include_bytes!(concat!("../fixtures/v1/", $name, "/journal.0"))),
                ("journal.1", include_bytes!(concat!("../fixtures/v1/", $name, "/journal.1"))),
            ]
        };
    }
    let files = match which % 6 {
        0 => files!("fresh"),
        1 => files!("leases"),
        2 => files!("torn"),
        3 => files!("damaged"),
        4 => files!("closed"),
        _ => files!("rotated"),
    };
    let whole = |(name, bytes): (&'static str, &[u8])| {
        let mut bytes = bytes.to_vec();
        if name.starts_with("journal.") {
            bytes.resize(64 * KIB, 0);
        }
        (name, bytes)
    };
    files.into_iter().map(whole).collect()
}

/// What the targets begin with, from the tables of the fixtures.
pub(crate) fn seeds(name: &str) -> Vec<Vec<u8>> {
    let with = |flags: u8, bytes: &[u8]| [&[flags], bytes].concat();
    let tables = || (0..6).map(|which| start(which).into_iter().map(|(_, bytes)| bytes));
    let frames = |bytes: &[u8]| {
        let at = (1024..bytes.len()).step_by(512).map(|at| bytes[at..].to_vec());
        let cut = |bytes: Vec<u8>| {
            let checked = frame::read(&bytes, table(), bytes.len()).ok()?;
            Some(bytes[..HEADER + checked.body].to_vec())
        };
        at.filter_map(cut).collect::<Vec<_>>()
    };
    let mut seeds = Vec::new();
    for mut files in tables() {
        let (_, checkpoint) = (files.next(), files.next().unwrap());
        let segments: Vec<Vec<u8>> = files.collect();
        match name {
            "frame" => {
                for frame in segments.iter().flat_map(|segment| frames(segment)).step_by(3) {
                    seeds.push(with(1, &frame));
                    seeds.push(with(2, &frame[HEADER..]));
                }
            }
            "checkpoint" => seeds.push(with(1, &checkpoint)),
            "segment" => {
                seeds.extend(segments.iter().map(|segment| with(1, &segment[..1024])));
            }
            "replay" => {
                let used = |segment: &&Vec<u8>| segment[1024..].iter().any(|byte| *byte != 0);
                for segment in segments.iter().filter(used) {
                    let end = segment.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
                    let end = end.next_multiple_of(512).min(20 * KIB);
                    for flags in [0, 1, 3, 7, 11, 19, 35, 67] {
                        seeds.push(with(flags, &segment[1024..end]));
                    }
                    // A frame that says that it is very long.
                    let mut long = with(67, &segment[1024..end]);
                    long[5..9].copy_from_slice(&0x3fff_0000_u32.to_le_bytes());
                    seeds.push(long);
                }
            }
            _ => {}
        }
    }
    match name {
        "hints" => {
            let world = bed(&start(1)).world();
            grant(&world);
            let words = world.fs.map_shared(&layout().hints(), WORDS).unwrap();
            let bytes: Vec<u8> = (0..WORDS).flat_map(|at| words.load(at).to_le_bytes()).collect();
            seeds.push(with(1, &bytes[..5 * KIB]));
        }
        "table" => {
            for which in 0..6 {
                seeds.push(vec![which, 2, 0, 4, 1, 9]);
                seeds.push(vec![which | 8, 1, 8, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3, 24, 4, 2, 1, 1]);
            }
        }
        _ => {}
    }
    seeds
}
