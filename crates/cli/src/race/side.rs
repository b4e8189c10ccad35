//! One side: a process that claims at a given moment, and releases when it is told to.
//!
//! It speaks in lines. It says `ready`, reads `go NANOSECONDS` (of the boot-time clock), answers
//! with one [`Answer`] as JSON, and if it won reads `release` and says `released`. The end of its
//! input ends it.

use std::io::{self, BufRead as _};
use std::path::Path;
use std::time::Duration;

use ringfence::{Claim, ClaimError, GroupError, Store, TargetGroup, World};
use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::output::{note, print};

/// Who claims what.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Targets 1 to 32.
    A,
    /// Targets 17 to 48.
    B,
}

impl Side {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// What it claims.
    pub(super) fn group(self) -> Result<TargetGroup, GroupError> {
        TargetGroup::from_numbers(match self {
            Self::A => 1..=32,
            Self::B => 17..=48,
        })
    }
}

/// How a claim ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The token, if it was granted.
    pub(super) token: Option<String>,
    /// Why it failed, if it was neither granted nor refused.
    pub(super) failure: Option<String>,
    /// When the claim began, on the boot-time clock.
    pub(super) began_nanos: u64,
}

/// Before the moment the process sleeps; for the last bit it looks at the clock all the time.
const SPIN: Duration = Duration::from_millis(3);

/// Plays one side.
pub(super) fn run(side: Side, store: &Path) -> Exit {
    match play(side, store) {
        Ok(()) => Exit::DONE,
        Err(error) => {
            note(&format!("side {}: {error}", side.name()));
            Exit::FAILED
        }
    }
}

fn play(side: Side, store: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let clock = World::system().clock;
    let table = Store::open(store)?.targets();
    let group = side.group()?;
    let claim = Claim::by(&format!("side-{}", side.name()))?;
    let mut lines = io::stdin().lock().lines();
    print("ready\n")?;
    let Some(line) = lines.next().transpose()? else { return Ok(()) };
    let moment = line.strip_prefix("go ").ok_or("expected a moment to go")?;
    let moment = Duration::from_nanos(moment.parse()?);
    clock.sleep(moment.saturating_sub(clock.boottime()).saturating_sub(SPIN));
    while clock.boottime() < moment {
        std::hint::spin_loop();
    }
    let began_nanos = u64::try_from(clock.boottime().as_nanos())?;
    let claimed = table.claim(&group, &claim);
    let (lease, failure) = match claimed {
        Ok(lease) => (Some(lease), None),
        Err(ClaimError::Refused(refused)) if refused.damaged.is_empty() => (None, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let token = lease.as_ref().map(|lease| lease.token().to_string());
    let answer = Answer { token, failure, began_nanos };
    print(&format!("{}\n", serde_json::to_string(&answer)?))?;
    let Some(lease) = lease else { return Ok(()) };
    if lines.next().transpose()?.as_deref() == Some("release") {
        lease.release()?;
        print("released\n")?;
    }
    Ok(())
}
