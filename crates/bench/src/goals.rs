//! What the journal is to reach, and whether it did in this run.
//!
//! Each goal is a ratio of two figures of the same run, round by round; what was not measured together
//! is not judged.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::block::Block;
use crate::contender::Contender::{
    self, Etcd, F325, Floor, Journal, Lmdb, Postgres, Redis, Sqlite, SqliteFair,
};
use crate::report::{Figure, ratio};
use crate::run::Blocks;
use crate::stats::Spread;
use crate::work::Work::{
    self, Eight8, Eight64, Heartbeat, OneShot, Overlap8, Solo1, Solo8, Solo64, WakeUp,
};

/// One goal and what was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    what: String,
    limit: f64,
    /// Whether a figure must stay at or below it, or reach it.
    at_most: bool,
    measured: Spread,
    /// Whether the median does.
    met: bool,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { median, min, max } = self.measured;
        write!(
            f,
            "{:<7} {:<74} {} {:<6} {median:.3} [{min:.3} {max:.3}]",
            if self.met { "met" } else { "not met" },
            self.what,
            if self.at_most { "<=" } else { ">=" },
            // A third has no end.
            (self.limit * 1000.0).round() / 1000.0
        )
    }
}

/// Collects what can be judged.
struct Judge<'a> {
    blocks: &'a Blocks,
    goals: Vec<Goal>,
}

/// Every goal that this run can judge.
pub(crate) fn judge(blocks: &Blocks, slow_sync: Option<Duration>) -> Vec<Goal> {
    let mut judge = Judge { blocks, goals: Vec::new() };
    match slow_sync {
        None => judge.all(),
        // The goals on a slow disk are stated for this one.
        Some(slow) if slow == Duration::from_millis(2) => judge.slow(),
        Some(_) => {}
    }
    judge.goals
}

fn p50(block: &Block) -> f64 {
    block.p50
}

fn rate(block: &Block) -> f64 {
    block.rate
}

impl Judge<'_> {
    fn all(&mut self) {
        for (work, limit) in [(Solo64, 1.10), (Solo8, 1.05), (Solo1, 1.05)] {
            self.time(work, Floor, limit);
            self.own(work, "syncs per cycle", |block| block.syncs, limit_at_most(2.02));
        }
        for (peer, limit) in [(Sqlite, 0.70), (Postgres, 0.25), (Redis, 0.28), (Etcd, 0.11)] {
            self.time(Solo64, peer, limit);
        }
        self.rate(Eight8, Floor, 1.2);
        self.own(Eight8, "syncs per cycle", |block| block.syncs, limit_at_most(0.28));
        let fairness = |block: &Block| Some(block.fairness);
        self.own(Eight8, "fairness (slowest/fastest process)", fairness, limit_at_least(0.9));
        let peers = [
            (Sqlite, 6.0),
            (SqliteFair, 12.0),
            (Postgres, 3.0),
            (Redis, 2.5),
            (Lmdb, 8.0),
            (Etcd, 9.0),
        ];
        for (peer, limit) in peers {
            self.rate(Eight8, peer, limit);
        }
        self.worst(Eight8);
        for (peer, limit) in [(Sqlite, 8.0), (Postgres, 5.0)] {
            self.rate(Eight64, peer, limit);
        }
        for (peer, limit) in [(Postgres, 2.8), (Redis, 2.3)] {
            self.rate(Overlap8, peer, limit);
        }
        self.worst(Overlap8);
        let violations = |block: &Block| Some(block.violations as f64);
        self.own(Overlap8, "targets with two holders", violations, limit_at_most(0.0));
        self.own(Heartbeat, "syncs per call", |block| block.syncs, limit_at_most(1.0));
        self.time(Heartbeat, Floor, 3.0);
        self.own(WakeUp, "p99 in ms", |block| Some(block.p99), limit_at_most(2.0));
        self.own(OneShot, "p50 in ms", |block| Some(block.p50), limit_at_most(15.0));
        let faster = ratio(self.blocks, (Solo64, F325), (Solo64, Journal), (p50, p50));
        let what = format!("{}: times as fast as F325's batch on files", Solo64.title());
        self.add(what, limit_at_least(100.0), faster);
    }

    fn slow(&mut self) {
        // Eight processes that share every sync perfectly: eight cycles in the time of the floor's one.
        let perfect = |block: &Block| 8.0 * 1000.0 / block.p50;
        let share = ratio(self.blocks, (Eight8, Journal), (Solo8, Floor), (rate, perfect));
        let what =
            format!("{}, 2 ms added to every sync: share of perfect batching", Eight8.title());
        self.add(what, limit_at_least(0.9), share);
        self.rate(Eight8, Sqlite, 9.0);
    }

    /// The time of a cycle over that of `peer`.
    fn time(&mut self, work: Work, peer: Contender, limit: f64) {
        let measured = ratio(self.blocks, (work, Journal), (work, peer), (p50, p50));
        let what = format!("{}: time over {}", work.title(), peer.name());
        self.add(what, limit_at_most(limit), measured);
    }

    /// The rate over that of `peer`.
    fn rate(&mut self, work: Work, peer: Contender, limit: f64) {
        let measured = ratio(self.blocks, (work, Journal), (work, peer), (rate, rate));
        let what = format!("{}: rate over {}", work.title(), peer.name());
        self.add(what, limit_at_least(limit), measured);
    }

    /// The p99 of the process that had it worst, over the p99 of all of `PostgreSQL`'s.
    fn worst(&mut self, work: Work) {
        let figures: (Figure, Figure) = (|block| block.worst_p99, |block| block.p99);
        let measured = ratio(self.blocks, (work, Journal), (work, Postgres), figures);
        let what = format!("{}: worst process's p99 over p99 of postgres", work.title());
        self.add(what, limit_at_most(1.0 / 3.0), measured);
    }

    /// A figure of the journal alone.
    fn own(
        &mut self,
        work: Work,
        name: &str,
        figure: fn(&Block) -> Option<f64>,
        limit: (f64, bool),
    ) {
        let rounds = self.blocks.get(&(work, Journal));
        let measured = rounds.and_then(|rounds| Spread::of(rounds.values().filter_map(figure)));
        self.add(format!("{}: {name}", work.title()), limit, measured);
    }

    fn add(&mut self, what: String, (limit, at_most): (f64, bool), measured: Option<Spread>) {
        if let Some(measured) = measured {
            let met = if at_most { measured.median <= limit } else { measured.median >= limit };
            self.goals.push(Goal { what, limit, at_most, measured, met });
        }
    }
}

fn limit_at_most(limit: f64) -> (f64, bool) {
    (limit, true)
}

fn limit_at_least(limit: f64) -> (f64, bool) {
    (limit, false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The same figures in two rounds.
    fn blocks(of: &[(Work, Contender, Block)]) -> Blocks {
        let rounds = |block: Block| BTreeMap::from([(1, block), (2, block)]);
        of.iter().map(|&(work, who, block)| ((work, who), rounds(block))).collect()
    }

    fn block(p50: f64, rate: f64) -> Block {
        Block {
            rate,
            p10: p50,
            p50,
            p99: 2.0 * p50,
            worst_p99: 3.0 * p50,
            fairness: 1.0,
            syncs: Some(2.0),
            busy: 0.0,
            cycles: 100,
            timeouts: 0,
            violations: 0,
        }
    }

    fn verdict(goals: &[Goal], what: &str) -> Option<bool> {
        goals.iter().find(|goal| goal.what.contains(what)).map(|goal| goal.met)
    }

    #[test]
    fn a_goal_is_met_on_its_side_of_the_limit_only_and_what_was_not_measured_is_not_judged() {
        let solo = |time| [(Solo64, Floor, block(1.0, 1.0)), (Solo64, Journal, block(time, 1.0))];
        assert_eq!(verdict(&judge(&blocks(&solo(1.05)), None), "time over floor"), Some(true));
        assert_eq!(verdict(&judge(&blocks(&solo(1.15)), None), "time over floor"), Some(false));
        assert_eq!(verdict(&judge(&blocks(&solo(1.05)), None), "time over redis"), None);
        let eight =
            |rate| [(Eight8, Postgres, block(9.0, 100.0)), (Eight8, Journal, block(1.0, rate))];
        let (reached, missed) =
            (judge(&blocks(&eight(301.0)), None), judge(&blocks(&eight(299.0)), None));
        assert_eq!(verdict(&reached, "rate over postgres"), Some(true));
        assert_eq!(verdict(&missed, "rate over postgres"), Some(false));
        // 3 x 1 ms over 2 x 9 ms.
        assert_eq!(verdict(&reached, "p99 of postgres"), Some(true));
        assert_eq!(verdict(&reached, "syncs per cycle"), Some(false));
    }

    #[test]
    fn perfect_batching_is_eight_cycles_in_the_time_of_one() {
        let measured = |rate| {
            blocks(&[(Solo8, Floor, block(4.0, 250.0)), (Eight8, Journal, block(4.5, rate))])
        };
        let slow = Some(Duration::from_millis(2));
        let share = "share of perfect batching";
        assert_eq!(verdict(&judge(&measured(1801.0), slow), share), Some(true));
        assert_eq!(verdict(&judge(&measured(1799.0), slow), share), Some(false));
        assert_eq!(verdict(&judge(&measured(1801.0), None), share), None);
    }
}
