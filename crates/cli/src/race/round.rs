//! One round: both sides are started, released together, judged, and gone.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ringfence::{Finding, LeaseState, Store, World};
use ringfence_env::Deadline;

use super::side::{Answer, Side};

/// What one round showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    /// Who was granted its group.
    pub(super) winners: Vec<Side>,
    /// Whether the table held anything but exactly the winners' records after the claims.
    pub(super) partial: bool,
    /// Records after the release.
    pub(super) leftover_records: u64,
    /// Temporaries after the release.
    pub(super) leftover_temporaries: u64,
    /// Whether a side did not answer in time; it was killed.
    pub(super) hung: bool,
    /// Whether a side failed: neither granted nor refused, or ended without an answer.
    pub(super) failed: bool,
    /// How far apart the two claims began.
    pub(super) start_skew: Option<Duration>,
}

/// All that a round needs.
pub(super) struct Round<'a> {
    /// Clocks and files.
    pub(super) world: &'a World,
    /// The table.
    pub(super) store: &'a Store,
    /// Its directory.
    pub(super) root: &'a Path,
}

/// No side may take longer for a whole round.
const PATIENCE: Duration = Duration::from_secs(10);
/// Both sides have been told the moment well before it comes.
const LEAD: Duration = Duration::from_millis(8);

/// A side's process. Dropping it kills and reaps it.
struct Player {
    side: Side,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// Why a side said nothing.
enum Silence {
    Hung,
    Gone,
}

impl Round<'_> {
    /// Runs it. An error is one of the machine (no process to be had), not of the table.
    pub(super) fn run(&self) -> io::Result<Verdict> {
        let clock = &self.world.clock;
        let deadline = clock.deadline(PATIENCE);
        let mut verdict = Verdict::default();
        let mut players = [Player::start(Side::A, self.root)?, Player::start(Side::B, self.root)?];
        for player in &players {
            self.hear(player, deadline, &mut verdict);
        }
        let moment = clock.boottime().saturating_add(LEAD).as_nanos();
        for player in &mut players {
            player.tell(&format!("go {moment}"));
        }
        let mut begun = Vec::new();
        let mut winners = Vec::new();
        for player in &mut players {
            let Some(line) = self.hear(player, deadline, &mut verdict) else { continue };
            let Ok(answer) = serde_json::from_str::<Answer>(&line) else {
                verdict.failed = true;
                continue;
            };
            begun.push(Duration::from_nanos(answer.began_nanos));
            verdict.failed |= answer.failure.is_some();
            if let Some(token) = answer.token {
                verdict.winners.push(player.side);
                winners.push((player, token));
            }
        }
        if let [a, b] = begun.as_slice() {
            verdict.start_skew = Some(a.abs_diff(*b));
        }
        let expected: Vec<(Side, &str)> =
            winners.iter().map(|(player, token)| (player.side, token.as_str())).collect();
        verdict.partial = !self.holds_exactly(&expected);
        for (player, _) in &mut winners {
            player.tell("release");
            self.hear(player, deadline, &mut verdict);
        }
        drop(players);
        (verdict.leftover_records, verdict.leftover_temporaries) = self.leftovers()?;
        Ok(verdict)
    }

    fn hear(&self, player: &Player, deadline: Deadline, verdict: &mut Verdict) -> Option<String> {
        let left = self.world.clock.left(deadline);
        let heard = player.lines.recv_timeout(left).map_err(|error| match error {
            std::sync::mpsc::RecvTimeoutError::Timeout => Silence::Hung,
            std::sync::mpsc::RecvTimeoutError::Disconnected => Silence::Gone,
        });
        match heard {
            Ok(line) => return Some(line),
            Err(Silence::Hung) => verdict.hung = true,
            Err(Silence::Gone) => verdict.failed = true,
        }
        None
    }

    /// Whether the table holds the records of these grants and no other.
    fn holds_exactly(&self, grants: &[(Side, &str)]) -> bool {
        let Ok(listing) = self.store.targets().list(None) else { return false };
        let mut expected: Vec<(u64, &str)> = Vec::new();
        for &(side, token) in grants {
            let Ok(group) = side.group() else { return false };
            expected.extend(group.targets().map(|target| (target.get(), token)));
        }
        let mut found: Vec<(u64, String)> = Vec::new();
        for lease in &listing.leases {
            let LeaseState::Active(record) = &lease.state else { return false };
            found.push((record.target.get(), record.holder.token.to_string()));
        }
        expected.sort_unstable();
        found.sort_unstable();
        expected.len() == found.len()
            && expected.iter().zip(&found).all(|(a, b)| (a.0, a.1) == (b.0, b.1.as_str()))
    }

    /// Counts records, and files that no table needs. Lock files are stable and stay.
    fn leftovers(&self) -> io::Result<(u64, u64)> {
        let records = self.store.targets().list(None).map_err(io::Error::other)?.leases.len();
        let check = self.store.check().map_err(io::Error::other)?;
        let left =
            |finding: &&Finding| matches!(finding, Finding::Temporary(_) | Finding::Stray(_));
        let temporaries = check.findings.iter().filter(left).count();
        Ok((records as u64, temporaries as u64))
    }
}

impl Player {
    fn start(side: Side, store: &Path) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["race", "--side", side.name(), "--store"])
            .arg(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        let (say, lines) = channel();
        let listen = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    break;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().spawn(listen) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(Self { side, child, input, lines })
    }

    /// A side that is gone shows when it is listened to.
    fn tell(&mut self, line: &str) {
        let _ = self.input.write_all(format!("{line}\n").as_bytes());
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // One that did its part ends by itself; it only matters for one that hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
