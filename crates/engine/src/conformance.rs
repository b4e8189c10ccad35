//! The conformance suite: the contract E1 to E6 as checks that every engine passes.
//!
//! ```text
//! // crates/NAME/tests/conformance.rs
//! struct TempTable { .. }
//! impl ringfence_engine::conformance::Testbed for TempTable { .. }
//! ringfence_engine::conformance!(TempTable); // one #[test] per check, from the single list
//! ```
//! Each check makes a table of its own, so they run side by side.
//!
//! # What it does and does not show
//! The checks know an engine only through the trait and the testbed, so they hold for an engine
//! that locks before it decides and for one that decides first and starts over when it lost a race.
//! They show exclusion, wholeness, rising fences and the moment of decision over threads with
//! handles of their own. They do not pull the plug: power cuts, failing disks and killed processes
//! are each engine's own tests, because only it knows where it can fail.
//!
//! # A new check
//! Write `pub(super) fn name<T: Testbed>(bed: &T)` in the file of its theme and name it in
//! [`conformance_list!`](crate::conformance_list). A check that is not in the list does not compile.
//! Then break the engine of `tests/canaries.rs` in the way that the check is about: a check that
//! nothing can fail is none.

// An unlisted check is dead code.
#![deny(dead_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::wildcard_imports,
    reason = "a check fails by panicking; the kit is the language of the checks"
)]

mod damage;
mod durability;
mod each;
mod exclusion;
mod fence;
mod grant;
mod history;
mod kit;
mod linear;
mod moment;
mod refusal;
mod sight;
mod term;
mod work;

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use ringfence_model::Key;

use crate::traits::Engine;

/// The store under test. Making one makes an empty table; dropping it removes the table.
pub trait Testbed: Send + Sync + Sized + 'static {
    /// A new, empty table with between 2 and 64 target shards.
    fn new() -> Self;

    /// A handle that shares nothing with any earlier one but the store, as another process has it.
    fn engine(&self) -> Arc<dyn Engine>;

    /// A handle as the first process after a restart of the host has it: nothing counts but what is
    /// durable. Handles from before are not used again.
    fn reopen(&self) -> Arc<dyn Engine>;

    /// A handle in whose process the wall clock is `by` ahead; its other clocks are right.
    fn ahead(&self, by: Duration) -> Arc<dyn Engine>;

    /// Puts bytes that are no valid record under `key`, behind the engine's back; or says why the
    /// engine's form of storage cannot have a single damaged record.
    fn damage(&self, key: Key, bytes: &[u8]) -> Result<(), &'static str>;

    /// Everything that is stored, what no reader shows included, as comparable text. Left out is
    /// only what exclusion itself leaves behind, such as stable lock files.
    fn footprint(&self) -> String;
}

/// One check of the suite.
#[derive(Debug)]
pub struct Check<T> {
    /// `theme::sentence`.
    pub name: &'static str,
    body: fn(&T),
}

/// The longest that one check may take before it counts as hung.
pub const LIMIT: Duration = Duration::from_mins(5);

/// The single list of checks, by theme. Whoever needs it passes through here.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    (@tests [$testbed:ty] $($theme:ident { $($check:ident)* })*) => {
        $(mod $theme {
            #[allow(unused_imports, reason = "the testbed may be named by a full path")]
            use super::*;
            $(#[test]
            fn $check() {
                let name = concat!(stringify!($theme), "::", stringify!($check));
                $crate::conformance::run::<$testbed>(name);
            })*
        })*
    };
    (@table [$testbed:ty] $($theme:ident { $($check:ident)* })*) => {
        vec![$($($crate::conformance::Check {
            name: concat!(stringify!($theme), "::", stringify!($check)),
            body: $crate::conformance::$theme::$check::<$testbed>,
        },)*)*]
    };
    ($to:ident $testbed:ty) => {
        $crate::conformance_list! { @$to [$testbed]
            grant {
                a_group_of_any_size_is_granted_shown_and_released
                an_item_of_the_work_table_is_granted_shown_and_given_up
                every_member_has_the_token_that_the_grant_named
                a_released_group_starts_anew
                a_payload_of_64_kib_comes_back_to_the_byte
                a_full_group_may_carry_the_largest_payload
                names_in_any_script_come_back
                a_transition_may_leave_keys_as_they_are
                an_empty_transition_is_done_and_changes_nothing
                one_transition_may_span_both_tables
                whatever_was_stored_took_a_barrier
            }
            refusal {
                a_refused_claim_changes_nothing_wherever_the_conflict_is
                a_refused_release_changes_nothing_wherever_the_mismatch_is
                a_refused_heartbeat_changes_nothing
                a_refused_force_release_changes_nothing
                a_refused_work_verb_changes_nothing
                a_refusal_knows_every_holder_in_the_way
            }
            fence {
                fences_rise_over_release_and_take_over
                fences_rise_over_both_tables
                fences_rise_over_handles_in_turn
                fences_rise_over_reopening
                fences_rise_in_real_time_over_threads
                a_fence_is_above_every_fence_in_the_view
                a_fence_that_cannot_rise_is_a_failure_that_harms_nobody_else
                two_tokens_share_no_random_part
            }
            exclusion {
                one_of_two_overlapping_claims_is_granted
                leases_on_overlapping_groups_never_overlap
                no_increment_is_lost
                decide_never_sees_half_a_transition
                patience_is_kept_and_not_outlived
                patience_is_for_all_keys_together
                no_patience_is_enough_when_nobody_is_in_the_way
            }
            sight {
                decide_sees_what_the_last_transaction_wrote
                decide_sees_exactly_the_keys_asked_for
                unknown_keys_are_vacant_and_in_no_scan
                readers_see_what_was_acknowledged
                readers_change_nothing
                a_scan_is_in_key_order_and_of_one_table
                a_record_under_change_is_always_seen_whole
                a_scan_that_claims_one_instant_shows_one
                a_handle_knows_its_table
            }
            moment {
                a_given_now_replaces_every_clock
                a_lease_is_active_until_exactly_its_ttl
                the_ttl_of_the_record_rules
                a_record_without_ttl_has_the_ttl_of_the_table
                a_lease_runs_out_by_the_clocks_of_the_host
                a_forward_jump_of_the_wall_clock_steals_nothing
                the_moment_is_read_under_exclusion
            }
            term {
                a_heartbeat_gives_the_group_one_common_moment
                a_heartbeat_keeps_all_but_the_moment
                an_expired_group_that_nobody_took_may_be_renewed
                a_take_over_counts_attempts_and_steals
                a_superseded_token_can_do_nothing
                a_force_release_ends_exactly_what_was_named
            }
            damage {
                damage_is_shown_and_held
                damage_is_removed_by_its_digest_only
                damage_of_one_record_stops_no_other
            }
            each {
                every_unit_ends_by_its_own_rule
                outcomes_stand_in_the_order_of_the_request
                units_are_handled_in_shard_and_id_order
                a_unit_of_several_keys_is_whole
                grants_of_a_batch_have_fences_of_their_own
                a_batch_shares_its_barriers
                a_batch_that_stores_nothing_costs_nothing
                a_busy_unit_does_not_stop_the_rest
                after_a_failure_no_further_unit_is_begun
                an_acknowledged_batch_outlives_a_restart
                who_is_not_renewed_at_a_glance_is_decided_by_his_records
            }
            work {
                an_item_lives_from_leased_to_done
                a_generation_rises_with_every_claim_and_across_abandon
                a_committing_item_is_never_taken_over_by_time
                a_commit_decision_repeats_with_the_same_manifest_only
                a_late_result_is_refused
                done_items_are_pruned_by_their_age
                the_tables_are_apart
            }
            durability {
                whatever_was_acknowledged_outlives_a_restart
                a_full_group_with_the_largest_payload_outlives_a_restart
                what_was_removed_stays_removed
            }
            history {
                a_random_history_is_linearizable
            }
        }
    };
}

/// Expands to one `#[test]` per check of the suite, for the [`Testbed`] named.
#[macro_export]
macro_rules! conformance {
    ($testbed:ty) => {
        $crate::conformance_list! { tests $testbed }
    };
}

/// Every check, in the order of the list.
pub fn checks<T: Testbed>() -> Vec<Check<T>> {
    crate::conformance_list! { table T }
}

/// Runs the check named `name` on a new table.
///
/// # Panics
/// If the check fails, does not end within [`LIMIT`], or is not in the list.
pub fn run<T: Testbed>(name: &str) {
    let found = checks::<T>().into_iter().find(|check| check.name == name);
    let check = found.unwrap_or_else(|| panic!("{name} is not in the list"));
    if let Err(why) = check.verdict(LIMIT, T::new) {
        panic!("{name}: {why}");
    }
}

impl<T: Testbed> Check<T> {
    /// Runs the check on the table that `make` makes; a failed check says why, one that hangs is
    /// given up.
    pub fn verdict(
        &self,
        limit: Duration,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(), String> {
        let (body, (finished, wait)) = (self.body, channel());
        let thread = thread::spawn(move || {
            let bed = make();
            body(&bed);
            drop(bed);
            let _ = finished.send(());
        });
        match wait.recv_timeout(limit) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(format!("not finished after {limit:?}")),
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(()) => Err("ended without an answer".to_owned()),
                Err(panic) => Err(message(&*panic)),
            },
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked".to_owned())
}
