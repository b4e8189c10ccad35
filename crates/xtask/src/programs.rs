//! The test programs of the workspace, run several at a time.
//!
//! `cargo test` runs one after the other, and most of them wait: for a sync, for a lease to run out, for
//! another process. Whatever cargo builds is run here, so that a new program needs no line of its own.

use std::path::PathBuf;
use std::process::Command;

use crate::suite::{Context, Outcome};
use crate::tally;

/// Those that take longest begin first. A name that is none costs nothing.
const LONG: [&str; 8] =
    ["exhaustive", "cli", "campaign", "facade", "canaries", "journal", "files", "protocol"];

/// Those that only compute: they leave the processors to tests that look at the time.
const COMPUTING: [&str; 4] = ["canaries", "exhaustive", "protocol", "random"];

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// What cargo calls it; several may share a name.
    name: String,
    /// Its package's folder: tests start there.
    package: PathBuf,
    path: PathBuf,
}

/// Builds the tests of the workspace, runs all of them, and those in its documentation.
pub(crate) fn test(context: &Context) -> Outcome {
    let mut build = context.command("cargo");
    build.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let mut built = context.check(build);
    let mut programs: Vec<Program> = built.output.lines().filter_map(program_in).collect();
    if !built.tally.is_success() || programs.is_empty() {
        let for_people = built.output.lines().filter(|line| !line.starts_with('{'));
        built.output = for_people.collect::<Vec<_>>().join("\n");
        built.tally = built.tally.checked(false);
        return built;
    }
    programs.sort_by_key(|program| {
        LONG.iter().position(|name| *name == program.name).unwrap_or(LONG.len())
    });
    let mut commands: Vec<Command> =
        programs.iter().map(|program| start_of(context, program)).collect();
    let mut documentation = context.command("cargo");
    documentation.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    commands.push(documentation);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    context.count_side_by_side(commands, processors + 1, tally::libtest)
}

/// The program as cargo would start it.
fn start_of(context: &Context, program: &Program) -> Command {
    let mut command = if COMPUTING.contains(&program.name.as_str()) {
        let mut command = context.command("nice");
        command.arg(&program.path);
        command
    } else {
        context.command(&program.path)
    };
    command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
    command
}

/// The program that a line of cargo's messages tells of, if it is one of tests.
fn program_in(line: &str) -> Option<Program> {
    let line = line.strip_prefix(r#"{"reason":"compiler-artifact","#)?;
    let (_, profile) = line.split_once(r#""profile":{"#)?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains(r#""test":true"#) {
        return None;
    }
    let (_, target) = line.split_once(r#""target":{"#)?;
    let package = PathBuf::from(text_of("manifest_path", line)?).parent()?.to_path_buf();
    Some(Program {
        name: text_of("name", target)?.to_owned(),
        package,
        path: PathBuf::from(text_of("executable", line)?),
    })
}

/// The text that a key has; paths with quotes or backslashes are not read whole, and do not start.
fn text_of<'a>(key: &str, object: &'a str) -> Option<&'a str> {
    let (_, value) = object.split_once(&format!(r#""{key}":""#))?;
    value.split_once('"').map(|(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///c/crates/sim#ringfence-sim@0.1.0","manifest_path":"/c/crates/sim/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"real","src_path":"/c/crates/sim/tests/real.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":"line-tables-only","debug_assertions":true,"overflow_checks":true,"test":true},"features":[],"filenames":["/t/debug/deps/real-1"],"executable":"/t/debug/deps/real-1","fresh":true}"#;

    #[test]
    fn a_test_program_is_read_from_what_cargo_says() {
        let program = Program {
            name: "real".to_owned(),
            package: "/c/crates/sim".into(),
            path: "/t/debug/deps/real-1".into(),
        };
        assert_eq!(program_in(TESTS), Some(program));
    }

    #[test]
    fn what_is_built_beside_test_programs_is_not_run() {
        // The program that a test starts: its target may be tested, this is not that.
        let (target, profile) = TESTS.split_once(r#""profile""#).unwrap();
        let plain = profile.replace(r#""test":true"#, r#""test":false"#);
        assert_eq!(program_in(&format!(r#"{target}"profile"{plain}"#)), None);
        let library = TESTS.replace(r#""/t/debug/deps/real-1","fresh""#, r#"null,"fresh""#);
        assert_eq!(program_in(&library), None);
        assert_eq!(program_in("   Compiling ringfence-sim v0.1.0"), None);
        assert_eq!(program_in(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
