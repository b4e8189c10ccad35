//! Canonical JSON against the real `python3`, whose form the other programs of a table write.

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use ringfence_model::json::{canonicalize, write_string};
use ringfence_model::{RecordId, ShardCount, Target};

/// JSON text of any shape, spelled in ways that are not canonical.
pub(crate) fn any_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        any_number(),
        any_string(),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..6), any_space())
                .prop_map(|(items, gap)| format!("[{gap}{}{gap}]", items.join(&format!("{gap},")))),
            any_object_of(inner),
        ]
    })
}

/// The text of a JSON object.
pub(crate) fn any_object() -> impl Strategy<Value = String> {
    any_object_of(any_value())
}

fn any_object_of(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (prop::collection::vec((any_string(), value), 0..6), any_space()).prop_map(|(pairs, gap)| {
        let pairs: Vec<String> =
            pairs.into_iter().map(|(key, value)| format!("{key}{gap}:{gap}{value}")).collect();
        format!("{{{gap}{}{gap}}}", pairs.join(&format!("{gap},{gap}")))
    })
}

fn any_space() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just(" "), Just("\t"), Just("\r "), Just("  ")]
}

fn any_number() -> impl Strategy<Value = String> {
    let float = any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |x| x.is_finite());
    let seconds = (0.0..4e9).prop_map(|x: f64| x);
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        "-?[1-9][0-9]{18,80}",
        Just("-0".to_owned()),
        Just("-0.0".to_owned()),
        "-?(0|[1-9][0-9]{0,20})\\.[0-9]{1,25}([eE][+-]?[0-9]{1,2})?",
        float.clone().prop_map(|x| format!("{x:?}")),
        float.clone().prop_map(|x| format!("{x:e}")),
        float.prop_map(|x| format!("{x:.17E}")),
        seconds.prop_map(|x| format!("{x}")).prop_filter("a float", |text| text.contains('.')),
    ]
}

/// A quoted string, its characters escaped or as they are.
fn any_string() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        any::<String>(),
        "[a-z_]{1,8}",
        prop::collection::vec(
            prop_oneof![
                any::<char>(),
                prop::char::range('\0', '\u{a0}'),
                prop::char::range('\u{d7f0}', '\u{e010}'),
                prop::char::range('\u{fff0}', '\u{1000f}'),
            ],
            0..12,
        )
        .prop_map(String::from_iter),
    ];
    (text, any::<bool>()).prop_map(|(text, escaped)| {
        if escaped {
            let mut out = String::new();
            write_string(&mut out, &text);
            out
        } else {
            serde_json::to_string(&text).unwrap()
        }
    })
}

/// Runs `python3` on `input`, one JSON text a line; it must be there.
fn python(input: &str) -> String {
    let mut child = Command::new("python3")
        .args(["-I", "-X", "utf8", "-c", include_str!("canonical.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs python3 on the PATH: it is the reference, so there is no skip");
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A thread of its own: both pipes may fill.
        scope.spawn(move || stdin.write_all(input.as_bytes()).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "python3 failed: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn canonical_json_ids_and_shards_agree_with_python3() {
    let mut runner = TestRunner::deterministic();
    let mut draw = |strategy: &BoxedStrategy<String>| strategy.new_tree(&mut runner).unwrap();
    let (values, objects) = (any_value().boxed(), any_object().boxed());
    let mut texts: Vec<String> = (0..300).map(|_| draw(&values).current()).collect();
    texts.extend((0..300).map(|_| draw(&objects).current()));
    texts.extend(
        [
            // UTF-16 order, in which other languages sort, would put the second key first.
            "{\"\u{10000}\":1,\"\u{ffff}\":2,\"\u{e000}\":3,\"\u{d7ff}\":4}",
            r#"{"\ud83d\ude00":1,"\uffff":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            "[1e16,9999999999999998.0,1e-4,0.00001,123456789012345680.0,1e22,1e23,5e-324]",
            "[2.2250738585072011e-308,2.2250738585072014e-308,1.7976931348623157e308,-0.0,-0,0.1]",
        ]
        .map(str::to_owned),
    );

    let answer = python(&(texts.join("\n") + "\n"));
    let (ours, theirs) = answer.split_once("--\n").unwrap();
    let (theirs, targets) = theirs.split_once("--\n").unwrap();

    assert_eq!(ours.lines().count(), texts.len());
    for (text, line) in texts.iter().zip(ours.lines()) {
        let (digest, expected) = line.split_once(' ').unwrap();
        let canonical = canonicalize(text).unwrap();
        assert_eq!(canonical, expected, "from {text}");
        assert_eq!(canonicalize(&canonical).unwrap(), canonical, "not a fixed point");
        assert_eq!(RecordId::of_work(&canonical).to_string(), digest);
    }

    let pairs: Vec<&str> = theirs.lines().collect();
    assert_eq!(pairs.len(), 2 * 300);
    for pair in pairs.chunks(2) {
        assert_eq!(canonicalize(pair[0]).unwrap(), pair[1], "from {}", pair[0]);
    }

    assert_eq!(targets.lines().count(), 64);
    for line in targets.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let id = RecordId::of_target(words[0].parse::<Target>().unwrap());
        assert_eq!(id.to_string(), words[1], "target {}", words[0]);
        let count = ShardCount::new(words[2].parse().unwrap()).unwrap();
        assert_eq!(id.shard(count).to_string(), words[3], "{line}");
    }
}

#[test]
fn only_the_four_spaces_of_json_may_stand_around_a_value() {
    assert_eq!(canonicalize(" \t\r\n{} \t\r\n").unwrap(), "{}");
    for space in ["\u{a0}", "\u{b}", "\u{c}", "\u{2028}", "\u{feff}", "\0"] {
        assert!(canonicalize(&format!("{space}{{}}")).is_err(), "{space:?} before");
        assert!(canonicalize(&format!("{{}}{space}")).is_err(), "{space:?} after");
    }
}

#[test]
fn an_integer_that_python3_will_not_read_is_refused() {
    // Since Python 3.11 `int()` reads at most 4300 digits; a longer one would make the record
    // unreadable, and so held, for every other program of the table.
    let digits = |count: usize| format!("{{\"n\":-{}}}", "9".repeat(count));
    assert_eq!(canonicalize(&digits(4300)).unwrap(), digits(4300));
    assert!(canonicalize(&digits(4301)).is_err());
}

proptest! {
    #[test]
    fn canonicalising_never_panics_and_is_idempotent(text in prop_oneof![any::<String>(), any_value()]) {
        if let Ok(once) = canonicalize(&text) {
            prop_assert!(once.is_ascii());
            prop_assert_eq!(canonicalize(&once).unwrap(), once);
        }
    }
}
