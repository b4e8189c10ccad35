//! Memory that processes share, on a disk without room.
//!
//! The words of a journal are a file that is mapped into memory. A file system that wants room for a
//! page that is changed there can tell nobody when there is none: the process is killed by SIGBUS.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use ringfence_env::{Fs as _, RealFs, steps};

use super::volume::{Kind, Scarce, Volume};
use crate::context::{Context, Trouble};
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
}

/// Changes a word of each page, again and again.
pub(crate) fn change(args: &Args) -> ExitCode {
    let change = || {
        let words = RealFs.map_shared(&args.file, WORDS)?;
        let file = std::fs::File::open(&args.file)?;
        for _ in 0..ROUNDS {
            (0..WORDS).step_by(PAGE).for_each(|at| {
                words.add(at, 1);
            });
            file.sync_all()?;
        }
        let whole = (0..WORDS).step_by(PAGE).all(|at| words.load(at) == ROUNDS);
        if whole { Ok(()) } else { Err(std::io::Error::other("a change was lost")) }
    };
    match change() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("words: {error}");
            ExitCode::FAILURE
        }
    }
}

/// On a disk that is full to the last block. The canary: a file like any other, where all that is
/// written goes elsewhere.
pub(super) fn run(context: &Context, fs: &'static str) -> Result<Row, Trouble> {
    let began = Instant::now();
    let copies = fs == "btrfs";
    let scarce = if copies { Scarce::Data } else { Scarce::Blocks };
    let mut row = Row {
        layer: "resource",
        fs: fs.to_owned(),
        workload: "shared words, no blocks".to_owned(),
        ..Row::default()
    };
    let volume = Volume::new(context, Kind { fs, scarce })?;
    let (words, other) = (volume.path("words"), volume.path("other"));
    steps::stage_words(&RealFs, &words, WORDS, 0o600)?;
    steps::stage_synced(&RealFs, &other, &vec![0; WORDS * 8], 0o600)?;
    volume.fill(0)?;
    row.planted = u64::from(copies);
    row.caught = u64::from(copies && changed(context, &other)?.is_some());
    row.states = 1;
    row.distinct = 1;
    row.violations.extend(changed(context, &words)?);
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// What became of a process that changes words, if it is not well.
fn changed(context: &Context, file: &Path) -> Result<Option<String>, Trouble> {
    let done = Command::new(&context.own).arg("words").arg("--file").arg(file).status()?;
    Ok((!done.success()).then(|| format!("who changes a word: {done}")))
}
