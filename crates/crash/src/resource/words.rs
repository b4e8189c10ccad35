//! Memory that processes share, on a disk without room.
//!
//! The words of a journal are a file that is mapped into memory. Where a file system wants room for a page
//! that is changed there, and has none, the change is given up. Who does not ask is killed by SIGBUS.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use ringfence_env::{Fs as _, RealFs, steps};

use super::volume::{Kind, Scarce, Volume};
use crate::context::{Context, Trouble, command};
use crate::report::Row;

/// As many as fill several pages.
const WORDS: usize = 6 * PAGE;
/// Words of a page.
const PAGE: usize = 512;
/// Pages are written back, and so wanted anew, after each round.
const ROUNDS: u64 = 12;

/// Flags of `words`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The file
    #[arg(long)]
    file: PathBuf,
    /// As one who cannot be told that there is no room
    #[arg(long)]
    careless: bool,
}

/// What `words` exits with where a change was given up.
const GIVEN_UP: u8 = 3;

/// Changes a word of each page, again and again.
pub(crate) fn change(args: &Args) -> ExitCode {
    let change = || {
        let words = RealFs.map_shared(&args.file, WORDS)?;
        let file = std::fs::File::open(&args.file)?;
        let pages: Vec<usize> = (0..WORDS).step_by(PAGE).collect();
        let mut done = vec![0; pages.len()];
        for round in 1..=ROUNDS {
            for (at, done) in pages.iter().zip(&mut done) {
                let changed = if args.careless {
                    words.add(*at, 1);
                    words.store(*at + 1, round);
                    true
                } else {
                    words.try_add(*at, 1) && words.try_store(*at + 1, &[round])
                };
                *done += u64::from(changed);
            }
            // It may be full itself.
            let _ = file.sync_all();
        }
        let is_right = |(at, done): (&usize, &u64)| {
            // What was added may have been the last that went.
            (*done..=ROUNDS).contains(&words.load(*at)) && words.load(*at + 1) <= ROUNDS
        };
        if !pages.iter().zip(&done).all(is_right) {
            return Err(std::io::Error::other("a change was lost"));
        }
        Ok(done.iter().all(|done| *done == ROUNDS))
    };
    match change() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(GIVEN_UP),
        Err(error) => {
            eprintln!("words: {error}");
            ExitCode::FAILURE
        }
    }
}

/// On a disk that is full to the last block: the words as they are made, which want no room; words that
/// share their blocks with a copy, and such as are not kept where they are, where each change may be
/// given up and nobody be killed. The canary: somebody who changes those without asking.
pub(super) fn run(context: &Context, fs: &'static str) -> Result<Row, Trouble> {
    let copies = fs == "btrfs";
    let scarce = if copies { Scarce::Data } else { Scarce::Blocks };
    let mut row = Row::default();
    let began = Instant::now();
    let volume = Volume::new(context, Kind { fs, scarce })?;
    let words = volume.path("words");
    steps::stage_words(&RealFs, &words, WORDS, 0o600)?;
    let mut hard = Vec::new();
    if copies {
        let other = volume.path("other");
        steps::stage_synced(&RealFs, &other, &vec![0; WORDS * 8], 0o600)?;
        hard.push(other);
    }
    if copies || fs == "xfs" {
        for name in ["shared-1", "shared-2"] {
            let (shared, copy) = (volume.path(name), volume.path(&format!("{name}.copy")));
            steps::stage_words(&RealFs, &shared, WORDS, 0o600)?;
            let [from, to] = [&shared, &copy].map(|path| path.to_string_lossy());
            // A copy of a file that stays where it is has to be one too.
            steps::stage_in_place(&RealFs, &copy, 0o600)?;
            command("cp", &["--reflink=always", &from, &to])?;
            hard.push(shared);
        }
    }
    volume.fill(0)?;
    match changed(context, &words, false)? {
        Came::Done => {}
        came => row.violations.push(format!("who changes words that stay in place: {came:?}")),
    }
    row.states = 1;
    try_hard(context, &hard, &mut row)?;
    // XFS has some blocks left for it that nobody else gets.
    row.planted = u64::from(copies);
    row.caught = row.caught.min(row.planted);
    Ok(told(row, fs, "shared words, no blocks", began))
}

/// The same where a quota is used up.
pub(super) fn run_quota(context: &Context) -> Result<Row, Trouble> {
    let began = Instant::now();
    let mut row = Row::default();
    let volume = Volume::new(context, Kind { fs: "btrfs", scarce: Scarce::Quota })?;
    let hard = ["words-1", "words-2"].map(|name| volume.path(name));
    for words in &hard {
        steps::stage_words(&RealFs, words, WORDS, 0o600)?;
    }
    volume.fill(0)?;
    try_hard(context, &hard, &mut row)?;
    Ok(told(row, "btrfs", "shared words, no quota", began))
}

fn told(row: Row, fs: &str, workload: &str, began: Instant) -> Row {
    let distinct = row.states;
    let seconds = began.elapsed().as_secs_f64();
    let (layer, fs, workload) = ("resource", fs.to_owned(), workload.to_owned());
    Row { layer, fs, workload, distinct, seconds, ..row }
}

/// Changes what there may be no room for: carefully and, the last one, without asking.
fn try_hard(context: &Context, hard: &[PathBuf], row: &mut Row) -> Result<(), Trouble> {
    let Some((last, hard)) = hard.split_last() else { return Ok(()) };
    for words in hard {
        match changed(context, words, false)? {
            Came::Done | Came::GivenUp => row.states += 1,
            Came::Wrong(what) => row.violations.push(format!("{}: {what}", words.display())),
        }
    }
    row.planted = 1;
    row.caught = u64::from(matches!(changed(context, last, true)?, Came::Wrong(_)));
    Ok(())
}

/// What became of a process that changes words.
#[derive(Debug)]
enum Came {
    Done,
    GivenUp,
    Wrong(String),
}

fn changed(context: &Context, file: &Path, careless: bool) -> Result<Came, Trouble> {
    let mut command = Command::new(&context.own);
    command.arg("words").arg("--file").arg(file);
    if careless {
        command.arg("--careless");
    }
    let done = command.status()?;
    Ok(match done.code() {
        Some(0) => Came::Done,
        Some(code) if code == i32::from(GIVEN_UP) => Came::GivenUp,
        _ => Came::Wrong(format!("who changes a word: {done}")),
    })
}
