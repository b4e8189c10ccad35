//! The verbs as simulated coordinators use them, and wrong ones that the checks must catch.

use std::cell::Cell;

use ringfence_model::rules::{self, ClaimRefused, ClaimRequest, Lost, WorkClaim};
use ringfence_model::{
    Alike, Edit, Entry, Glance, Key, Moment, Owner, Payload, Record, Space, TargetGroup, Timestamp,
    Token, Transition, Ttl, View,
};

use crate::history::{Answer, Caller, Fate, Verb};
use crate::setup::{target, ttl};

/// A rule that is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongRule {
    /// Heartbeat and release accept whoever has the holder's name.
    TokenByName,
    /// A lease is taken over one second before its end.
    ExpiryOffByOne,
    /// A release removes what matches before it has looked at the rest.
    ReleaseBeforeValidation,
    /// A claim takes what is free of a group and leaves the rest to its holder.
    PartialClaim,
    /// A heartbeat renews the members at moments of their own.
    HeartbeatPerMember,
    /// A result is committed whatever token it comes with.
    CommitWithoutFence,
    /// What was decided first is stored, whatever has changed since.
    DecidesOnce,
    /// A job that is completed marks its item as done and leaves its group held.
    HalfAJob,
    /// A release of an expired lease is refused silently: it says done and stores nothing.
    SilentRelease,
}

/// A group of these targets.
pub fn group(numbers: &[u64]) -> TargetGroup {
    TargetGroup::new(numbers.iter().map(|number| target(*number))).expect("distinct targets")
}

/// The keys of a group, in order.
pub fn keys(group: &TargetGroup) -> Vec<Key> {
    group.targets().map(Key::target).collect()
}

fn owner(name: &str) -> Owner {
    Owner::new(name).expect("a name")
}

/// What a coordinator asks for.
pub fn request(name: &str, numbers: &[u64], seconds: f64) -> ClaimRequest {
    ClaimRequest {
        group: group(numbers),
        owner: owner(name),
        worker: 1,
        payload: Payload::parse(r#"{"seed":"s"}"#).expect("an object"),
        ttl: ttl(seconds),
    }
}

/// One of a few work items.
pub fn work(name: &str, item: u64, seconds: f64) -> WorkClaim {
    WorkClaim {
        payload: Payload::parse(&format!(r#"{{"item":{item}}}"#)).expect("an object"),
        owner: owner(name),
        worker: 1,
        ttl: ttl(seconds),
    }
}

/// What an attempt publishes.
pub fn manifest(of: u64) -> Payload {
    Payload::parse(&format!(r#"{{"result":{of}}}"#)).expect("an object")
}

/// A view whose moment is `seconds` later by every clock.
fn later(view: &View, seconds: f64) -> View {
    let mut moment: Moment = view.moment.clone();
    let wall = moment.wall.seconds() + seconds;
    moment.wall = Timestamp::from_seconds(wall).expect("in range");
    if let Some(boot) = &mut moment.boot {
        boot.seconds += seconds;
    }
    View { moment, ..view.clone() }
}

fn token_of(entry: &Entry) -> Option<&Token> {
    match entry {
        Entry::Present(record) => Some(&record.holder().token),
        _ => None,
    }
}

fn matching(
    view: &View,
    token: &Token,
    to: impl Fn(&Record, usize) -> Option<Record>,
) -> Transition {
    let edits = view.entries.iter().enumerate().filter_map(|(index, (key, entry))| match entry {
        Entry::Present(record) if record.holder().token == *token => {
            Some(Edit { key: *key, to: to(record, index) })
        }
        _ => None,
    });
    Transition::edits(edits.collect())
}

/// The token under which the caller's name holds the group, if it does.
fn token_by_name(view: &View, name: &str) -> Option<Token> {
    let mut tokens = view.entries.iter().map(|(_, entry)| match entry {
        Entry::Present(record) if *record.holder().owner == *name => token_of(entry),
        _ => None,
    });
    let first = tokens.next()??.clone();
    tokens.all(|token| token == Some(&first)).then_some(first)
}

/// The verbs, spoilt or not.
#[derive(Clone, Copy, Debug)]
pub struct Verbs<'a> {
    /// Who calls.
    pub caller: Caller<'a>,
    /// The caller's name.
    pub name: &'a str,
    /// What is wrong.
    pub wrong: Option<WrongRule>,
}

impl Verbs<'_> {
    /// Claims a group.
    pub fn claim(&self, asked: &ClaimRequest) -> Answer<ClaimRefused> {
        let mut first: Option<View> = None;
        self.caller.call(Verb::Claim, &keys(&asked.group), None, |view| match self.wrong {
            Some(WrongRule::DecidesOnce) => {
                rules::claim(first.get_or_insert_with(|| view.clone()), asked)
            }
            Some(WrongRule::ExpiryOffByOne) => {
                rules::claim(&later(view, 1.0), asked).map_err(|_| unmoved(view, asked))
            }
            Some(WrongRule::PartialClaim) => match rules::claim(view, asked) {
                Err(refused) if refused.conflicts.len() < asked.group.len() => {
                    Ok(partial_claim(view, asked))
                }
                other => other,
            },
            _ => rules::claim(view, asked),
        })
    }

    /// Renews a group.
    pub fn heartbeat(&self, held: &TargetGroup, token: &Token) -> Answer<Lost> {
        let glance = |shown: &Glance| self.right(|| rules::renew(shown, held, token));
        let call = |view: &View| self.heartbeat_rule(view, held, token);
        self.caller.call_at_a_glance(Verb::Heartbeat, &keys(held), Some(token), glance, call)
    }

    /// Renews several groups in one batch.
    pub fn heartbeat_each(&self, held: &[(TargetGroup, Token)]) -> Vec<Fate> {
        let units: Vec<_> =
            held.iter().map(|(group, token)| (keys(group), token.clone())).collect();
        let glance = |unit: usize, shown: &Glance| {
            let (group, token) = &held[unit];
            self.right(|| rules::renew(shown, group, token))
        };
        self.caller.call_each_at_a_glance(Verb::Heartbeat, &units, glance, |unit, view| {
            let (group, token) = &held[unit];
            self.heartbeat_rule(view, group, token)
        })
    }

    /// The answer of a rule that nothing is wrong with.
    fn right(&self, rule: impl FnOnce() -> Option<Alike>) -> Option<Alike> {
        if self.wrong.is_some() { None } else { rule() }
    }

    fn heartbeat_rule(
        &self,
        view: &View,
        held: &TargetGroup,
        token: &Token,
    ) -> Result<Transition, Lost> {
        match self.wrong {
            Some(WrongRule::TokenByName) => {
                let token = token_by_name(view, self.name).unwrap_or_else(|| token.clone());
                rules::heartbeat(view, held, &token)
            }
            Some(WrongRule::HeartbeatPerMember) => {
                let _: Transition = rules::heartbeat(view, held, token)?;
                let at = Cell::new(0.0);
                Ok(matching(view, token, |record, _| {
                    at.set(at.get() + 0.001);
                    let moved = later(view, at.get());
                    let moved = one(&moved, record);
                    let renewed = rules::heartbeat(&moved, &single(record), token).ok()?;
                    match renewed.spelled_out(&moved) {
                        Transition::Edits { edits, .. } => edits.into_iter().next()?.to,
                        _ => None,
                    }
                }))
            }
            _ => rules::heartbeat(view, held, token),
        }
    }

    /// Gives a group up.
    pub fn release(&self, held: &TargetGroup, token: &Token) -> Answer<Lost> {
        let glance = |shown: &Glance| self.right(|| rules::give_back(shown, held, token));
        let call = |view: &View| match self.wrong {
            Some(WrongRule::TokenByName) => {
                let token = token_by_name(view, self.name).unwrap_or_else(|| token.clone());
                rules::release(view, held, &token)
            }
            Some(WrongRule::ReleaseBeforeValidation) => Ok(matching(view, token, |_, _| None)),
            Some(WrongRule::SilentRelease) => {
                let _: Transition = rules::release(view, held, token)?;
                Ok(Transition::edits(Vec::new()))
            }
            _ => rules::release(view, held, token),
        };
        self.caller.call_at_a_glance(Verb::Release, &keys(held), Some(token), glance, call)
    }

    /// Removes a group by its token.
    pub fn force_release(&self, held: &TargetGroup, token: &Token) -> Answer<rules::ForceRefused> {
        self.caller.call(Verb::ForceRelease, &keys(held), Some(token), |view| {
            rules::force_release(view, held, token, "simulated")
        })
    }

    /// Claims a work item.
    pub fn claim_work(&self, asked: &WorkClaim) -> Answer<rules::WorkClaimRefused> {
        let key = [Key::work(asked.id())];
        self.caller.call(Verb::ClaimWork, &key, None, |view| rules::claim_work(view, asked))
    }

    /// Renews a work item.
    pub fn heartbeat_work(&self, key: Key, token: &Token) -> Answer<rules::WorkStale> {
        let call = |view: &View| rules::heartbeat_work(view, token);
        self.caller.call(Verb::HeartbeatWork, &[key], Some(token), call)
    }

    /// Decides to publish.
    pub fn begin_commit(
        &self,
        key: Key,
        token: &Token,
        manifest: &Payload,
    ) -> Answer<rules::BeginCommitRefused> {
        self.caller.call(Verb::BeginCommit, &[key], Some(token), |view| {
            let held = view.entries.first().and_then(|(_, entry)| token_of(entry)).cloned();
            let token = match self.wrong {
                Some(WrongRule::CommitWithoutFence) => held.unwrap_or_else(|| token.clone()),
                _ => token.clone(),
            };
            rules::begin_commit(view, &token, manifest)
        })
    }

    /// Has published.
    pub fn complete(&self, key: Key, token: &Token) -> Answer<rules::CompleteRefused> {
        let call = |view: &View| rules::complete(view, token);
        self.caller.call(Verb::Complete, &[key], Some(token), call)
    }

    /// Gives a work item up.
    pub fn abandon(&self, key: Key, token: &Token) -> Answer<rules::AbandonRefused> {
        let call = |view: &View| rules::abandon(view, token);
        self.caller.call(Verb::Abandon, &[key], Some(token), call)
    }
}

impl Verbs<'_> {
    /// Claims a group and a work item under one token.
    pub fn claim_job(&self, asked: &ClaimRequest, item: &WorkClaim) -> Answer<rules::JobRefused> {
        let keys = job(&asked.group, Key::work(item.id()));
        let call = |view: &View| rules::claim_job(view, asked, item);
        self.caller.call(Verb::ClaimJob, &keys, None, call)
    }

    /// Has published, and gives the group up.
    pub fn complete_job(
        &self,
        held: &TargetGroup,
        item: Key,
        token: &Token,
    ) -> Answer<rules::JobCompleteRefused> {
        let call = |view: &View| {
            let whole = rules::complete_job(view, held, token)?;
            Ok(if self.wrong == Some(WrongRule::HalfAJob) { item_of(whole) } else { whole })
        };
        self.caller.call(Verb::CompleteJob, &job(held, item), Some(token), call)
    }

    /// Gives a group and its work item up.
    pub fn abandon_job(
        &self,
        held: &TargetGroup,
        item: Key,
        token: &Token,
    ) -> Answer<rules::JobAbandonRefused> {
        let call = |view: &View| rules::abandon_job(view, held, token);
        self.caller.call(Verb::AbandonJob, &job(held, item), Some(token), call)
    }
}

/// What a transition does to work items.
fn item_of(whole: Transition) -> Transition {
    match whole {
        Transition::Edits { mut edits, audit } => {
            edits.retain(|edit| edit.key.space == Space::Work);
            Transition::Edits { edits, audit }
        }
        other => other,
    }
}

/// The keys of a group and a work item, in order.
pub fn job(group: &TargetGroup, item: Key) -> Vec<Key> {
    let mut all = keys(group);
    all.push(item);
    all
}

fn unmoved(view: &View, asked: &ClaimRequest) -> ClaimRefused {
    match rules::claim(view, asked) {
        Err(refused) => refused,
        Ok(_) => unreachable!("free now, held later"),
    }
}

/// Claims only the members that are free.
fn partial_claim(view: &View, asked: &ClaimRequest) -> Transition {
    let free: Vec<_> = view
        .entries
        .iter()
        .filter(|(key, _)| {
            let target = asked.group.targets().find(|target| Key::target(*target) == *key);
            let alone = ClaimRequest {
                group: TargetGroup::new(target).expect("one target"),
                ..asked.clone()
            };
            let entries = view.entries.iter().filter(|(other, _)| other == key).cloned().collect();
            rules::claim(&View { entries, ..view.clone() }, &alone).is_ok()
        })
        .cloned()
        .collect();
    let targets = asked
        .group
        .targets()
        .filter(|target| free.iter().any(|(key, _)| *key == Key::target(*target)));
    let part =
        ClaimRequest { group: TargetGroup::new(targets).expect("some are free"), ..asked.clone() };
    rules::claim(&View { entries: free, ..view.clone() }, &part).expect("all of them are free")
}

fn single(record: &Record) -> TargetGroup {
    match record {
        Record::Target(record) => TargetGroup::new([record.target]).expect("one target"),
        Record::Work(_) => unreachable!("a heartbeat of targets"),
    }
}

fn one(view: &View, record: &Record) -> View {
    let group = single(record);
    let mine = keys(&group);
    let entries = view.entries.iter().filter(|(key, _)| mine.contains(key)).cloned().collect();
    View { entries, ..view.clone() }
}

/// How long a ttl lasts.
pub fn lasts(ttl: Ttl) -> std::time::Duration {
    ttl.duration()
}
