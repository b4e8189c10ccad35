//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::contender::Contender;
use crate::work::Work;

/// Measures the same claim and release on Ringfence and on its peers, in one run
#[derive(Parser, Clone, Debug)]
#[command(name = "ringfence-bench", version)]
pub(crate) struct Args {
    /// The contenders; by default all that this machine has. The floor always takes part
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_enum)]
    pub(crate) peer: Vec<Contender>,

    /// The kinds of work; by default all, with --slow-sync `solo8,eight8`
    #[arg(long, value_name = "WORK,..", value_delimiter = ',', value_enum)]
    pub(crate) work: Vec<Work>,

    /// Rounds: in each, every contender does every work once, in an order of its own
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// How long a contender does one work in one round
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Measures in this directory; by default in $TMPDIR, else in the current one. Nothing stays there
    #[arg(long, value_name = "DIR")]
    pub(crate) on: Option<PathBuf>,

    /// Measures on a journalled ext4 in an image that is made in DIR and removed; needs root
    #[arg(long)]
    pub(crate) ext4: bool,

    /// Makes every fsync and fdatasync take this much longer, as `2ms` or `500us`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) slow_sync: Option<Duration>,

    /// How long each round waits for a machine that is 70 % idle
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) idle_wait: Duration,

    /// How long all rounds together wait for it
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration)]
    pub(crate) idle_wait_in_all: Duration,

    /// Draws the order of each round, and the groups that overlap
    #[arg(long, value_name = "N", default_value_t = 325)]
    pub(crate) seed: u64,

    /// One short round of everything, to see whether it works; its figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,

    /// Answers with one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// What to do: for the processes that this one starts
    #[arg(long, hide = true)]
    pub(crate) worker: Option<String>,

    /// The image to mount: for the process that --ext4 starts in a mount namespace of its own
    #[arg(long, hide = true, requires = "mount_point")]
    pub(crate) image: Option<PathBuf>,

    /// Where to mount it
    #[arg(long, hide = true)]
    pub(crate) mount_point: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 60.0 => Ok(seconds),
        _ => Err("more than 0 and at most 60 seconds".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a number with us, ms or s behind it".to_owned();
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let (number, micros) = units
        .into_iter()
        .find_map(|(unit, micros)| Some((text.strip_suffix(unit)?, micros)))
        .ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    Ok(Duration::from_micros(number.checked_mul(micros).ok_or_else(wrong)?))
}

impl Args {
    /// The contenders asked for, the floor first.
    pub(crate) fn contenders(&self) -> Vec<Contender> {
        let wanted = |contender: &Contender| {
            let chosen = self.peer.is_empty() || self.peer.contains(contender);
            // What cannot be made slow has no place beside what was.
            let comparable = self.slow_sync.is_none() || contender.can_be_preloaded();
            *contender == Contender::Floor || (chosen && comparable)
        };
        Contender::ALL.into_iter().filter(wanted).collect()
    }

    /// The works asked for, in the order of the report.
    pub(crate) fn works(&self) -> Vec<Work> {
        let default =
            |work: &Work| self.slow_sync.is_none() || [Work::Solo8, Work::Eight8].contains(work);
        let wanted = |work: &Work| {
            if self.work.is_empty() { default(work) } else { self.work.contains(work) }
        };
        Work::ALL.into_iter().filter(wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(duration("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert!(duration("2").is_err() && duration("s").is_err() && duration("-1s").is_err());
    }

    #[test]
    fn the_floor_always_takes_part_and_a_slow_disk_gets_the_works_it_is_for() {
        let args = Args::parse_from(["bench", "--peer", "lmdb,journal", "--slow-sync", "2ms"]);
        let chosen = [Contender::Floor, Contender::Journal, Contender::Lmdb];
        assert_eq!(args.contenders(), chosen);
        assert_eq!(args.works(), [Work::Solo8, Work::Eight8]);
        let args = Args::parse_from(["bench"]);
        assert_eq!(
            (args.contenders().len(), args.works().len()),
            (Contender::ALL.len(), Work::ALL.len())
        );
    }
}
