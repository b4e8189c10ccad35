//! Claim, heartbeat and release of a target group.

use std::fmt;
use std::sync::Arc;

use super::holding::{Conflict, DamagedMember, Holding, Lost, LostMember, join};
use crate::group::TargetGroup;
use crate::json::Object;
use crate::owner::Owner;
use crate::payload::Payload;
use crate::record::{Granted, History, Holder, LeaseBody, Record, TargetRecord};
use crate::target::Target;
use crate::time::Ttl;
use crate::token::Token;
use crate::view::{Alike, Edit, Entry, Grant, Key, Shown, Space, Transition, View};

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The whole group.
    pub group: TargetGroup,
    /// Who asks.
    pub owner: Owner,
    /// The caller's number for the worker that will run the job.
    pub worker: i64,
    /// The caller's object, stored with every member.
    pub payload: Payload,
    /// How long the lease lasts without a heartbeat.
    pub ttl: Ttl,
}

/// Grants the whole group, or says everything that is in the way.
pub fn claim(view: &View, request: &ClaimRequest) -> Result<Transition, ClaimRefused> {
    let mut refused = ClaimRefused { conflicts: Vec::new(), damaged: Vec::new() };
    let mut histories = Vec::with_capacity(request.group.len());
    for (key, target, entry) in members(view, &request.group) {
        match entry {
            Member::Vacant => histories.push((key, target, History::first())),
            Member::Damaged(damage) => refused.damaged.push(damage),
            Member::Present(old) if old.holder.is_expired(&view.moment, view.default_ttl) => {
                let next = old.history.taken_over(&old.holder.owner, request.owner.as_str());
                histories.push((key, target, next));
            }
            Member::Present(old) => {
                refused
                    .conflicts
                    .push(Conflict { target, holding: Holding::seen(&old.holder, view) });
            }
        }
    }
    if !(refused.conflicts.is_empty() && refused.damaged.is_empty()) {
        return Err(refused);
    }
    let group = Arc::new(LeaseBody {
        targets: request.group.targets().collect(),
        primary: Some(request.group.primary()),
    });
    let (updated, writer) = (view.moment.wall, Arc::clone(&view.writer));
    let (owner, worker) = (request.owner.to_shared(), request.worker);
    let (payload, ttl) = (request.payload.clone(), request.ttl);
    Ok(Transition::Grant(Grant::new(view.highest_fence(), move |token| {
        let grant = Granted { owner, worker, token: token.into(), ttl: Some(ttl), payload };
        let holder = Holder { grant: Arc::new(grant), updated, writer: Some(writer) };
        let grant = |(key, target, history)| Edit {
            key,
            to: Some(Record::Target(TargetRecord {
                target,
                group: Arc::clone(&group),
                holder: holder.clone(),
                history,
                extra: Object::new(),
            })),
        };
        histories.into_iter().map(grant).collect()
    })))
}

/// Renews every member under exactly `token`, with one common moment.
///
/// A group that has run out but that nobody took over may still be renewed.
pub fn heartbeat(view: &View, group: &TargetGroup, token: &Token) -> Result<Transition, Lost> {
    renew(view, group, token).map(Transition::Alike).ok_or_else(|| lost(view, group, token))
}

/// As much of [`heartbeat`] as it is enough for to know the holders: nothing if a member is not held under
/// exactly `token`, and why is to be seen in the records.
pub fn renew<E: Shown>(view: &View<E>, group: &TargetGroup, token: &Token) -> Option<Alike> {
    are_held_under(view, group, token).then(|| Alike::renewal(view))
}

/// Removes every member, all under exactly `token`; expiry does not matter.
///
/// The view must hold the group's keys and no others.
pub fn release(view: &View, group: &TargetGroup, token: &Token) -> Result<Transition, Lost> {
    give_back(view, group, token).map(Transition::Alike).ok_or_else(|| lost(view, group, token))
}

/// As much of [`release`] as it is enough for to know the holders, as [`renew`] is of [`heartbeat`].
pub fn give_back<E: Shown>(view: &View<E>, group: &TargetGroup, token: &Token) -> Option<Alike> {
    are_held_under(view, group, token).then_some(Alike::Removed)
}

/// [`release`] where the view shows something else as well.
pub(super) fn release_among_others(
    view: &View,
    group: &TargetGroup,
    token: &Token,
) -> Result<Transition, Lost> {
    if !are_held_under(view, group, token) {
        return Err(lost(view, group, token));
    }
    let remove = |(id, _)| Edit { key: Key { space: Space::Targets, id }, to: None };
    Ok(Transition::edits(group.members().map(remove).collect()))
}

/// Whether every member is held under exactly `token`.
fn are_held_under<E: Shown>(view: &View<E>, group: &TargetGroup, token: &Token) -> bool {
    shown(view, group)
        .all(|(.., entry)| entry.holder().is_some_and(|holder| holder.is_under(token)))
}

/// Everything that is in the way of a holder under `token`.
fn lost(view: &View, group: &TargetGroup, token: &Token) -> Lost {
    let mut lost = Vec::new();
    for (_, target, member) in members(view, group) {
        match member {
            Member::Present(record) if record.holder.is_under(token) => {}
            Member::Present(record) => lost.push(LostMember::OtherToken(Conflict {
                target,
                holding: Holding::seen(&record.holder, view),
            })),
            Member::Vacant => lost.push(LostMember::NotHeld(target)),
            Member::Damaged(member) => lost.push(LostMember::Damaged(member)),
        }
    }
    Lost { members: lost }
}

pub(super) enum Member<'v> {
    Vacant,
    Present(&'v TargetRecord),
    Damaged(DamagedMember),
}

/// What the view shows of the group's members; of targets the view must hold exactly the group's.
fn shown<'v, E>(
    view: &'v View<E>,
    group: &TargetGroup,
) -> impl Iterator<Item = (Key, Target, &'v E)> {
    // Targets come before work items.
    let end = view.entries.partition_point(|(key, _)| key.space == Space::Targets);
    let entries = view.entries.get(..end).unwrap_or_default();
    assert_eq!(entries.len(), group.len(), "a view of the group's own keys");
    group.members().zip(entries).map(|((id, target), (key, entry))| {
        assert_eq!(*key, Key { space: Space::Targets, id }, "entries in id order");
        (*key, target, entry)
    })
}

/// The group's members as the view shows them.
pub(super) fn members<'v>(
    view: &'v View,
    group: &TargetGroup,
) -> impl Iterator<Item = (Key, Target, Member<'v>)> {
    shown(view, group).map(|(key, target, entry)| {
        let member = match entry {
            Entry::Vacant => Member::Vacant,
            Entry::Present(Record::Target(record)) => Member::Present(record),
            Entry::Present(Record::Work(_)) => unreachable!("a work record in the target table"),
            Entry::Damaged(damage) => {
                Member::Damaged(DamagedMember { target, damage: damage.clone() })
            }
        };
        (key, target, member)
    })
}

/// Somebody holds part of the group; nothing was written.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRefused {
    /// Members under a live lease.
    pub conflicts: Vec<Conflict>,
    /// Members whose record is damaged: held until an operator force-releases them.
    pub damaged: Vec<DamagedMember>,
}

impl std::error::Error for ClaimRefused {}

impl fmt::Display for ClaimRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.conflicts.is_empty() {
            write!(f, "busy: {}", join(&self.conflicts))?;
        }
        if !self.damaged.is_empty() {
            let lost: Vec<_> = self.damaged.iter().cloned().map(LostMember::Damaged).collect();
            let gap = if self.conflicts.is_empty() { "" } else { "; " };
            write!(f, "{gap}held: {}", join(&lost))?;
        }
        Ok(())
    }
}
