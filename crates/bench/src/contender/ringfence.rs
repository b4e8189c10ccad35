//! Ourselves, through the same crate that users import.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::ringfence::{
    Claim, ClaimError, Durability, FilesOptions, InitOptions, JournalOptions, Payload, Renewal,
    Store, TargetGroup, TargetTable, World,
};
use ringfence_files::FilesEngine;
use ringfence_files::batch::Barriers;
use ringfence_files::open::Tuning;

use super::lease::{OWNER, PAYLOAD, WORKER};
use super::{Claimed, Contender, Held, Keeper, Session};
use crate::{Result, during};

/// A table, opened.
pub(super) struct Ringfence {
    table: TargetTable,
    claim: Claim,
}

/// Makes the store with its default options.
pub(super) fn set_up(contender: Contender, place: &Path) -> Result<Keeper> {
    let store = place.join("store");
    if contender == Contender::Journal {
        let made = Store::init(&store, &InitOptions::from(JournalOptions::default()));
        made.map_err(during("make the store"))?;
    } else {
        let durability = match contender {
            Contender::FilesGroup => Durability::Group,
            _ => Durability::Record,
        };
        let options = FilesOptions { durability, ..FilesOptions::default() };
        Store::init(&store, &options.into()).map_err(during("make the store"))?;
    }
    Ok(Box::new(()))
}

impl Ringfence {
    pub(super) fn open(contender: Contender, place: &Path) -> Result<Self> {
        let path = place.join("store");
        let table = if contender == Contender::F325 {
            let world = World::system();
            let tuning = Tuning { sync_width: 1, barriers: Barriers::Batched };
            let engine =
                FilesEngine::open(&world, &path, tuning).map_err(during("open the store"))?;
            TargetTable::on(Arc::new(engine), world)
        } else {
            Store::open(&path).map_err(during("open the store"))?.targets()
        };
        let payload = Payload::parse(PAYLOAD).map_err(during("read the payload"))?;
        let claim = Claim::by(OWNER).map_err(during("name the owner"))?;
        Ok(Self { table, claim: claim.worker(WORKER).payload(payload) })
    }
}

impl Session for Ringfence {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let group = TargetGroup::from_numbers(targets.iter().copied())?;
        match self.table.claim(&group, &self.claim) {
            Ok(lease) => {
                let token = lease.token().clone();
                Ok(Claimed::Held(Held::Ours { group: Box::new(group), token }))
            }
            Err(ClaimError::Refused(_)) => Ok(Claimed::Busy),
            Err(error) if error.is_retryable() => Ok(Claimed::TimedOut),
            Err(error) => Err(during("claim")(error)),
        }
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let Held::Ours { group, token } = held else { return Err("no lease of ours".into()) };
        match self.table.release(group, token, None) {
            Ok(()) => Ok(true),
            Err(error) if error.is_retryable() => Ok(false),
            Err(error) => Err(during("release")(error)),
        }
    }

    fn claim_waiting(&mut self, targets: &[u64], longest: Duration) -> Result<Held> {
        let group = TargetGroup::from_numbers(targets.iter().copied())?;
        let lease = self.table.claim(&group, &self.claim.clone().wait(longest));
        let token = lease.map_err(during("claim"))?.token().clone();
        Ok(Held::Ours { group: Box::new(group), token })
    }

    fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let mut leases = Vec::with_capacity(held.len());
        for held in held {
            let Held::Ours { group, token } = held else { return Err("no lease of ours".into()) };
            leases.push((&**group, token));
        }
        let batch = self.table.heartbeat_many(&leases, None);
        match batch.renewals.iter().find(|renewal| !matches!(renewal, Renewal::Renewed(_))) {
            None => Ok(()),
            Some(other) => Err(format!("a heartbeat was not done: {other:?}").into()),
        }
    }

    fn held(&self, target: u64, token: &str) -> Result<Held> {
        let group = Box::new(TargetGroup::from_numbers([target])?);
        Ok(Held::Ours { group, token: token.parse().map_err(during("read a token"))? })
    }
}
