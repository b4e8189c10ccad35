//! Debian's source packages: fetched with `apt-get`, verified, kept; and binary packages of another
//! suite than this machine's, unpacked beside everything and never installed.
//!
//! The mirror is the one this machine already uses for binary packages. It is asked for through a
//! list of sources of our own, so that the machine's configuration stays as it is.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::manifest::{Manifest, SourceFile};
use super::{checked, make_folder, take_turn};

/// The keys of Debian's archive, where Debian's package for them puts them.
const ARCHIVE_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Fetches the files of a source package into `folder` and verifies their digests.
///
/// Files that are there with the right digest are not fetched again.
pub(super) fn fetch(
    manifest: &Manifest,
    folder: &Path,
    step: impl Fn(&str),
) -> Result<(), super::Error> {
    make_folder(folder)?;
    let _turn = take_turn(&folder.join(".lock"))?;
    if manifest.files.iter().all(|file| verify(file, folder).is_ok()) {
        step("the source package is here already");
        return Ok(());
    }
    let apt = OwnApt::new(&folder.join("apt"))?;
    let mirrors = mirrors(manifest, &apt, &step)?;
    step(&format!("fetch {} {} from this machine's mirror", manifest.package, manifest.version));
    apt.use_mirrors(&mirrors, &manifest.suite)?;
    checked(apt.command(&["-q", "update"]))?;
    let mut download = apt.command(&["-q", "source", "--download-only"]);
    download.arg(format!("{}={}", manifest.package, manifest.version)).current_dir(folder);
    checked(download)?;
    step("verify the digests");
    for file in &manifest.files {
        verify(file, folder)?;
    }
    Ok(())
}

/// Fetches binary packages of a suite and unpacks them below `folder`; what is there stays.
pub(super) fn unpack(
    packages: &[&str],
    suite: &str,
    folder: &Path,
    step: impl Fn(&str),
) -> Result<(), super::Error> {
    make_folder(folder)?;
    let _turn = take_turn(&folder.join(".lock"))?;
    let done = folder.join(".unpacked");
    let wanted = format!("{suite}: {}", packages.join(" "));
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        step("the packages are here already");
        return Ok(());
    }
    let apt = OwnApt::new(&folder.join("apt"))?;
    let mut mirrors = any_mirrors(Command::new("apt-get"))?;
    if mirrors.is_empty() {
        let mut update = apt.base();
        update.args(["-q", "update"]);
        checked(update)?;
        mirrors = any_mirrors(apt.base())?;
    }
    if mirrors.is_empty() {
        return Err(Error::NoMirror { suite: suite.to_owned() }.into());
    }
    step(&format!("fetch {} of {suite} from this machine's mirror", packages.join(" ")));
    apt.use_sources(&mirrors, suite, "deb")?;
    checked(apt.command(&["-q", "update"]))?;
    let fetched = folder.join("fetched");
    let _ = fs::remove_dir_all(&fetched);
    make_folder(&fetched)?;
    let mut download = apt.command(&["-q", "download"]);
    download.args(packages).current_dir(&fetched);
    checked(download)?;
    let entries = fs::read_dir(&fetched).map_err(|error| super::Error::io(&fetched, error))?;
    for package in entries.flatten() {
        let mut unpack = Command::new("dpkg");
        unpack.arg("-x").arg(package.path()).arg(folder);
        checked(unpack)?;
    }
    let _ = fs::remove_dir_all(&fetched);
    fs::write(&done, wanted).map_err(|error| super::Error::io(&done, error))
}

/// An `apt-get` with lists, caches and sources of its own.
struct OwnApt {
    folder: PathBuf,
}

impl OwnApt {
    fn new(folder: &Path) -> Result<Self, super::Error> {
        make_folder(&folder.join("lists/partial"))?;
        make_folder(&folder.join("cache/archives/partial"))?;
        // Options on the command line are split like a list of words.
        let folder = fs::canonicalize(folder).map_err(|error| super::Error::io(folder, error))?;
        Ok(Self { folder })
    }

    fn use_mirrors(&self, mirrors: &BTreeSet<String>, suite: &str) -> Result<(), super::Error> {
        self.use_sources(mirrors, suite, "deb-src")
    }

    fn use_sources(
        &self,
        mirrors: &BTreeSet<String>,
        suite: &str,
        kind: &str,
    ) -> Result<(), super::Error> {
        let path = self.folder.join("own.sources");
        fs::write(&path, sources_file(mirrors, suite, kind, Path::new(ARCHIVE_KEYS).exists()))
            .map_err(|error| super::Error::io(&path, error))
    }

    fn base(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.env("LC_ALL", "C.UTF-8");
        for (option, path) in [("Dir::State::lists", "lists"), ("Dir::Cache", "cache")] {
            command.arg("-o").arg(format!("{option}={}", self.folder.join(path).display()));
        }
        // The usual unprivileged downloader could not write here.
        command.args(["-o", "APT::Sandbox::User="]);
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let list = self.folder.join("own.sources");
        let mut command = self.base();
        command.arg("-o").arg(format!("Dir::Etc::sourcelist={}", list.display()));
        command.args(["-o", "Dir::Etc::sourceparts=/dev/null"]).args(arguments);
        command
    }
}

/// The addresses this machine takes the suite's binary packages from.
fn mirrors(
    manifest: &Manifest,
    apt: &OwnApt,
    step: &impl Fn(&str),
) -> Result<BTreeSet<String>, super::Error> {
    let here = list_mirrors(Command::new("apt-get"), &manifest.suite)?;
    if !here.is_empty() {
        return Ok(here);
    }
    // Mirrors are known only with their package lists, and a fresh machine may have none.
    step("read the package lists");
    let mut update = apt.base();
    update.args(["-q", "update"]);
    checked(update)?;
    let here = list_mirrors(apt.base(), &manifest.suite)?;
    if here.is_empty() {
        return Err(Error::NoMirror { suite: manifest.suite.clone() }.into());
    }
    Ok(here)
}

fn list_mirrors(apt: Command, suite: &str) -> Result<BTreeSet<String>, super::Error> {
    Ok(debian_mirrors(&listed(apt)?, suite))
}

/// The addresses of Debian's main part of any suite: they have all suites.
fn any_mirrors(apt: Command) -> Result<BTreeSet<String>, super::Error> {
    let listed = listed(apt)?;
    let suites = listed.lines().filter_map(|line| line.split('|').nth(1));
    Ok(suites.flat_map(|suite| debian_mirrors(&listed, suite)).collect())
}

fn listed(mut apt: Command) -> Result<String, super::Error> {
    apt.args(["indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(LABEL)"]);
    let listed = apt.output().map_err(|error| super::Error::io(Path::new("apt-get"), error))?;
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// The addresses in lines `URI|RELEASE|COMPONENT|LABEL` that are Debian's main part of `suite`.
fn debian_mirrors(listed: &str, suite: &str) -> BTreeSet<String> {
    let wanted = format!("|{suite}|main|Debian");
    let main = listed.lines().filter_map(|line| line.strip_suffix(wanted.as_str()));
    main.map(str::to_owned).collect()
}

fn sources_file(mirrors: &BTreeSet<String>, suite: &str, kind: &str, has_keys: bool) -> String {
    let mut text = String::new();
    for mirror in mirrors {
        text.push_str("Types: ");
        text.push_str(kind);
        text.push_str("\nURIs: ");
        text.push_str(mirror);
        text.push_str("\nSuites: ");
        text.push_str(suite);
        text.push_str("\nComponents: main\n");
        if has_keys {
            text.push_str("Signed-By: ");
            text.push_str(ARCHIVE_KEYS);
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Compares the digest of a fetched file with the manifest's.
fn verify(file: &SourceFile, folder: &Path) -> Result<(), Error> {
    let path = folder.join(&file.name);
    if !path.is_file() {
        return Err(Error::Missing { name: file.name.clone() });
    }
    let answer = Command::new("sha256sum").arg("--").arg(&path).output().map_err(Error::Digest)?;
    compare(file, &String::from_utf8_lossy(&answer.stdout))
}

/// Reads the answer of `sha256sum`, which begins with the digest.
fn compare(file: &SourceFile, answer: &str) -> Result<(), Error> {
    let found = answer.split_whitespace().next().unwrap_or("no digest");
    if found == file.sha256 {
        return Ok(());
    }
    Err(Error::WrongDigest {
        name: file.name.clone(),
        expected: file.sha256.clone(),
        found: found.to_owned(),
    })
}

/// Why a source package could not be had.
#[derive(Debug)]
pub(crate) enum Error {
    /// No configured mirror has the suite's main part.
    NoMirror {
        /// The Debian release that was looked for.
        suite: String,
    },
    /// A file of the package was not fetched.
    Missing {
        /// Its name.
        name: String,
    },
    /// The tool for digests could not be started.
    Digest(io::Error),
    /// A file is not the one the manifest names. It was not unpacked.
    WrongDigest {
        /// Its name.
        name: String,
        /// The manifest's digest.
        expected: String,
        /// The digest of what was fetched.
        found: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMirror { suite } => write!(
                f,
                "this machine has no mirror of Debian {suite}, where the source package is from"
            ),
            Self::Missing { name } => write!(f, "{name} was not fetched"),
            Self::Digest(source) => write!(f, "sha256sum: {source}"),
            Self::WrongDigest { name, expected, found } => {
                write!(f, "{name} is not what the manifest names: {expected} wanted, {found} found")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debians_own_main_part_of_the_suite_is_a_mirror() {
        let listed = "http://a/debian/|one|main|Debian\nhttp://a/debian/|one|main|Debian\n\
                      http://a/debian/|one-updates|main|Debian\n\
                      http://a/security/|one-security|main|Debian-Security\n\
                      http://b/|one|main|Other\nhttp://c/|one|contrib|Debian\n";
        let expected = BTreeSet::from(["http://a/debian/".to_owned()]);
        assert_eq!(debian_mirrors(listed, "one"), expected);
        assert!(debian_mirrors(listed, "two").is_empty());
        assert!(debian_mirrors("", "one").is_empty());
    }

    #[test]
    fn our_sources_ask_for_source_packages_only() {
        let mirrors = BTreeSet::from(["http://a/".to_owned()]);
        let text = sources_file(&mirrors, "one", "deb-src", false);
        assert_eq!(text, "Types: deb-src\nURIs: http://a/\nSuites: one\nComponents: main\n\n");
        assert!(
            sources_file(&mirrors, "one", "deb-src", true)
                .contains("\nSigned-By: /usr/share/keyrings/")
        );
    }

    #[test]
    fn another_digest_is_refused() {
        let file = SourceFile { sha256: "aa".to_owned(), name: "x.dsc".to_owned() };
        assert!(compare(&file, "aa  folder/x.dsc\n").is_ok());
        for answer in ["ab  folder/x.dsc\n", "", "a"] {
            let refused = compare(&file, answer);
            assert!(matches!(refused, Err(Error::WrongDigest { .. })), "{answer}: {refused:?}");
        }
    }
}
