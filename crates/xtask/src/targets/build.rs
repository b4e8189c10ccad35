//! Two builds of one program: instrumented for the fuzzer, freestanding for the engine.
//!
//! Both run `entry` of the same C file over the same library sources. The compilers work in a
//! folder of their own and see relative paths only, so no path of this machine gets into the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::manifest::Manifest;
use super::{Error, MAX_INPUT, checked, make_folder, stamp};

/// The instrumented program.
pub(super) const AFL_BINARY: &str = "program.afl";
/// The freestanding image.
pub(super) const IMAGE: &str = "program.elf";
/// The image's build-id as text.
pub(super) const BUILD_ID: &str = "build-id";
/// The folder of first inputs.
pub(super) const SEEDS: &str = "seeds";

pub(super) const AFL_COMPILER: &str = "afl-clang-fast";
pub(super) const IMAGE_COMPILER: &str = "gcc";

const AFL_FLAGS: &[&str] = &["-O2", "-g"];

/// Plain code that a replay follows branch by branch. Jump tables would hide the cases of a
/// `switch` from the solver, and vector code is work it need not do.
const IMAGE_FLAGS: &[&str] = &[
    "-O1",
    "-g",
    "-fno-pie",
    "-fno-stack-protector",
    "-fno-builtin",
    "-fcf-protection=none",
    "-fno-tree-vectorize",
    "-fno-jump-tables",
    "-static",
    "-no-pie",
    "-nostdlib",
    "-Wl,-e,entry",
    "-Wl,--build-id=sha1",
];

/// Folders inside the working folder.
const LIBRARY: &str = "library";
const OURS: &str = "ours";

/// Everything about the two builds that is not in a manifest or a file, for the stamp.
pub(super) fn recipe() -> String {
    format!("{AFL_FLAGS:?} {IMAGE_FLAGS:?} {MAX_INPUT}")
}

/// Our own C files that go into the builds.
pub(super) fn own_files(repo: &Path, description: &Path) -> Vec<PathBuf> {
    let common = repo.join("campaign/targets/common");
    let mut files: Vec<PathBuf> =
        ["afl_main.c", "entry.h", "stubs.c"].iter().map(|name| common.join(name)).collect();
    files.push(description.join("entry.c"));
    files
}

/// Unpacks the source package in `packages` and builds into `folder`, which keeps the sources in
/// `build`.
pub(super) fn build(
    manifest: &Manifest,
    repo: &Path,
    description: &Path,
    packages: &Path,
    folder: &Path,
    step: impl Fn(&str),
) -> Result<(), Error> {
    let work = folder.join("build");
    replace_folder(&work)?;
    step("unpack the source package");
    unpack(manifest, packages, &work)?;
    make_folder(&work.join(OURS))?;
    for file in own_files(repo, description) {
        copy_into(&file, &work.join(OURS))?;
    }

    step(&format!("build {AFL_BINARY} for the fuzzer"));
    let mut fuzzed = compiler(AFL_COMPILER, AFL_FLAGS, manifest, &work);
    fuzzed.env("AFL_QUIET", "1").arg(format!("-DMAX_INPUT={MAX_INPUT}"));
    fuzzed.arg(format!("{OURS}/afl_main.c")).args(["-o", AFL_BINARY]);
    checked(fuzzed)?;

    step(&format!("build {IMAGE} for the engine"));
    let mut image = compiler(IMAGE_COMPILER, IMAGE_FLAGS, manifest, &work);
    image.arg(format!("{OURS}/stubs.c")).args(["-o", IMAGE]);
    checked(image)?;

    let build_id = read_build_id(&work.join(IMAGE))?;
    write_file(&folder.join(BUILD_ID), &format!("{build_id}\n"))?;
    for name in [AFL_BINARY, IMAGE] {
        copy_into(&work.join(name), folder)?;
    }
    replace_folder(&folder.join(SEEDS))?;
    for seed in stamp::seeds(description)? {
        copy_into(&seed, &folder.join(SEEDS))?;
    }
    step(&format!("is built, build-id {build_id}"));
    Ok(())
}

fn unpack(manifest: &Manifest, packages: &Path, work: &Path) -> Result<(), Error> {
    let Some(description) = manifest.files.first() else {
        return Err(Error::Incomplete(packages.to_owned()));
    };
    // The signature was checked by `apt-get` and the digests here; the key of the person who
    // uploaded the package need not be on this machine.
    let mut command = Command::new("dpkg-source");
    command.args(["--no-check", "--extract"]).arg(packages.join(&description.name));
    command.arg(work.join(LIBRARY));
    checked(command).map(drop)
}

fn compiler(program: &str, flags: &[&str], manifest: &Manifest, work: &Path) -> Command {
    let mut command = Command::new(program);
    // The folder's own name gets into debug information unless it is mapped away.
    command.current_dir(work).args(flags);
    command.arg(format!("-ffile-prefix-map={}=.", work.display()));
    command.arg(format!("-I{OURS}"));
    command.args(manifest.include.iter().map(|folder| format!("-I{LIBRARY}/{folder}")));
    command.args(manifest.defines.iter().map(|define| format!("-D{define}")));
    command.args(manifest.sources.iter().map(|source| format!("{LIBRARY}/{source}")));
    command.arg(format!("{OURS}/entry.c"));
    command
}

fn read_build_id(image: &Path) -> Result<String, Error> {
    let mut command = Command::new("readelf");
    command.args(["--notes", "--wide"]).arg(image).env("LC_ALL", "C");
    find_build_id(&checked(command)?).ok_or_else(|| Error::NoBuildId(image.to_owned()))
}

fn find_build_id(notes: &str) -> Option<String> {
    let (_, after) = notes.split_once("Build ID: ")?;
    let build_id = after.split_whitespace().next()?;
    build_id.chars().all(|digit| digit.is_ascii_hexdigit()).then(|| build_id.to_owned())
}

fn replace_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(path, error));
        }
        _ => {}
    }
    make_folder(path)
}

fn copy_into(file: &Path, folder: &Path) -> Result<(), Error> {
    let to = folder.join(file.file_name().unwrap_or_default());
    // A program that runs cannot be written to, only replaced.
    let _ = fs::remove_file(&to);
    fs::copy(file, &to).map(drop).map_err(|source| Error::io(file, source))
}

fn write_file(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::io(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_is_read_from_the_notes() {
        let notes = "  GNU  0x14  NT_GNU_BUILD_ID (unique build ID)\t    Build ID: c0ffee01\n";
        assert_eq!(find_build_id(notes).as_deref(), Some("c0ffee01"));
        assert_eq!(find_build_id("Build ID: none"), None);
        assert_eq!(find_build_id(""), None);
    }
}
