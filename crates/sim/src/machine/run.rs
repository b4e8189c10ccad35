//! Processes: who runs, who dies, who begins again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ringfence_env::World;

use super::{Core, Ending, Machine, State};

/// The panic payload of a process that was killed.
struct Killed;

impl Machine {
    /// Runs one process per closure until all have returned. A process that is killed begins its
    /// closure again after a while; the closure gets the number of its life.
    pub fn run(&self, procs: Vec<Box<dyn Fn(World, u32) + Send>>) -> Vec<Ending> {
        assert_eq!(procs.len(), self.0.turns.len(), "one closure per process");
        {
            let mut core = self.core();
            core.scheduled = true;
            core.current = core.pick(0);
        }
        let threads: Vec<_> = procs
            .into_iter()
            .enumerate()
            .map(|(proc, body)| {
                let machine = self.clone();
                thread::Builder::new()
                    .name(format!("sim-{proc}"))
                    .stack_size(1 << 20)
                    .spawn(move || machine.live(proc, &*body))
                    .expect("a thread")
            })
            .collect();
        let endings = threads.into_iter().map(|thread| thread.join().expect("caught")).collect();
        self.core().scheduled = false;
        endings
    }

    fn live(&self, proc: usize, body: &(dyn Fn(World, u32) + Send)) -> Ending {
        drop(self.wait_for_turn(proc, self.core()));
        loop {
            let life = {
                let mut core = self.core();
                core.procs[proc].doomed = false;
                core.procs[proc].life
            };
            let world = self.world(proc);
            let ended = catch_unwind(AssertUnwindSafe(|| body(world, life)));
            let mut core = self.core();
            core.free_locks(proc);
            let ending = match ended {
                Err(payload) if payload.is::<Killed>() => {
                    // At once, as all do when a host boots, or after a while.
                    let longest = [5_000, 20_000_000][core.rng.index(2)];
                    let delay = Duration::from_micros(core.rng.between(1, longest));
                    let again = core.now + delay;
                    let me = &mut core.procs[proc];
                    me.dead = false;
                    me.doomed = false;
                    me.life += 1;
                    me.awaits = None;
                    me.state = State::Until(again);
                    let next = core.pick(proc);
                    self.pass(&mut core, next);
                    drop(self.wait_for_turn(proc, core));
                    continue;
                }
                Err(payload) => Ending::Panicked(message(&*payload)),
                Ok(()) => Ending::Returned,
            };
            core.procs[proc].state = State::Finished;
            core.mix(&("end", proc));
            if core.procs.iter().any(|other| other.state != State::Finished) {
                let next = core.pick(proc);
                self.pass(&mut core, next);
            }
            return ending;
        }
    }

    fn pass(&self, core: &mut Core, next: usize) {
        core.current = next;
        self.0.turns[next].notify_one();
    }

    fn wait_for_turn<'a>(
        &'a self,
        proc: usize,
        core: MutexGuard<'a, Core>,
    ) -> MutexGuard<'a, Core> {
        let turn = &self.0.turns[proc];
        turn.wait_while(core, |core| core.current != proc).unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the baton on if the scheduler says so, and takes it back.
    pub(super) fn yield_turn<'a>(
        &'a self,
        proc: usize,
        mut core: MutexGuard<'a, Core>,
    ) -> MutexGuard<'a, Core> {
        let next = core.pick(proc);
        if next != proc {
            self.pass(&mut core, next);
            core = self.wait_for_turn(proc, core);
        }
        Self::die_if_doomed(proc, core)
    }

    pub(super) fn die_if_doomed(
        proc: usize,
        mut core: MutexGuard<'_, Core>,
    ) -> MutexGuard<'_, Core> {
        if !core.procs[proc].doomed {
            return core;
        }
        core.procs[proc].dead = true;
        core.free_locks(proc);
        drop(core);
        resume_unwind(Box::new(Killed))
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".into())
}
