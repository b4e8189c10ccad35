//! The suites of `cargo xtask test`, in the order they run: what fails fast comes first.

use std::time::Duration;

use crate::suite::{Context, Outcome, Suite};
use crate::tally;

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
        packages: &["gcc"],
        limit: Duration::from_mins(30),
        run: rust,
    },
    Suite {
        name: "python",
        about: "unit tests of the engine adapter in campaign/engine",
        packages: &["python3"],
        limit: Duration::from_mins(10),
        run: python,
    },
];

fn format(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command.args(["fmt", "--all", "--check"]);
    context.check(command)
}

fn clippy(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command.args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    context.check(command)
}

fn docs(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    context.check(command)
}

fn rust(context: &Context) -> Outcome {
    let mut command = context.command("cargo");
    command.args(["test", "--workspace", "--no-fail-fast"]);
    context.count(command, tally::libtest)
}

fn python(context: &Context) -> Outcome {
    let mut command = context.command("python3");
    command.args(["-m", "unittest", "discover", "--start-directory", "campaign/engine"]);
    // A test run must not leave caches in the clone.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    context.count(command, tally::unittest)
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
