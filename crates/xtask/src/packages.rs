//! Debian packages by name: which are missing, and how they come.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Finished, Limits, StartError};

/// Package managers wait for mirrors and for each other; longer than this is a hang.
const INSTALL_LIMIT: Duration = Duration::from_mins(15);

/// The packages of `wanted` that are not installed, each once and sorted.
pub(crate) fn missing(wanted: &[&str]) -> Result<Vec<String>, Error> {
    let wanted: BTreeSet<&str> = wanted.iter().copied().collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    // The query's exit status is no answer: it is 1 as soon as one package is unknown.
    let answer = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"])
        .args(&wanted)
        .output()
        .map_err(|_| Error::NotDebian(names(&wanted)))?;
    let installed = String::from_utf8_lossy(&answer.stdout);
    Ok(not_installed(&wanted, &installed))
}

/// Installs `packages`; reads the package lists first. Does nothing when there is none.
pub(crate) fn install(packages: &[String]) -> Result<(), Error> {
    if packages.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot(packages.to_vec()));
    }
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages.iter().map(String::as_str));
    apt_get(&arguments)
}

fn apt_get(arguments: &[&str]) -> Result<(), Error> {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .current_dir(Path::new("/"));
    let label = format!("apt-get {}", arguments.join(" "));
    println!("  {label}");
    let finished =
        process::run(command, &Limits { time: INSTALL_LIMIT }).map_err(Error::AptGetStart)?;
    if finished.exited_well() {
        Ok(())
    } else {
        Err(Error::AptGet { label, finished: Box::new(finished) })
    }
}

/// `wanted` without those that `installed` (lines `NAME STATUS`) calls installed.
fn not_installed(wanted: &BTreeSet<&str>, installed: &str) -> Vec<String> {
    let present: BTreeSet<&str> =
        installed.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    wanted.difference(&present).map(|&name| name.to_owned()).collect()
}

fn names(wanted: &BTreeSet<&str>) -> Vec<String> {
    wanted.iter().map(|&name| name.to_owned()).collect()
}

/// Why packages could not be looked up or installed.
#[derive(Debug)]
pub(crate) enum Error {
    /// There is no `dpkg-query`; nothing was looked up.
    NotDebian(Vec<String>),
    /// Packages are missing and only root may install them; nothing was done.
    NotRoot(Vec<String>),
    /// `apt-get` could not be started.
    AptGetStart(StartError),
    /// `apt-get` ran and failed.
    AptGet {
        /// The command, for people.
        label: String,
        /// How it ended and what it said.
        finished: Box<Finished>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDebian(names) => write!(
                f,
                "this is not a Debian system, so nothing was installed; what Debian calls {} must \
                 be present",
                names.join(" ")
            ),
            Self::NotRoot(names) => write!(
                f,
                "packages are missing and only root can install them; please run\n    sudo apt-get \
                 install --no-install-recommends {}",
                names.join(" ")
            ),
            Self::AptGetStart(error) => write!(f, "{error}"),
            Self::AptGet { label, finished } => {
                write!(f, "{}\n{label} failed: {}", finished.output.trim_end(), finished.verdict())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_are_unknown_or_only_configured_are_missing() {
        let wanted = BTreeSet::from(["afl++", "gcc", "strace"]);
        let installed = "gcc installed\nstrace config-files\n";
        assert_eq!(not_installed(&wanted, installed), ["afl++", "strace"]);
    }

    #[test]
    fn nothing_wanted_asks_nobody() {
        assert!(missing(&[]).unwrap().is_empty());
        assert!(install(&[]).is_ok());
    }

    #[test]
    fn a_user_who_is_not_root_is_told_the_names() {
        let error = Error::NotRoot(vec!["afl++".to_owned(), "gcc".to_owned()]);
        assert!(error.to_string().ends_with("apt-get install --no-install-recommends afl++ gcc"));
    }
}
