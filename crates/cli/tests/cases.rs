//! `docs/cases.md` against the tests: what it names is there.

use std::path::Path;

const CASES: &str = include_str!("../../../docs/cases.md");

#[test]
fn every_test_that_the_table_of_cases_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut named = 0;
    for row in CASES.lines().filter(|line| line.starts_with("| B")) {
        let cell = row.split(" | ").last().unwrap();
        let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests {
            let (file, name) = test.split_once(' ').unwrap_or_else(|| panic!("{test}"));
            let source = std::fs::read_to_string(root.join("crates").join(file))
                .unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {name}(")), "{file} has no test {name}");
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}
