//! The checks bite: every planted bug is noticed.

use ringfence_sim::canary::CANARIES;

#[test]
fn every_planted_bug_is_noticed() {
    let mut survivors = Vec::new();
    for canary in CANARIES {
        if canary.catch().is_none() {
            survivors.push(canary.name);
        }
    }
    assert_eq!(survivors, [] as [&str; 0]);
}
