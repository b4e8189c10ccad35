//! Random calls on overlapping groups until the process is killed.

use ringfence::Token;

use super::{Args, Grant, Session, targets};
use crate::marks::WORK;
use crate::rng::Rng;
use crate::table;

/// Grants that a process keeps at most: what is in flight at once must stay few enough to judge.
const KEPT: usize = 3;

/// The choices of one process.
pub(super) fn rng(args: &Args) -> Rng {
    Rng::new(args.seed.wrapping_mul(1_000_003).wrapping_add(args.process))
}

/// A group of 1 to 8 of the table's twelve targets.
pub(super) fn group(rng: &mut Rng) -> Vec<u64> {
    let mut pool = targets();
    // Small ones more often: those of eight exclude nearly everything.
    let most = if rng.below(4) == 0 { 8 } else { 3 };
    (0..=rng.below(most)).map(|_| pool.swap_remove(rng.index(pool.len()))).collect()
}

/// Lets go of a grant if there are too many, as a program does that was overtaken by others.
pub(super) fn forget(grants: &mut Vec<Grant>, rng: &mut Rng) {
    if grants.len() > KEPT {
        grants.swap_remove(rng.index(grants.len()));
    }
}

/// Any grant that is in the table.
pub(super) fn another(session: &Session, rng: &mut Rng) -> Result<Option<Grant>, String> {
    let seen = table::look(&session.opened).unwrap_or_default();
    let leases: Vec<_> = seen.into_iter().filter(|(item, _)| *item < WORK).collect();
    if leases.is_empty() {
        return Ok(None);
    }
    let (_, seen) = &leases[rng.index(leases.len())];
    let token = Token::new(&seen.token).map_err(table::chain)?;
    // What others took over of the group is not under its token any more.
    let under = leases.iter().filter(|(_, other)| other.token == seen.token);
    Ok(Some(Grant { of: seen.of, items: under.map(|(item, _)| *item).collect(), token }))
}

/// Calls of the library until one fails.
pub(super) fn calls(session: &mut Session, args: &Args) -> Result<(), String> {
    let mut rng = rng(args);
    let mut grants: Vec<Grant> = Vec::new();
    let mut item = args.process * 1_000;
    while !session.failed {
        let choice = rng.below(100);
        match choice {
            0..=39 => {
                let items = group(&mut rng);
                // Some run out while others wait for them, some after one or more boots.
                let ttl = [0.02, 0.02, 0.3, 3.0][rng.index(4)];
                grants.extend(session.claim(&items, ttl)?);
                forget(&mut grants, &mut rng);
            }
            40..=54 if !grants.is_empty() => {
                let grant = grants[rng.index(grants.len())].clone();
                session.heartbeat(&grant)?;
            }
            55..=64 if grants.len() > 1 => session.heartbeat_many(&grants.clone())?,
            65..=82 if !grants.is_empty() => {
                let grant = grants.swap_remove(rng.index(grants.len()));
                session.release(&grant)?;
            }
            83..=91 => {
                if let Some(seen) = another(session, &mut rng)? {
                    session.force_release(&seen)?;
                }
            }
            92..=95 => {
                item += 1;
                session.work(item, choice.is_multiple_of(2))?;
            }
            _ => session.pause(3),
        }
    }
    Ok(())
}
