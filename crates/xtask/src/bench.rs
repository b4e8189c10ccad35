//! `cargo xtask bench`: the benchmark of the command, or the one beside other stores.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::crash::{become_tool, build, failed};
use crate::packages;
use crate::target_dir;

/// What the benchmark itself needs: a compiler, and tools for `--ext4` and for servers.
const TOOLS: &[&str] = &["e2fsprogs", "gcc", "mount", "util-linux"];

/// Which package brings which peer.
const SERVERS: [(&str, &str); 3] =
    [("postgres", "postgresql-15"), ("redis", "redis-server"), ("etcd", "etcd-server")];

/// Builds a benchmark and becomes it.
pub(crate) fn bench(repo: &Path, peers: bool, arguments: &[OsString]) -> ExitCode {
    let (package, tool) =
        if peers { ("ringfence-bench", "ringfence-bench") } else { ("ringfence-cli", "ringfence") };
    let wanted = if peers { packages_for(arguments) } else { TOOLS.to_vec() };
    let missing = packages::missing(&wanted);
    let names = missing.as_deref().unwrap_or_default().join(" ");
    // Standard output is for the answer alone.
    eprintln!("cargo xtask bench will");
    let none = "install no Debian package: every one is here".to_owned();
    eprintln!("  {}", if names.is_empty() { none } else { format!("install {names}") });
    eprintln!("  build {tool} and run it; it removes what it makes, and stops what it starts");
    match missing.and_then(|missing| packages::install(&missing)) {
        Err(error @ packages::Error::NotDebian(_)) => eprintln!("note: {error}"),
        Err(error) => return failed(&error.to_string()),
        Ok(()) => {}
    }
    let mut words = if peers { Vec::new() } else { vec![OsString::from("bench")] };
    words.extend_from_slice(arguments);
    // Beside the peers the command is measured as well.
    let packages = ["--package", package, "--package", "ringfence-cli"];
    build(repo, packages.get(..if peers { 4 } else { 2 }).unwrap_or(&packages))
        .and_then(|()| become_tool(&target_dir(repo).join("release").join(tool), &words))
        .unwrap_or_else(|reason| failed(&reason))
}

/// The packages of the peers that `arguments` name; of all if they name none.
fn packages_for(arguments: &[OsString]) -> Vec<&'static str> {
    let mut named: Vec<String> = Vec::new();
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let list = match word.strip_prefix("--peer=") {
            Some(list) => Some(list.to_owned()),
            None if word == "--peer" => words.next().map(Cow::into_owned),
            None => None,
        };
        named.extend(list.iter().flat_map(|list| list.split(',')).map(str::to_owned));
    }
    let servers = SERVERS
        .iter()
        .filter(|(peer, _)| named.is_empty() || named.iter().any(|name| name == peer));
    TOOLS.iter().copied().chain(servers.map(|&(_, package)| package)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_that_are_named_are_installed() {
        let wanted = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            packages_for(&words).split_off(TOOLS.len())
        };
        assert_eq!(wanted("--quick"), ["postgresql-15", "redis-server", "etcd-server"]);
        assert_eq!(wanted("--peer journal,redis --quick"), ["redis-server"]);
        assert_eq!(wanted("--peer=etcd --peer sqlite"), ["etcd-server"]);
        assert_eq!(wanted("--peer sqlite"), [""; 0]);
    }
}
