//! Medians, percentiles and spreads.

use serde::Serialize;

/// The middle of what the rounds gave, and how far they lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The middle; of an even number of values the mean of the two in the middle.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Spread {
    /// Sums up; nothing for no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }
}

/// The smallest value that covers `percent` of the sorted `values`; nothing for none.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_of_values_has_the_mean_of_two_as_median() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        let one = Spread::of([7.0, f64::NAN, f64::INFINITY]).unwrap();
        assert_eq!(one, Spread { median: 7.0, min: 7.0, max: 7.0 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!((percentile(&values, 50), percentile(&values, 99)), (Some(100), Some(198)));
        assert_eq!((percentile(&[5], 99), percentile(&[], 50)), (Some(5), None));
    }
}
