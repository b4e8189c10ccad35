//! The same calls made by the binary: one process for each.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Answer, Args, Grant, Session, Wrong, soak};
use crate::marks::Verb;
use crate::table;

/// Every verb of the binary on groups of one to four, with a lease that runs out.
pub(super) fn run(session: &mut Session, args: &Args) -> Result<(), String> {
    let [a, b, c] = [0, 1, 2].map(|shard| table::targets_in(shard, 4));
    let mut calls = Commands { session, args };
    for group in [vec![a[0]], vec![a[1], a[2]], vec![a[0], b[0], c[0], c[1]]] {
        let first = calls.claim(&group, "1h")?.ok_or("a free group was refused")?;
        calls.heartbeat(&first)?;
        calls.release(&first)?;
        calls.claim(&group, "20ms")?.ok_or("a released group was refused")?;
        calls.session.pause(60);
        let taken = calls.claim(&group, "1h")?.ok_or("an expired group was refused")?;
        calls.force_release(&taken)?;
    }
    Ok(())
}

/// Random calls of the binary until it fails or is killed.
pub(super) fn soak(session: &mut Session, args: &Args) -> Result<(), String> {
    let mut rng = soak::rng(args);
    let mut calls = Commands { session, args };
    let mut grants: Vec<Grant> = Vec::new();
    while !calls.session.failed {
        match rng.below(100) {
            0..=44 => {
                let items = soak::group(&mut rng);
                let ttl = if rng.below(2) == 0 { "30ms" } else { "3s" };
                grants.extend(calls.claim(&items, ttl)?);
                soak::forget(&mut grants, &mut rng);
            }
            45..=64 if !grants.is_empty() => {
                let grant = grants[rng.index(grants.len())].clone();
                calls.heartbeat(&grant)?;
            }
            65..=89 if !grants.is_empty() => {
                let grant = grants.swap_remove(rng.index(grants.len()));
                calls.release(&grant)?;
            }
            _ => {
                if let Some(seen) = soak::another(calls.session, &mut rng)? {
                    calls.force_release(&seen)?;
                }
            }
        }
    }
    Ok(())
}

struct Commands<'s> {
    session: &'s mut Session,
    args: &'s Args,
}

impl Commands<'_> {
    fn claim(&mut self, items: &[u64], ttl: &str) -> Result<Option<Grant>, String> {
        let call = self.session.begin(Verb::Claim, items, None, None);
        self.session.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done =
            self.ask("claim", items, &["--owner", &format!("op-{}", call.id), "--ttl", ttl])?;
        let token = done.as_ref().ok().and_then(|answer| answer["token"].as_str());
        let token = token.and_then(|token| ringfence::Token::new(token).ok());
        let done = done.map(|answer| Answer { fence: answer["fence"].as_u64(), updated: None });
        self.session.end(call.id, done)?;
        Ok(token.map(|token| Grant { of: call.id, items: items.to_vec(), token }))
    }

    fn heartbeat(&mut self, grant: &Grant) -> Result<(), String> {
        let now = self.session.now()?;
        let call = self.session.begin(Verb::Heartbeat, &grant.items, Some(grant.of), Some(now));
        self.session.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let now = format!("{:?}", now.seconds());
        let flags = ["--token", grant.token.as_str(), "--now", &now];
        let done = self.ask("heartbeat", &grant.items, &flags)?;
        self.session.end(call.id, done.map(|_| Answer::plain())).map(|_| ())
    }

    fn release(&mut self, grant: &Grant) -> Result<(), String> {
        let call = self.session.begin(Verb::Release, &grant.items, Some(grant.of), None);
        self.session.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let done = self.ask("release", &grant.items, &["--token", grant.token.as_str()])?;
        self.session.end(call.id, done.map(|_| Answer::plain())).map(|_| ())
    }

    fn force_release(&mut self, grant: &Grant) -> Result<(), String> {
        let mut call = self.session.begin(Verb::ForceRelease, &grant.items, Some(grant.of), None);
        call.fence = grant.token.fence().map(|fence| fence.0);
        self.session.marks.begin(std::slice::from_ref(&call)).map_err(table::chain)?;
        let reason = format!("{}{}", table::REASON, call.id);
        let flags = ["--token", grant.token.as_str(), "--reason", &reason];
        let done = self.ask("force-release", &grant.items, &flags)?;
        self.session.end(call.id, done.map(|_| Answer::plain())).map(|_| ())
    }

    /// One run of the binary; a refusal is an answer too.
    fn ask(
        &self,
        verb: &str,
        items: &[u64],
        flags: &[&str],
    ) -> Result<Result<Value, Wrong>, String> {
        let binary = self.args.binary.as_ref().ok_or("no binary")?;
        let items: Vec<String> = items.iter().map(u64::to_string).collect();
        let done = Command::new(binary)
            .arg(verb)
            .arg(&self.args.store)
            .args(["--json", "--targets", &items.join(",")])
            .args(flags)
            .stdin(Stdio::null())
            .output()
            .map_err(table::chain)?;
        let answer: Value = serde_json::from_slice(&done.stdout)
            .map_err(|error| format!("{verb} ended with {}: {error}", done.status))?;
        Ok(match done.status.code() {
            Some(0) => Ok(answer),
            Some(75 | 79 | 80) => {
                Err(Wrong { unknown: false, failed: false, error: answer.to_string() })
            }
            _ => {
                let unknown = answer["restored"] != Value::Bool(true);
                Err(Wrong { unknown, failed: true, error: answer.to_string() })
            }
        })
    }
}
