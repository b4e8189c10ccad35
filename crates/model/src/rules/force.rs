//! Force-release: an operator removes a lease by naming its token.

use super::holding::{LostMember, join};
use super::target::{Member, members};
use crate::group::TargetGroup;
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
    for (target, member) in members(view, group) {
        let edit = Edit { key: Key::target(target), to: None };
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
    let audit = audit_line(view, group, token, reason, owner.as_deref());
    Ok(Transition::Edits { edits, audit: Some(audit) })
}

fn audit_line(
    view: &View,
    group: &TargetGroup,
    token: &Token,
    reason: &str,
    owner: Option<&str>,
) -> Audit {
    let quoted = |text: &str| {
        let mut out = String::new();
        json::write_string(&mut out, text);
        out
    };
    let mut at = String::new();
    json::write_float(&mut at, view.moment.wall.seconds());
    let targets: Vec<String> = group.targets().map(|target| target.to_string()).collect();
    let fields = [
        ("at", at),
        ("event", quoted("force-release")),
        ("host", quoted(&view.writer.host)),
        ("owner", owner.map_or_else(|| "null".to_owned(), quoted)),
        ("pid", view.writer.pid.to_string()),
        ("reason", quoted(reason)),
        ("targets", format!("[{}]", targets.join(","))),
        ("token", quoted(token.as_str())),
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
}
