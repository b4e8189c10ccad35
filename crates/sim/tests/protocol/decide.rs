//! What a coordinator decides under its locks, and what its answer promises.

use crate::state::{Op, Pc, Promise, RELEASED, State, TOOK_OVER, Val, token};
use crate::variant::{Protocol, Variant};

impl Protocol {
    pub(crate) fn decide(&self, s: &mut State, c: usize) {
        let me = s.procs[c].clone();
        let seen: Vec<Val> = me.group.iter().map(|at| *s.records[*at].now()).collect();
        let mine = |val: &Val| token(*val).is_some() && token(*val) == me.held.map(|held| held.0);
        let wrote: Option<Vec<Val>> = match me.op {
            // It cannot be written down, so nothing of it is.
            Op::Overlong(_) if self.variant != Variant::SerialiseLate => None,
            Op::Claim(_) | Op::Overlong(_) => {
                let early = self.variant == Variant::ExpiredEarly;
                let free = |val: &Val| match val {
                    Val::Vacant => true,
                    Val::Held { token, .. } => early || s.expired >> token & 1 == 1,
                    Val::Torn => false,
                };
                let grant = Val::Held { token: s.next, beat: 0 };
                seen.iter().all(free).then(|| vec![grant; seen.len()])
            }
            Op::Heartbeat => {
                let renew = |val: &Val| match val {
                    Val::Held { token, beat } => Val::Held { token: *token, beat: beat + 1 },
                    other => *other,
                };
                seen.iter().all(mine).then(|| seen.iter().map(renew).collect())
            }
            Op::Release if self.variant == Variant::ReleaseUnvalidated => {
                // Removes what matches, and looks at the rest afterwards.
                for (at, val) in me.group.iter().zip(&seen) {
                    if mine(val) && !seen.iter().all(mine) {
                        s.records[*at].put(Val::Vacant);
                        s.say(Promise::M2);
                    }
                }
                seen.iter().all(mine).then(|| vec![Val::Vacant; seen.len()])
            }
            Op::Release => seen.iter().all(mine).then(|| vec![Val::Vacant; seen.len()]),
        };
        let Some(wrote) = wrote else {
            // What was seen is explained; it need not be durable yet, for nobody promised it.
            let fits =
                |state: &[Val; 3]| me.group.iter().zip(&seen).all(|(at, val)| state[*at] == *val);
            if !s.allowed.iter().any(fits) {
                s.say(Promise::Explained);
            }
            if !matches!(me.op, Op::Claim(_) | Op::Overlong(_)) {
                s.procs[c].held = None;
            }
            s.rest(c);
            return;
        };
        if matches!(me.op, Op::Claim(_)) {
            if seen.iter().any(|val| token(*val) >= Some(s.next)) {
                s.say(Promise::FencesRise);
            }
            s.next += u8::from(self.variant != Variant::FencesReused);
        }
        if let (Op::Heartbeat, Some((token, _))) = (me.op, me.held) {
            // The moment that is written is that of the decision.
            s.expired &= !(1 << token);
        }
        s.procs[c].seen = seen;
        s.procs[c].wrote = wrote;
        let intent = self.needs_intent(&me);
        s.procs[c].pc = if intent { Pc::WriteIntent } else { Pc::Rename(0) };
    }

    pub(crate) fn acknowledge(s: &mut State, c: usize) {
        let me = s.procs[c].clone();
        if !me.group.iter().all(|at| s.records[*at].pending.is_empty()) {
            s.say(Promise::M6);
        }
        if me.syncs.iter().any(|syncs| *syncs > 1) {
            s.say(Promise::M5);
        }
        let was = std::mem::take(&mut s.allowed);
        for state in was {
            s.allow(&me, state);
        }
        if s.allowed.is_empty() {
            s.say(Promise::Explained);
        }
        let took = me.seen.iter().any(|val| *val != Val::Vacant);
        match (me.op, me.wrote.first().copied().and_then(token)) {
            (Op::Claim(group), Some(token)) => {
                s.happened |= if took { TOOK_OVER } else { 0 };
                if s.expired >> token & 1 == 0 {
                    s.live.push((token, me.group.clone()));
                }
                s.procs[c].held = Some((token, group));
            }
            (Op::Heartbeat, Some(token)) => {
                let known = s.live.iter().any(|(live, _)| *live == token);
                if !known && s.expired >> token & 1 == 0 {
                    s.live.push((token, me.group.clone()));
                }
            }
            _ => {
                s.happened |= RELEASED;
                let gone = me.held.map(|held| held.0);
                s.live.retain(|(token, _)| Some(*token) != gone);
                s.procs[c].held = None;
            }
        }
        s.live.sort_unstable();
        s.rest(c);
    }
}
