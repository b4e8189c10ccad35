//! Medians and spreads of small samples.

use serde::Serialize;

/// Five numbers of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// The middle; of an even number of values the mean of the two in the middle.
    pub(crate) median: f64,
    /// The tenth percentile: what it costs when nothing else runs.
    pub(crate) p10: f64,
    /// The value below or at which 95 % lie; of fewer than 20 values the largest.
    pub(crate) p95: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Sample {
    /// Sums a sample up; zeros for an empty one.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        // The smallest rank that covers the share, counted from zero.
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).saturating_sub(1);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(at(middle.saturating_sub(1)), at(middle))
        } else {
            at(middle)
        };
        Self { median, p10: at(rank(10)), p95: at(rank(95)), min: at(0), max: at(last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_values_have_their_fourth_as_median_and_their_largest_as_p95() {
        let sample = Sample::of(vec![7.0, 1.0, 3.0, 2.0, 6.0, 5.0, 4.0]);
        assert_eq!(sample, Sample { median: 4.0, p10: 1.0, p95: 7.0, min: 1.0, max: 7.0 });
    }

    #[test]
    fn a_hundred_values_have_their_ninety_fifth_as_p95() {
        let sample = Sample::of((1..=100).map(f64::from).collect());
        let hundred = Sample { median: 50.5, p10: 10.0, p95: 95.0, min: 1.0, max: 100.0 };
        assert_eq!(sample, hundred);
        assert_eq!(Sample::of(Vec::new()), Sample::default());
        let two = Sample { median: 2.0, p10: 2.0, p95: 2.0, min: 2.0, max: 2.0 };
        assert_eq!(Sample::of(vec![2.0]), two);
    }
}
