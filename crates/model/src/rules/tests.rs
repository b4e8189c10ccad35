//! Tables of cases for every rule, over a store that keeps bytes as an engine does.

mod claim;
mod force;
mod heartbeat;
mod job;
mod release;
mod sequence;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::group::TargetGroup;
use crate::id::RecordId;
use crate::owner::Owner;
use crate::payload::Payload;
use crate::record::{Record, TargetRecord, WorkRecord, Writer};
use crate::target::Target;
use crate::time::{Moment, Timestamp, Ttl};
use crate::token::{Fence, FencingToken, Token};
use crate::view::{Alike, Audit, Damage, Edit, Entry, Glance, Key, Shown, Transition, View};

fn t(number: u64) -> Target {
    Target::new(number).unwrap()
}

fn group(numbers: impl IntoIterator<Item = u64>) -> TargetGroup {
    TargetGroup::from_numbers(numbers).unwrap()
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_seconds(seconds).unwrap()
}

fn ttl(seconds: f64) -> Ttl {
    Ttl::from_seconds(seconds).unwrap()
}

fn ask(owner: &str, numbers: impl IntoIterator<Item = u64>) -> ClaimRequest {
    ClaimRequest {
        group: group(numbers),
        owner: Owner::new(owner).unwrap(),
        worker: 1,
        payload: Payload::parse(r#"{"seed":"s1"}"#).unwrap(),
        ttl: ttl(60.0),
    }
}

/// Records as bytes, and the engine's part of a grant: the next fence.
#[derive(Clone)]
struct Table {
    stored: BTreeMap<Key, Vec<u8>>,
    fence: u64,
    default_ttl: Ttl,
    writer: Arc<Writer>,
    audit: Vec<Audit>,
}

impl Table {
    fn new() -> Self {
        Self {
            stored: BTreeMap::new(),
            fence: 0,
            default_ttl: ttl(60.0),
            writer: Arc::new(Writer { host: "node-1".into(), pid: 11, boot: None }),
            audit: Vec::new(),
        }
    }

    /// The view of `keys` at a moment that the caller gave.
    fn view(&self, now: f64, keys: impl IntoIterator<Item = Key>) -> View {
        let entries = keys.into_iter().map(|key| (key, self.entry(key))).collect();
        let (writer, default_ttl) = (self.writer.clone(), self.default_ttl);
        View { moment: Moment::given(at(now)), writer, default_ttl, entries }
    }

    fn view_of(&self, now: f64, group: &TargetGroup) -> View {
        self.view(now, group.targets().map(Key::target))
    }

    fn entry(&self, key: Key) -> Entry {
        let Some(bytes) = self.stored.get(&key) else { return Entry::Vacant };
        match Record::parse(key.space, key.id, bytes) {
            Ok(record) => Entry::Present(record),
            Err(error) => Entry::Damaged(Damage {
                location: format!("{}.json", key.id),
                reason: error.to_string(),
                digest: digest(bytes),
            }),
        }
    }

    /// Stores a transition; a grant yields its token.
    fn apply(&mut self, transition: Transition) -> Option<Token> {
        let (edits, token) = match transition {
            Transition::Edits { edits, audit } => {
                self.audit.extend(audit);
                (edits, None)
            }
            Transition::Grant(grant) => {
                self.fence = self.fence.max(grant.above.0) + 1;
                let token = FencingToken::new(Fence(self.fence), 0xfeed);
                (grant.under(token), Some(token.into()))
            }
            Transition::Alike(_) => unreachable!("it is spelled out first"),
        };
        for Edit { key, to } in edits {
            match to {
                Some(record) => drop(self.stored.insert(key, record.to_line().into_bytes())),
                None => assert!(self.stored.remove(&key).is_some(), "removes what is not there"),
            }
        }
        token
    }

    fn claim(&mut self, now: f64, request: &ClaimRequest) -> Result<Token, ClaimRefused> {
        let granted = claim(&self.view_of(now, &request.group), request)?;
        Ok(self.apply(granted).expect("a claim is a grant"))
    }

    fn heartbeat(&mut self, now: f64, group: &TargetGroup, token: &Token) -> Result<(), Lost> {
        let view = self.view_of(now, group);
        let renewed = heartbeat(&view, group, token);
        same_at_a_glance(&view, renewed.as_ref().ok(), |glance| renew(glance, group, token));
        assert_eq!(self.apply(renewed?.spelled_out(&view)), None);
        Ok(())
    }

    fn release(&mut self, now: f64, group: &TargetGroup, token: &Token) -> Result<(), Lost> {
        let view = self.view_of(now, group);
        let released = release(&view, group, token);
        same_at_a_glance(&view, released.as_ref().ok(), |glance| give_back(glance, group, token));
        let released = released?.spelled_out(&view);
        let Transition::Edits { edits, audit: None } = &released else { panic!("{released:?}") };
        assert!(edits.iter().map(|edit| edit.key).eq(group.targets().map(Key::target)));
        assert_eq!(self.apply(released), None);
        Ok(())
    }

    fn record(&self, number: u64) -> TargetRecord {
        match self.entry(Key::target(t(number))) {
            Entry::Present(Record::Target(record)) => record,
            other => panic!("target {number}: {other:?}"),
        }
    }

    /// Rewrites a stored record's text, as another program would.
    fn rewrite(&mut self, number: u64, from: &str, to: &str) {
        let bytes = self.stored.get_mut(&Key::target(t(number))).unwrap();
        let line = String::from_utf8(bytes.clone()).unwrap();
        assert!(line.contains(from), "{from} not in {line}");
        *bytes = line.replace(from, to).into_bytes();
    }

    fn damage(&mut self, number: u64, bytes: &[u8]) {
        self.stored.insert(Key::target(t(number)), bytes.to_vec());
    }
}

/// Where all are there, the holders say the same.
fn same_at_a_glance(
    view: &View,
    answer: Option<&Transition>,
    rule: impl FnOnce(&Glance) -> Option<Alike>,
) {
    let View { moment, writer, default_ttl, .. } = view.clone();
    let holder = |(key, entry): &(_, Entry)| Some((*key, entry.holder()?.clone()));
    if let Some(entries) = view.entries.iter().map(holder).collect() {
        let by_holders = rule(&Glance { moment, writer, default_ttl, entries });
        let by_holders = by_holders.map(Transition::Alike);
        assert_eq!(format!("{by_holders:?}"), format!("{answer:?}"));
    }
}

fn digest(bytes: &[u8]) -> Token {
    let hex = RecordId::of_work(&String::from_utf8_lossy(bytes));
    Token::new(&format!("sha256:{hex}")).unwrap()
}

/// The line of a grant of another program.
fn foreign_line(number: u64, token: &str, updated: &str) -> String {
    format!(
        "{{\"attempts\":1,\"id\":\"{}\",\"lane\":[1.50],\"owner\":\"py\",\"payload\":{{\"x\":1.50}},\
         \"previous_owner\":null,\"schema\":1,\"status\":\"leased\",\"steals\":0,\"target\":{number},\
         \"targets\":[{number}],\"token\":\"{token}\",\"updated\":{updated},\"worker\":9}}\n",
        RecordId::of_target(t(number))
    )
}

/// What a list of lost members says, in the order it is in: the target and why.
fn why(lost: &[LostMember]) -> Vec<(u64, &'static str)> {
    let word = |member: &LostMember| match member {
        LostMember::NotHeld(target) => (target.get(), "not held"),
        LostMember::OtherToken(conflict) => (conflict.target.get(), "other token"),
        LostMember::Damaged(member) => (member.target.get(), "damaged"),
    };
    lost.iter().map(word).collect()
}

/// Numbers in the order in which a group keeps them.
fn in_id_order(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    group(numbers).targets().map(Target::get).collect()
}
