//! The rules: pure functions from a [`View`] to a [`Transition`] or a typed refusal.
//!
//! 1. A group is granted whole or not at all; a refusal carries no transition.
//! 2. A target is granted only if it is vacant or its lease has run out by every clock at hand.
//! 3. A damaged record is held: only force-release, naming its exact bytes, removes it.
//! 4. A heartbeat, a release or a commit needs every record under exactly the caller's token.
//! 5. A committing work item is never taken over by time.
//!
//! Every rule looks at all members before it answers, so a refusal names everything in the way.
//!
//! [`View`]: crate::View
//! [`Transition`]: crate::Transition

mod force;
mod holding;
mod job;
mod target;
mod work;

pub use force::{ForceRefused, force_release, force_release_work};
pub use holding::{Conflict, DamagedMember, Holding, Lost, LostMember};
pub use job::{
    JobAbandonRefused, JobCompleteRefused, JobRefused, abandon_job, claim_job, complete_job,
};
pub use target::{ClaimRefused, ClaimRequest, claim, give_back, heartbeat, release, renew};
pub use work::{
    AbandonRefused, BeginCommitRefused, CompleteRefused, WorkClaim, WorkClaimRefused, WorkStale,
    abandon, begin_commit, claim_work, complete, heartbeat_work, prune_done,
};

#[cfg(test)]
mod tests;
