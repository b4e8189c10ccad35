//! Stamps: a file that says in full what a result was made of.
//!
//! It is written last and removed first, so a result without its stamp is no result. It holds the
//! inputs themselves and no digest of them: a difference can be read, and none can hide.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::manifest::Manifest;
use super::{Error, build};

const NAME: &str = "stamp";

/// What a program is made of: its manifest, our C files and seeds, flags and compilers.
pub(super) fn of_program(
    manifest: &Manifest,
    repo: &Path,
    description: &Path,
) -> Result<String, Error> {
    let mut stamp = format!("{manifest:?}\n{}\n", build::recipe());
    for compiler in [build::IMAGE_COMPILER, build::AFL_COMPILER] {
        let _ = writeln!(stamp, "{compiler} {}", version(compiler)?);
    }
    let mut inputs = build::own_files(repo, description);
    inputs.extend(seeds(description)?);
    for path in inputs {
        let bytes = fs::read(&path).map_err(|source| Error::io(&path, source))?;
        let name = path.strip_prefix(repo).unwrap_or(&path);
        let _ = writeln!(stamp, "{} {}", name.display(), bytes.escape_ascii());
    }
    Ok(stamp)
}

/// What a Python environment is made of.
pub(super) fn of_python(requirements: &Path) -> Result<String, Error> {
    let wanted =
        fs::read_to_string(requirements).map_err(|source| Error::io(requirements, source))?;
    Ok(format!("{}\n{wanted}", version("python3")?))
}

/// Whether `folder` holds the result that `stamp` describes.
pub(super) fn matches(folder: &Path, stamp: &str) -> bool {
    fs::read_to_string(folder.join(NAME)).is_ok_and(|found| found == stamp)
}

/// Says that the result in `folder` is whole.
pub(super) fn write(folder: &Path, stamp: &str) -> Result<(), Error> {
    let path = folder.join(NAME);
    fs::write(&path, stamp).map_err(|source| Error::io(&path, source))
}

/// Says that what is in `folder` is no result.
pub(super) fn forget(folder: &Path) -> Result<(), Error> {
    let path = folder.join(NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(&path, error)),
        _ => Ok(()),
    }
}

/// The files of `description/seeds` in order of their names.
pub(super) fn seeds(description: &Path) -> Result<Vec<PathBuf>, Error> {
    let folder = description.join("seeds");
    let read = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut paths = read().map_err(|source| Error::io(&folder, source))?;
    paths.sort();
    Ok(paths)
}

fn version(program: &str) -> Result<String, Error> {
    let answer = Command::new(program).arg("--version").output();
    let answer = answer.map_err(|source| Error::io(Path::new(program), source))?;
    Ok(String::from_utf8_lossy(&answer.stdout).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_counts_only_under_its_own_stamp() {
        let name = format!("ringfence-xtask-stamp-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        assert!(!matches(&folder, "one"));
        forget(&folder).unwrap();
        write(&folder, "one").unwrap();
        assert!(matches(&folder, "one") && !matches(&folder, "two") && !matches(&folder, ""));
        forget(&folder).unwrap();
        assert!(!matches(&folder, "one"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
