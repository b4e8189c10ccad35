//! Whatever a valid record holds, its line reads back as the same record.

use std::sync::Arc;

use proptest::prelude::*;
use ringfence_model::json::Object;
use ringfence_model::record::{Granted, History, Holder};
use ringfence_model::{
    Fence, FencingToken, Key, LeaseBody, Payload, Record, RecordId, Space, Target, TargetRecord,
    Timestamp, Token, Ttl, WorkRecord, WorkStatus, Writer, WriterBoot,
};
use serde_json::value::RawValue;

use crate::json::{any_object, any_value};

/// Names that a record of either kind gives a meaning to.
const KNOWN: [&str; 16] = [
    "schema",
    "id",
    "target",
    "targets",
    "status",
    "payload",
    "owner",
    "previous_owner",
    "worker",
    "token",
    "updated",
    "attempts",
    "steals",
    "ringfence",
    "manifest",
    "dispatch_generation",
];

fn any_payload() -> impl Strategy<Value = Payload> {
    any_object().prop_map(|text| Payload::parse(&text).unwrap())
}

fn any_target() -> impl Strategy<Value = Target> {
    (1u64..).prop_map(|number| Target::new(number).unwrap())
}

fn any_text() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![
        any::<String>(),
        prop::collection::vec(any::<char>(), 0..9).prop_map(String::from_iter),
    ]
    .prop_map(Arc::from)
}

fn any_updated() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        0.0..Timestamp::MAX_SECONDS,
        1.7e9..1.9e9,
        (0..=Timestamp::MAX_SECONDS.to_bits()).prop_map(f64::from_bits),
    ]
    .prop_map(|seconds| Timestamp::from_seconds(seconds).unwrap())
}

fn any_writer() -> impl Strategy<Value = Writer> {
    let seconds = prop_oneof![
        0.0..1e9,
        any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |seconds| seconds.is_finite()),
    ];
    let life = proptest::option::of(any_text());
    let boot = (any_text(), seconds, life).prop_map(|(boot, seconds, life)| WriterBoot {
        boot,
        seconds,
        life,
    });
    (any_text(), any::<u32>(), prop::option::of(boot)).prop_map(|(host, pid, boot)| Writer {
        host,
        pid,
        boot,
    })
}

fn any_holder() -> impl Strategy<Value = Holder> {
    let ttl = (Ttl::MIN_SECONDS..=Ttl::MAX_SECONDS)
        .prop_map(|seconds| Ttl::from_seconds(seconds).unwrap());
    let ours = (any::<u64>(), any::<u128>(), prop::option::of(ttl), prop::option::of(any_writer()))
        .prop_map(|(fence, nonce, ttl, writer)| {
            (Token::from(FencingToken::new(Fence(fence), nonce)), ttl, writer)
        });
    // Records of other programs' grants carry nothing of ours.
    let theirs = "[^\\x00-\\x1f\\x7f-\\x9f]{1,60}"
        .prop_map(|text| (Token::new(&text).unwrap(), None, None))
        .prop_filter("not of our form", |(token, _, _)| token.fence().is_none());
    let grant = prop_oneof![ours, theirs];
    (grant, any_text(), any::<i64>(), any_updated(), any_payload()).prop_map(
        |((token, ttl, writer), owner, worker, updated, payload)| {
            let grant = Arc::new(Granted { owner, worker, token, ttl, payload });
            Holder { grant, updated, writer: writer.map(Arc::new) }
        },
    )
}

fn any_history() -> impl Strategy<Value = History> {
    (1u64.., any::<u64>(), prop::option::of(any_text()))
        .prop_map(|(attempts, steals, previous_owner)| History { attempts, steals, previous_owner })
}

fn any_extra() -> impl Strategy<Value = Object> {
    let name = any_text().prop_filter("not ours", |name| !KNOWN.contains(&&**name));
    let value = any_value().prop_map(|text| RawValue::from_string(text).unwrap());
    prop::collection::btree_map(name.prop_map(|name| name.to_string()), value, 0..4)
}

fn any_target_record() -> impl Strategy<Value = TargetRecord> {
    let targets = prop::collection::vec(any_target(), 0..65);
    let parts = (any_target(), targets, prop::option::of(any_target()));
    (parts, any_holder(), any_history(), any_extra()).prop_map(
        |((target, targets, primary), holder, history, extra)| {
            let primary = primary.filter(|_| holder.token.fence().is_some());
            let group = Arc::new(LeaseBody { targets, primary });
            TargetRecord { target, group, holder, history, extra }
        },
    )
}

fn any_work_record() -> impl Strategy<Value = WorkRecord> {
    let commit = prop_oneof![
        prop::option::of(any_payload()).prop_map(|manifest| (WorkStatus::Leased, manifest)),
        any_payload().prop_map(|manifest| (WorkStatus::Committing, Some(manifest))),
        prop::option::of(any_payload()).prop_map(|manifest| (WorkStatus::Done, manifest)),
    ];
    (commit, any_holder(), any_history(), any::<u64>(), any_extra()).prop_map(
        |((status, manifest), holder, history, generation, extra)| WorkRecord {
            id: RecordId::of_work(holder.payload.as_str()),
            status,
            holder,
            history,
            generation,
            manifest,
            extra,
        },
    )
}

/// Reads `record` back from its own line, and compares every field.
fn check(space: Space, id: RecordId, record: &Record) -> Result<(), TestCaseError> {
    let line = record.to_line();
    assert!(line.ends_with("}\n"));
    let back = Record::parse(space, id, line.as_bytes()).unwrap();
    prop_assert_eq!(&back, record);
    // Equality of records compares what they store; this compares what they hold.
    prop_assert_eq!(format!("{back:?}"), format!("{record:?}"));
    prop_assert_eq!(back.to_line(), line);
    Ok(())
}

proptest! {
    #[test]
    fn a_target_records_line_reads_back_as_the_same_record(record in any_target_record()) {
        let id = Key::target(record.target).id;
        check(Space::Targets, id, &Record::Target(record))?;
    }

    #[test]
    fn a_work_records_line_reads_back_as_the_same_record(record in any_work_record()) {
        check(Space::Work, record.id, &Record::Work(record))?;
    }

    #[test]
    fn fields_of_other_programs_are_kept_to_the_digit(record in any_target_record()) {
        let line = record.to_line();
        let back = TargetRecord::parse(Key::target(record.target).id, line.as_bytes()).unwrap();
        let kept = |extra: &Object| -> Vec<(String, String)> {
            extra.iter().map(|(name, raw)| (name.clone(), raw.get().to_owned())).collect()
        };
        prop_assert_eq!(kept(&back.extra), kept(&record.extra));
    }
}
