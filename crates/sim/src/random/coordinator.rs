//! One coordinator: what it calls, and what it remembers in its next life.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ringfence_env::World;
use ringfence_model::{Key, Token, WorkStatus};

use super::{Held, ITEMS, Jobs, Plan, Shared};
use crate::history::{Caller, Fate, History, State};
use crate::machine::Machine;
use crate::rng::Rng;
use crate::subject::{Table, large};
use crate::verbs::{Verbs, group, keys, manifest, request, work};

/// How often in a row a coordinator tries to open the table.
const OPENS: u64 = 100;

/// A checkpoint with two such payloads is larger than a segment.
const LARGE_BYTES: usize = 31_000;

/// A simulated process.
pub(super) struct Coordinator {
    pub(super) plan: Plan,
    pub(super) machine: Machine,
    pub(super) history: History,
    pub(super) shared: Arc<Shared>,
    pub(super) proc: usize,
}

impl Coordinator {
    pub(super) fn live(&self, world: &World, life: u32) {
        let mut rng = Rng::new(self.plan.seed).fork(1000 + self.proc as u64 * 64 + u64::from(life));
        let world = self.plan.setup.spoil(world.clone(), self.proc);
        let Some(engine) = self.open(&world, &mut rng) else { return };
        // Half of those that restart remember what they held: zombies, or careful ones.
        if rng.chance(500_000) {
            self.held(Held::clear);
            self.jobs(Jobs::clear);
        }
        let name = format!("c{}", self.proc);
        while self.has_calls_left() {
            let caller = Caller {
                machine: &self.machine,
                proc: self.proc,
                history: &self.history,
                engine: &*engine,
                patience: self.plan.patience,
            };
            let verbs = Verbs { caller, name: &name, wrong: self.plan.setup.wrong };
            self.one_call(&verbs, &world, &mut rng);
            world.clock.sleep(Duration::from_micros(rng.below(3_000_000)));
        }
    }

    fn has_calls_left(&self) -> bool {
        let left = &self.shared.left[self.proc];
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn open(&self, world: &World, rng: &mut Rng) -> Option<Box<dyn Table>> {
        let unopened = &self.shared.unopened[self.proc];
        while unopened.fetch_add(1, Ordering::Relaxed) < OPENS {
            match self.plan.setup.open(world) {
                Ok(engine) => {
                    unopened.store(0, Ordering::Relaxed);
                    return Some(engine);
                }
                Err(_) => world.clock.sleep(Duration::from_millis(rng.between(1, 2000))),
            }
        }
        None
    }

    fn held<T>(&self, see: impl FnOnce(&mut Held) -> T) -> T {
        see(&mut self.shared.held[self.proc].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn jobs<T>(&self, see: impl FnOnce(&mut Jobs) -> T) -> T {
        see(&mut self.shared.jobs[self.proc].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn some_group(&self, rng: &mut Rng) -> Vec<u64> {
        let mut numbers: Vec<u64> = (1..=self.plan.targets).collect();
        if self.plan.whole_groups {
            return numbers;
        }
        let len = 1 + rng.index(numbers.len().min(4));
        (0..len).map(|_| numbers.swap_remove(rng.index(numbers.len()))).collect()
    }

    fn one_call(&self, verbs: &Verbs<'_>, world: &World, rng: &mut Rng) {
        let one = self.held(|held| {
            let index = (!held.is_empty()).then(|| rng.index(held.len()));
            index.map(|index| held[index].clone())
        });
        // A group that is half done is worth a look.
        if self.plan.chaos.hunt_rate > 0 && self.machine.has_unfinished() && rng.chance(500_000) {
            return self.look(verbs);
        }
        if self.plan.jobs && rng.chance(400_000) {
            return self.job(verbs, rng);
        }
        match (rng.below(100), one) {
            (0..=24, _) | (25..=74, None) => self.claim(verbs, world, rng),
            (25..=39, Some((group, token))) => {
                if verbs.heartbeat(&group, &token).fate == Fate::Refused {
                    self.forget(&token);
                }
            }
            (40..=49, _) => {
                // Units of one batch must not share a record: each would wait for the other.
                let mut batch: Held = Vec::new();
                for (group, token) in self.held(|held| held.clone()) {
                    let mine = keys(&group);
                    if !batch.iter().any(|(other, _)| keys(other).iter().any(|k| mine.contains(k)))
                    {
                        batch.push((group, token));
                    }
                }
                let fates = verbs.heartbeat_each(&batch);
                for ((_, token), fate) in batch.iter().zip(fates) {
                    if fate == Fate::Refused {
                        self.forget(token);
                    }
                }
            }
            (50..=68, Some((group, token))) => {
                let fate = verbs.release(&group, &token).fate;
                if matches!(fate, Fate::Done | Fate::Refused) {
                    self.forget(&token);
                }
            }
            (69..=74, Some((group, token))) => {
                let _ = verbs.force_release(&group, &token);
            }
            (75..=79, _) => self.look(verbs),
            _ => self.work(verbs, rng),
        }
    }

    fn forget(&self, token: &Token) {
        self.held(|held| held.retain(|(_, mine)| mine != token));
    }

    fn claim(&self, verbs: &Verbs<'_>, world: &World, rng: &mut Rng) {
        let numbers = self.some_group(rng);
        let seconds = [1.0, 3.0, 10.0, 30.0][rng.index(4)];
        let mut asked = request(verbs.name, &numbers, seconds);
        if self.plan.large && rng.chance(750_000) {
            asked.payload = large(LARGE_BYTES);
        }
        let tries = if rng.chance(300_000) { rng.between(2, 12) } else { 1 };
        for _ in 0..tries {
            let answer = verbs.claim(&asked);
            if let Some(token) = answer.token {
                self.held(|held| held.push((group(&numbers), token)));
                if !self.plan.chaos.is_calm() && rng.chance(80_000) {
                    // A slow one: it wakes up long after its lease, and goes on as if it had it.
                    world.clock.sleep(Duration::from_secs_f64(seconds * 2.0));
                }
                return;
            }
            world.clock.sleep(Duration::from_millis(rng.between(20, 2000)));
        }
    }

    fn look(&self, verbs: &Verbs<'_>) {
        let numbers: Vec<u64> = (1..=self.plan.targets).collect();
        self.machine.set_reading(self.proc, true);
        let view = verbs.caller.engine.view(&keys(&group(&numbers)), None);
        self.machine.set_reading(self.proc, false);
        if let Ok(view) = view {
            for (key, entry) in &view.entries {
                if let Some(damage) = State::seen(entry).damage {
                    let what = format!("a reader sees a torn record {key:?}: {damage}");
                    self.shared.damage.lock().unwrap_or_else(PoisonError::into_inner).push(what);
                }
            }
        }
    }

    /// The item's token, or now and then one that it had before: a zombie's.
    fn token_of(&self, key: Key, token: Token, rng: &mut Rng) -> Token {
        let mut stale = self.shared.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if !stale.iter().any(|(_, known)| *known == token) {
            stale.push((key, token.clone()));
        }
        let mine: Vec<_> = stale.iter().filter(|(of, _)| *of == key).collect();
        if rng.chance(150_000) { mine[rng.index(mine.len())].1.clone() } else { token }
    }

    /// Takes a group and an item as one, or goes on with those it has. Whoever else goes on with the item
    /// ([`Self::work`]) may have done so before.
    fn job(&self, verbs: &Verbs<'_>, rng: &mut Rng) {
        let one = self.jobs(|jobs| {
            let index = (!jobs.is_empty()).then(|| rng.index(jobs.len()));
            index.map(|index| jobs[index].clone())
        });
        let Some((held, item, token)) = one.filter(|_| !rng.chance(250_000)) else {
            let numbers = self.some_group(rng);
            let seconds = [4.0, 30.0, 100.0][rng.index(3)];
            let asked = work(verbs.name, rng.below(ITEMS), seconds);
            let answer = verbs.claim_job(&request(verbs.name, &numbers, seconds), &asked);
            if let Some(token) = answer.token {
                self.jobs(|jobs| jobs.push((group(&numbers), Key::work(asked.id()), token)));
            }
            return;
        };
        let Ok(view) = verbs.caller.engine.view(&[item], None) else { return };
        let status = State::seen(&view.entries[0].1).status;
        let fate = match (rng.below(10), status) {
            (0, _) => return drop(verbs.heartbeat(&held, &token)),
            (1, _) => return drop(verbs.heartbeat_work(item, &token)),
            (2, _) | (4, Some(WorkStatus::Leased)) => verbs.abandon_job(&held, item, &token).fate,
            (3, _) | (5..=8, Some(WorkStatus::Leased)) => {
                return drop(verbs.begin_commit(item, &token, &manifest(1)));
            }
            // As somebody who finishes what a dead one left, while this one lives.
            (4 | 5, Some(WorkStatus::Committing)) => return drop(verbs.complete(item, &token)),
            _ => verbs.complete_job(&held, item, &token).fate,
        };
        // A refusal may mean that it is not committing yet; after a failure it is tried again.
        if fate == Fate::Done || (fate == Fate::Refused && rng.chance(200_000)) {
            self.jobs(|jobs| jobs.retain(|(_, _, mine)| *mine != token));
        }
    }

    /// Goes on with an item wherever it stands, as any coordinator may.
    fn work(&self, verbs: &Verbs<'_>, rng: &mut Rng) {
        let asked = work(verbs.name, rng.below(ITEMS), [2.0, 8.0][rng.index(2)]);
        let key = Key::work(asked.id());
        let Ok(view) = verbs.caller.engine.view(&[key], None) else { return };
        let state = State::seen(&view.entries[0].1);
        let token = state.token.clone().map(|token| self.token_of(key, token, rng));
        match (state.status, token, rng.below(6)) {
            (Some(WorkStatus::Leased), Some(token), 0) => drop(verbs.heartbeat_work(key, &token)),
            (Some(WorkStatus::Leased), Some(token), 1) => drop(verbs.abandon(key, &token)),
            // Also a second time: whoever takes over cannot know that it was decided.
            (Some(WorkStatus::Leased), Some(token), 2 | 3)
            | (Some(WorkStatus::Committing), Some(token), 0) => {
                drop(verbs.begin_commit(key, &token, &manifest(1)));
            }
            (Some(WorkStatus::Committing), Some(token), _) => drop(verbs.complete(key, &token)),
            _ => drop(verbs.claim_work(&asked)),
        }
    }
}
