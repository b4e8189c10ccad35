//! The checks bite: every planted bug is noticed.

use ringfence_sim::canary;

#[test]
fn every_planted_bug_is_noticed() {
    let mut survivors = Vec::new();
    for canary in canary::all() {
        match canary.catch() {
            Some(seen) => println!("{} [{}] {seen}", canary.name, canary.part()),
            None => survivors.push(canary.name),
        }
    }
    assert_eq!(survivors, [] as [&str; 0]);
}
