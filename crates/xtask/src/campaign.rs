//! `cargo xtask campaign`: from a fresh machine to a report of a real hybrid campaign.

use std::path::Path;
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
    Ok(campaign_command(&binary, repo, &out, &python, options))
}

/// The command line of the campaign: the one place that knows its flags.
fn campaign_command(
    binary: &Path,
    repo: &Path,
    out: &Path,
    python: &Path,
    options: &CampaignOptions,
) -> Command {
    let target_dir = out.join(&options.target);
    let mut command = Command::new(binary);
    command.arg("campaign");
    command.arg("--store").arg(target_dir.join("store"));
    command.arg("--target-dir").arg(&target_dir);
    command.arg("--python").arg(python);
    command.arg("--engine").arg(repo.join("campaign/engine/triton_worker.py"));
    command.args(["--seconds", &options.seconds.to_string()]);
    command.args(["--coordinators", &options.coordinators.to_string()]);
    command.args(["--arm", &options.arm]);
    if options.frozen {
        command.arg("--frozen");
    }
    if let Some(path) = &options.json {
        command.arg("--json").arg(path);
    }
    command
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
        "  run {} coordinators for {} s, arm {}, seeds {}",
        options.coordinators,
        options.seconds,
        options.arm,
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
    use std::path::PathBuf;

    #[test]
    fn every_option_reaches_the_campaign() {
        let options = CampaignOptions {
            target: "lz4".to_owned(),
            seconds: 20,
            coordinators: 2,
            arm: "none".to_owned(),
            frozen: true,
            json: Some(PathBuf::from("report.json")),
        };
        let (binary, repo) = (Path::new("bin/ringfence"), Path::new("repo"));
        let command =
            campaign_command(binary, repo, Path::new("out"), Path::new("py/bin/python"), &options);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            words.join(" "),
            "campaign --store out/lz4/store --target-dir out/lz4 --python py/bin/python \
             --engine repo/campaign/engine/triton_worker.py --seconds 20 --coordinators 2 \
             --arm none --frozen --json report.json"
        );
    }
}
