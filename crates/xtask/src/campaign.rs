//! `cargo xtask campaign`: from a fresh machine to a report of a real hybrid campaign.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::args::CampaignOptions;
use crate::packages;
use crate::process;
use crate::target_dir;
use crate::targets;

/// Prepares everything a campaign needs, then becomes `ringfence campaign`.
///
/// Everything it makes lies under `campaign` in cargo's target directory. It returns only when a step failed.
pub(crate) fn campaign(repo: &Path, options: &CampaignOptions) -> ExitCode {
    match prepare(repo, options) {
        Ok(command) => {
            let error = process::become_command(command);
            eprintln!("xtask: {error}");
        }
        Err(reason) => eprintln!("xtask: {reason}"),
    }
    ExitCode::FAILURE
}

fn prepare(repo: &Path, options: &CampaignOptions) -> Result<Command, String> {
    let out = target_dir(repo).join("campaign");
    let missing = packages::missing(targets::PACKAGES);
    announce(options, &out, missing.as_deref().unwrap_or_default());
    match missing.and_then(|missing| packages::install(&missing)) {
        Err(error @ packages::Error::NotDebian(_)) => eprintln!("note: {error}"),
        other => other.map_err(|error| error.to_string())?,
    }

    step("build the binary `ringfence`");
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--package", "ringfence-cli", "--bin", "ringfence"]);
    build.current_dir(repo);
    let status = process::show(build).map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("the binary does not build ({status})"));
    }

    step(&format!("build {} for the fuzzer and for the solver", options.target));
    targets::prepare(repo, &options.target, &out).map_err(|error| error.to_string())?;

    step("set up the solver's Python");
    let python = targets::python_env(repo, &out).map_err(|error| error.to_string())?;

    step("start the campaign");
    let binary = target_dir(repo).join("release/ringfence");
    let dir = new_dir(
        &out.join("runs"),
        &format!("{}-{}-{}", options.target, options.arm, options.engine),
    );
    let mut command = campaign_command(&binary, repo, &out, &dir, &python, options);
    // A campaign leaves no caches in the clone.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// The command line of the campaign: the one place that knows its flags.
fn campaign_command(
    binary: &Path,
    repo: &Path,
    out: &Path,
    dir: &Path,
    python: &Path,
    options: &CampaignOptions,
) -> Command {
    let built = out.join(&options.target);
    let mut command = Command::new(binary);
    command.arg("campaign").arg("--name").arg(&options.target);
    command.arg("--dir").arg(dir);
    command.arg("--seeds").arg(built.join("seeds"));
    command.arg("--program").arg(built.join("program.afl"));
    command.arg("--image").arg(built.join("program.elf"));
    command.arg("--solver").arg(repo.join("campaign/engine/triton_worker.py"));
    command.arg("--python").arg(python);
    command.args(["--seconds", &options.seconds.to_string()]);
    command.args(["--coordinators", &options.coordinators.to_string()]);
    command.args(["--arm", &options.arm, "--engine", &options.engine]);
    if options.frozen {
        command.arg("--frozen");
    }
    if let Some(path) = &options.json {
        command.arg("--json").arg(path);
    }
    command
}

/// A directory that is not there yet: arms are compared from the same start, without what an earlier
/// campaign found.
fn new_dir(parent: &Path, name: &str) -> PathBuf {
    let mut number = 1;
    loop {
        let dir = parent.join(format!("{name}-{number}"));
        if !dir.exists() {
            return dir;
        }
        number += 1;
    }
}

fn announce(options: &CampaignOptions, out: &Path, missing: &[String]) {
    println!("cargo xtask campaign will");
    if missing.is_empty() {
        println!("  install no Debian package: every one is here");
    } else {
        println!("  install the Debian packages {}", missing.join(" "));
    }
    println!("  build ringfence, and {} from Debian's source package", options.target);
    println!("  install the solver from the Python package index, in an environment of its own");
    println!(
        "  run {} coordinators for {} s, arm {}, engine {}, seeds {}",
        options.coordinators,
        options.seconds,
        options.arm,
        options.engine,
        if options.frozen { "frozen" } else { "from a live fuzzer" }
    );
    println!("  keep everything under {}", out.display());
}

fn step(what: &str) {
    println!("== {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reaches_the_campaign() {
        let options = CampaignOptions {
            target: "lz4".to_owned(),
            seconds: 20,
            coordinators: 2,
            arm: "none".to_owned(),
            engine: "files".to_owned(),
            frozen: true,
            json: Some(PathBuf::from("report.json")),
        };
        let (binary, repo) = (Path::new("bin/ringfence"), Path::new("repo"));
        let (out, dir, python) = (Path::new("out"), Path::new("dir"), Path::new("py/bin/python"));
        let command = campaign_command(binary, repo, out, dir, python, &options);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            words.join(" "),
            "campaign --name lz4 --dir dir --seeds out/lz4/seeds --program out/lz4/program.afl \
             --image out/lz4/program.elf --solver repo/campaign/engine/triton_worker.py \
             --python py/bin/python --seconds 20 --coordinators 2 --arm none --engine files \
             --frozen --json report.json"
        );
    }
}
