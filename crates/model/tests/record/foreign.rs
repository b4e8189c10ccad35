//! Records of other programs: read field by field, and written back without a digit changed.

use ringfence_model::{
    Key, Record, RecordId, Space, Target, TargetRecord, Timestamp, WorkRecord, WorkStatus,
};

fn id_of(target: u64) -> RecordId {
    Key::target(Target::new(target).unwrap()).id
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_seconds(seconds).unwrap()
}

fn targets(numbers: &[u64]) -> Vec<Target> {
    numbers.iter().map(|&number| Target::new(number).unwrap()).collect()
}

#[test]
fn a_target_record_of_another_program_is_read_field_by_field() {
    let line = include_str!("../fixtures/v1/foreign_target.json");
    let record = TargetRecord::parse(id_of(77), line.as_bytes()).unwrap();
    assert_eq!(record.target.get(), 77);
    assert_eq!(record.group.targets, targets(&[77, u64::MAX, 88]));
    assert_eq!(record.group.primary, None);
    assert_eq!(&*record.holder.owner, "协调器-a@主机");
    assert_eq!(record.holder.worker, 3);
    assert_eq!(record.holder.token.as_str(), "5f2c8d0e9b7a4c31a0d2e4f6081a2c3e");
    assert_eq!(record.holder.token.fence(), None);
    assert_eq!(record.holder.updated, at(1_786_060_800.123_456));
    assert_eq!((record.holder.ttl, record.holder.writer.clone()), (None, None));
    assert_eq!((record.history.attempts, record.history.steals), (1, 0));
    assert_eq!(record.history.previous_owner, None);
    assert!(record.extra.is_empty());
    let payload = record.holder.payload.as_str();
    for kept in [
        "\"hash\":1361129467683753853853498429727072845825",
        "\"huge\":1.7976931348623157e+308",
        "\"score\":0.30000000000000004",
        "\"whole\":3.0",
        r#""\u4f5c\u8005":["\u534f\u8c03\u5668","na\u00efve","\ud83d\ude00","\u007f\u2028"]"#,
    ] {
        assert!(payload.contains(kept), "{kept} in {payload}");
    }
}

#[test]
fn a_taken_over_record_keeps_history_and_fields_nobody_knows() {
    let line = include_str!("../fixtures/v1/foreign_target_taken_over.json");
    let record = TargetRecord::parse(id_of(88), line.as_bytes()).unwrap();
    assert_eq!((record.history.attempts, record.history.steals), (12, 3));
    assert_eq!(record.history.previous_owner.as_deref(), Some("a\t\"\\"));
    assert_eq!(record.holder.worker, -1);
    assert_eq!(record.holder.updated, at(1_786_060_901.300_000_2));
    assert_eq!(record.holder.payload.as_str(), r#"{"seed":"id:000004,orig:\udcff.yaml"}"#);
    let extra: Vec<_> = record.extra.iter().map(|(name, raw)| (name.as_str(), raw.get())).collect();
    assert_eq!(
        extra,
        [
            ("campaign", r#"{"name":"libyaml","weights":[0.1,1e-07,1e+22,-0.0]}"#),
            ("lane", "null"),
            ("zz_note", r#""sp\u00e4ter""#),
        ]
    );
}

#[test]
fn a_work_record_of_another_program_is_read_in_every_status() {
    for (line, status, manifest) in [
        (include_str!("../fixtures/v1/foreign_work_leased.json"), WorkStatus::Leased, None),
        (
            include_str!("../fixtures/v1/foreign_work_committing.json"),
            WorkStatus::Committing,
            Some(format!(
                r#"{{"bytes":4096,"inputs":["{}","{}"]}}"#,
                "00ff".repeat(16),
                "a0".repeat(32)
            )),
        ),
        (
            include_str!("../fixtures/v1/foreign_work_done.json"),
            WorkStatus::Done,
            Some(r#"{"bytes":0,"inputs":[]}"#.to_owned()),
        ),
    ] {
        let payload = r#"{"actions":[[88,"solve"],[90,"sample"]],"primary":77,"seed":"1b4f0e98","timeout":2.5}"#;
        let id = RecordId::of_work(payload);
        let record = WorkRecord::parse(id, line.as_bytes()).unwrap();
        assert_eq!(record.status, status);
        assert_eq!(record.status.as_str(), format!("{status:?}").to_lowercase());
        assert_eq!(record.manifest.as_ref().map(|text| text.as_str().to_owned()), manifest);
        assert_eq!(record.generation, 5);
        assert_eq!(record.holder.payload.as_str(), payload);
        assert_eq!(&*record.holder.owner, "rank-3");
        assert_eq!((record.history.attempts, record.history.steals), (2, 0));
        assert_eq!(record.to_line(), line);
    }
}

#[test]
fn unchanged_records_of_other_programs_are_written_back_byte_for_byte() {
    for (target, line) in [
        (77, include_str!("../fixtures/v1/foreign_target.json")),
        (88, include_str!("../fixtures/v1/foreign_target_taken_over.json")),
    ] {
        let record = Record::parse(Space::Targets, id_of(target), line.as_bytes()).unwrap();
        assert_eq!(record.to_line(), line);
    }
}

#[test]
fn a_record_with_only_the_fields_that_decide_is_valid() {
    let line = format!(
        r#"{{"id":"{}","schema":1,"status":"leased","target":77,"token":"t","updated":5}}"#,
        id_of(77)
    );
    let record = TargetRecord::parse(id_of(77), line.as_bytes()).unwrap();
    assert_eq!(record.group.targets, targets(&[77]));
    assert_eq!((record.history.attempts, record.history.steals), (1, 0));
    assert_eq!((&*record.holder.owner, record.holder.worker), ("", 0));
    assert_eq!(record.holder.payload.as_str(), "{}");
    assert_eq!(record.holder.updated, at(5.0));
}
