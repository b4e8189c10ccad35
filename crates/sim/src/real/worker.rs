//! One of the processes: does as many calls as it is told to, and says when it has.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence::{Claim, TargetTable};
use ringfence_engine::Engine;
use ringfence_env::World;
use ringfence_model::{Key, TargetGroup, Token, Ttl};

use crate::real::log::Logged;
use crate::real::{TARGETS, TTL_SECONDS, open};
use crate::rng::Rng;
use crate::setup::{Kept, target};

/// What a worker does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Now and then it takes a heartbeat or a release for done that was never made.
    Acknowledges,
}

impl Lie {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acknowledges => "acknowledges",
        }
    }
}

/// The keys of all targets, in key order; a log names them by their places.
pub fn keys_of_all() -> Vec<Key> {
    let mut keys: Vec<Key> = (1..=TARGETS).map(|number| Key::target(target(number))).collect();
    keys.sort_unstable();
    keys
}

/// Works until nobody gives orders any more: ROOT LOG KEPT SEED LIE.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let [root, log, kept, seed, lie] = arguments else { return Err("five arguments".into()) };
    let kept = Kept::ALL.into_iter().find(|known| format!("{known:?}") == *kept);
    let lie = (lie == Lie::Acknowledges.name()).then_some(Lie::Acknowledges);
    let mut rng = Rng::new(seed.parse().map_err(|_| "a seed")?);
    #[expect(clippy::disallowed_methods, reason = "the log is no part of the table")]
    let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
    let file = file.map_err(|error| error.to_string())?;
    let engine = open(kept.ok_or("a way of keeping")?, Path::new(root), true)?;
    let engine = Arc::new(Logged::new(engine, file, keys_of_all(), lie));
    let mut worker = Worker {
        table: TargetTable::on(engine.clone(), World::system()),
        engine,
        mine: Vec::new(),
        past: Vec::new(),
    };
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let calls: u64 = line.strip_prefix("go ").and_then(|n| n.parse().ok()).ok_or("an order")?;
        for _ in 0..calls {
            worker.one(&mut rng);
        }
        say("done");
    }
    Ok(())
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody is there any more: it is killed soon.
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

struct Worker {
    engine: Arc<Logged>,
    table: TargetTable,
    mine: Vec<(TargetGroup, Token)>,
    past: Vec<(TargetGroup, Token)>,
}

impl Worker {
    fn one(&mut self, rng: &mut Rng) {
        match rng.below(10) {
            0..=2 => self.claim(rng, None),
            3 => {
                let wait = Duration::from_millis(rng.between(1, 12));
                self.claim(rng, Some(wait));
            }
            4..=6 if !self.mine.is_empty() => {
                let (group, token) = self.mine.swap_remove(rng.index(self.mine.len()));
                let _ = self.table.release(&group, &token, None);
                self.past.push((group, token));
            }
            7 if !self.mine.is_empty() => {
                let at = rng.index(self.mine.len());
                let (group, token) = &self.mine[at];
                if self.table.heartbeat(group, token, None).is_err() {
                    self.mine.swap_remove(at);
                }
            }
            8 if !self.past.is_empty() => {
                // It holds nothing any more.
                let (group, token) = &self.past[rng.index(self.past.len())];
                let _ = self.table.heartbeat(group, token, None);
            }
            _ => {
                let key = Key::target(target(rng.between(1, TARGETS)));
                let _ = self.engine.view(&[key], None);
            }
        }
    }

    fn claim(&mut self, rng: &mut Rng, wait: Option<Duration>) {
        let size = rng.between(1, 3);
        let first = rng.between(1, TARGETS + 1 - size);
        let group = TargetGroup::from_numbers(first..first + size).expect("a group");
        let claim = Claim::by("worker").expect("a name");
        let claim = claim.ttl(Ttl::from_seconds(TTL_SECONDS).expect("a ttl"));
        let claim = match wait {
            Some(wait) => claim.wait(wait),
            None => claim,
        };
        if let Ok(lease) = self.table.claim(&group, &claim) {
            self.mine.push((group, lease.token().clone()));
        }
    }
}
