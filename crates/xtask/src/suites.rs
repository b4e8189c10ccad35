//! The suites of `cargo xtask test`, in the order they run: what fails fast comes first.

use std::time::Duration;

use crate::crash;
use crate::programs;
use crate::suite::{Context, Outcome, Suite};
use crate::tally;
use crate::target_dir;
use crate::targets;

/// Every suite. Each check counts as one; each test counts as one.
pub(crate) const ALL: &[Suite] = &[
    Suite {
        name: "format",
        about: "every Rust file is formatted",
        packages: &[],
        limit: Duration::from_mins(2),
        run: format,
    },
    Suite {
        name: "clippy",
        about: "no lint on any target of the workspace",
        packages: &["gcc"],
        limit: Duration::from_mins(20),
        run: clippy,
    },
    Suite {
        name: "docs",
        about: "the documentation builds without warnings",
        packages: &["gcc"],
        limit: Duration::from_mins(20),
        run: docs,
    },
    Suite {
        name: "rust",
        about: "unit, integration and documentation tests of every crate",
        packages: &["e2fsprogs", "gcc", "mount", "python3", "strace", "util-linux"],
        limit: Duration::from_mins(30),
        run: rust,
    },
    Suite {
        name: "sim",
        about: "simulated crashes: every crash point in quick form, and random runs",
        packages: &["gcc"],
        limit: Duration::from_mins(10),
        run: crash::sim_suite,
    },
    Suite {
        name: "crash",
        about: "real crashes: recorded disks, dropped syncs, errors, kills, full disks, power cuts",
        packages: crash::PACKAGES,
        limit: Duration::from_mins(15),
        run: crash::crash_suite,
    },
    Suite {
        name: "python",
        about: "tests of the engine in campaign/engine, on lz4 from Debian's source package",
        packages: targets::PACKAGES,
        limit: Duration::from_mins(10),
        run: python,
    },
    Suite {
        name: "campaign",
        about: "campaigns on lz4: no duplicate solve with group leases, a killed coordinator, AFL++",
        packages: targets::PACKAGES,
        limit: Duration::from_mins(15),
        run: campaign,
    },
];

fn format(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command.args(["fmt", "--all", "--check"]);
    context.check(command)
}

fn clippy(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command.args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]);
    context.check(command)
}

fn docs(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command
        .args(["doc", "--workspace", "--all-features", "--no-deps"])
        .env("RUSTDOCFLAGS", "-D warnings");
    context.check(command)
}

fn rust(context: &Context) -> Outcome {
    let mut whole = programs::test(context);
    // The locks of threads are other ones there, so it is a build of its own.
    let mut orders = context.command("cargo");
    // Of the whole workspace, so that what others wrote is not built a second time with other features.
    orders.args(["test", "--workspace", "--features", "ringfence-journal/shuttle"]);
    orders.args(["--test", "orders"]);
    whole += context.count(orders, tally::libtest);
    whole
}

fn python(context: &Context) -> Outcome {
    let out = target_dir(&context.repo).join("campaign");
    let built = match targets::prepare(&context.repo, "lz4", &out) {
        Ok(built) => built,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let python = match targets::python_env(&context.repo, &out) {
        Ok(python) => python,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let mut command = context.command(python);
    command.args(["-m", "unittest", "discover"]);
    command.args(["--start-directory", "campaign/engine/tests"]);
    command.args(["--top-level-directory", "campaign/engine"]);
    command.env("CAMPAIGN_LZ4_IMAGE", built.triton_elf);
    // A test run leaves no caches in the clone.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    context.count(command, tally::unittest)
}

fn campaign(context: &Context) -> Outcome {
    let out = target_dir(&context.repo).join("campaign");
    if let Err(error) = targets::prepare(&context.repo, "lz4", &out) {
        return Outcome::failed(error.to_string());
    }
    let python = match targets::python_env(&context.repo, &out) {
        Ok(python) => python,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let mut command = context.command("cargo");
    command.args(["test", "--workspace", "--features", "ringfence-cli/real-campaign"]);
    // One after the other: duplicates are counted while both processors are there for one campaign.
    command.args(["--test", "campaign", "--", "real::", "--test-threads", "1"]);
    command.env("CAMPAIGN_LZ4", out.join("lz4")).env("CAMPAIGN_PYTHON", python);
    context.count(command, tally::libtest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_suite_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = ALL.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
