//! What a reader sees of a group whose intent stands: the decided state, whole.
//!
//! The intents are read *before* the records. What is then seen of a record is its state at the moment
//! that the intents were read, or a later one. The other way round an intent could be retired between
//! the two, and a reader that had been shown its new state would be shown the old one again.

use ringfence_engine::StorageError;
use ringfence_env::World;
use ringfence_model::Key;

use super::codec::{Image, Standing};
use super::recover::{gives_way, same};
use super::slot::{StandingIntent, standing_intents};
use crate::layout::Layout;
use crate::read::{self, Stored};

/// The intents that stood before the records were read.
#[must_use = "records alone may show part of a group"]
#[derive(Debug)]
pub(crate) struct Overlay<'a> {
    layout: &'a Layout,
    standing: Vec<StandingIntent>,
}

impl<'a> Overlay<'a> {
    /// Reads every intent that may cover one of `keys` (all, if `None`).
    pub(crate) fn read(
        world: &World,
        layout: &'a Layout,
        keys: Option<&[Key]>,
    ) -> Result<Self, StorageError> {
        Ok(Self { layout, standing: standing_intents(world, layout, keys)? })
    }

    /// Replaces what the records show by what the intents decided. Writes nothing.
    ///
    /// `change` is called for each member that an intent covers; a reader that does not look at that
    /// record ignores the call.
    pub(crate) fn apply(
        &self,
        mut change: impl FnMut(Key, &mut dyn FnMut(&Stored) -> Option<Stored>),
    ) {
        for found in &self.standing {
            for member in &found.intent.members {
                let (decided, other) = match found.standing {
                    Standing::Committed => (&member.after, &member.before),
                    Standing::Aborting => (&member.before, &member.after),
                    Standing::Retired => break,
                };
                let path = self.layout.record(member.key).record;
                let issued = found.intent.issued;
                change(member.key, &mut |now| {
                    if same(&now.before, decided) || !gives_way(now, member, other, issued) {
                        return None;
                    }
                    match decided {
                        Image::Absent => Some(Stored::absent()),
                        Image::Bytes(bytes) => Some(read::parsed(member.key, &path, bytes.clone())),
                        Image::Opaque(_) => None,
                    }
                });
            }
        }
    }
}
