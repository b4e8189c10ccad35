//! Refusals in words, and as complaints.
//!
//! Every refusal names what is in the way: targets, owner, worker, host, process, fence, time left,
//! and the token, which is what `force-release` needs.

use std::fmt::Write as _;
use std::time::Duration;

use ringfence::model::rules::DamagedMember;
use ringfence::{ClaimError, ClaimRefused, Conflict, LostMember, TargetGroup};

use crate::answer::{CorruptRecord, Held, Missed};
use crate::exit::Exit;
use crate::output::Complaint;

/// A claim that was refused.
pub(crate) fn claim(group: &TargetGroup, refused: &ClaimRefused) -> Complaint {
    claim_after(None, group, refused)
}

/// A claim that others came before.
pub(crate) fn queued(error: &ClaimError) -> Complaint {
    Complaint::new(Exit::BUSY, "busy", error).with("conflicts", Vec::<Held>::new())
}

/// A claim that was refused at once, or at the end of a wait.
pub(crate) fn claim_after(
    waited: Option<Duration>,
    group: &TargetGroup,
    refused: &ClaimRefused,
) -> Complaint {
    let ClaimRefused { conflicts, damaged } = refused;
    let held = conflicts.iter().map(Held::by).collect::<Vec<_>>();
    if damaged.is_empty() {
        let mut text = format!("busy: {} of {} targets are held", conflicts.len(), group.len());
        if let Some(waited) = waited {
            let _ = write!(text, " (waited {waited:?})");
        }
        text.push_str(&holders(conflicts));
        return Complaint::new(Exit::BUSY, "busy", text).with("conflicts", held);
    }
    let mut text = format!(
        "corrupt: {} of {} targets have damaged records, which count as held; waiting does not help",
        damaged.len(),
        group.len()
    );
    text.push_str(&damages(damaged));
    text.push_str(&holders(conflicts));
    let records: Vec<_> = damaged.iter().map(CorruptRecord::of).collect();
    Complaint::new(Exit::DAMAGED, "corrupt", text).with("records", records).with("conflicts", held)
}

/// A token that does not hold the whole group. `verb` says what was refused.
pub(crate) fn lost(verb: &str, group: &TargetGroup, members: &[LostMember]) -> Complaint {
    let mut text = format!(
        "lost: {verb} was refused and nothing was changed: the token does not hold {} of {} targets",
        members.len(),
        group.len()
    );
    let free: Vec<u64> = members
        .iter()
        .filter_map(|member| match member {
            LostMember::NotHeld(target) => Some(target.get()),
            _ => None,
        })
        .collect();
    if !free.is_empty() {
        let _ = write!(text, "\n  {}: not held", some(&free));
    }
    let mut conflicts = Vec::new();
    let mut damaged = Vec::new();
    for member in members {
        match member {
            LostMember::OtherToken(conflict) => conflicts.push(conflict.clone()),
            LostMember::Damaged(member) => damaged.push(member.clone()),
            _ => {}
        }
    }
    text.push_str(&holders(&conflicts));
    text.push_str(&damages(&damaged));
    let members: Vec<_> = members.iter().filter_map(Missed::of).collect();
    Complaint::new(Exit::LOST, "lost", text).with("members", members)
}

/// One line per holder, with the targets it holds.
pub(crate) fn holders(conflicts: &[Conflict]) -> String {
    let mut seen: Vec<(&Conflict, Vec<u64>)> = Vec::new();
    for conflict in conflicts {
        let target = conflict.target.get();
        match seen.iter_mut().find(|(first, _)| first.holding.token == conflict.holding.token) {
            Some((_, targets)) => targets.push(target),
            None => seen.push((conflict, vec![target])),
        }
    }
    let mut text = String::new();
    for (Conflict { holding, .. }, mut targets) in seen {
        targets.sort_unstable();
        let _ = write!(text, "\n  {}: {holding}, token {}", some(&targets), holding.token);
    }
    text
}

fn damages(members: &[DamagedMember]) -> String {
    let mut text = String::new();
    for member in members {
        let damage = &member.damage;
        let _ = write!(
            text,
            "\n  target {}: {}: {}, token {}",
            member.target, damage.location, damage.reason, damage.digest
        );
    }
    text
}

/// `target 7`, `targets 7,8,9`, all of them: an operator needs each.
fn some(targets: &[u64]) -> String {
    let word = if targets.len() == 1 { "target" } else { "targets" };
    let list: Vec<String> = targets.iter().map(ToString::to_string).collect();
    format!("{word} {}", list.join(","))
}
