//! Counting what test programs say of themselves.

use std::fmt;
use std::ops::AddAssign;

/// How many tests passed and how many did not. Displayed, it is the closing line of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests and checks that ran and were content.
    pub(crate) passed: u64,
    /// Those that were not, and those that were skipped: a test that did not run proves nothing.
    pub(crate) failed: u64,
}

impl Tally {
    /// One check that passed.
    pub(crate) const PASS: Self = Self { passed: 1, failed: 0 };

    /// One check that failed.
    pub(crate) const FAIL: Self = Self { passed: 0, failed: 1 };

    /// Whether nothing failed and something ran.
    pub(crate) fn is_success(self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// Makes the count agree with the program's exit status.
    ///
    /// A program that stopped before it could count (it did not compile, or was killed) and a
    /// program that ran nothing at all are one failure each.
    pub(crate) fn checked(mut self, exited_well: bool) -> Self {
        if self.failed == 0 && (!exited_well || self.passed == 0) {
            self.failed = 1;
        }
        self
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Sums the result lines of Rust's test harness in `output`; ignored tests count as failed.
///
/// A result line reads `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; ..`.
pub(crate) fn libtest(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines() {
        let Some(result) = line.trim_start().strip_prefix("test result: ") else {
            continue;
        };
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split(';') {
            let mut words = count.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<u64>().ok());
            match (number, words.next()) {
                (Some(number), Some("passed")) => tally.passed += number,
                (Some(number), Some("failed" | "ignored")) => tally.failed += number,
                _ => {}
            }
        }
    }
    tally
}

/// Sums the closing lines of Python's `unittest` in `output`; skipped tests count as failed.
///
/// It says `Ran 5 tests in 0.1s` and then `OK`, or `FAILED (failures=1, errors=1, skipped=1)`.
/// An expected failure is a pass that was asked for.
pub(crate) fn unittest(output: &str) -> Tally {
    let mut tally = Tally::default();
    let mut ran = 0_u64;
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("Ran ") {
            let number = rest.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            ran = number.unwrap_or(0);
        } else if line == "OK" || line.starts_with("OK (") || line.starts_with("FAILED (") {
            let failed = failed_in_unittest_verdict(line);
            tally += Tally { passed: ran.saturating_sub(failed), failed };
            ran = 0;
        }
    }
    tally
}

fn failed_in_unittest_verdict(line: &str) -> u64 {
    let Some((_, counts)) = line.trim_end_matches(')').split_once('(') else {
        return 0;
    };
    let mut failed = 0;
    for count in counts.split(", ") {
        if let Some((what, number)) = count.split_once('=')
            && what != "expected failures"
        {
            failed += number.parse::<u64>().unwrap_or(1);
        }
    }
    failed
}

/// Counts the rows of the simulator's tables in `output`; a row in which something is wrong has failed.
///
/// A case reads `Group: Claim 2/1 POINTS STATES .. WRONG SECONDS`, random runs `Group: seeds 1..9: ..,
/// 0 wrong, 1.0 s`.
pub(crate) fn simulator(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines() {
        let Some(row) =
            ["Group: ", "Record: ", "Journal: "].iter().find_map(|mode| line.strip_prefix(mode))
        else {
            continue;
        };
        let passed = if row.starts_with("seeds ") {
            row.contains(", 0 wrong, ")
        } else {
            let mut words = row.split_whitespace().rev();
            let seconds = words.next().and_then(|word| word.parse::<f64>().ok());
            let wrong = words.next().and_then(|word| word.parse::<u64>().ok());
            // Neither the heading nor the sum is a case.
            let (Some(_), Some(wrong)) = (seconds, wrong) else { continue };
            if row.starts_with("all ") {
                continue;
            }
            wrong == 0
        };
        tally += if passed { Tally::PASS } else { Tally::FAIL };
    }
    tally
}

/// Counts the rows of the crash tools' table in `output`; one with a violation, or with a planted bug
/// that was not noticed, has failed.
///
/// A row reads `soak xfs power cuts, group STATES DISTINCT VIOLATIONS CAUGHT/PLANTED SECONDS`.
pub(crate) fn crash(output: &str) -> Tally {
    let mut tally = Tally::default();
    let table = output.lines().skip_while(|line| !line.starts_with("LAYER ")).skip(1);
    for line in
        table.take_while(|line| !line.starts_with("all passed") && !line.starts_with("FAILED"))
    {
        if line.starts_with(' ') {
            continue;
        }
        let mut words = line.split_whitespace().rev().skip(1);
        let mutants = words.next().unwrap_or_default();
        let violations = words.next().unwrap_or_default();
        let noticed = mutants == "-"
            || mutants.split_once('/').is_some_and(|(caught, planted)| caught == planted);
        tally += if noticed && violations == "0" { Tally::PASS } else { Tally::FAIL };
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_exactly_this_form() {
        let tally = Tally { passed: 120, failed: 0 };
        assert_eq!(tally.to_string(), "120 passed, 0 failed");
        assert_eq!(Tally::FAIL.to_string(), "0 passed, 1 failed");
    }

    #[test]
    fn result_lines_of_several_binaries_are_summed() {
        let output = "\
running 2 tests
test a ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

test result: FAILED. 40 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.2s
";
        assert_eq!(libtest(output), Tally { passed: 42, failed: 3 });
    }

    #[test]
    fn an_ignored_test_counts_as_failed() {
        let output = "test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 5 filtered out";
        assert_eq!(libtest(output), Tally { passed: 1, failed: 2 });
    }

    #[test]
    fn lines_that_only_speak_of_results_are_not_counted() {
        let output = "println: the test result: ok. 9 passed; 0 failed\ntest result:\n";
        assert_eq!(libtest(output), Tally::default());
    }

    #[test]
    fn unittest_passes_are_what_ran_less_what_failed() {
        let output = "....\nRan 4 tests in 0.001s\n\nOK\n";
        assert_eq!(unittest(output), Tally { passed: 4, failed: 0 });
        let output = "Ran 9 tests in 1s\n\nFAILED (failures=1, errors=2, skipped=1)\n";
        assert_eq!(unittest(output), Tally { passed: 5, failed: 4 });
    }

    #[test]
    fn a_skipped_unittest_counts_as_failed_and_an_expected_failure_does_not() {
        let output = "Ran 3 tests in 0.1s\n\nOK (skipped=1, expected failures=1)\n";
        assert_eq!(unittest(output), Tally { passed: 2, failed: 1 });
        let output = "Ran 3 tests in 0.1s\n\nFAILED (unexpected successes=1)\n";
        assert_eq!(unittest(output), Tally { passed: 2, failed: 1 });
    }

    #[test]
    fn a_case_of_the_simulator_passes_when_nothing_is_wrong_in_it() {
        let output = "\
Group: case                    points    states   2nd cut  distinct sampled  kills retries  wrong     s
Group: Claim 2/2                   12       200       300       100       1      2       3      0   0.4
Group: Init 2/2                    12       200       300       100       1      2       3      2   0.4
Group: all                         24       400       600       200       2      4       6      2   0.8
WRONG Init 2/2: 3
Record: seeds 1..9: 8 runs, 90 calls, 3 of them unknown, 0 undecided, 0 wrong, 1.0 s
Record: seeds 9..11: 2 runs, 90 calls, 3 of them unknown, 0 undecided, 1 wrong, 1.0 s
";
        assert_eq!(simulator(output), Tally { passed: 2, failed: 2 });
    }

    #[test]
    fn a_row_of_the_crash_tools_passes_without_violation_and_with_every_bug_noticed() {
        let output = "\
soak      ext4    power cuts, group                 32        30          0         -      3.3
LAYER     FS      WORKLOAD                      STATES  DISTINCT VIOLATIONS   MUTANTS  SECONDS
soak      ext4    power cuts, group                 32        30          0         -      3.3
  - 30 rounds
soak      xfs     power cuts, group                 32        30          1         -      3.3
  ! record 1 is gone
mutants   weakfs  each sync dropped, group          32        30          0     30/30      3.3
mutants   weakfs  each sync dropped, record         32        30          0     29/30      3.3
FAILED                                             128       120          1     59/60     13.2
";
        assert_eq!(crash(output), Tally { passed: 2, failed: 2 });
        assert_eq!(crash("failed: no room"), Tally::default());
    }

    #[test]
    fn a_program_that_died_or_ran_nothing_is_one_failure() {
        let two = Tally { passed: 2, failed: 0 };
        assert_eq!(two.checked(true), two);
        assert_eq!(two.checked(false), Tally { passed: 2, failed: 1 });
        assert_eq!(Tally::default().checked(true), Tally::FAIL);
        assert_eq!(Tally::default().checked(false), Tally::FAIL);
        let counted = Tally { passed: 2, failed: 3 };
        assert_eq!(counted.checked(false), counted);
    }

    #[test]
    fn a_run_that_checked_nothing_is_no_success() {
        assert!(!Tally::default().is_success());
        assert!(Tally::PASS.is_success());
        assert!(!Tally { passed: 9, failed: 1 }.is_success());
    }
}
