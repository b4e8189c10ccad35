//! How a command ends: one table for every verb.

use std::process::ExitCode;

/// An exit code, as `docs/cli.md` lists them.
#[must_use = "the exit code is the answer that scripts read"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    /// Done.
    pub(crate) const DONE: Self = Self(0);
    /// The command line is wrong; nothing was touched.
    pub(crate) const USAGE: Self = Self(64);
    /// A damaged record (or a damaged table) is in the way.
    pub(crate) const DAMAGED: Self = Self(65);
    /// The store is no table, or is not safe to use.
    pub(crate) const NO_TABLE: Self = Self(66);
    /// The directory cannot carry a table.
    pub(crate) const UNSUPPORTED: Self = Self(69);
    /// Somebody else holds part of the group; trying again later may help.
    pub(crate) const BUSY: Self = Self(75);
    /// The token does not hold the whole group; trying again does not help.
    pub(crate) const LOST: Self = Self(79);
    /// There was nothing to force-release.
    pub(crate) const NOT_HELD: Self = Self(80);
    /// Ringfence itself failed: the disk, the system, its own output.
    pub(crate) const FAILED: Self = Self(125);

    /// Ended by a signal, as a shell reports it.
    pub(crate) fn signal(number: i32) -> Self {
        Self(u8::try_from(number).map_or(u8::MAX, |number| number.saturating_add(128)))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        let docs = include_str!("../../../docs/cli.md");
        let all = [
            Exit::DONE,
            Exit::USAGE,
            Exit::DAMAGED,
            Exit::NO_TABLE,
            Exit::UNSUPPORTED,
            Exit::BUSY,
            Exit::LOST,
            Exit::NOT_HELD,
            Exit::FAILED,
        ];
        for Exit(code) in all {
            assert!(docs.contains(&format!("\n| {code} | ")), "{code}");
            assert!(crate::help::TOP.contains(&format!(" {code} ")), "{code}");
        }
    }

    #[test]
    fn a_signal_ends_a_command_with_128_and_its_number() {
        assert_eq!([2, 15, 1].map(Exit::signal), [Exit(130), Exit(143), Exit(129)]);
    }
}
