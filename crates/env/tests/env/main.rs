//! The world from outside: durable steps, the fault wrapper, the real file system, a second process.

#![expect(clippy::disallowed_methods, reason = "a test plays the disk and the other programs")]

#[cfg(test)]
mod fault;
#[cfg(test)]
mod process;
#[cfg(test)]
mod real;
#[cfg(test)]
mod steps;
