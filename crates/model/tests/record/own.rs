//! Our own records: the frozen bytes, and what becomes of our object when another program writes.

use std::sync::Arc;

use ringfence_model::json::Object;
use ringfence_model::record::{Granted, History, Holder};
use ringfence_model::{
    Fence, FencingToken, Key, LeaseBody, Payload, Record, RecordId, Target, TargetRecord,
    Timestamp, Ttl, WorkRecord, WorkStatus, Writer, WriterBoot,
};

const TARGET: &str = include_str!("../fixtures/v1/ringfence_target.json");
const WORK: &str = include_str!("../fixtures/v1/ringfence_work_committing.json");

fn target(number: u64) -> Target {
    Target::new(number).unwrap()
}

fn holder() -> Holder {
    let grant = Granted {
        owner: "协调器-1".into(),
        worker: 4,
        token: FencingToken::new(Fence(42), 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef).into(),
        ttl: Some(Ttl::from_seconds(60.0).unwrap()),
        payload: Payload::parse(r#"{"seed":"id:000017","score":1e-7}"#).unwrap(),
    };
    Holder {
        grant: Arc::new(grant),
        updated: Timestamp::from_seconds(1_786_060_800.125).unwrap(),
        writer: Some(Arc::new(Writer {
            host: "node-3".into(),
            pid: 4711,
            boot: Some(WriterBoot {
                boot: "0b3f2a52-6d1c-4a7e-9a55-0d3f0e3c9b11".into(),
                seconds: 8_123.456_789,
                life: None,
            }),
        })),
    }
}

fn target_record() -> TargetRecord {
    TargetRecord {
        target: target(77),
        group: Arc::new(LeaseBody {
            targets: vec![target(77), target(u64::MAX), target(88)],
            primary: Some(target(88)),
        }),
        holder: holder(),
        history: History { attempts: 3, steals: 1, previous_owner: Some("worker \"b\"".into()) },
        extra: Object::new(),
    }
}

fn work_record() -> WorkRecord {
    let payload = Payload::parse(r#"{"seed":"1b4f0e98","primary":77}"#).unwrap();
    WorkRecord {
        id: RecordId::of_work(payload.as_str()),
        status: WorkStatus::Committing,
        holder: Holder {
            grant: Arc::new(Granted { payload, ..(*holder().grant).clone() }),
            ..holder()
        },
        history: History::first(),
        generation: 42,
        manifest: Some(Payload::parse(r#"{"inputs":["00ff"],"bytes":4096}"#).unwrap()),
        extra: Object::new(),
    }
}

fn parse(line: &str) -> TargetRecord {
    TargetRecord::parse(Key::target(target(77)).id, line.as_bytes()).unwrap()
}

/// Compares every field; equality of records compares what they store.
#[track_caller]
fn assert_same(one: &impl std::fmt::Debug, two: &impl std::fmt::Debug) {
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}

#[test]
fn the_frozen_bytes_of_our_records_are_written_and_read_back() {
    assert_eq!(target_record().to_line(), TARGET);
    assert_same(&parse(TARGET), &target_record());

    let work = work_record();
    assert_eq!(work.to_line(), WORK);
    assert_same(&WorkRecord::parse(work.id, WORK.as_bytes()).unwrap(), &work);
    assert_eq!(Record::Work(work).holder().worker, 4);
}

#[test]
fn after_another_programs_heartbeat_the_ttl_stands_and_our_clock_reading_does_not() {
    let renewed = TARGET
        .replace("\"updated\":1786060800.125,\"worker\"", "\"updated\":1786060830.5,\"worker\"");
    assert_ne!(renewed, TARGET);
    let record = parse(&renewed);
    assert_eq!(record.holder.ttl, Some(Ttl::from_seconds(60.0).unwrap()));
    assert_eq!(record.holder.writer.as_ref().unwrap().boot, None);
    assert_eq!(record.group.primary, Some(target(88)));
}

#[test]
fn after_another_programs_take_over_nothing_of_our_object_stands() {
    let token = target_record().holder.token.clone();
    for foreign in ["5f2c8d0e", "00000000000000000043-0123456789abcdef0123456789abcdef"] {
        let taken = TARGET.replace(token.as_str(), foreign);
        assert_ne!(taken, TARGET);
        let record = parse(&taken);
        assert_eq!((record.holder.ttl, record.holder.writer.clone()), (None, None), "{foreign}");
        assert_eq!(record.group.primary, None);
        assert!(!record.extra.contains_key("ringfence"), "left over from the grant before");
    }
}

#[test]
fn a_stored_time_reads_back_to_the_bit() {
    // `serde_json` read each of these as the neighbour of the nearest double, so that a record
    // changed when it was read and written back.
    for seconds in [206_159_101_685.315_98, 8.812_600_721_367_049e-66] {
        let updated = Timestamp::from_seconds(seconds).unwrap();
        let record = TargetRecord { holder: Holder { updated, ..holder() }, ..target_record() };
        assert_eq!(parse(&record.to_line()).holder.updated, updated);
    }
}

#[test]
fn a_pid_that_no_system_has_is_not_believed() {
    let record = parse(&TARGET.replace("\"pid\":4711", "\"pid\":99999999999"));
    assert_eq!(record.holder.writer.as_ref().unwrap().pid, 0);
}
