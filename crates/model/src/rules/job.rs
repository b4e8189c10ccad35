//! A group of targets and a work item in one step.
//!
//! The view is of the group's keys and the item's; both are changed or neither.

use super::holding::Lost;
use super::target::{self, ClaimRefused, ClaimRequest};
use super::work::{self, AbandonRefused, CompleteRefused, WorkClaim, WorkClaimRefused};
use crate::group::TargetGroup;
use crate::token::Token;
use crate::view::{Transition, View};

/// Grants the group and the item under one token, or neither.
pub fn claim_job(
    view: &View,
    group: &ClaimRequest,
    item: &WorkClaim,
) -> Result<Transition, JobRefused> {
    // The item first: one that is done makes the group pointless.
    let item = work::claim_work(view, item)?;
    Ok(target::claim(view, group)?.and(item))
}

/// Marks a committing item as published and gives the group up, both under exactly `token`.
///
/// Where this attempt's item was completed before, by whoever finished its commit, the group alone is
/// given up; where that is given up too, nothing is left to do.
pub fn complete_job(
    view: &View,
    group: &TargetGroup,
    token: &Token,
) -> Result<Transition, JobCompleteRefused> {
    match work::complete(view, token) {
        Ok(done) => Ok(target::release_among_others(view, group, token)?.and(done)),
        Err(CompleteRefused::Already) => match target::release_among_others(view, group, token) {
            Err(lost) if lost.members.len() == group.len() => Err(CompleteRefused::Already.into()),
            release => Ok(release?),
        },
        Err(refused) => Err(refused.into()),
    }
}

/// Removes the item's lease before the commit decision and gives the group up, both under exactly
/// `token`.
pub fn abandon_job(
    view: &View,
    group: &TargetGroup,
    token: &Token,
) -> Result<Transition, JobAbandonRefused> {
    let gone = work::abandon(view, token)?;
    Ok(target::release_among_others(view, group, token)?.and(gone))
}

/// Why a job was not granted; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobRefused {
    /// Somebody holds part of the group.
    #[error(transparent)]
    Group(#[from] ClaimRefused),
    /// The item is taken, being published, or done.
    #[error(transparent)]
    Work(#[from] WorkClaimRefused),
}

/// Why a job was not completed; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobCompleteRefused {
    /// The group is no longer held under this token.
    #[error(transparent)]
    Group(#[from] Lost),
    /// The item is not committing under this token.
    #[error(transparent)]
    Work(#[from] CompleteRefused),
}

/// Why a job was not given up; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobAbandonRefused {
    /// The group is no longer held under this token.
    #[error(transparent)]
    Group(#[from] Lost),
    /// The item is not leased under this token.
    #[error(transparent)]
    Work(#[from] AbandonRefused),
}
