//! A target group: what is claimed, renewed and released as one unit.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use crate::id::RecordId;
use crate::target::{Target, TargetError};

/// The most targets a group may hold.
pub const MAX_GROUP: usize = 64;

/// Between 1 and [`MAX_GROUP`] distinct targets, kept in record-id order.
///
/// Id order (not numeric order) is the order in which locks are taken, so that overlapping groups
/// cannot deadlock. The primary is the first target that the caller named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGroup {
    members: Arc<[(RecordId, Target)]>,
    primary: Target,
}

impl TargetGroup {
    /// Strict: an empty list, a repeated target or more than 64 targets is an error.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> Result<Self, GroupError> {
        let kept: Vec<Target> = targets.into_iter().collect();
        let mut sorted = kept.clone();
        sorted.sort_unstable();
        if sorted.array_windows().any(|[a, b]| a == b) {
            let mut seen = BTreeSet::new();
            if let Some(&again) = kept.iter().find(|target| !seen.insert(**target)) {
                return Err(GroupError::Repeated(again));
            }
        }
        if kept.len() > MAX_GROUP {
            return Err(GroupError::TooMany(kept.len()));
        }
        Self::from_distinct(kept)
    }

    /// Strict, from bare numbers: zero is an error as well.
    pub fn from_numbers(numbers: impl IntoIterator<Item = u64>) -> Result<Self, GroupError> {
        let targets: Result<Vec<_>, _> = numbers.into_iter().map(Target::new).collect();
        Self::new(targets?)
    }

    /// Lenient, as F325 normalises: drops what is not positive, drops repeats, keeps the first 64.
    ///
    /// What was dropped is returned, so that nobody believes in protection that is not there.
    pub fn normalize(numbers: impl IntoIterator<Item = i128>) -> Result<Normalized, GroupError> {
        let mut dropped = Vec::new();
        let mut seen = BTreeSet::new();
        let mut kept = Vec::new();
        for number in numbers {
            let Some(target) = u64::try_from(number).ok().and_then(|n| Target::new(n).ok()) else {
                dropped.push(Dropped::NotATarget(number));
                continue;
            };
            if !seen.insert(target) {
                dropped.push(Dropped::Repeated(target));
            } else if kept.len() == MAX_GROUP {
                dropped.push(Dropped::OverLimit(target));
            } else {
                kept.push(target);
            }
        }
        Ok(Normalized { group: Self::from_distinct(kept)?, dropped })
    }

    fn from_distinct(targets: Vec<Target>) -> Result<Self, GroupError> {
        let primary = *targets.first().ok_or(GroupError::Empty)?;
        let mut members: Vec<_> =
            targets.into_iter().map(|target| (RecordId::of_target(target), target)).collect();
        members.sort_unstable();
        Ok(Self { members: members.into(), primary })
    }

    /// Members with their record ids, in id order.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (RecordId, Target)> + '_ {
        self.members.iter().copied()
    }

    /// Targets in id order.
    pub fn targets(&self) -> impl ExactSizeIterator<Item = Target> + '_ {
        self.members.iter().map(|(_, target)| *target)
    }

    /// The target named first.
    pub fn primary(&self) -> Target {
        self.primary
    }

    /// How many targets there are, `1..=64`.
    #[expect(clippy::len_without_is_empty, reason = "a group is never empty")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether `target` is a member.
    pub fn contains(&self, target: Target) -> bool {
        self.targets().any(|member| member == target)
    }
}

impl FromStr for TargetGroup {
    type Err = GroupError;

    /// Reads `77,88,99`; strict.
    fn from_str(text: &str) -> Result<Self, GroupError> {
        if text.trim().is_empty() {
            return Err(GroupError::Empty);
        }
        let targets: Result<Vec<Target>, _> =
            text.split(',').map(|part| part.trim().parse()).collect();
        Self::new(targets?)
    }
}

/// A group made by [`TargetGroup::normalize`], with what it left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalized {
    /// The group that is protected.
    pub group: TargetGroup,
    /// The numbers that are *not* protected by it, in input order.
    pub dropped: Vec<Dropped>,
}

/// One number that normalisation left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dropped {
    /// Zero, negative, or over 64 bits.
    NotATarget(i128),
    /// Already in the group; protected all the same.
    Repeated(Target),
    /// The group was full: this target is not protected.
    OverLimit(Target),
}

/// Why a list of targets is no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// No target at all.
    #[error("a target group needs at least one target")]
    Empty,
    /// Over [`MAX_GROUP`].
    #[error("a target group holds at most {MAX_GROUP} targets, got {0}: claim several groups")]
    TooMany(usize),
    /// The same target twice.
    #[error("target {0} is named twice in one group")]
    Repeated(Target),
    /// A member is no target.
    #[error(transparent)]
    Target(#[from] TargetError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn t(number: u64) -> Target {
        Target::new(number).unwrap()
    }

    #[test]
    fn strict_groups_refuse_empty_repeated_zero_and_over_64() {
        assert_eq!(TargetGroup::from_numbers([]), Err(GroupError::Empty));
        assert_eq!(TargetGroup::from_numbers([1, 1, 2]), Err(GroupError::Repeated(t(1))));
        assert_eq!(TargetGroup::from_numbers([3, 0]), Err(TargetError::Zero.into()));
        assert_eq!(TargetGroup::from_numbers(1..=65), Err(GroupError::TooMany(65)));
        assert_eq!(TargetGroup::from_numbers(1..=64).unwrap().len(), 64);
        assert_eq!(" 5, 6".parse::<TargetGroup>().unwrap().primary(), t(5));
        assert!(matches!("5,,6".parse::<TargetGroup>(), Err(GroupError::Target(_))));
    }

    #[test]
    fn normalisation_keeps_the_first_64_positive_distinct_targets_and_says_what_it_dropped() {
        let done = TargetGroup::normalize([9, 0, -4, 9, i128::from(u64::MAX) + 1]).unwrap();
        assert_eq!(done.group, TargetGroup::from_numbers([9]).unwrap());
        assert_eq!(
            done.dropped,
            [
                Dropped::NotATarget(0),
                Dropped::NotATarget(-4),
                Dropped::Repeated(t(9)),
                Dropped::NotATarget(i128::from(u64::MAX) + 1),
            ]
        );
        let long = TargetGroup::normalize(1..=66).unwrap();
        assert_eq!(long.group, TargetGroup::from_numbers(1..=64).unwrap());
        assert_eq!(long.dropped, [Dropped::OverLimit(t(65)), Dropped::OverLimit(t(66))]);
        assert_eq!(TargetGroup::normalize([0, -1]), Err(GroupError::Empty));
    }

    proptest! {
        #[test]
        fn members_are_in_id_order_whatever_order_they_came_in(
            numbers in prop::collection::btree_set(1u64.., 1..=64), rotate in 0usize..64,
        ) {
            let mut shuffled: Vec<u64> = numbers.iter().copied().collect();
            let count = shuffled.len();
            shuffled.rotate_left(rotate % count);
            let group = TargetGroup::from_numbers(shuffled.iter().copied()).unwrap();
            let ids: Vec<_> = group.members().map(|(id, _)| id).collect();
            prop_assert!(ids.is_sorted());
            prop_assert_eq!(group.primary().get(), shuffled[0]);
            let back: BTreeSet<u64> = group.targets().map(Target::get).collect();
            prop_assert_eq!(back, numbers);
        }
    }
}
