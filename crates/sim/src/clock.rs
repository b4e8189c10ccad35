//! Virtual clocks, and randomness from the seed.

use std::io;
use std::time::Duration;

use ringfence_env::{Clock, Entropy};

use crate::machine::Machine;

/// The clocks of one simulated host, as one of its processes reads them. Nothing really sleeps.
#[derive(Clone, Debug)]
pub struct SimClock {
    machine: Machine,
    proc: usize,
}

impl SimClock {
    pub(crate) fn new(machine: Machine, proc: usize) -> Self {
        Self { machine, proc }
    }
}

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        self.machine.wall()
    }

    fn boottime(&self) -> Duration {
        self.machine.boottime()
    }

    fn monotonic(&self) -> Duration {
        self.machine.monotonic()
    }

    fn sleep(&self, duration: Duration) {
        self.machine.sleep(self.proc, duration);
    }
}

/// Random bytes that the seed decides.
#[derive(Clone, Debug)]
pub struct SimEntropy(Machine);

impl SimEntropy {
    pub(crate) fn new(machine: Machine) -> Self {
        Self(machine)
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.fill(bytes);
        Ok(())
    }
}
