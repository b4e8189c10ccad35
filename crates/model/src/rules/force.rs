//! Force-release: an operator removes a lease by naming its token.

use super::holding::{LostMember, join};
use super::target::{Member, members};
use super::work::{self, WorkStale};
use crate::group::TargetGroup;
use crate::id::RecordId;
use crate::json;
use crate::rules::{Conflict, Holding};
use crate::token::Token;
use crate::view::{Audit, Edit, Key, Transition, View};

/// Removes every member whose token is exactly `token`, whoever holds it, and leaves an audit line.
///
/// For a damaged record the token is the digest of its bytes, as `show` and `check` print it, so an
/// operator removes only what was looked at. The reason must not be blank.
pub fn force_release(
    view: &View,
    group: &TargetGroup,
    token: &Token,
    reason: &str,
) -> Result<Transition, ForceRefused> {
    if reason.trim().is_empty() {
        return Err(ForceRefused::NoReason);
    }
    let mut edits = Vec::with_capacity(group.len());
    let mut vacant = 0;
    let mut wrong = Vec::new();
    let mut owner = None;
    for (key, target, member) in members(view, group) {
        let edit = Edit { key, to: None };
        match member {
            Member::Vacant => {
                vacant += 1;
                wrong.push(LostMember::NotHeld(target));
            }
            Member::Present(record) if record.holder.token == *token => {
                owner.get_or_insert_with(|| record.holder.owner.to_string());
                edits.push(edit);
            }
            Member::Present(record) => wrong.push(LostMember::OtherToken(Conflict {
                target,
                holding: Holding::seen(&record.holder, view),
            })),
            Member::Damaged(member) if member.damage.digest == *token => edits.push(edit),
            Member::Damaged(member) => wrong.push(LostMember::Damaged(member)),
        }
    }
    if vacant == group.len() {
        return Err(ForceRefused::NotHeld);
    }
    if !wrong.is_empty() {
        return Err(ForceRefused::Mismatch(wrong));
    }
    let targets: Vec<String> = group.targets().map(|target| target.to_string()).collect();
    let subject = ("targets", format!("[{}]", targets.join(",")));
    let audit = audit_line(view, subject, token, reason, owner.as_deref());
    Ok(Transition::Edits { edits, audit: Some(audit) })
}

/// Removes a work item's record whose token is exactly `token`, whatever its state, and leaves an
/// audit line; for a damaged record the token is the digest of its bytes.
///
/// Removing a committing item gives its publication up: objects that were published stay.
pub fn force_release_work(
    view: &View,
    id: RecordId,
    token: &Token,
    reason: &str,
) -> Result<Transition, ForceRefused> {
    if reason.trim().is_empty() {
        return Err(ForceRefused::NoReason);
    }
    let owner = match work::under(view, token) {
        Ok(record) => Some(record.holder.owner.to_string()),
        Err(WorkStale::Damaged(damage)) if damage.digest == *token => None,
        Err(WorkStale::NotHeld) => return Err(ForceRefused::NotHeld),
        Err(stale) => return Err(ForceRefused::WorkMismatch(stale)),
    };
    let subject = ("work", json::quoted(&id.to_string()));
    let audit = audit_line(view, subject, token, reason, owner.as_deref());
    let edits = vec![Edit { key: Key::work(id), to: None }];
    Ok(Transition::Edits { edits, audit: Some(audit) })
}

fn audit_line(
    view: &View,
    subject: (&'static str, String),
    token: &Token,
    reason: &str,
    owner: Option<&str>,
) -> Audit {
    let fields = [
        ("at", json::float(view.moment.wall.seconds())),
        ("event", json::quoted("force-release")),
        ("host", json::quoted(&view.writer.host)),
        ("owner", owner.map_or_else(|| "null".to_owned(), json::quoted)),
        ("pid", view.writer.pid.to_string()),
        ("reason", json::quoted(reason)),
        subject,
        ("token", json::quoted(token.as_str())),
    ];
    Audit(json::object_line(&fields.into_iter().collect()).trim_end().to_owned())
}

/// Why an operator's release was refused; nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForceRefused {
    /// The reason is blank; the audit line would say nothing.
    #[error("a reason is needed: it is kept in the audit log")]
    NoReason,
    /// No member is held at all.
    #[error("not held: there is nothing to release")]
    NotHeld,
    /// Some member is not under the token that was given.
    #[error("the token does not match: {}", join(.0))]
    Mismatch(Vec<LostMember>),
    /// The work item is not under the token that was given.
    #[error("the token does not match: {0}")]
    WorkMismatch(WorkStale),
}
