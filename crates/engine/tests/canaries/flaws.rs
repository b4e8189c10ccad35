//! Ways to break an engine, each with the check that notices.

macro_rules! canaries {
    ($($flaw:ident: $sentence:ident, by $check:literal;)*) => {
        /// One way to be broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Flaw {
            $($flaw,)*
        }

        $(
            #[test]
            fn $sentence() {
                crate::is_caught(Flaw::$flaw, $check);
            }
        )*

        /// Every flaw with the check that is there to notice it.
        pub(crate) const ALL: &[(Flaw, &str)] = &[$((Flaw::$flaw, $check)),*];
    };
}

canaries! {
    PartialGroup: a_group_stored_in_part_is_caught,
        by "grant::a_group_of_any_size_is_granted_shown_and_released";
    KeepsRemoved: a_release_that_removes_nothing_is_caught,
        by "grant::a_released_group_starts_anew";
    NoBarriers: a_store_without_a_barrier_is_caught,
        by "grant::whatever_was_stored_took_a_barrier";
    SmallRecords: a_limit_on_the_size_of_records_is_caught,
        by "grant::a_payload_of_64_kib_comes_back_to_the_byte";
    AsciiOnly: a_store_that_knows_only_ascii_is_caught,
        by "grant::names_in_any_script_come_back";
    EmptyIsRefused: an_empty_transition_taken_for_a_refusal_is_caught,
        by "grant::an_empty_transition_is_done_and_changes_nothing";
    OneTableAtATime: edits_of_only_one_table_are_caught,
        by "grant::one_transition_may_span_both_tables";
    RefusalWrites: a_refusal_that_writes_what_no_reader_shows_is_caught,
        by "refusal::a_refused_claim_changes_nothing_wherever_the_conflict_is";
    RefusalRenews: a_refusal_that_touches_a_record_is_caught,
        by "refusal::a_refused_heartbeat_changes_nothing";
    RefusalRemovesFirst: a_release_that_removes_before_it_is_refused_is_caught,
        by "refusal::a_refused_release_changes_nothing_wherever_the_mismatch_is";
    RefusalIsDone: a_refusal_reported_as_done_is_caught,
        by "refusal::a_refused_work_verb_changes_nothing";
    FenceForgotten: a_fence_reused_after_a_restart_is_caught,
        by "fence::fences_rise_over_reopening";
    FencePerHandle: fences_in_blocks_per_handle_are_caught,
        by "fence::fences_rise_over_handles_in_turn";
    FencePerTable: fences_counted_apart_for_the_two_tables_are_caught,
        by "fence::fences_rise_over_both_tables";
    FenceRaces: a_fence_counter_without_exclusion_is_caught,
        by "fence::fences_rise_in_real_time_over_threads";
    FenceBelowView: a_fence_below_one_in_the_view_is_caught,
        by "fence::a_fence_is_above_every_fence_in_the_view";
    FenceStuck: a_counter_stuck_for_all_by_one_record_is_caught,
        by "fence::a_fence_that_cannot_rise_is_a_failure_that_harms_nobody_else";
    SameNonce: a_token_without_a_random_part_is_caught,
        by "fence::two_tokens_share_no_random_part";
    NoExclusion: missing_exclusion_is_caught,
        by "exclusion::no_increment_is_lost";
    EarlyUnlock: exclusion_given_up_before_the_store_is_caught,
        by "exclusion::leases_on_overlapping_groups_never_overlap";
    FirstKeyOnly: exclusion_of_the_first_key_only_is_caught,
        by "exclusion::one_of_two_overlapping_claims_is_granted";
    WaitsForEver: a_wait_without_an_end_is_caught,
        by "exclusion::patience_is_kept_and_not_outlived";
    GivesUpAtOnce: a_wait_that_gives_up_at_once_is_caught,
        by "exclusion::patience_is_kept_and_not_outlived";
    PatiencePerKey: patience_with_each_key_anew_is_caught,
        by "exclusion::patience_is_for_all_keys_together";
    NoFirstTry: a_call_that_never_tries_without_patience_is_caught,
        by "exclusion::no_patience_is_enough_when_nobody_is_in_the_way";
    HalfView: a_view_pieced_together_before_exclusion_is_caught,
        by "exclusion::decide_never_sees_half_a_transition";
    StaleView: a_view_from_a_cache_is_caught,
        by "sight::decide_sees_what_the_last_transaction_wrote";
    StaleReaders: readers_with_a_cache_are_caught,
        by "sight::readers_see_what_was_acknowledged";
    ReaderWrites: a_reader_that_writes_is_caught,
        by "sight::readers_change_nothing";
    ScanMixesTables: a_scan_of_both_tables_is_caught,
        by "sight::a_scan_is_in_key_order_and_of_one_table";
    GapInReplace: a_record_that_is_absent_while_it_is_replaced_is_caught,
        by "sight::a_record_under_change_is_always_seen_whole";
    TornScan: a_scan_of_two_instants_that_claims_one_is_caught,
        by "sight::a_scan_that_claims_one_instant_shows_one";
    IdentityPerHandle: a_table_named_anew_by_each_handle_is_caught,
        by "sight::a_handle_knows_its_table";
    IgnoresNow: a_given_now_that_is_ignored_is_caught,
        by "moment::a_given_now_replaces_every_clock";
    TtlOfTheTable: a_ttl_that_is_not_stored_is_caught,
        by "moment::the_ttl_of_the_record_rules";
    WallOnly: trust_in_the_wall_clock_alone_is_caught,
        by "moment::a_forward_jump_of_the_wall_clock_steals_nothing";
    FrozenClock: a_clock_that_stands_still_is_caught,
        by "moment::a_lease_runs_out_by_the_clocks_of_the_host";
    EarlyMoment: a_moment_from_before_the_exclusion_is_caught,
        by "moment::the_moment_is_read_under_exclusion";
    ForgetsHistory: a_take_over_that_is_not_counted_is_caught,
        by "term::a_take_over_counts_attempts_and_steals";
    DamageIsVacant: damage_taken_for_a_free_record_is_caught,
        by "damage::damage_is_shown_and_held";
    DamageStays: damage_that_nothing_removes_is_caught,
        by "damage::damage_is_removed_by_its_digest_only";
    BatchAcknowledgesRefused: a_batch_that_acknowledges_a_refused_unit_is_caught,
        by "each::every_unit_ends_by_its_own_rule";
    OutcomesAsHandled: outcomes_in_the_order_of_handling_are_caught,
        by "each::outcomes_stand_in_the_order_of_the_request";
    BatchAsGiven: a_batch_handled_in_the_order_given_is_caught,
        by "each::units_are_handled_in_shard_and_id_order";
    BatchHasOneFence: a_batch_with_one_fence_for_all_is_caught,
        by "each::grants_of_a_batch_have_fences_of_their_own";
    BatchSharesNothing: a_batch_that_shares_no_barrier_is_caught,
        by "each::a_batch_shares_its_barriers";
    BatchAlwaysSyncs: a_batch_that_syncs_for_nothing_is_caught,
        by "each::a_batch_that_stores_nothing_costs_nothing";
    StopsAtBusy: a_batch_that_a_busy_unit_stops_is_caught,
        by "each::a_busy_unit_does_not_stop_the_rest";
    GoesOnAfterFailure: a_batch_that_goes_on_after_a_failure_is_caught,
        by "each::after_a_failure_no_further_unit_is_begun";
    BatchIsVolatile: a_batch_that_is_gone_after_a_restart_is_caught,
        by "each::an_acknowledged_batch_outlives_a_restart";
    RefusesAtAGlance: a_refusal_of_which_the_records_were_not_seen_is_caught,
        by "each::who_is_not_renewed_at_a_glance_is_decided_by_his_records";
    ForgetsLast: an_acknowledged_change_that_is_gone_after_a_restart_is_caught,
        by "durability::whatever_was_acknowledged_outlives_a_restart";
    RemovedReturns: a_removed_record_that_returns_after_a_restart_is_caught,
        by "durability::what_was_removed_stays_removed";
    CommitIsVolatile: a_commit_decision_that_is_not_stored_is_caught,
        by "work::a_commit_decision_repeats_with_the_same_manifest_only";
    GenerationByRecord: a_generation_that_starts_anew_is_caught,
        by "work::a_generation_rises_with_every_claim_and_across_abandon";
    LosesARace: a_rare_race_in_the_store_is_caught_by_the_history,
        by "history::a_random_history_is_linearizable";
}
