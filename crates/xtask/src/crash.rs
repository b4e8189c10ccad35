//! `cargo xtask sim` and `cargo xtask crash`: build a test tool, and become it. Their short forms are
//! suites of `cargo xtask test`.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::packages;
use crate::process;
use crate::suite::{Context, Outcome};
use crate::tally;
use crate::target_dir;
use crate::targets;

/// What the crash tools make file systems with, and trace with.
pub(crate) const PACKAGES: &[&str] =
    &["btrfs-progs", "e2fsprogs", "gcc", "mount", "strace", "util-linux", "xfsprogs"];

/// All layers of the crash tools, those that take longest first.
const LAYERS: [&str; 7] = ["mutants", "eio", "weak", "block", "sweep", "resource", "soak"];

/// Runs the simulator; without arguments, every crash point of both engines in quick form.
pub(crate) fn sim(repo: &Path, arguments: &[OsString]) -> ExitCode {
    println!("cargo xtask sim will build the simulator and run it");
    let built = build(repo, &["--package", "ringfence-sim"]);
    let tool = target_dir(repo).join("release/ringfence-sim");
    if !arguments.is_empty() {
        return built
            .and_then(|()| become_tool(&tool, arguments))
            .unwrap_or_else(|reason| failed(&reason));
    }
    let both = ["group", "record"].into_iter().map(|durability| {
        let mut run = Command::new(&tool);
        run.args(["--exhaustive", "--quick", "--mode", durability]);
        process::show(run).map_err(|error| error.to_string()).map(|status| status.success())
    });
    built.and_then(|()| both.collect::<Result<Vec<_>, _>>()).map_or_else(
        |reason: String| failed(&reason),
        |passed| {
            if passed.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        },
    )
}

/// Runs the crash tools on the real binary; without arguments, all layers.
pub(crate) fn crash(repo: &Path, arguments: &[OsString]) -> ExitCode {
    let missing = packages::missing(PACKAGES);
    let names = missing.as_deref().unwrap_or_default().join(" ");
    println!("cargo xtask crash will");
    let none = "install no Debian package: every one is here".to_owned();
    println!("  {}", if names.is_empty() { none } else { format!("install {names}") });
    println!("  build ringfence and the crash tools, and run them");
    println!("  mount file systems of its own, as root, in a mount namespace of its own");
    let tool = target_dir(repo).join("release/ringfence-crash");
    let arguments = match arguments.split_first() {
        Some((first, rest)) if first == "--two-hosts" => match two_hosts(repo) {
            Ok(mut arguments) => {
                arguments.extend_from_slice(rest);
                arguments
            }
            Err(reason) => return failed(&reason),
        },
        _ => arguments.to_vec(),
    };
    let all = [OsString::from("all")];
    missing
        .and_then(|missing| packages::install(&missing))
        .map_err(|error| error.to_string())
        .and_then(|()| build(repo, &["--package", "ringfence-cli", "--package", "ringfence-crash"]))
        .and_then(|()| become_tool(&tool, if arguments.is_empty() { &all } else { &arguments }))
        .unwrap_or_else(|reason| failed(&reason))
}

/// Unpacks what three kernels as processes need; how the layer is called then.
///
/// Older ones than the newest stop on processors with large registers.
fn two_hosts(repo: &Path) -> Result<Vec<OsString>, String> {
    let folder = target_dir(repo).join("two-hosts");
    let packages = ["busybox-static", "libc6", "libgcc-s1", "user-mode-linux"];
    targets::unpack(&packages, "sid", &folder).map_err(|error| error.to_string())?;
    let folder = folder.canonicalize().map_err(|error| error.to_string())?;
    Ok(vec!["two-hosts".into(), "--tools".into(), folder.into()])
}

/// The suite: every crash point in quick form, and random runs. Its own tests, which the suite of all
/// crates runs, try other seeds, and every planted bug.
pub(crate) fn sim_suite(context: &Context) -> Outcome {
    let built = context.check(build_command(context, &["--package", "ringfence-sim"]));
    if !built.tally.is_success() {
        return built;
    }
    let tool = target_dir(&context.repo).join("release/ringfence-sim");
    let runs = [&["--exhaustive", "--quick"][..], &["--random", "400", "--from", "1001"]];
    let modes = ["group", "journal", "record"];
    let commands =
        runs.into_iter().flat_map(|run| modes.map(|mode| (run, mode))).map(|(run, mode)| {
            let mut command = context.command(&tool);
            command.args(run).args(["--mode", mode]);
            command
        });
    // Each only computes, in one thread.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    context.count_side_by_side(commands.collect(), processors, tally::simulator)
}

/// The suite: every layer in its short fixed form.
pub(crate) fn crash_suite(context: &Context) -> Outcome {
    let packages = ["--package", "ringfence-cli", "--package", "ringfence-crash"];
    let built = context.check(build_command(context, &packages));
    if !built.tally.is_success() {
        return built;
    }
    let tool = target_dir(&context.repo).join("release/ringfence-crash");
    let commands = LAYERS.map(|layer| {
        let mut command = context.command(&tool);
        command.args([layer, "--ci"]);
        command
    });
    // Mounts and flushes are waited for. As processes of their own: a child that one layer starts must
    // not hold for a moment the device, or the lock, that another is about to let go.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    context.count_side_by_side(commands.into(), processors + 1, tally::crash)
}

fn build_command(context: &Context, packages: &[&str]) -> Command {
    let mut build = context.command("cargo");
    build.args(["build", "--release"]).args(packages);
    build
}

pub(crate) fn build(repo: &Path, packages: &[&str]) -> Result<(), String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--release"]).args(packages).current_dir(repo);
    let status = process::show(build).map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("the tool does not build ({status})")) }
}

/// Returns only when the tool cannot be started.
pub(crate) fn become_tool(tool: &Path, arguments: &[OsString]) -> Result<ExitCode, String> {
    let mut command = Command::new(tool);
    command.args(arguments);
    Err(process::become_command(command).to_string())
}

pub(crate) fn failed(reason: &str) -> ExitCode {
    eprintln!("xtask: {reason}");
    ExitCode::FAILURE
}
