//! What is on the disk and is no record (B44): an error that says what is wrong, never a panic.
//!
//! A record that does not parse is held, never free, so every one of these is refused by the rules.

use proptest::prelude::*;
use ringfence_model::record::RecordError;
use ringfence_model::{Key, Record, RecordId, Space, Target};

const TARGET: &str = include_str!("../fixtures/v1/ringfence_target.json");
const WORK: &str = include_str!("../fixtures/v1/ringfence_work_committing.json");

fn target_id() -> RecordId {
    Key::target(Target::new(77).unwrap()).id
}

fn work_id() -> RecordId {
    RecordId::of_work(r#"{"primary":77,"seed":"1b4f0e98"}"#)
}

fn error_of(bytes: &[u8]) -> String {
    match Record::parse(Space::Targets, target_id(), bytes) {
        Ok(_) => format!("parsed: {}", String::from_utf8_lossy(bytes)),
        Err(error) => error.to_string(),
    }
}

#[test]
fn b44_bytes_that_are_no_json_object_are_named_for_what_they_are() {
    let line = TARGET.as_bytes();
    let cases: [(&str, Vec<u8>, &str); 16] = [
        ("0 bytes", vec![], "the record is empty"),
        ("1 NUL", vec![0], "the record is 1 NUL bytes"),
        ("NUL-filled", vec![0; 4096], "the record is 4096 NUL bytes"),
        ("cut in half", line[..line.len() / 2].to_vec(), "not one JSON object"),
        ("its tail NUL", [&line[..40], &[0; 40]].concat(), "not one JSON object"),
        ("trailing NUL", [line, &[0]].concat(), "not one JSON object"),
        ("trailing bytes", [line, b"x"].concat(), "not one JSON object"),
        ("twice the record", [line, line].concat(), "not one JSON object"),
        ("a short record over a long one", [line, b":[88]}\n"].concat(), "not one JSON object"),
        ("not UTF-8", [b"{\"a\":\"", &[0xff, 0xfe][..], b"\"}"].concat(), "not UTF-8"),
        ("a byte order mark", ["\u{feff}".as_bytes(), line].concat(), "not one JSON object"),
        ("only a newline", b"\n".to_vec(), "not one JSON object"),
        ("a list", b"[]\n".to_vec(), "not one JSON object"),
        ("null", b"null\n".to_vec(), "not one JSON object"),
        ("a text", b"\"leased\"\n".to_vec(), "not one JSON object"),
        ("an empty object", b"{}\n".to_vec(), "the field \"schema\" is missing"),
    ];
    for (name, bytes, expected) in cases {
        let error = error_of(&bytes);
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn b44_a_record_under_another_id_is_not_that_records() {
    let other = Key::target(Target::new(78).unwrap()).id;
    let error = Record::parse(Space::Targets, other, TARGET.as_bytes()).unwrap_err();
    assert!(matches!(error, RecordError::WrongId(named) if named == target_id().to_string()));
    let error = Record::parse(Space::Work, work_id(), TARGET.as_bytes()).unwrap_err();
    assert!(matches!(error, RecordError::WrongId(_)));
    let error = Record::parse(Space::Targets, target_id(), WORK.as_bytes()).unwrap_err();
    assert!(matches!(error, RecordError::WrongId(_)));
}

/// One field of the target record, what it is replaced with, and the error.
const FIELDS: &[(&str, &str, &str)] = &[
    ("schema", "2", "the record has schema 2, this program knows 1"),
    ("schema", "0", "the record has schema 0, this program knows 1"),
    ("schema", "\"1\"", "the field \"schema\" is not a non-negative 64-bit integer"),
    ("schema", "true", "the field \"schema\" is not a non-negative 64-bit integer"),
    ("schema", "null", "the field \"schema\" is missing"),
    ("id", "\"\"", "the record names the id \"\", not that of its file"),
    ("id", "77", "the field \"id\" is not a text"),
    ("id", "null", "the field \"id\" is missing"),
    ("target", "78", "the field \"target\" is not the target of this id"),
    ("target", "0", "the field \"target\" is not the target of this id"),
    ("target", "\"77\"", "the field \"target\" is not a non-negative 64-bit integer"),
    ("target", "77.0", "the field \"target\" is not a non-negative 64-bit integer"),
    ("target", "-77", "the field \"target\" is not a non-negative 64-bit integer"),
    ("target", "18446744073709551616", "the field \"target\" is not a non-negative 64-bit integer"),
    ("target", "null", "the field \"target\" is missing"),
    ("targets", "77", "the field \"targets\" is not a list of non-negative 64-bit integers"),
    ("targets", "[77,-1]", "the field \"targets\" is not a list of non-negative 64-bit integers"),
    ("targets", "[77,0]", "the field \"targets\" is not a list of targets"),
    ("targets", "[77,true]", "the field \"targets\" is not a list of non-negative 64-bit integers"),
    ("status", "\"Leased\"", "the field \"status\" is not \"leased\""),
    ("status", "\"done\"", "the field \"status\" is not \"leased\""),
    ("status", "null", "the field \"status\" is missing"),
    ("token", "\"\"", "the field \"token\" is not a token"),
    ("token", "\"a\\u0000b\"", "the field \"token\" is not a token"),
    ("token", "17", "the field \"token\" is not a text"),
    ("token", "null", "the field \"token\" is missing"),
    ("updated", "NaN", "not one JSON object"),
    ("updated", "Infinity", "not one JSON object"),
    ("updated", "-Infinity", "not one JSON object"),
    ("updated", "1e999", "the field \"updated\" is not a finite number"),
    ("updated", "-0.5", "the field \"updated\" is not Unix seconds"),
    ("updated", "1786060800123.0", "the field \"updated\" is not Unix seconds"),
    ("updated", "true", "the field \"updated\" is not a finite number"),
    ("updated", "\"1786060800.0\"", "the field \"updated\" is not a finite number"),
    ("updated", "null", "the field \"updated\" is missing"),
    ("payload", "null", "the field \"payload\" is not an object"),
    ("payload", "[]", "the field \"payload\" is not an object"),
    ("payload", "\"{}\"", "the field \"payload\" is not an object"),
    ("attempts", "0", "the field \"attempts\" is not at least 1"),
    ("attempts", "\"1\"", "the field \"attempts\" is not a non-negative 64-bit integer"),
    ("attempts", "true", "the field \"attempts\" is not a non-negative 64-bit integer"),
    ("attempts", "1.5", "the field \"attempts\" is not a non-negative 64-bit integer"),
    ("attempts", "-1", "the field \"attempts\" is not a non-negative 64-bit integer"),
    ("steals", "\"0\"", "the field \"steals\" is not a non-negative 64-bit integer"),
    ("steals", "false", "the field \"steals\" is not a non-negative 64-bit integer"),
    ("owner", "5", "the field \"owner\" is not a text"),
    ("owner", "\"\\ud800\"", "the field \"owner\" is not a text"),
    ("previous_owner", "[]", "the field \"previous_owner\" is not a text"),
    ("worker", "\"3\"", "the field \"worker\" is not a 64-bit integer"),
    ("worker", "true", "the field \"worker\" is not a 64-bit integer"),
    ("worker", "9223372036854775808", "the field \"worker\" is not a 64-bit integer"),
    ("ringfence", "[]", "the field \"ringfence\" is not an object"),
    ("ringfence", "{}", "the field \"fence\" is missing"),
    ("ringfence", "{\"fence\":\"42\"}", "the field \"fence\" is not a non-negative 64-bit integer"),
    (
        "ringfence",
        "{\"fence\":42,\"ttl\":0}",
        "the field \"ringfence.ttl\" is not a ttl in seconds",
    ),
    ("ringfence", "{\"fence\":42,\"ttl\":true}", "the field \"ttl\" is not a finite number"),
    ("ringfence", "{\"fence\":42,\"host\":7}", "the field \"host\" is not a text"),
    (
        "ringfence",
        "{\"fence\":42,\"pid\":-7}",
        "the field \"pid\" is not a non-negative 64-bit integer",
    ),
    (
        "ringfence",
        "{\"fence\":42,\"boottime\":\"1\"}",
        "the field \"boottime\" is not a finite number",
    ),
    (
        "ringfence",
        "{\"fence\":42,\"primary\":\"77\"}",
        "the field \"primary\" is not a non-negative 64-bit integer",
    ),
];

#[test]
fn b44_a_field_that_holds_something_else_is_named() {
    for (field, value, expected) in FIELDS {
        let error = error_of(replaced(TARGET, field, value).as_bytes());
        assert!(error.contains(expected), "{field} = {value}: {error}");
    }
}

#[test]
fn b44_a_work_record_without_its_manifest_or_with_another_status_is_damaged() {
    for (field, value, expected) in [
        ("manifest", "null", "the field \"manifest\" is missing"),
        ("manifest", "\"00ff\"", "the field \"manifest\" is not an object"),
        ("status", "\"running\"", "the field \"status\" is not a work status"),
        ("dispatch_generation", "-1", "the field \"dispatch_generation\" is not a non-negative"),
        ("dispatch_generation", "true", "the field \"dispatch_generation\" is not a non-negative"),
    ] {
        let line = replaced(WORK, field, value);
        let error = Record::parse(Space::Work, work_id(), line.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{field} = {value}: {error}");
    }
}

/// `line` with the value of one top-level field replaced by `value`, JSON or not.
fn replaced(line: &str, field: &str, value: &str) -> String {
    let mut object: ringfence_model::json::Object = serde_json::from_str(line).unwrap();
    assert!(object.remove(field).is_some(), "the record has no field {field}");
    let kept = object.iter().map(|(name, kept)| format!(",{name:?}:{}", kept.get()));
    format!("{{{field:?}:{value}{}}}\n", kept.collect::<String>())
}

#[test]
fn a_record_that_was_only_spelled_anew_still_parses() {
    // The counterpart of the tables above: their edits fail for the value, not for the editing.
    let line = replaced(TARGET, "status", "\"leased\"");
    assert_ne!(line, TARGET);
    assert_eq!(
        Record::parse(Space::Targets, target_id(), line.as_bytes()).unwrap().to_line(),
        TARGET
    );
}

#[test]
fn b44_every_truncation_of_a_record_is_an_error() {
    for (space, id, line) in [(Space::Targets, target_id(), TARGET), (Space::Work, work_id(), WORK)]
    {
        assert!(line.ends_with("}\n"));
        for length in 0..line.len() - 1 {
            let cut = &line.as_bytes()[..length];
            assert!(Record::parse(space, id, cut).is_err(), "{length} of {} bytes", line.len());
        }
        // The newline carries nothing: a program that leaves it out wrote a whole record.
        let bare = Record::parse(space, id, line.trim_end().as_bytes()).unwrap();
        assert_eq!(bare.to_line(), line);
    }
}

#[test]
fn deep_nesting_and_long_records_do_not_exhaust_the_parser() {
    for nest in ["[", "{\"a\":"] {
        let open = nest.repeat(200_000);
        assert!(Record::parse(Space::Targets, target_id(), open.as_bytes()).is_err());
        let line = replaced(TARGET, "payload", &format!("{{\"x\":{open}"));
        assert!(Record::parse(Space::Targets, target_id(), line.as_bytes()).is_err());
    }
    let closed = "[".repeat(200_000) + &"]".repeat(200_000);
    let line = replaced(TARGET, "payload", &format!("{{\"x\":{closed}}}"));
    let record = Record::parse(Space::Targets, target_id(), line.as_bytes()).unwrap();
    assert!(record.to_line().contains(&closed), "another program's payload is kept as it is");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(Record::parse(Space::Targets, target_id(), &bytes).is_err());
        prop_assert!(Record::parse(Space::Work, work_id(), &bytes).is_err());
    }

    #[test]
    fn a_mutated_record_never_panics_and_what_still_parses_reads_back(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6),
        work: bool,
    ) {
        let (space, id, line) =
            if work { (Space::Work, work_id(), WORK) } else { (Space::Targets, target_id(), TARGET) };
        let mut bytes = line.as_bytes().to_vec();
        for (index, byte, how) in edits {
            let at = index.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(record) = Record::parse(space, id, &bytes) {
            let line = record.to_line();
            let again = Record::parse(space, id, line.as_bytes()).unwrap();
            prop_assert_eq!(again.to_line(), line);
        }
    }
}
