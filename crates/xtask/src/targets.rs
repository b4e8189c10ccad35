//! The programs of a campaign, built from Debian's source packages, and the engine's Python.
//!
//! T1. Only sources whose digests stand in the manifest are unpacked; others are refused.
//! T2. The system's package configuration is read and never written: lists, caches and downloads
//!     of source packages lie under the folder that the caller names.
//! T3. The image for the engine is the same, byte for byte, wherever it is built by one compiler,
//!     so its build-id and with it every target integer is too.
//! T4. What was built once is not built again while nothing it was made of has changed; a build
//!     that was cut short counts as not built.

mod build;
mod manifest;
mod source;
mod stamp;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Limits, StartError};
use manifest::Manifest;

/// Debian packages that building programs, fuzzing them and running the engine take.
pub(crate) const PACKAGES: &[&str] =
    &["afl++", "clang", "dpkg-dev", "gcc", "libc6-dev", "patch", "python3", "python3-venv"];

/// Bytes of an input that count, for the fuzzer's program and for the engine alike.
pub(crate) const MAX_INPUT: u32 = 4096;

/// Package managers wait for mirrors; longer than this is a hang.
const FETCH_LIMIT: Duration = Duration::from_mins(10);

/// A program that is ready for a campaign. Every path lies in the folder `OUT/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "the campaign finds the files by their names")]
pub(crate) struct Built {
    /// The instrumented program for the fuzzer, `program.afl`: reads the file it is given.
    pub(crate) afl_binary: PathBuf,
    /// The freestanding image for the engine, `program.elf`.
    pub(crate) triton_elf: PathBuf,
    /// What the target integers are bound to, lowercase hex; also in the file `build-id`.
    pub(crate) build_id: String,
    /// A folder with the first inputs, `seeds`.
    pub(crate) seeds: PathBuf,
}

/// Fetches, verifies and builds the program `name` into `out/name`.
///
/// A second call with the same inputs answers from a stamp, without network and compiler. Two
/// calls at once, in two processes as well, take turns. Says each step on standard error.
pub(crate) fn prepare(repo: &Path, name: &str, out: &Path) -> Result<Built, Error> {
    let description = repo.join("campaign/targets").join(name);
    let manifest = Manifest::read(&description.join("target.toml"))?;
    let folder = out.join(name);
    make_folder(&folder)?;
    let _turn = take_turn(&folder.join(".lock"))?;

    let stamp = stamp::of_program(&manifest, repo, &description)?;
    if let Some(built) = already_built(&folder, &stamp) {
        step(name, &format!("is built already, build-id {}", built.build_id));
        return Ok(built);
    }
    stamp::forget(&folder)?;
    let packages = out.join("sources");
    source::fetch(&manifest, &packages, |what| step(name, what))?;
    build::build(&manifest, repo, &description, &packages, &folder, |what| step(name, what))?;
    stamp::write(&folder, &stamp)?;
    already_built(&folder, &stamp).ok_or(Error::Incomplete(folder))
}

/// Makes a Python environment with the engine in it; returns its interpreter.
///
/// A second call with the same requirements and interpreter answers from a stamp.
pub(crate) fn python_env(repo: &Path, out: &Path) -> Result<PathBuf, Error> {
    let requirements = repo.join("campaign/engine/requirements.txt");
    let folder = out.join("venv");
    let python = folder.join("bin/python");
    make_folder(out)?;
    let _turn = take_turn(&out.join(".venv.lock"))?;

    let stamp = stamp::of_python(&requirements)?;
    if stamp::matches(&folder, &stamp) && python.exists() {
        step("venv", "is set up already");
        return Ok(python);
    }
    step("venv", "make a Python environment");
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    checked(make)?;
    step("venv", "install the engine with pip");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    install.arg("--requirement").arg(&requirements);
    checked(install)?;
    stamp::write(&folder, &stamp)?;
    Ok(python)
}

fn already_built(folder: &Path, stamp: &str) -> Option<Built> {
    if !stamp::matches(folder, stamp) {
        return None;
    }
    let built = Built {
        afl_binary: folder.join(build::AFL_BINARY),
        triton_elf: folder.join(build::IMAGE),
        build_id: fs::read_to_string(folder.join(build::BUILD_ID)).ok()?.trim().to_owned(),
        seeds: folder.join(build::SEEDS),
    };
    let complete = built.afl_binary.is_file() && built.triton_elf.is_file() && built.seeds.is_dir();
    complete.then_some(built)
}

/// Runs `command` to its end; anything but success is an error that holds what it printed.
fn checked(command: Command) -> Result<String, Error> {
    let label = label_of(&command);
    let finished = process::run(command, &Limits { time: FETCH_LIMIT }).map_err(Error::Start)?;
    if finished.exited_well() {
        Ok(finished.output)
    } else {
        Err(Error::Step { label, verdict: finished.verdict(), output: finished.output })
    }
}

/// The program and its last words, where the meaning is.
fn label_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut label = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().collect();
    for argument in arguments.iter().skip(arguments.len().saturating_sub(3)) {
        label.push(' ');
        label.push_str(&argument.to_string_lossy());
    }
    label
}

/// Waits until no other call works here. The kernel ends the turn with this process, if not before.
fn take_turn(path: &Path) -> Result<File, Error> {
    let file = File::options().create(true).append(true).open(path);
    let file = file.map_err(|source| Error::io(path, source))?;
    file.lock().map_err(|source| Error::io(path, source))?;
    Ok(file)
}

/// Unpacks binary packages of a Debian suite below `folder`, installing nothing.
pub(crate) fn unpack(packages: &[&str], suite: &str, folder: &Path) -> Result<(), Error> {
    source::unpack(packages, suite, folder, |what| step("packages", what))
}

fn make_folder(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|source| Error::io(path, source))
}

fn step(name: &str, what: &str) {
    eprintln!("  {name}: {what}");
}

/// Why a program or the Python environment could not be made.
#[derive(Debug)]
pub(crate) enum Error {
    /// The manifest is missing or says something it must not.
    Manifest(manifest::Error),
    /// The source package could not be had; nothing was unpacked.
    Source(source::Error),
    /// A file or folder could not be read or written.
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tool could not be started.
    Start(StartError),
    /// A tool ran and failed.
    Step {
        /// The command, cut short.
        label: String,
        /// How it ended.
        verdict: String,
        /// What it printed.
        output: String,
    },
    /// The image has no build-id that could be read.
    NoBuildId(PathBuf),
    /// Everything ran, yet a file of the result is missing.
    Incomplete(PathBuf),
}

impl Error {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

impl From<manifest::Error> for Error {
    fn from(error: manifest::Error) -> Self {
        Self::Manifest(error)
    }
}

impl From<source::Error> for Error {
    fn from(error: source::Error) -> Self {
        Self::Source(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(error) => write!(f, "{error}"),
            Self::Source(error) => write!(f, "{error}"),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Start(error) => write!(f, "{error}"),
            Self::Step { label, verdict, output } => {
                write!(f, "{}\n{label} failed: {verdict}", output.trim_end())
            }
            Self::NoBuildId(path) => write!(f, "{}: no build-id", path.display()),
            Self::Incomplete(path) => write!(f, "{}: the build is not complete", path.display()),
        }
    }
}
