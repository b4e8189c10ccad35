//! The command line of `cargo xtask`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// Exit code for a command line that makes no sense (`EX_USAGE`).
pub(crate) const EXIT_USAGE: u8 = 64;

/// What `--help` prints, and what follows a mistake.
pub(crate) const USAGE: &str = "\
usage: cargo xtask test [--list] [--only SUITE]
       cargo xtask campaign [--target libyaml|lz4|giflib] [--seconds N] [--coordinators N]
                            [--arm none|ledger|group] [--engine journal|files] [--frozen]
                            [--json FILE]
       cargo xtask sim [ARGS..]
       cargo xtask crash [weak|block|mutants|eio|sweep|resource|soak|all] [ARGS..]
       cargo xtask crash --two-hosts
       cargo xtask fuzz [--seconds N] [TARGET..]
       cargo xtask bench [ARGS..]
       cargo xtask bench --peers [--peer NAME,..] [ARGS..]

test      checks and tests everything; the last line is `N passed, N failed`
campaign  builds a real program and runs a hybrid campaign on it (default: libyaml, 60 s,
          4 coordinators, group leases kept in a journal)
sim       simulated crashes of the engines (default: `--exhaustive --quick`);
          `--seed N` replays one run
crash     crashes of the real thing on recorded file systems and devices (default: `all`)
fuzz      the readers of the journal's format under libFuzzer (default: every target, 60 s each)
bench     what a claim and release cost here: `ringfence bench`; with --peers beside SQLite, LMDB,
          redb, PostgreSQL, Redis and etcd in the same run (`--peers --help` tells the rest)

All install the Debian packages they miss, and say so first.";

/// The programs a campaign can run on; the first is the default.
pub(crate) const TARGETS: [&str; 3] = ["libyaml", "lz4", "giflib"];

/// How coordinators keep out of each other's way; the last is the default.
pub(crate) const ARMS: [&str; 3] = ["none", "ledger", "group"];

/// What keeps the leases; the first is the default.
pub(crate) const ENGINES: [&str; 2] = ["journal", "files"];

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Print the usage.
    Help,
    /// Print the suites and what each needs.
    ListSuites,
    /// Run all suites, or the one named.
    Test {
        /// Name of the only suite to run.
        only: Option<String>,
    },
    /// Run a campaign.
    Campaign(CampaignOptions),
    /// Run the simulator with these arguments.
    Sim(Vec<OsString>),
    /// Run the crash tools with these arguments.
    Crash(Vec<OsString>),
    /// Run fuzzers.
    Fuzz(FuzzOptions),
    /// Run a benchmark with these arguments.
    Bench {
        /// The one beside other stores, not that of the command.
        peers: bool,
        /// The rest.
        arguments: Vec<OsString>,
    },
}

/// Options of `cargo xtask campaign`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CampaignOptions {
    /// One of [`TARGETS`].
    pub(crate) target: String,
    /// How long coordinators propose jobs.
    pub(crate) seconds: u32,
    /// Number of coordinator processes.
    pub(crate) coordinators: u32,
    /// One of [`ARMS`].
    pub(crate) arm: String,
    /// One of [`ENGINES`].
    pub(crate) engine: String,
    /// Use a frozen set of seeds in place of a live fuzzer.
    pub(crate) frozen: bool,
    /// Where the report goes as JSON, besides the text.
    pub(crate) json: Option<PathBuf>,
}

impl Default for CampaignOptions {
    fn default() -> Self {
        Self {
            target: "libyaml".to_owned(),
            seconds: 60,
            coordinators: 4,
            arm: "group".to_owned(),
            engine: "journal".to_owned(),
            frozen: false,
            json: None,
        }
    }
}

/// Options of `cargo xtask fuzz`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// How long each target runs.
    pub(crate) seconds: u32,
    /// Some of [`crate::fuzz::TARGETS`]; none means all.
    pub(crate) targets: Vec<String>,
}

/// Reads the arguments after `cargo xtask`.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, UsageError> {
    let mut args = args.into_iter();
    let Some(verb) = args.next() else {
        return Err(UsageError::NoTask);
    };
    match verb.to_str() {
        Some("test") => parse_test(args),
        Some("campaign") => parse_campaign(args),
        Some("sim") => Ok(Task::Sim(args.collect())),
        Some("crash") => Ok(Task::Crash(args.collect())),
        Some("fuzz") => parse_fuzz(args),
        Some("bench") => {
            let (peers, arguments): (Vec<_>, Vec<_>) = args.partition(|arg| arg == "--peers");
            Ok(Task::Bench { peers: !peers.is_empty(), arguments })
        }
        Some("help" | "--help" | "-h") => Ok(Task::Help),
        _ => Err(UsageError::UnknownTask(verb)),
    }
}

fn parse_test(mut args: impl Iterator<Item = OsString>) -> Result<Task, UsageError> {
    let mut only = None;
    let mut list = false;
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--list") => list = true,
            Some("--only") => only = Some(text("--only", args.next())?),
            Some("--help" | "-h") => return Ok(Task::Help),
            _ => return Err(UsageError::UnknownOption(arg)),
        }
    }
    Ok(if list { Task::ListSuites } else { Task::Test { only } })
}

fn parse_campaign(mut args: impl Iterator<Item = OsString>) -> Result<Task, UsageError> {
    let mut options = CampaignOptions::default();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--target") => options.target = one_of("--target", &TARGETS, args.next())?,
            Some("--seconds") => options.seconds = count("--seconds", args.next())?,
            Some("--coordinators") => options.coordinators = count("--coordinators", args.next())?,
            Some("--arm") => options.arm = one_of("--arm", &ARMS, args.next())?,
            Some("--engine") => options.engine = one_of("--engine", &ENGINES, args.next())?,
            Some("--frozen") => options.frozen = true,
            Some("--json") => {
                let path = args.next().ok_or(UsageError::NoValue("--json"))?;
                options.json = Some(PathBuf::from(path));
            }
            Some("--help" | "-h") => return Ok(Task::Help),
            _ => return Err(UsageError::UnknownOption(arg)),
        }
    }
    Ok(Task::Campaign(options))
}

fn parse_fuzz(mut args: impl Iterator<Item = OsString>) -> Result<Task, UsageError> {
    let mut options = FuzzOptions { seconds: 60, targets: Vec::new() };
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--seconds") => options.seconds = count("--seconds", args.next())?,
            Some("--help" | "-h") => return Ok(Task::Help),
            Some(name) if crate::fuzz::TARGETS.contains(&name) => options.targets.push(name.into()),
            _ => return Err(UsageError::UnknownOption(arg)),
        }
    }
    Ok(Task::Fuzz(options))
}

fn text(option: &'static str, value: Option<OsString>) -> Result<String, UsageError> {
    let value = value.ok_or(UsageError::NoValue(option))?;
    value.into_string().map_err(|value| UsageError::BadValue { option, value })
}

fn one_of(
    option: &'static str,
    choices: &[&str],
    value: Option<OsString>,
) -> Result<String, UsageError> {
    let value = text(option, value)?;
    if choices.contains(&value.as_str()) {
        Ok(value)
    } else {
        Err(UsageError::BadValue { option, value: value.into() })
    }
}

fn count(option: &'static str, value: Option<OsString>) -> Result<u32, UsageError> {
    let value = text(option, value)?;
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(UsageError::BadValue { option, value: value.into() }),
    }
}

/// A command line that makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    /// Nothing was asked for.
    NoTask,
    /// The first word is no task.
    UnknownTask(OsString),
    /// The task has no such option.
    UnknownOption(OsString),
    /// The option came last, without its value.
    NoValue(&'static str),
    /// The option does not take this value.
    BadValue {
        /// The option.
        option: &'static str,
        /// What followed it.
        value: OsString,
    },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTask => f.write_str("say what to do"),
            Self::UnknownTask(task) => write!(f, "no task is called {}", task.display()),
            Self::UnknownOption(option) => write!(f, "unknown option {}", option.display()),
            Self::NoValue(option) => write!(f, "{option} needs a value"),
            Self::BadValue { option, value } => {
                write!(f, "{option} does not take `{}`", value.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Task, UsageError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn test_without_options_runs_every_suite() {
        assert_eq!(parse_words("test"), Ok(Task::Test { only: None }));
    }

    #[test]
    fn only_names_one_suite() {
        let only = Some("clippy".to_owned());
        assert_eq!(parse_words("test --only clippy"), Ok(Task::Test { only }));
        assert_eq!(parse_words("test --only"), Err(UsageError::NoValue("--only")));
    }

    #[test]
    fn list_runs_nothing_even_beside_only() {
        assert_eq!(parse_words("test --only clippy --list"), Ok(Task::ListSuites));
    }

    #[test]
    fn campaign_without_options_is_the_one_the_readme_shows() {
        let Ok(Task::Campaign(options)) = parse_words("campaign") else {
            panic!("a campaign was asked for");
        };
        assert_eq!(options, CampaignOptions::default());
        assert_eq!((options.seconds, options.coordinators), (60, 4));
        assert!(TARGETS.contains(&options.target.as_str()));
        assert!(ARMS.contains(&options.arm.as_str()));
        assert_eq!(options.engine, ENGINES[0]);
    }

    #[test]
    fn every_campaign_option_is_kept() {
        let line = "campaign --target lz4 --seconds 20 --coordinators 2 --arm none --engine files \
                    --frozen --json out.json";
        let expected = CampaignOptions {
            target: "lz4".to_owned(),
            seconds: 20,
            coordinators: 2,
            arm: "none".to_owned(),
            engine: "files".to_owned(),
            frozen: true,
            json: Some(PathBuf::from("out.json")),
        };
        assert_eq!(parse_words(line), Ok(Task::Campaign(expected)));
    }

    #[test]
    fn values_outside_the_choices_are_refused() {
        for line in [
            "campaign --target zlib",
            "campaign --seconds 0",
            "campaign --seconds -3",
            "campaign --coordinators many",
            "campaign --arm shared",
            "campaign --engine memory",
        ] {
            let refused = parse_words(line);
            assert!(matches!(refused, Err(UsageError::BadValue { .. })), "{line}: {refused:?}");
        }
    }

    #[test]
    fn a_fuzzer_takes_targets_by_name_and_a_time() {
        let all = FuzzOptions { seconds: 60, targets: Vec::new() };
        assert_eq!(parse_words("fuzz"), Ok(Task::Fuzz(all)));
        let two = FuzzOptions { seconds: 5, targets: vec!["replay".into(), "frame".into()] };
        assert_eq!(parse_words("fuzz replay --seconds 5 frame"), Ok(Task::Fuzz(two)));
        assert_eq!(parse_words("fuzz frames"), Err(UsageError::UnknownOption("frames".into())));
    }

    #[test]
    fn a_benchmark_keeps_every_other_argument() {
        let arguments = ["--rounds", "3"].map(OsString::from).to_vec();
        let with = Task::Bench { peers: true, arguments: arguments.clone() };
        assert_eq!(parse_words("bench --rounds --peers 3"), Ok(with));
        assert_eq!(parse_words("bench --rounds 3"), Ok(Task::Bench { peers: false, arguments }));
    }

    #[test]
    fn unknown_words_are_refused_by_name() {
        assert_eq!(parse_words(""), Err(UsageError::NoTask));
        assert_eq!(parse_words("deploy"), Err(UsageError::UnknownTask("deploy".into())));
        let refused = parse_words("test --fast");
        assert_eq!(refused, Err(UsageError::UnknownOption("--fast".into())));
        assert_eq!(refused.unwrap_err().to_string(), "unknown option --fast");
    }
}
